"""What plain loads and stores reach between SIPs and between cubes: the marks that collectives are measured by.

Small machines and few bytes, so that each takes a second or two: margins are wider than on large ones, where what is
1.12 here is 1.02, and 1.7 times as long is 2.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import kernbench
from kernbench.ccl.algorithms.rings import mesh_cycle
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

PCIE_GBS, UCIE_GBS, HBM_GBS = 128.0, 512.0, 256.0
PES = 8
MESSAGE = 48 * 1024
EVERY_PE = DPPolicy(cube="row_wise", pe="row_wise")


def run(program: Any, machine: Mapping[str, Any]) -> float:
    """What a program returns: the time of its kernels in ns."""
    return float(kernbench.run(program, None, dict(machine), device="whole", data=False).returned[0])  # type: ignore[arg-type]  # a program of this file returns a number


# ------------------------------------------------------------------------------------------------------- between SIPs


def give(on_0: Any, on_1: Any, nbytes: int, tl: Any) -> None:
    """PEs write their part of their SIP's tensor to the other SIP, three messages under way at a time."""
    source, target = (on_0, on_1) if tl.physical_id(2) == 0 else (on_1, on_0)
    part = nbytes // (tl.num_programs(0) * tl.num_programs(1))
    first = part * (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    under_way: list[Any] = []
    for at in range(first, first + part, MESSAGE):
        under_way.append(tl.store_async(target + at, tl.load(source + at, (MESSAGE,), "i8")))
        if len(under_way) > 2:
            tl.wait(under_way.pop(0))
    tl.wait()


def exchange_ns(cubes: int, pes: int, nbytes: int) -> float:
    """How long two SIPs of four cubes take to write each other so many bytes, with so many cubes and PEs of each."""

    def program(torch: RuntimeContext) -> float:
        tensors = []
        for sip in (0, 1):
            torch.ahbm.set_device(sip)
            tensors.append(torch.empty(nbytes, dtype="i8", dp=EVERY_PE))
        where = {"sips": (0, 1), "target_cubes": range(cubes), "target_pes": range(pes)}
        return torch.launch(give, *tensors, nbytes, **where).exec_ns  # type: ignore[arg-type]  # no name is `wait`

    return run(program, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
def test_two_sips_exchange_at_the_speed_of_pcie_when_all_pes_take_part_and_one_pe_alone_does_not() -> None:
    """4.5 MiB each way take 37 us over 128 GB/s. A PCIe endpoint stores a message before it sends it on: many PEs keep
    it busy meanwhile, one alone with three messages does not.
    """
    nbytes = 4 * PES * 3 * MESSAGE
    bound_ns = nbytes / PCIE_GBS
    everybody, alone = exchange_ns(4, PES, nbytes), exchange_ns(1, 1, nbytes)
    assert bound_ns < everybody < 1.12 * bound_ns
    assert alone > 3 * everybody


# ------------------------------------------------------------------------------------------------------ between cubes


def copies(torch: RuntimeContext, cubes: int, piece: int) -> Any:
    """Room for everybody's pieces on every cube: PE p of a cube holds piece p of each, one after the other."""
    return torch.empty(cubes * PES, cubes * piece, dtype="i8", dp=EVERY_PE)


def place(cubes: int, piece: int, cube: int, pe: int, of: int) -> int:
    """Where the copy on a cube of what PE `pe` of another one gives begins."""
    return ((cube * PES + pe) * cubes + of) * piece


def ring_ns(w: int, h: int, piece: int) -> float:
    """An all-gather in which each PE writes to its number on the next cube what it got last; launches are its steps."""
    order, cubes = mesh_cycle(w, h), w * h

    def step(x: Any, number: int, tl: Any) -> None:
        pe, at = tl.program_id(0), order.index(tl.program_id(1))
        of, following = order[(at - number) % cubes], order[(at + 1) % cubes]
        got = tl.load(x + place(cubes, piece, order[at], pe, of), (piece,), "i8")
        tl.store(x + place(cubes, piece, following, pe, of), got)

    def program(torch: RuntimeContext) -> float:
        x = copies(torch, cubes, piece)
        return sum(torch.launch(step, x, number).exec_ns for number in range(cubes - 1))

    return run(program, {"system.sips.count": 1, "sip.cube_mesh.w": w, "sip.cube_mesh.h": h})


def reading_ns(w: int, h: int, piece: int) -> float:
    """An all-gather in which every PE reads its number's pieces from all cubes, three at a time."""
    cubes = w * h

    def read(x: Any, tl: Any) -> None:
        pe, cube = tl.program_id(0), tl.program_id(1)
        under_way: list[Any] = []

        def keep(waiting: Sequence[Any]) -> None:
            of, load = waiting
            tl.store(x + place(cubes, piece, cube, pe, of), tl.wait(load))

        for other in ((cube + k) % cubes for k in range(1, cubes)):
            load = tl.load_async(x + place(cubes, piece, other, pe, other), (piece,), "i8")
            under_way.append((other, load))
            if len(under_way) > 2:
                keep(under_way.pop(0))
        for waiting in under_way:
            keep(waiting)

    def program(torch: RuntimeContext) -> float:
        return torch.launch(read, copies(torch, cubes, piece)).exec_ns

    return run(program, {"system.sips.count": 1, "sip.cube_mesh.w": w, "sip.cube_mesh.h": h})


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_a_ring_of_cubes_moves_at_the_speed_of_its_links() -> None:
    """A step is a load from the PE's own HBM, and then all eight PEs share 512 GB/s to the next cube: 16 KiB more per
    PE are 64 ns and 256 ns more per step.
    """
    small, large = ring_ns(2, 2, 16 * 1024), ring_ns(2, 2, 32 * 1024)
    more = 16 * 1024 / HBM_GBS + PES * 16 * 1024 / UCIE_GBS
    assert large - small == 3 * more  # steps; times are exact sums


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
def test_everybody_reading_from_everybody_takes_longer_than_the_ring_and_the_more_so_the_more_cubes() -> None:
    """Pieces of far cubes cross several links, which the ring's never do."""
    few, more = (reading_ns(*case) / ring_ns(*case) for case in ((2, 2, 16 * 1024), (3, 2, 16 * 1024)))
    assert 1.2 < few < more
    assert more > 1.7
