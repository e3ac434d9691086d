"""Reads the declarations of a PE's parts (`common.engine_declaration`) from the classes that the description names.

A class is loaded by name when its declaration is needed: `topology` imports no component. The parts of the shipped
machine need no declaration here, so loading that machine loads no class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernbench.common.engine_declaration import SELF, EngineDeclaration, Wire
from kernbench.common.errors import ComponentError
from kernbench.common.impls import BUILTIN, imported
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.spec_base import ComponentSpec
from kernbench.topology.spec_cube import PE_PARTS_KEY, PeComponents

BUILTIN_PREFIX = "builtin."
STANDARD_PARTS: tuple[str, ...] = tuple(PeComponents.model_fields)

_NAME = re.compile(r"pe_[a-z0-9_]{1,40}")


def class_declaration(impl: str) -> tuple[EngineDeclaration | None, bool]:
    """What the class of an impl declares, and whether it does so itself rather than by inheritance.

    Raises ComponentError for an impl that cannot be loaded, or whose `declaration` is not an EngineDeclaration.
    """
    found = imported(impl)
    declared = getattr(found, "declaration", None)
    if declared is not None and not isinstance(declared, EngineDeclaration):
        raise ComponentError(
            f"`declaration` of {impl} is a {type(declared).__name__}",
            hint="make it a kernbench.common.engine_declaration.EngineDeclaration",
        )
    return declared, "declaration" in vars(found) if isinstance(found, type) else False


def declaration_of(name: str, impl: str) -> EngineDeclaration:
    """The declaration of a part's class, else of the builtin of the same name, else an empty one.

    Raises ComponentError for an impl that cannot be loaded.
    """
    for each in (impl, BUILTIN_PREFIX + name):
        if each == impl or each in BUILTIN:
            declared, _ = class_declaration(each)
            if declared is not None:
                return declared
    return EngineDeclaration()


def wires_of(components: PeComponents) -> list[Wire]:
    """The wires of the additional parts of a checked description, with part names in place of `SELF`."""
    return [
        Wire(name if wire.src == SELF else wire.src, name if wire.dst == SELF else wire.dst, wire.carries)
        for name, part in components.further.items()
        for wire in declaration_of(name, part.impl).wires
    ]


def declared_ops(components: PeComponents) -> dict[str, str]:
    """Which part serves a math op, for ops that a part declares."""
    return {op: name for name, declared in _declaring(components) for op in declared.ops}


def _declaring(components: PeComponents) -> Iterator[tuple[str, EngineDeclaration]]:
    """Parts that may declare ops; the standard parts with builtin classes declare none."""
    for name, part in components.parts.items():
        if name not in STANDARD_PARTS or not part.impl.startswith(BUILTIN_PREFIX):
            try:
                declared, _ = class_declaration(part.impl)
            except ComponentError:  # reported by `check_part`, or when the class is loaded
                continue
            if declared is not None:
                yield name, declared


# ---- faults


def is_part_name(name: str) -> bool:
    """Whether a part of a PE may have that name."""
    return name in STANDARD_PARTS or _NAME.fullmatch(name) is not None


def check_part(name: str, part: ComponentSpec, components: PeComponents) -> Iterator[UnplacedFault]:
    """The faults in the declaration of the class of a PE's part."""
    key = f"{PE_PARTS_KEY}.{name}"
    if name in STANDARD_PARTS and part.impl.startswith(BUILTIN_PREFIX):
        return
    try:
        imported(part.impl)
    except ComponentError as error:
        if name not in STANDARD_PARTS:  # standard parts have fixed wires; their classes are loaded later
            yield UnplacedFault(f"{key}.impl", error.what, error.hint or "")
        return
    try:
        declared, _ = class_declaration(part.impl)
    except ComponentError as error:
        yield UnplacedFault(f"{key}.impl", error.what, error.hint or "")
        return
    if name not in STANDARD_PARTS:
        yield from _check_wires(key, name, part, declared, components)


def _check_wires(
    key: str, name: str, part: ComponentSpec, declared: EngineDeclaration | None, components: PeComponents
) -> Iterator[UnplacedFault]:
    if declared is None or not declared.wires:
        hint = "give its class a `declaration` with `wires`; see docs/guides/custom-component.md"
        yield UnplacedFault(f"{key}.impl", f"{part.impl} declares no wires, so nothing joins {name} to its PE", hint)
        return
    for wire in declared.wires:
        others = [end for end in (wire.src, wire.dst) if end != SELF]
        if len(others) != 1 or others[0] == name:
            what = f"{part.impl} declares a wire from '{wire.src}' to '{wire.dst}'"
            yield UnplacedFault(f"{key}.impl", what, "make one of its ends SELF")
        elif others[0] not in components.parts:
            what = f"{part.impl} declares a wire to '{others[0]}', which the PE does not have"
            yield UnplacedFault(f"{key}.impl", what, f"the parts are {', '.join(components.parts)}")


def check_ops(components: PeComponents) -> Iterator[UnplacedFault]:
    """Ops that two parts serve."""
    servers: dict[str, str] = {}
    for name, declared in _declaring(components):
        for op in declared.ops:
            other = servers.setdefault(op, name)
            if other != name:
                hint = "let one of their classes leave it out of `ops`"
                uses = (f"{PE_PARTS_KEY}.{other}.impl",)
                yield UnplacedFault(
                    f"{PE_PARTS_KEY}.{name}.impl", f"{name} and {other} both serve the op '{op}'", hint, uses
                )
