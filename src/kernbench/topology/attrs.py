"""What a component's `impl` may be and its `attrs` may hold: the parameters of each builtin kind, typed and bounded.

A user component (`impl: module:Class`) may have further attrs, any single values; they reach the class
unchanged. A builtin has exactly the ones listed here, so that a misspelt name is a fault and not a silent default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernbench.topology.readers import (
    Scalar,
    Wrong,
    closest,
    read_number,
    read_power_of_two,
    read_scalar,
    read_whole,
)

MAX_OVERHEAD_NS = 1e6
BUILTIN_PREFIX = "builtin."

_Reader = Callable[[object], Scalar]


def _overhead_ns(value: object) -> float:
    return read_number(value, 0.0, MAX_OVERHEAD_NS)


def _queue_depth(value: object) -> int:
    return read_whole(value, 1, 1 << 16)


def _rate(value: object) -> float:
    return read_number(value, 0.001, 1e9)


def _tile(value: object) -> int:
    return read_whole(value, 1, 1 << 16)


_EVERY_KIND: Mapping[str, _Reader] = MappingProxyType({"overhead_ns": _overhead_ns})

_OF_KIND: Mapping[str, Mapping[str, _Reader]] = MappingProxyType(
    {
        "hbm_ctrl": {
            "burst_bytes": lambda value: read_power_of_two(value, 16, 65536),
            "switch_penalty_ns": _overhead_ns,
            "efficiency": lambda value: read_number(value, 0.001, 1.0),
        },
        "pe_cpu": {"clock_ghz": lambda value: read_number(value, 0.001, 1000.0)},
        "pe_dma": {
            "engines_per_direction": lambda value: read_whole(value, 1, 64),
            "outstanding": lambda value: read_whole(value, 1, 1024),
            "queue_depth": _queue_depth,
        },
        "pe_fetch_store": {
            "register_file_bytes": lambda value: read_whole(value, 1, 1 << 30),
            "queue_depth": _queue_depth,
        },
        "pe_gemm": {"macs_per_ns": _rate, "tile_m": _tile, "tile_k": _tile, "tile_n": _tile},
        "pe_math": {"lanes_per_ns": _rate, "tile_m": _tile, "tile_n": _tile},
        "pe_mmu": {
            "page_size": lambda value: read_power_of_two(value, 64, 1 << 30),
            "tlb_overhead_ns": _overhead_ns,
        },
    }
)


# What any block may be modelled by: a pipeline stage, under the names of what it stands for.
TRANSIT_IMPLS: tuple[str, ...] = ("builtin.forwarding", "builtin.switch", "builtin.noc", "builtin.ucie")
_TRANSIT_KINDS = frozenset(
    {"host", "switch", "noc_router", "ucie", "ucie_conn", "io_noc", "io_ucie", "io_ucie_conn"}
)  # fmt: skip


def is_builtin(impl: str) -> bool:
    return impl.startswith(BUILTIN_PREFIX)


def impl_fault(kind: str, impl: str) -> Wrong | None:
    """What is wrong with a builtin that does not model this kind of block; a user component is looked at later."""
    own = () if kind in _TRANSIT_KINDS else (BUILTIN_PREFIX + kind,)
    known = (*own, *TRANSIT_IMPLS)
    if not is_builtin(impl) or impl in known:
        return None
    what = f"no builtin '{impl[:60]}' models a {kind}{closest(impl, known)}"
    return Wrong(what, f"use one of {', '.join(known)}, or `package.module:Class` for a class of your own")


def read_attrs(kind: str, impl: str, attrs: Mapping[str, object], wrong: list[tuple[str, Wrong]]) -> dict[str, Scalar]:
    """The checked attrs of a component; every fault is added to `wrong` with the attr's name.

    A null attr of a user component is left out: that is how a file drops one that its base has.
    """
    known = {**_EVERY_KIND, **_OF_KIND.get(kind, {})}
    checked: dict[str, Scalar] = {}
    for name in known:
        if name not in attrs:
            wrong.append((name, Wrong(f"a {kind} needs the attr '{name}'", "add it")))
    for name, value in attrs.items():
        reader = known.get(name)
        if reader is None and is_builtin(impl):
            what = f"unknown attr '{name[:60]}' of a {kind}{closest(name, known)}"
            wrong.append((name, Wrong(what, f"known here: {', '.join(known)}")))
        elif reader is not None or value is not None:
            try:
                checked[name] = (reader or read_scalar)(value)
            except Wrong as fault:
                wrong.append((name, fault))
    return checked
