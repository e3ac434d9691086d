"""The allowed `impl` and `attrs` of a component: the parameters of each kind, with type and range.

The parameters of a PE's parts are declared by their classes (`declarations.py`), those of other kinds are defined here.
A builtin, or a class that has its own declaration, accepts exactly the attrs listed, so that a misspelt name is a fault
and not a silent default. Any other user component (`impl: module:Class`) may have additional scalar attrs, which are
passed to the class unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from kernbench.common.engine_declaration import TIME_NS, Attribute
from kernbench.common.errors import ComponentError
from kernbench.common.impls import BUILTIN
from kernbench.topology.declarations import BUILTIN_PREFIX, STANDARD_PARTS, class_declaration
from kernbench.topology.layers import shipped
from kernbench.topology.readers import (
    Scalar,
    closest,
    read_choice,
    read_number,
    read_power_of_two,
    read_scalar,
    read_whole,
)
from kernbench.topology.record import InvalidValue
from kernbench.topology.spec import MachineSpec

_OF_KIND: Mapping[str, Mapping[str, Attribute]] = MappingProxyType(
    {
        "hbm_ctrl": {
            "burst_bytes": Attribute.power_of_two(16, 65536),
            "switch_penalty_ns": TIME_NS,
            "efficiency": Attribute(0.001, 1.0),
        },
        "sip_port": {
            "slots": Attribute.whole(0, 65536, 0),
            "credit_ns": replace(TIME_NS, default=0.0),
        },
    }
)

# Impls that any kind of block may use: one pipeline stage under several names.
TRANSIT_IMPLS: tuple[str, ...] = ("builtin.forwarding", "builtin.switch", "builtin.noc", "builtin.ucie")


FURTHER_IMPLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"pe_gemm": ("builtin.systolic", "builtin.unit_group", "builtin.core_group")}
)


# Attributes of PE_GEMM whose product is its peak, `macs_per_ns`.
ARRAY_FACTORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "builtin.systolic": ("rows", "columns", "clock_ghz"),
        "builtin.core_group": ("cores", "arrays", "rows", "columns", "clock_ghz"),
    }
)


def impl_fault(kind: str, impl: str) -> InvalidValue | None:
    """The fault of a builtin that does not model this kind of block; user components are checked later."""
    own: tuple[str, ...] = (BUILTIN_PREFIX + kind,) if BUILTIN_PREFIX + kind in BUILTIN else ()
    own += FURTHER_IMPLS.get(kind, ())
    known = tuple(dict.fromkeys((*own, *TRANSIT_IMPLS)))
    if not impl.startswith(BUILTIN_PREFIX) or impl in known:
        return None
    what = f"no builtin '{impl[:60]}' models a {kind}{closest(impl, known)}"
    return InvalidValue(what, f"use one of {', '.join(known)}, or `package.module:Class` for a class of your own")


def read_attrs(
    kind: str, impl: str, attrs: Mapping[str, object], wrong: list[tuple[str, InvalidValue]]
) -> dict[str, Scalar]:
    """The checked attrs of a component; every fault is added to `wrong` with the attr's name.

    A null attr of a user component is omitted, which lets a file drop an attr of its base.
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
            wrong.append((name, InvalidValue(f"a {kind} needs the attr '{name}'", "add it")))
        else:
            checked[name] = _read(attribute, attribute.default)
    for name, value in attrs.items():
        expected = known.get(name)
        if expected is None and is_closed:
            what = f"unknown attr '{name[:60]}' of a {kind}{closest(name, known)}"
            wrong.append((name, InvalidValue(what, f"known here: {', '.join(known)}")))
        elif expected is not None or value is not None:
            try:
                checked[name] = read_scalar(value) if expected is None else _read(expected, value)
            except InvalidValue as fault:
                wrong.append((name, fault))
    return checked


def known_attrs(kind: str, impl: str) -> tuple[dict[str, Attribute], bool]:
    """The attrs of a kind and of the class that models it, and whether other attrs are faults."""
    if not kind.startswith("pe_"):
        return {"overhead_ns": TIME_NS, **_OF_KIND.get(kind, {})}, impl.startswith(BUILTIN_PREFIX)
    known = {"overhead_ns": TIME_NS if kind in STANDARD_PARTS else replace(TIME_NS, default=0.0)}
    is_closed = impl.startswith(BUILTIN_PREFIX)
    for each in (BUILTIN_PREFIX + kind, impl):
        if each in BUILTIN or each == impl:
            try:
                declared, is_own = class_declaration(each)
            except ComponentError:  # reported by `check_part`
                continue
            known.update(declared.attrs if declared else {})
            is_closed |= is_own and each == impl
    return known, is_closed


def _read(attribute: Attribute, value: object) -> Scalar:
    if attribute.form == "number":
        return read_number(value, attribute.low, attribute.high)
    if attribute.form == "choice":
        return read_choice(value, attribute.choices)
    read = read_whole if attribute.form == "whole" else read_power_of_two
    return read(value, int(attribute.low), int(attribute.high))


@cache
def _shipped_attrs() -> dict[tuple[str, str], Mapping[str, Scalar]]:
    """The attrs of the shipped machine's PE parts, by kind and impl. A test checks them, so no class is loaded here."""
    parts = MachineSpec.model_validate(shipped().plain()).cube.pe_template.components.parts
    return {
        (name, part.impl): {key: value for key, value in part.attrs.items() if value is not None}
        for name, part in parts.items()
    }


def _same(attrs: Mapping[str, object], others: Mapping[str, Scalar]) -> bool:
    """Whether the attrs are equal in value and in type: `true` differs from 1."""
    return attrs == others and all(type(attrs[name]) is type(value) for name, value in others.items())
