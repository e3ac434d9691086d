"""Where the tensors of a run are, which PEs read and write them, and how far their bytes travel.

It is derived from the transfers of kernels: the memory at the end of the route, the PE at the other. A transfer is at
home if the memory is in the PE's own cube. Transfers of the host are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import memory_kind
from kernbench.report.explain.loads import CHANNEL_LINKS
from kernbench.report.explain.path import RunData
from kernbench.report.runs.parts import SavedPlace


@dataclass(slots=True)
class TensorMemoryUse:
    """A tensor's bytes in one memory node, as kernels accessed them; those of a TCM that its own PE moved, too."""

    read: int = 0
    written: int = 0
    read_by_own: int = 0
    written_by_own: int = 0


@dataclass(slots=True)
class TensorUse:
    """One tensor over a run, or one launch."""

    name: str
    memories: dict[str, TensorMemoryUse] = field(default_factory=dict)  # by node, in order of first access
    readers: dict[str, int] = field(default_factory=dict)  # bytes by PE
    writers: dict[str, int] = field(default_factory=dict)
    home_bytes: int = 0  # moved within the PE's own cube
    remote_bytes: int = 0
    byte_hops: int = 0  # bytes times links passed

    @property
    def cubes(self) -> list[str]:
        """The cubes of its memories."""
        return list(dict.fromkeys(".".join(memory.split(".")[:2]) for memory in self.memories))

    @property
    def moved(self) -> int:
        return self.home_bytes + self.remote_bytes

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "memories": {name: {"read": use.read, "written": use.written} for name, use in self.memories.items()},
            "readers": self.readers,
            "writers": self.writers,
            "home_bytes": self.home_bytes,
            "remote_bytes": self.remote_bytes,
            "byte_hops": self.byte_hops,
        }


def tensor_uses(run: RunData, launch: int = -1) -> list[TensorUse]:
    """All tensors that kernels accessed, in order of name; of one launch if it is given."""
    ops, places = run.ops, run.places
    found: dict[str, TensorUse] = {}
    wanted = ops.kind.are("R", "W") & ((ops.launch == launch) if launch >= 0 else (ops.launch >= 0))
    for row in np.flatnonzero(wanted):
        route, names = ops.route.of(int(row)), ops.tensors.of(int(row))
        if not len(route) or not len(names):
            continue
        is_read = ops.kind[int(row)] == "R"
        memories = memories_of(places, route, is_read)
        pe = run.lanes[int(ops.lane[row])].component.rpartition(".")[0]
        use = found.setdefault(str(names[0]), TensorUse(str(names[0])))
        nbytes = int(ops.nbytes[row])
        _count(use, pe, memories, nbytes, is_read)
        use.byte_hops += nbytes * _links_passed(places, route, memories) // max(1, len(memories))
    return [found[name] for name in sorted(found)]


def memories_of(places: Sequence[SavedPlace], route: NDArray[Any], is_read: bool) -> list[str]:
    """The memories of a route: several where an access was cut into pieces."""
    links = [places[int(place)] for place in route]
    nodes = [link.src for link in links] if is_read else [link.dst for link in links]
    found = [node for node in nodes if memory_kind(node) != "tcm"]
    return list(dict.fromkeys(found)) or [nodes[0] if is_read else nodes[-1]]


def _links_passed(places: Sequence[SavedPlace], route: NDArray[Any], memories: Sequence[str]) -> int:
    """The links to all memories of a route. Where channels have routers, bytes pass those of one channel each."""
    of_channels = [place for place in route if places[int(place)].link_class in CHANNEL_LINKS]
    if not any(places[int(place)].link_class == "channel router" for place in of_channels):
        return len(route)
    return len(route) - len(of_channels) + 2 * sum(".hbm_ctrl" in memory for memory in memories)


def _count(use: TensorUse, pe: str, memories: list[str], nbytes: int, is_read: bool) -> None:
    by_pe = use.readers if is_read else use.writers
    by_pe[pe] = by_pe.get(pe, 0) + nbytes
    cube = pe.rpartition(".")[0]
    for number, memory in enumerate(memories):
        part = nbytes // len(memories) + (nbytes % len(memories) if number == 0 else 0)
        held = use.memories.setdefault(memory, TensorMemoryUse())
        is_own = memory.startswith(f"{pe}.")
        if is_read:
            held.read += part
            held.read_by_own += part * is_own
        else:
            held.written += part
            held.written_by_own += part * is_own
        if memory.startswith(f"{cube}."):
            use.home_bytes += part
        else:
            use.remote_bytes += part
