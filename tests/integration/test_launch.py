"""Launch messages: fan-out, one start for all PEs, answers brought together, failures, and what mappings cost.

PEs run no kernels here: a PE_CPU of the test's own answers each launch with when it heard of it and when it started.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import pytest

from kernbench.common.errors import MessageError
from kernbench.common.messages import (
    KernelFailure,
    KernelLaunchMsg,
    KernelRef,
    MapEntry,
    MmuMapMsg,
    MmuUnmapMsg,
    PeResult,
    ScalarArg,
    TensorArg,
    TensorShard,
    UnmapEntry,
)
from kernbench.components.base import ActiveComponent, Packet, Process
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology


class EchoPeCpu(ActiveComponent):
    """Runs for 1 ns per PE number from the start it was given; fails, or never answers, where the test says so."""

    failing: ClassVar[tuple[tuple[int, int, int], ...]] = ()
    silent: ClassVar[tuple[tuple[int, int, int], ...]] = ()

    def accept(self, packet: Packet) -> Process | None:
        return self._run(packet)

    def _run(self, packet: Packet) -> Process:
        launch, place, heard = packet.request, self.node.place, self.env.now
        assert isinstance(launch, KernelLaunchMsg)
        assert launch.target_start_ns is not None
        yield from self.pause(launch.target_start_ns - heard)
        start = self.env.now
        yield from self.pause(1.0 + place.pe)
        key = (place.sip, place.cube, place.pe)
        failure = None
        if key in self.failing:
            failure = KernelFailure("ValueError", "no good", "kernel.py", 7, "x = 1 / 0", *key)
        result = PeResult(*key, start, self.env.now, self.env.now - start, dma_ns=heard, compute_ns=0.0, error=failure)
        if key in self.silent:
            return
        self.reply(packet, payload=result)


@pytest.fixture(autouse=True, scope="module")
def _echo_module() -> None:
    module = ModuleType("launch_test_blocks")
    module.EchoPeCpu = EchoPeCpu  # type: ignore[attr-defined]  # a module made for the test
    sys.modules["launch_test_blocks"] = module


@cache
def machine(sips: int = 2) -> TopologyGraph:
    return load_topology(
        None,
        {
            "system.sips.count": sips,
            "cube.pe_template.components.pe_cpu.impl": "launch_test_blocks:EchoPeCpu",
        },
    )


def engine(sips: int = 2) -> GraphEngine:
    made = GraphEngine(machine(sips))
    made.kernels["echo"] = lambda: None
    return made


def launch(sip: int = 0, **fields: Any) -> KernelLaunchMsg:
    return KernelLaunchMsg(sip=sip, kernel_ref=KernelRef("echo"), **fields)


# ---- one start


def test_every_pe_of_a_sip_starts_when_the_last_one_has_heard() -> None:
    run = engine()
    handle = run.submit(launch())
    assert run.wait(handle).ok
    results = handle.results
    assert [(r.cube, r.pe) for r in results] == [(cube, pe) for cube in range(16) for pe in range(8)]
    assert len({r.start_ns for r in results}) == 1
    heard = [r.dma_ns for r in results]
    assert max(heard) == results[0].start_ns  # the barrier is no later than it must be
    assert len(set(heard)) > 16  # and they did hear at different times


def test_every_pe_of_two_sips_starts_at_one_instant() -> None:
    run = engine()
    handles = run.submit_together([launch(0), launch(1)])
    run.wait_all()
    results = [result for handle in handles for result in handle.results]
    assert len(results) == 2 * 16 * 8
    assert {r.start_ns for r in results} == {max(r.dma_ns for r in results)}


def test_sips_that_start_together_wait_for_the_one_that_hears_last() -> None:
    run = engine()
    near, far = run.submit_together([launch(0, target_cubes=(0,)), launch(1)])
    run.wait_all()
    alone = engine()
    handle = alone.submit(launch(1))
    alone.wait(handle)
    assert near.results[0].start_ns == far.results[0].start_ns == handle.results[0].start_ns
    assert max(r.dma_ns for r in near.results) < near.results[0].start_ns


def test_a_start_before_the_last_pe_can_hear_is_refused() -> None:
    run = engine()
    handle = run.submit(launch(target_start_ns=1.0))
    with pytest.raises(MessageError, match=r"to start at 1\.0 ns, but its last PE has it at"):
        run.wait(handle)


def test_only_the_targets_run() -> None:
    run = engine()
    handle = run.submit(launch(1, target_cubes=(3, 5), target_pes=(0, 7)))
    run.wait(handle)
    assert [(r.sip, r.cube, r.pe) for r in handle.results] == [(1, 3, 0), (1, 3, 7), (1, 5, 0), (1, 5, 7)]


def test_a_launch_is_done_when_its_slowest_pe_has_been_heard() -> None:
    run = engine()
    handle = run.submit(launch(target_cubes=(0,), target_pes=(0, 7)))
    run.wait(handle)
    _, trace = run.get_completion(handle)
    assert trace["pes"] == list(handle.results)
    assert trace["pe_exec_ns"] == 8.0  # PE 7 runs for 1 + 7 ns
    assert trace["end_ns"] > handle.results[1].end_ns


# ---- failures


def test_the_first_failure_ends_a_fail_fast_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoPeCpu, "failing", ((0, 2, 1), (0, 2, 6)))
    monkeypatch.setattr(EchoPeCpu, "silent", ((0, 2, 3),))
    run = engine()
    handle = run.submit(launch())
    completion = run.wait(handle)
    assert not completion.ok
    assert completion.error_code == "KERNEL_FAILED"
    text = "ValueError on sip 0, cube 2, pe 1: no good\n  where: kernel.py:7  x = 1 / 0"
    assert str(completion.error_message) == text
    assert [(f.cube, f.pe) for f in handle.failures] == [(2, 1)]


def test_collect_all_brings_every_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoPeCpu, "failing", ((0, 2, 1), (0, 9, 6)))
    run = engine()
    handle = run.submit(launch(failure_policy="collect_all"))
    completion = run.wait(handle)
    assert not completion.ok
    assert str(completion.error_message).endswith("and 1 more PEs")
    assert [(f.cube, f.pe) for f in handle.failures] == [(2, 1), (9, 6)]
    assert len(handle.results) == 128


def test_other_launches_go_on_after_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine()
    with monkeypatch.context() as here:
        here.setattr(EchoPeCpu, "failing", ((0, 0, 0),))
        assert not run.wait(run.submit(launch())).ok
    assert run.wait(run.submit(launch())).ok


# ---- where a launch runs


def held_by(*places: tuple[int, int, int]) -> TensorArg:
    """A tensor with a shard of 64 bytes on each of these PEs."""
    shards = [TensorShard(*place, pa=0, nbytes=64, offset_bytes=64 * at) for at, place in enumerate(places)]
    return TensorArg("x", (len(places), 32), "f16", None, tuple(shards))


def ran(**fields: object) -> list[tuple[int, int]]:
    run = engine()
    handle = run.submit(launch(**fields))  # type: ignore[arg-type]  # fields of a launch
    assert run.wait(handle).ok
    return [(result.cube, result.pe) for result in handle.results]


def test_a_launch_that_does_not_say_where_runs_where_its_shards_are() -> None:
    assert ran(args=(held_by((0, 3, 5)),)) == [(3, 5)]
    assert ran(args=(held_by((0, 3, 5), (0, 1, 5)), ScalarArg("i32", 7))) == [(1, 5), (3, 5)]
    assert ran(named_args={"x": held_by((0, 3, 5))}) == [(3, 5)]


def test_targets_that_a_launch_names_win_over_its_shards() -> None:
    x = held_by((0, 3, 5))
    assert ran(args=(x,), target_cubes=(2,)) == [(2, 5)]
    assert ran(args=(x,), target_cubes=(2,), target_pes=(0, 1)) == [(2, 0), (2, 1)]


def test_a_launch_whose_shards_are_all_on_another_sip_runs_everywhere() -> None:
    assert len(ran(args=(held_by((1, 3, 5)),))) == 16 * 8


def test_launches_that_start_together_wait_only_for_pes_that_they_reach() -> None:
    run, x = engine(), held_by((0, 0, 0), (1, 0, 0))
    handles = run.submit_together([launch(0, args=(x,)), launch(1, args=(x,))])
    run.wait_all()
    results = [result for handle in handles for result in handle.results]
    assert [(r.sip, r.cube, r.pe) for r in results] == [(0, 0, 0), (1, 0, 0)]
    assert {r.start_ns for r in results} == {max(r.dma_ns for r in results)}


def test_an_unknown_kernel_is_refused_at_once() -> None:
    run = engine()
    with pytest.raises(MessageError, match="no kernel 'missing' is known here"):
        run.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("missing")))


# ---- mappings


def mmu(run: GraphEngine, cube: int, pe: int) -> PeMmuComponent:
    found = run.component(f"sip0.cube{cube}.pe{pe}.pe_mmu")
    assert isinstance(found, PeMmuComponent)
    return found


@pytest.mark.needs("va", reason="other address models map nothing in MMUs")
def test_a_mapping_reaches_the_mmus_it_is_for_and_takes_time() -> None:
    run = engine()
    entries = (MapEntry(0x1000, 0xA000, 64), MapEntry(0x2000, 0xB000, 64, cube=1), MapEntry(0x3000, 0xC000, 64, pe=2))
    run.wait(run.submit(MmuMapMsg(sip=0, target_cubes=(0, 1), target_pes=(2, 3), entries=entries)))
    assert run.now_ns > 0
    assert [mmu(run, cube, pe).table.mapped_bytes for cube, pe in ((0, 2), (0, 3), (1, 2), (1, 3), (0, 0))] == [
        128,
        64,
        192,
        128,
        0,
    ]
    assert mmu(run, 1, 2).translate(0x3010, 8) == [(0xC010, 8)]


@pytest.mark.needs("va", reason="other address models map nothing in MMUs")
def test_unmapping_takes_as_long_as_mapping() -> None:
    run = engine()
    run.wait(run.submit(MmuMapMsg(sip=0, entries=(MapEntry(0x1000, 0xA000, 64),))))
    mapped_at = run.now_ns
    run.wait(run.submit(MmuUnmapMsg(sip=0, entries=(UnmapEntry(0x1000, 64),))))
    assert run.now_ns == 2 * mapped_at
    assert mmu(run, 15, 7).table.mapped_bytes == 0


@pytest.mark.needs("va", reason="other address models map nothing in MMUs")
def test_a_farther_cube_is_mapped_later() -> None:
    def mapping_ns(cube: int) -> float:
        run = engine()
        run.wait(run.submit(MmuMapMsg(sip=0, target_cubes=(cube,), entries=(MapEntry(0x1000, 0xA000, 64),))))
        return run.now_ns

    assert mapping_ns(0) < mapping_ns(4) < mapping_ns(12)
