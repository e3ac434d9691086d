"""The traffic that the probe sends, derived from the machine's shape: no cube or PE number is fixed.

A machine without a second cube, a far half or another SIP has no case for it. PE cases start at PE 0 of cube 0 of SIP
0; a plain name is a read, and `-write` the same transfer as a write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kernbench.common.ids import PeId
from kernbench.common.messages import MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.allocator import AddressConfig, FarMemoryAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.routing.router import PathRouter
from kernbench.probes.shape import far_half_pe, hop_cubes, same_half_pe
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.ports import resolve_chiplets
from kernbench.topology.switches import levels_from_top

Category = Literal["h2d", "d2h", "pe-dma", "pe-sram", "pe-tcm", "pe-cross-sip-hbm", "contention"]
AccessDirection = Literal["read", "write"]
ProbeRequest = MemoryWriteMsg | MemoryReadMsg | PeDmaMsg

CATEGORIES: tuple[Category, ...] = ("h2d", "d2h", "pe-dma", "pe-sram", "pe-tcm", "pe-cross-sip-hbm", "contention")
HOST_FAMILIES = ("host-to-cube", "host-to-row")
CHANNEL_FAMILIES = ("hot-channel", "spread-channels")
_NEAR_AND_FAR: dict[str, tuple[Category, Category]] = {"sram": ("pe-sram", "pe-dma"), "tcm": ("pe-tcm", "pe-tcm")}
FEW = (1, 2, 3)  # numbers of PEs of a cube that access one slice, before all of them


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """Named traffic: requests that are all injected at time 0. `family` groups contention cases into one chart.
    `most_bytes` is the largest transfer that stays in one memory, where that is a block of a stack.
    """

    name: str
    category: Category
    direction: AccessDirection
    requests: tuple[ProbeRequest, ...]
    family: str = ""
    most_bytes: int | None = None

    @property
    def is_uncontended(self) -> bool:
        """Whether this is a single transfer, uncontended, for which the formula must hold."""
        return len(self.requests) == 1


def cases_of(graph: TopologyGraph, nbytes: int) -> tuple[ProbeCase, ...]:
    """Every case this machine has, in the order they are shown; each request is of `nbytes`, or of one burst in the
    cases of single channels.
    """
    if graph.spec.sip.hbm_stacks is not None:
        return (*stack_cases(graph, nbytes), *far_cases(graph, nbytes))
    if not graph.spec.cube.has_hbm:
        return (*home_cases(graph, nbytes), *far_cases(graph, nbytes))
    return (
        *_host_cases(graph, nbytes),
        *_pe_cases(graph, nbytes),
        *_channel_cases(graph),
        *_contention_cases(graph, nbytes),
        *_host_contention_cases(graph, nbytes),
        *far_cases(graph, nbytes),
    )


def resized(graph: TopologyGraph, case: ProbeCase, nbytes: int) -> ProbeCase | None:
    """A case with another size; None if its memory is too small."""
    cube = graph.spec.cube_of(0, 0)
    if case.category == "pe-sram" and nbytes > cube.sram_bytes:
        return None
    if not cube.has_hbm and nbytes > cube.home.node_bytes(cube):
        return None
    if case.most_bytes is not None and nbytes > case.most_bytes:
        return None  # it would be divided over several stacks
    return replace(case, requests=tuple(replace(request, nbytes=nbytes) for request in case.requests))


# ---- host


def _host_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    cubes = hop_cubes(graph)
    for hops, cube in enumerate(cubes, 1):
        yield ProbeCase(f"h2d-{hops}hop", "h2d", "write", (_host(graph, cube, 0, nbytes, "write"),))
    for hops, cube in enumerate(cubes, 1):
        yield ProbeCase(f"d2h-{hops}hop", "d2h", "read", (_host(graph, cube, 0, nbytes, "read"),))


# ---- one PE


def _pe_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    targets: list[tuple[str, Category, int]] = [("pe-local-hbm", "pe-dma", _slice(graph, 0, 0, 0))]
    layout = graph.spec.cube.pe_layout
    near, far = same_half_pe(layout), far_half_pe(layout)
    if near is not None:
        targets.append(("pe-same-half-hbm", "pe-dma", _slice(graph, 0, 0, near)))
    if far is not None:
        targets.append(("pe-cross-half-hbm", "pe-dma", _slice(graph, 0, 0, far)))
    if graph.spec.sip.n_cubes > 1:
        # Cubes are numbered row by row, so number 1 is next to number 0 whatever the mesh.
        targets.append(("pe-cross-cube-hbm-best", "pe-dma", _slice(graph, 0, 1, 0)))
    if graph.spec.sip.n_cubes > 2:
        targets.append(("pe-cross-cube-hbm-worst", "pe-dma", _slice(graph, 0, _farthest_cube(graph), 0)))
    if nbytes <= graph.spec.cube_of(0, 0).sram_bytes:
        targets.append(("pe-sram", "pe-sram", PhysAddr.cube_sram_addr(0, 0, 0, graph.spec.address_layout).encode()))
    for part, sip in _other_sips(graph):
        targets.append((f"pe-cross-{part}-hbm", "pe-cross-sip-hbm", _slice(graph, sip, 0, 0)))
    for direction in _DIRECTIONS:
        for name, category, address in targets:
            yield ProbeCase(_named(name, direction), category, direction, (_dma(0, 0, address, nbytes, direction),))
        for name, cube in _first_of_types(graph).items():
            request = _dma(cube, 0, _slice(graph, 0, cube, 0), nbytes, direction)
            yield ProbeCase(_named(f"pe-local-hbm-{name}", direction), "pe-dma", direction, (request,))


def _other_sips(graph: TopologyGraph) -> Iterator[tuple[str, int]]:
    """The next SIP; and for each level of switches, the lowest first, the first SIP below another switch of it."""
    system, count = graph.spec.system, graph.spec.n_sips
    if count > 1:
        yield "sip", 1
    for name, level in reversed(levels_from_top(system)):
        if level.count > 1 and name != "sip":
            yield name, count // level.count


def _first_of_types(graph: TopologyGraph) -> dict[str, int]:
    """The first cube of SIP 0 of each type that it has."""
    return {name: min(cubes) for name, cubes in graph.spec.types_of_sip(0).items() if cubes}


def _farthest_cube(graph: TopologyGraph) -> int:
    router: PathRouter = wiring_of(graph).router
    pe = str(PeId(0, 0, 0))

    def distance_mm(cube: int) -> float:
        return router.find_path_with_distance(pe, wiring_of(graph).resolver.find_hbm_ctrl(0, cube, 0))[1]

    return max(range(1, graph.spec.sip.n_cubes), key=lambda cube: (distance_mm(cube), cube))


# ---- many PEs


def _contention_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    n_pes, n_cubes = graph.spec.cube.n_pes, graph.spec.sip.n_cubes
    cube = [(0, pe) for pe in range(n_pes)]
    sip = [(c, pe) for c in range(n_cubes) for pe in range(n_pes)]
    one_slice = _places_in_slice(graph, len(sip), nbytes)
    groups: list[tuple[str, str, list[tuple[int, int]], list[int]]] = []
    for n in FEW:
        if n == 1 or n < n_pes:
            groups.append((f"contention-{n}-to-slice", "to-slice", cube[:n], one_slice))
    if n_pes > 1:
        groups.append(("contention-all-to-slice", "to-slice", cube, one_slice))
    if n_cubes > 1:
        there = [_slice(graph, 0, 1, pe) for pe in range(n_pes)]
        groups.append(("contention-cube-to-next", "cube-to-next", cube, there))
    if len(sip) > 1:
        groups.append(("contention-sip-own-slice", "sip-own-slice", sip, [_slice(graph, 0, c, pe) for c, pe in sip]))
    if n_cubes > 1:
        groups.append(("contention-sip-to-slice", "sip-to-slice", sip, one_slice))
    for direction in _DIRECTIONS:
        for name, family, issuers, addresses in groups:
            requests = tuple(
                _dma(c, pe, address, nbytes, direction)
                for (c, pe), address in zip(issuers, addresses[: len(issuers)], strict=True)
            )
            yield ProbeCase(_named(name, direction), "contention", direction, requests, family)


def _host_contention_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    """The host and every slice of a cube at once, and of every cube that the first IO chiplet has a PHY for."""
    spec = graph.spec
    pes = range(spec.cube.n_pes)
    chiplet = resolve_chiplets(spec.sip, spec.io_chiplet.cube_distance_mm)[0]
    row = [spec.sip.cube_at(port.x, port.y) for port in chiplet.ports]
    groups: list[tuple[str, list[int]]] = []
    if len(pes) > 1:
        groups.append((HOST_FAMILIES[0], [hop_cubes(graph)[0]]))
    if len(row) > 1:
        groups.append((HOST_FAMILIES[1], row))
    for direction in _DIRECTIONS:
        for family, cubes in groups:
            requests = tuple(_host(graph, cube, pe, nbytes, direction) for cube in cubes for pe in pes)
            yield ProbeCase(_named(f"contention-{family}", direction), "contention", direction, requests, family)


def home_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    """Without HBM: the host and the first PE, and the SRAM of cubes or the TCM of PEs, whichever tensors lie in; all
    PEs of a cube and its SRAM, or the first one's TCM.
    """
    spec, home = graph.spec, graph.spec.cube.home
    size = min(nbytes, spec.least_of_cubes(home.node_bytes) // spec.cube.n_pes)

    def there(sip: int, cube: int, pe: int = 0, offset: int = 0) -> int:
        layout = spec.address_layout
        if home.space == "tcm":
            return PhysAddr.pe_tcm_addr(sip, cube, pe, offset, layout).encode()
        return PhysAddr.cube_sram_addr(sip, cube, offset, layout).encode()

    for hops, cube in enumerate(hop_cubes(graph), 1):
        write = MemoryWriteMsg(dst_sip=0, dst_cube=cube, dst_pe=0, dst_pa=there(0, cube), nbytes=size)
        yield ProbeCase(f"h2d-{hops}hop", "h2d", "write", (write,))
    for hops, cube in enumerate(hop_cubes(graph), 1):
        read = MemoryReadMsg(src_sip=0, src_cube=cube, src_pe=0, src_pa=there(0, cube), nbytes=size)
        yield ProbeCase(f"d2h-{hops}hop", "d2h", "read", (read,))
    name, (near, far) = home.space, _NEAR_AND_FAR[home.space]
    targets: list[tuple[str, Category, int]] = [(f"pe-{name}", near, there(0, 0))]
    if home.nodes_per_cube(spec.cube) > 1:
        targets.append((f"pe-same-cube-{name}", near, there(0, 0, spec.cube.n_pes - 1)))
    if spec.sip.n_cubes > 1:
        targets.append((f"pe-cross-cube-{name}", far, there(0, 1)))
    for part, sip in _other_sips(graph):
        targets.append((f"pe-cross-{part}-{name}", far, there(sip, 0)))
    for direction in _DIRECTIONS:
        for target, category, address in targets:
            yield ProbeCase(_named(target, direction), category, direction, (_dma(0, 0, address, size, direction),))
        requests = tuple(_dma(0, pe, there(0, 0, 0, pe * size), size, direction) for pe in range(spec.cube.n_pes))
        if len(requests) > 1:
            case = _named(f"contention-all-to-{name}", direction)
            yield ProbeCase(case, "contention", direction, requests, f"to-{name}")


def stack_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    """Where PEs share HBM stacks: the first PE, and the host, and each stack that the first cube uses; all PEs of that
    cube and one stack. Requests stay within what lies on one stack.
    """
    stacks = graph.spec.sip.hbm_stacks
    assert stacks is not None
    names, step = stacks.group_of(0), stacks.interleave_bytes
    size = min(nbytes, step)
    ways: tuple[tuple[AccessDirection, Category], ...] = (("write", "h2d"), ("read", "d2h"))
    for direction, category in ways:
        for at, name in enumerate(names):
            request = _host(graph, 0, 0, size, direction, at * step)
            yield ProbeCase(f"{category}-stack-{name}", category, direction, (request,), most_bytes=step)
    slice_bytes, round_bytes = graph.spec.cube.hbm_slice_bytes, step * len(names)
    for direction in _DIRECTIONS:
        for at, name in enumerate(names):
            request = _dma(0, 0, _slice(graph, 0, 0, 0, at * step), size, direction)
            yield ProbeCase(_named(f"pe-stack-{name}", direction), "pe-dma", direction, (request,), most_bytes=step)
        if nbytes <= graph.spec.cube_of(0, 0).sram_bytes:
            sram = PhysAddr.cube_sram_addr(0, 0, 0, graph.spec.address_layout).encode()
            yield ProbeCase(_named("pe-sram", direction), "pe-sram", direction, (_dma(0, 0, sram, nbytes, direction),))
        for part, sip in _other_sips(graph):
            case = _named(f"pe-cross-{part}-hbm", direction)
            request = _dma(0, 0, _slice(graph, sip, 0, 0), size, direction)
            yield ProbeCase(case, "pe-cross-sip-hbm", direction, (request,), most_bytes=step)
        firsts = [-pe * slice_bytes % round_bytes for pe in range(graph.spec.cube.n_pes)]  # on the first stack
        requests = tuple(_dma(0, pe, _slice(graph, 0, 0, pe, at), size, direction) for pe, at in enumerate(firsts))
        if len(requests) > 1:
            name = _named(f"contention-all-to-stack-{names[0]}", direction)
            yield ProbeCase(name, "contention", direction, requests, "to-stack", most_bytes=step)


def far_cases(graph: TopologyGraph, nbytes: int) -> Iterator[ProbeCase]:
    """Far memory, if there is any: the host, the first PE, a PE of another SIP, and all PEs of a cube."""
    spec = graph.spec
    if spec.system.far_memory is None:
        return

    def far(offset: int = 0, sip: int = 0) -> int:
        return FarMemoryAllocator(sip, AddressConfig.from_spec(spec)).address(offset).encode()

    size = min(nbytes, spec.system.far_bytes_per_sip // spec.cube.n_pes)
    write = MemoryWriteMsg(dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=far(), nbytes=size)
    yield ProbeCase("h2d-far", "h2d", "write", (write,))
    yield ProbeCase(
        "d2h-far", "d2h", "read", (MemoryReadMsg(src_sip=0, src_cube=0, src_pe=0, src_pa=far(), nbytes=size),)
    )
    for direction in _DIRECTIONS:
        yield ProbeCase(_named("pe-far", direction), "pe-dma", direction, (_dma(0, 0, far(), size, direction),))
        if spec.n_sips > 1:
            request = _dma(0, 0, far(sip=1), size, direction)
            yield ProbeCase(_named("pe-cross-sip-far", direction), "pe-dma", direction, (request,))
        requests = tuple(_dma(0, pe, far(pe * size), size, direction) for pe in range(spec.cube.n_pes))
        if len(requests) > 1:
            yield ProbeCase(_named("contention-all-to-far", direction), "contention", direction, requests, "to-far")


def _channel_cases(graph: TopologyGraph) -> Iterator[ProbeCase]:
    """Every PE of a cube and one burst of the slice of PE 0: all on one channel, and spread over the channels."""
    cube = graph.spec.cube_of(0, 0)
    burst, channels = cube.hbm_burst_bytes, cube.hbm_channels_per_pe
    if cube.n_pes == 1 or channels == 1 or cube.n_pes * (channels + 1) * burst > cube.hbm_slice_bytes:
        return
    for direction in _DIRECTIONS:
        for family, stride in zip(CHANNEL_FAMILIES, (channels * burst, (channels + 1) * burst), strict=True):
            places = [_slice(graph, 0, 0, 0, pe * stride) for pe in range(cube.n_pes)]
            requests = tuple(_dma(0, pe, place, burst, direction) for pe, place in enumerate(places))
            yield ProbeCase(_named(f"contention-{family}", direction), "contention", direction, requests, family)


def _places_in_slice(graph: TopologyGraph, n: int, nbytes: int) -> list[int]:
    """`n` addresses in the slice of PE 0, adjacent on burst boundaries; they repeat when the slice is full."""
    burst = graph.spec.cube.hbm_burst_bytes
    step = -(-nbytes // burst) * burst
    room = max(graph.spec.cube_of(0, 0).hbm_slice_bytes // step, 1)
    return [_slice(graph, 0, 0, 0, (i % room) * step) for i in range(n)]


# ---- requests and addresses

_DIRECTIONS: tuple[AccessDirection, ...] = ("read", "write")


def _named(name: str, direction: AccessDirection) -> str:
    return name if direction == "read" else f"{name}-write"


def _slice(graph: TopologyGraph, sip: int, cube: int, pe: int, offset: int = 0) -> int:
    spec = graph.spec
    return PhysAddr.pe_hbm_addr(
        sip, cube, pe, offset, spec.cube_of(sip, cube).hbm_slice_bytes, spec.address_layout
    ).encode()


def _host(
    graph: TopologyGraph, cube: int, pe: int, nbytes: int, direction: AccessDirection, offset: int = 0
) -> ProbeRequest:
    address = _slice(graph, 0, cube, pe, offset)
    if direction == "write":
        return MemoryWriteMsg(dst_sip=0, dst_cube=cube, dst_pe=pe, dst_pa=address, nbytes=nbytes)
    return MemoryReadMsg(src_sip=0, src_cube=cube, src_pe=pe, src_pa=address, nbytes=nbytes)


def _dma(cube: int, pe: int, address: int, nbytes: int, direction: AccessDirection) -> PeDmaMsg:
    is_write = direction == "write"
    return PeDmaMsg(src_sip=0, src_cube=cube, src_pe=pe, dst_pa=address, nbytes=nbytes, is_write=is_write)
