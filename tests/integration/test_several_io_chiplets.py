"""Machines with several IO chiplets: commands enter at the one nearest to their cubes, and none overtakes another.

The machine is a column of four cubes with io0 in the north and io1 in the south: cube 0 stands at io0, cube 3 at io1.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kernbench.common.ids import PeId
from kernbench.common.messages import (
    CubeCommand,
    KernelLaunchMsg,
    KernelRef,
    MapEntry,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeResult,
    Targets,
    UnmapEntry,
)
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.command_order import CommandOrder
from kernbench.sim_engine.engine import GraphEngine, Handle
from kernbench.topology import TopologyGraph, load_topology

NORTH, SOUTH = {"id": "io0", "side": "N"}, {"id": "io1", "side": "S"}
COLUMN = {"sip.cube_mesh": {"w": 1, "h": 4}}
VA = 1 << 32


@cache
def column(*ids: str) -> TopologyGraph:
    places = {"io0": NORTH, "io1": SOUTH}
    return load_topology(overrides={**COLUMN, "sip.io_chiplets": [places[name] for name in ids]})


def engine(*ids: str) -> GraphEngine:
    return GraphEngine(column(*(ids or ("io0", "io1"))))


def mapping(cubes: Targets, sip: int = 0) -> MmuMapMsg:
    pa = PhysAddr.pe_hbm_addr(sip, 0, 0, 0, 1 << 30).encode()
    return MmuMapMsg(sip=sip, target_cubes=cubes, entries=(MapEntry(VA, pa, 4096),))


def launch(cubes: Targets, sip: int = 0, name: str = "idle") -> KernelLaunchMsg:
    return KernelLaunchMsg(sip=sip, target_cubes=cubes, kernel_ref=KernelRef(name))


def idle(tl) -> None:  # type: ignore[no-untyped-def]  # a kernel as users write it
    tl.cycles(100)


def with_kernel(machine: GraphEngine) -> GraphEngine:
    machine.kernels["idle"] = idle
    return machine


def results(machine: GraphEngine, handle: Handle) -> dict[tuple[int, int, int], PeResult]:
    machine.wait(handle)
    return {(result.sip, result.cube, result.pe): result for result in handle.results}


# ---- where commands enter


@pytest.mark.parametrize(
    ("cubes", "chiplet"),
    [
        ((0,), "io0"),
        ((1,), "io0"),
        ((2,), "io1"),
        ((3,), "io1"),
        ((0, 1), "io0"),
        ((2, 3), "io1"),
        ((0, 2, 3), "io0"),  # 3 is farther from io0 than 0 is from io1, but m_cpu stands in the north of its cube
        ("all", "io0"),
    ],
)
@pytest.mark.parametrize("order", [("io0", "io1"), ("io1", "io0")])
def test_a_command_enters_at_the_chiplet_whose_farthest_cube_is_nearest(
    cubes: Targets, chiplet: str, order: tuple[str, str]
) -> None:
    machine = with_kernel(engine(*order))
    for command in (mapping(cubes), launch(cubes)):
        assert machine.submit(command).entry == f"sip0.{chiplet}.pcie_ep"


@pytest.mark.needs("va", reason="it looks at MMUs")
@pytest.mark.parametrize(("cubes", "alone"), [((0, 1), "io0"), ((2, 3), "io1"), ("all", "io0")])
def test_a_command_takes_as_long_as_where_its_chiplet_is_the_only_one(cubes: Targets, alone: str) -> None:
    for make in (mapping, launch):
        both, one = with_kernel(engine()), with_kernel(engine(alone))
        ends = []
        for machine in (both, one):
            handle = machine.submit(make(cubes))
            machine.wait(handle)
            ends.append(handle.end_ns)
        assert ends[0] == ends[1]


def test_memory_and_commands_of_a_cube_enter_at_the_same_chiplet() -> None:
    machine = engine()
    for cube, chiplet in enumerate(("io0", "io0", "io1", "io1")):
        pa = PhysAddr.pe_hbm_addr(0, cube, 0, 0, machine.graph.spec.cube.hbm_slice_bytes).encode()
        write = MemoryWriteMsg(dst_sip=0, dst_cube=cube, dst_pe=0, dst_pa=pa, nbytes=256)
        assert machine.submit(write).entry == machine.submit(mapping((cube,))).entry == f"sip0.{chiplet}.pcie_ep"


def test_four_chiplets_serve_the_cubes_of_their_own_sides() -> None:
    sides = [{"id": f"io{n}", "side": side} for n, side in enumerate("NSEW")]
    machine = GraphEngine(load_topology(overrides={"system.sips.count": 1, "sip.io_chiplets": sides}))
    # The middle two cubes of each side of a 4 x 4 grid are nearest to the chiplet there.
    for chiplet, cubes in enumerate(((1, 2), (13, 14), (7, 11), (4, 8))):
        assert machine.submit(mapping(cubes)).entry == f"sip0.io{chiplet}.pcie_ep"


# ---- in which order they arrive


def mapped_bytes(machine: GraphEngine, cube: int) -> int:
    mmu = machine.component(PeId(0, cube, 7).part("pe_mmu"))
    assert isinstance(mmu, PeMmuComponent)
    return mmu.table.mapped_bytes


def gone(cubes: Targets) -> MmuUnmapMsg:
    return MmuUnmapMsg(sip=0, target_cubes=cubes, entries=(UnmapEntry(VA, 4096),))


@pytest.mark.needs("va", reason="it looks at MMUs")
@pytest.mark.parametrize("cube", [0, 1, 2, 3])
def test_a_mapping_does_not_overtake_the_unmapping_of_its_addresses(cube: int) -> None:
    machine = engine()
    machine.submit(mapping("all"))
    machine.wait_all()
    machine.submit(gone("all"))  # enters at io0, far from cube 3
    machine.submit(mapping((cube,)))  # of cube 3 at io1, right beside it
    machine.wait_all()
    assert [mapped_bytes(machine, other) for other in range(4)] == [4096 if other == cube else 0 for other in range(4)]


@pytest.mark.needs("va", reason="it looks at MMUs")
def test_without_the_order_a_mapping_would_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandOrder, "admit", lambda self, command, endpoint: 0.0)
    machine = engine()
    machine.submit(gone("all"))
    machine.submit(mapping((3,)))
    machine.wait_all()
    assert mapped_bytes(machine, 3) == 0  # what this file is about: nothing else keeps them in order


@pytest.mark.needs("va", reason="it looks at MMUs")
def test_a_command_is_held_only_for_what_it_would_overtake() -> None:
    def takes(*commands: CubeCommand) -> float:
        machine = engine()
        handles = [machine.submit(command) for command in commands]
        machine.wait_all()
        return (handles[-1].end_ns or 0.0) - handles[-1].start_ns

    alone = takes(mapping((3,)))
    assert takes(gone((0, 1)), mapping((3,))) == alone  # another cube
    assert takes(gone((3,)), mapping((3,))) == alone  # by the same way
    # By the other way, it comes one step of the time grid after the unmapping, which is 2**-20 ns.
    machine = engine()
    first, second = machine.submit(gone("all")), machine.submit(mapping((3,)))
    machine.wait_all()
    assert first.end_ns is not None
    assert second.end_ns is not None
    to_cube_ns = machine.latency_ns(machine.router.find_node_path("sip0.io0.io_cpu", "sip0.cube3.m_cpu"))
    at_hand_ns = machine.latency_ns(machine.router.find_node_path("sip0.io1.io_cpu", "sip0.cube3.m_cpu"))
    assert second.end_ns - second.start_ns == alone + (to_cube_ns - at_hand_ns) + 2**-20


def test_a_launch_on_one_cube_runs_after_the_launch_on_all_that_was_submitted_before_it() -> None:
    machine = with_kernel(engine())
    first, second = machine.submit(launch("all")), machine.submit(launch((3,)))
    before, after = results(machine, first), results(machine, second)
    assert (first.entry, second.entry) == ("sip0.io0.pcie_ep", "sip0.io1.pcie_ep")
    for pe in range(8):
        assert after[0, 3, pe].start_ns >= before[0, 3, pe].end_ns


@pytest.mark.needs("va", reason="it looks at MMUs")
def test_launches_that_start_together_do_so_from_different_chiplets_and_behind_a_command_that_holds_one_back() -> None:
    machine = with_kernel(engine())
    machine.submit(mapping("all", sip=1))  # by io0, so what follows by io1 to cube 3 is held back
    handles = machine.submit_together([launch((0,), sip=0), launch((3,), sip=1)])
    starts = [result.start_ns for handle in handles for result in results(machine, handle).values()]
    assert [handle.entry for handle in handles] == ["sip0.io0.pcie_ep", "sip1.io1.pcie_ep"]
    assert len(starts) == 16
    assert len(set(starts)) == 1


# ---- tensors


@pytest.mark.needs("va", reason="it looks at MMUs")
def test_addresses_of_a_dropped_tensor_serve_a_new_one_at_once() -> None:
    def double(x, y, tl) -> None:  # type: ignore[no-untyped-def]  # a kernel as users write it
        tl.store(y, tl.load(x, (4, 8)) + tl.load(x, (4, 8)))

    # With m_cpu in the south of each cube, what is for all cubes enters at io1, and what is for cube 0 at io0.
    south = {**COLUMN, "sip.io_chiplets": [NORTH, SOUTH], "cube.placement.m_cpu.pos_mm": [1.5, 12.5]}
    machine = GraphEngine(load_topology(overrides=south))
    assert machine.submit(mapping("all")).entry == "sip0.io1.pcie_ep"
    assert machine.submit(mapping((0,))).entry == "sip0.io0.pcie_ep"
    with RuntimeContext(machine) as torch:
        old = torch.zeros((4, 8), dtype="f32", dp=DPPolicy(cube="replicate", pe="replicate"))
        old_va = old.allocation.va_base
        del old
        x = torch.from_numpy(np.ones((4, 8), np.float32))  # on PE 0 of cube 0
        assert x.allocation.va_base == old_va
        y = torch.empty((4, 8), dtype="f32")
        torch.launch("double", double, x, y)
        assert (y.numpy() == 2.0).all()
