"""What a component's `impl` may be and its `attrs` may hold: the parameters of each kind, typed and bounded.

The parameters of a PE's parts are in the declarations of their classes (`declarations.py`), those of other kinds are
here. A builtin, and a class with a declaration of its own, has exactly the attrs that are listed, so that a misspelt
name is a fault and not a silent default. Any other user component (`impl: module:Class`) may have further attrs, any
single values; they reach the class unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from kernbench.common.engine_declaration import TIME_NS, Attribute
from kernbench.common.errors import ComponentError
from kernbench.common.impls import BUILTIN
from kernbench.topology.declarations import BUILTIN_PREFIX, NINE, class_declaration
from kernbench.topology.layers import shipped
from kernbench.topology.readers import (
    Scalar,
    closest,
    read_number,
    read_power_of_two,
    read_scalar,
    read_whole,
)
from kernbench.topology.record import Wrong
from kernbench.topology.spec import MachineSpec

_OF_KIND: Mapping[str, Mapping[str, Attribute]] = MappingProxyType(
    {
        "hbm_ctrl": {
            "burst_bytes": Attribute.power_of_two(16, 65536),
            "switch_penalty_ns": TIME_NS,
            "efficiency": Attribute(0.001, 1.0),
        },
    }
)

# What any block may be modelled by: a pipeline stage, under the names of what it stands for.
TRANSIT_IMPLS: tuple[str, ...] = ("builtin.forwarding", "builtin.switch", "builtin.noc", "builtin.ucie")


def impl_fault(kind: str, impl: str) -> Wrong | None:
    """What is wrong with a builtin that does not model this kind of block; a user component is looked at later."""
    own = (BUILTIN_PREFIX + kind,) if BUILTIN_PREFIX + kind in BUILTIN else ()
    known = tuple(dict.fromkeys((*own, *TRANSIT_IMPLS)))
    if not impl.startswith(BUILTIN_PREFIX) or impl in known:
        return None
    what = f"no builtin '{impl[:60]}' models a {kind}{closest(impl, known)}"
    return Wrong(what, f"use one of {', '.join(known)}, or `package.module:Class` for a class of your own")


def read_attrs(kind: str, impl: str, attrs: Mapping[str, object], wrong: list[tuple[str, Wrong]]) -> dict[str, Scalar]:
    """The checked attrs of a component; every fault is added to `wrong` with the attr's name.

    A null attr of a user component is left out: that is how a file drops one that its base has.
    """
    as_shipped = _shipped_attrs().get((kind, impl))
    if as_shipped is not None and _same(attrs, as_shipped):
        return dict(as_shipped)
    known, is_closed = known_attrs(kind, impl)
    checked: dict[str, Scalar] = {}
    for name, attribute in known.items():
        if name in attrs:
            continue
        if attribute.default is None:
            wrong.append((name, Wrong(f"a {kind} needs the attr '{name}'", "add it")))
        else:
            checked[name] = _read(attribute, attribute.default)
    for name, value in attrs.items():
        expected = known.get(name)
        if expected is None and is_closed:
            what = f"unknown attr '{name[:60]}' of a {kind}{closest(name, known)}"
            wrong.append((name, Wrong(what, f"known here: {', '.join(known)}")))
        elif expected is not None or value is not None:
            try:
                checked[name] = read_scalar(value) if expected is None else _read(expected, value)
            except Wrong as fault:
                wrong.append((name, fault))
    return checked


def known_attrs(kind: str, impl: str) -> tuple[dict[str, Attribute], bool]:
    """The attrs of a kind and of the class that models it, and whether it may have no others."""
    if not kind.startswith("pe_"):
        return {"overhead_ns": TIME_NS, **_OF_KIND.get(kind, {})}, impl.startswith(BUILTIN_PREFIX)
    known = {"overhead_ns": TIME_NS if kind in NINE else replace(TIME_NS, default=0.0)}
    is_closed = impl.startswith(BUILTIN_PREFIX)
    for each in (BUILTIN_PREFIX + kind, impl):
        if each in BUILTIN or each == impl:
            try:
                declared, is_own = class_declaration(each)
            except ComponentError:  # a class that is not there, or a wrong declaration, is a fault of its own
                continue
            known.update(declared.attrs if declared else {})
            is_closed |= is_own and each == impl
    return known, is_closed


def _read(attribute: Attribute, value: object) -> Scalar:
    if attribute.form == "number":
        return read_number(value, attribute.low, attribute.high)
    read = read_whole if attribute.form == "whole" else read_power_of_two
    return read(value, int(attribute.low), int(attribute.high))


@cache
def _shipped_attrs() -> dict[tuple[str, str], Mapping[str, Scalar]]:
    """The attrs of the shipped machine's PE parts, by kind and impl. A test has checked them, so no class is loaded."""
    parts = MachineSpec.model_validate(shipped().plain()).cube.pe_template.components.parts
    return {
        (name, part.impl): {key: value for key, value in part.attrs.items() if value is not None}
        for name, part in parts.items()
    }


def _same(attrs: Mapping[str, object], others: Mapping[str, Scalar]) -> bool:
    """Whether they are equal in type as well: true is no 1 here."""
    return attrs == others and all(type(attrs[name]) is type(value) for name, value in others.items())
