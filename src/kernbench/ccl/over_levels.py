"""Which algorithm `auto` takes where ranks are below several switches of a level: a closed model of the links there.

Tables are for ranks on one switch, where all with all costs a rank no more than a ring does. The link of a switch to
the level above carries the bytes of all ranks below it, so that it may decide:

    direct, in one round    each rank below sends its block to each rank elsewhere
    two rounds              the root scatters, then all with all
    tree, chain, ring       as many times the tensor as edges between ranks lead out of the switch

The time of an algorithm is that of its rounds one after the other, or of the bytes on the busiest link if that is
longer. The algorithm of the table is kept unless another one is faster in this model. Not modelled: what else is on
the links, and the bytes within a SIP, which are about the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, log2
from types import MappingProxyType
from typing import Final, NamedTuple

from kernbench.ccl.calls import CollectiveName
from kernbench.ccl.config_spec import AlgorithmConfig
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_base import LinkSpec
from kernbench.topology.switches import levels_from_top, switch_of_level, switches_above

STEP_NS: Final = 100.0  # of a PE that receives, adds and sends on
ALTERNATIVES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "all_reduce": ("ring_allreduce",),
        "all_gather": ("ring_all_gather",),
        "reduce_scatter": ("ring_reduce_scatter",),
        "broadcast": ("tree", "chain"),
        "reduce": ("tree", "chain"),
    }
)
RankPair = tuple[int, int]  # from rank to rank


class Boundary(NamedTuple):
    """The ranks behind one link, a rank's own or that of a switch, and what the link carries each way."""

    inside: frozenset[int]
    gbs: float


class LevelCollective(NamedTuple):
    """A collective of `n` ranks on `nbytes`, at one boundary."""

    n: int
    nbytes: int
    root: int
    rounds: int  # that move all bytes once: 2 for an all-reduce


def better_over_levels(
    collective: CollectiveName, nbytes: int, chosen: AlgorithmConfig, spec: MachineSpec, sips: Sequence[int], root: int
) -> str | None:
    """The algorithm to take instead of the chosen one, for ranks on these SIPs; None to keep it."""
    n, names = len(sips), ALTERNATIVES.get(collective, ())
    if n < 3 or not names or not spec.system.switch_levels or spec.system.sips.links is not None:
        return None
    boundaries = list(_boundaries(spec, sips))
    if len(boundaries) == n:  # all ranks are below one switch
        return None
    work = LevelCollective(n, nbytes, root, 2 if collective == "all_reduce" else 1)
    hop_ns, farthest_ns = _hops_ns(spec, sips)
    family = _family_of(chosen, nbytes, n, spec)
    if family in ("direct", "long_messages_direct") and collective in ("broadcast", "reduce"):
        family = "from_root"

    def time_ns(of: str) -> float:
        out = _OUT.get(of, _all_with_all)
        busiest_ns = max(max(out(work, each.inside), out(work, _others(each, n))) / each.gbs for each in boundaries)
        steps = work.rounds * (n - 1) if of in ("ring", "chain") else ceil(log2(n)) if of == "tree" else 0
        return max(steps * hop_ns, busiest_ns) + (0.0 if steps else (work.rounds + (of == "two_rounds")) * farthest_ns)

    times = {name: time_ns("ring" if name.startswith("ring") else name) for name in names}
    best = min(names, key=lambda name: times[name])
    return best if times[best] < time_ns(family) else None


def _family_of(chosen: AlgorithmConfig, nbytes: int, n: int, spec: MachineSpec) -> str:
    """How an algorithm of a table exchanges. `hierarchical_all_pes` goes around a ring where shares are long."""
    name = chosen.module.rpartition(".")[2]
    if name.startswith("ring"):
        return "ring"
    share = nbytes / (spec.sip.n_cubes * spec.cube.n_pes)
    return "ring" if name == "hierarchical_all_pes" and share >= n * chosen.chunk_bytes / 2 else name


# ---- bytes that leave some ranks


def _all_with_all(work: LevelCollective, inside: frozenset[int]) -> float:
    return work.rounds * len(inside) * (work.n - len(inside)) * work.nbytes / work.n


def _from_root(work: LevelCollective, inside: frozenset[int]) -> float:
    return (work.n - len(inside)) * work.nbytes if work.root in inside else 0.0


def _two_rounds(work: LevelCollective, inside: frozenset[int]) -> float:
    scattered = (work.n - len(inside)) * work.nbytes / work.n if work.root in inside else 0.0
    return scattered + _all_with_all(work, inside)


def _along(work: LevelCollective, inside: frozenset[int], edges: Iterator[RankPair]) -> float:
    return sum((a in inside) and (b not in inside) for a, b in edges) * float(work.nbytes)


def _ring(work: LevelCollective, inside: frozenset[int]) -> float:
    edges = ((rank, (rank + 1) % work.n) for rank in range(work.n))
    return work.rounds * (work.n - 1) / work.n * _along(work, inside, edges)


def _chain(work: LevelCollective, inside: frozenset[int]) -> float:
    ranks = [(work.root + at) % work.n for at in range(work.n)]
    return _along(work, inside, pairwise(ranks))


def _tree(work: LevelCollective, inside: frozenset[int]) -> float:
    """Binomial: the parent of a rank, counted from the root, lacks its lowest bit."""
    edges = (((work.root + (at & at - 1)) % work.n, (work.root + at) % work.n) for at in range(1, work.n))
    return _along(work, inside, edges)


_OUT: Final[Mapping[str, Callable[[LevelCollective, frozenset[int]], float]]] = MappingProxyType(
    {"ring": _ring, "chain": _chain, "tree": _tree, "two_rounds": _two_rounds, "from_root": _from_root}
)


# ---- the machine


def _boundaries(spec: MachineSpec, sips: Sequence[int]) -> Iterator[Boundary]:
    """The link of each rank, and of each switch that has some of the ranks below it, but not all."""
    system = spec.system
    for rank in range(len(sips)):
        yield Boundary(frozenset({rank}), _payload_gbs(system.links.io_ep_to_switch) * len(spec.sip.io_chiplets))
    for _, level in levels_from_top(system):
        below: dict[int, list[int]] = {}
        for rank, sip in enumerate(sips):
            below.setdefault(sip * level.count // system.sips.count, []).append(rank)
        if len(below) > 1:
            for ranks in below.values():
                yield Boundary(frozenset(ranks), _payload_gbs(level))


def _payload_gbs(link: LinkSpec) -> float:
    return link.bw_gbs if link.framing is None else link.bw_gbs * link.framing.efficiency


def _others(boundary: Boundary, n: int) -> frozenset[int]:
    return frozenset(range(n)) - boundary.inside


def _hops_ns(spec: MachineSpec, sips: Sequence[int]) -> tuple[float, float]:
    """One message from a rank to the next, on the average, and between those that are farthest apart."""
    each = [_hop_ns(spec, a, b) for a, b in zip(sips, [*sips[1:], sips[0]], strict=True)]
    return sum(each) / len(each), max(each)


def _hop_ns(spec: MachineSpec, sip: int, other: int) -> float:
    """Blocks and wires on the way, roughly: a few routers, UCIe, the endpoint, and the switches between."""
    system, parts, cube = spec.system, spec.io_chiplet.components, spec.cube.components
    inside = sum(part.number_attr("overhead_ns") for part in (parts.pcie_ep, parts.io_ucie, cube.ucie, cube.router))
    found = 2 * inside + STEP_NS
    mine, theirs = switches_above(system, sip), switches_above(system, other)
    common = next(at for at, name in enumerate(mine) if name in theirs)
    levels = [level for _, level in reversed(levels_from_top(system))]
    for level in levels[:common]:
        switch = switch_of_level(system, level).number_attr("overhead_ns")
        found += 2 * (switch + level.distance_mm * system.ns_per_mm)
    top = system.switch if common == len(levels) else switch_of_level(system, levels[common])
    return found + top.number_attr("overhead_ns")
