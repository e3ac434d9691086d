"""A launch that fails fast stops: what other PEs have yet to do is not done, and they are free for the next launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError
from kernbench.common.messages import KernelAbortMsg, KernelLaunchMsg, KernelRef
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import TopologyGraph, load_topology

ROUNDS = 10_000  # of 1 ns: far longer than a failure takes to be heard anywhere
PLACES = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2, num_pes=4)


@cache
def machine() -> TopologyGraph:
    """Two SIPs of two cubes with 8 PEs each."""
    return load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(), op_log=OpLog())) as made:
        yield made


def fails_at(torch: RuntimeContext, kernel: Callable[..., object], *args: object, **options: Any) -> LaunchError:
    """Launch a kernel that fails somewhere, and let all that is left in the machine happen."""
    with pytest.raises(LaunchError) as caught:
        torch.launch("k", kernel, *args, **options)
    torch.engine.env.run()
    return caught.value


def latency_ns(torch: RuntimeContext, *nodes: str) -> float:
    """A control message from node to node."""
    engine = torch.engine
    return sum(engine.latency_ns(engine.router.find_node_path(a, b)) for a, b in pairwise(nodes))


def pe_cpu(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.pe{pe}.pe_cpu"


class Rounds:
    """A kernel that fails after 10 ns on the first PE of the first cube and goes round for long on the others."""

    def __init__(self, failing_sip: int = 0) -> None:
        self.done: dict[tuple[int, int, int], int] = {}
        self._failing_sip = failing_sip

    def __call__(self, tl: Any) -> None:
        pe, cube, sip = (tl.program_id(axis) for axis in range(3))
        if (pe, cube, sip) == (0, 0, self._failing_sip):
            tl.cycles(10)
            raise ValueError("no good")
        for n in range(ROUNDS):
            self.done[sip, cube, pe] = n  # rounds that are over
            tl.cycles(1)


def test_others_stop_when_they_hear_of_the_failure(torch: RuntimeContext) -> None:
    rounds = Rounds()
    fails_at(torch, rounds, target_cubes=(0, 1), target_pes=(0, 3))
    m_cpus, io_cpu = ("sip0.cube0.m_cpu", "sip0.cube1.m_cpu"), "sip0.io0.io_cpu"
    to_m_cpu = latency_ns(torch, pe_cpu(0, 0, 0), m_cpus[0])
    own_cube = 10 + to_m_cpu + latency_ns(torch, m_cpus[0], pe_cpu(0, 0, 3))
    to_cube_1 = 10 + to_m_cpu + latency_ns(torch, m_cpus[0], io_cpu, m_cpus[1])
    # The round that is under way when the PE hears does not end. PE 3 is number 1 of the launch.
    assert rounds.done == {
        (0, 0, 1): ceil(own_cube) - 1,
        (0, 1, 0): ceil(to_cube_1 + latency_ns(torch, m_cpus[1], pe_cpu(0, 1, 0))) - 1,
        (0, 1, 1): ceil(to_cube_1 + latency_ns(torch, m_cpus[1], pe_cpu(0, 1, 3))) - 1,
    }


def test_the_user_gets_the_one_error_at_the_same_time_as_before(torch: RuntimeContext) -> None:
    error = fails_at(torch, Rounds(), target_cubes=(0, 1), target_pes=(0, 3))
    assert error.what == "kernel 'k' failed on sip 0, cube 0, pe 0: ValueError: no good"
    assert len(error.failures) == 1
    (launch,) = torch.launches
    back = latency_ns(torch, pe_cpu(0, 0, 0), "sip0.cube0.m_cpu", "sip0.io0.io_cpu", "sip0.io0.pcie_ep")
    assert launch.end_ns == launch.pes[0].end_ns + back
    assert [(pe.cube, pe.pe) for pe in launch.pes] == [(0, 0)]


def test_stores_after_the_failure_are_not_seen(torch: RuntimeContext) -> None:
    out = torch.zeros(8, 4, dp=PLACES)

    def kernel(x: Any, tl: Any) -> None:
        if tl.program_id(0) == tl.program_id(1) == 0:
            raise ValueError("at once")
        for n in range(1, 101):
            tl.store(x.local, tl.full((1, 4), n, "f16"))
            tl.cycles(50)

    fails_at(torch, kernel, out)
    last = out.numpy()[:, 0]
    assert last[0] == 0
    assert ((last[1:] > 0) & (last[1:] < 10)).all()
    assert torch.now_ns < torch.launches[-1].pes[0].start_ns + 1000


@pytest.mark.parametrize("what", [Exception, BaseException])
def test_a_kernel_cannot_catch_its_end(torch: RuntimeContext, what: type[BaseException]) -> None:
    seen: list[str] = []

    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 0:
            raise ValueError("at once")
        while True:
            try:
                tl.cycles(5)
            except what:  # the mistake
                seen.append("caught")
            finally:
                tl.full((4,), 1, "f16")

    fails_at(torch, kernel, target_cubes=0, target_pes=(0, 1))
    assert torch.now_ns < 1000
    assert bool(seen) == (what is BaseException)
    assert torch.launch("fine", lambda tl: tl.cycles(3), target_cubes=0, target_pes=1).pe_exec_ns_max == 3


def test_what_a_kernel_asks_for_on_its_way_out_is_not_done(torch: RuntimeContext) -> None:
    out = torch.zeros(8, 4, dp=PLACES)

    def kernel(x: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            raise ValueError("at once")
        try:
            tl.cycles(ROUNDS)
        finally:
            tl.composite("math", tl.ref(x.local, (1, 4)), out_ptr=x.local, math_op="exp")
            tl.store(x.local, tl.full((1, 4), 1, "f16"))

    fails_at(torch, kernel, out)
    assert (out.numpy() == 0).all()


def test_commands_given_before_the_abort_are_done_and_then_the_pe_is_free(torch: RuntimeContext) -> None:
    x = torch.from_numpy(np.ones((8 * 64, 64), np.float16), dp=PLACES)
    out = torch.zeros(8 * 20 * 64, 64, dp=PLACES)

    def kernel(x: Any, out: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            raise ValueError("at once")
        for n in range(20):  # each with an output of its own: none waits for another
            to = out.local + n * 64 * 64 * 2
            tl.composite("gemm", tl.ref(x.local, (64, 64)), tl.ref(x.local, (64, 64)), out_ptr=to)
        tl.cycles(1)
        tl.store(out.local, tl.full((64, 64), 0, "f16"))

    def whole_tcm(x: Any, out: Any, tl: Any) -> None:
        tl.zeros((torch.spec.cube.tcm_allocatable_bytes // 2,), "f16")

    with pytest.raises(LaunchError, match="at once"):
        torch.launch("k", kernel, x, out)
    after = torch.launch("after", whole_tcm, x, out)
    composites = [r for r in torch.engine.log.records if r.op_name == "composite_gemm"]  # type: ignore[union-attr]  # the engine has a log
    last = {pe: max(r.t_end for r in composites if f".pe{pe}." in r.component_id) for pe in (1, 2, 3)}
    assert {pe.pe: pe.start_ns for pe in after.pes if pe.cube == 0 and pe.pe} == last
    assert len(composites) == 20 * 6  # PEs 1 to 3 of two cubes
    values = out.numpy().reshape(8, 20, 64, 64)
    assert (values[[1, 2, 3, 5, 6, 7]] == 64).all()
    assert (values[[0, 4]] == 0).all()


def heard_ns(torch: RuntimeContext, pe: int) -> float:
    """From the failure of PE 0 of cube 0 until another PE of that cube hears of it."""
    return latency_ns(torch, pe_cpu(0, 0, 0), "sip0.cube0.m_cpu", pe_cpu(0, 0, pe))


def test_a_long_wait_of_one_pe_does_not_delay_the_end_of_a_failed_launch(torch: RuntimeContext) -> None:
    ended: list[float] = []

    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 0:
            raise ValueError("at once")
        try:
            tl.cycles(10**6)
        finally:
            ended.append(torch.now_ns)

    with pytest.raises(LaunchError, match="at once"):
        torch.launch("k", kernel, target_cubes=0, target_pes=(0, 1))
    start_ns = torch.launches[0].pes[0].start_ns
    after = torch.launch("after", lambda tl: None, target_cubes=0, target_pes=1)
    assert ended == [start_ns + heard_ns(torch, 1)]
    assert after.pes[0].end_ns < start_ns + 1000


@pytest.mark.parametrize("waits_for", ["a store", "a composite"])
def test_a_kernel_that_waits_for_an_engine_is_thrown_out_and_the_engine_finishes(
    torch: RuntimeContext, waits_for: str
) -> None:
    dp = DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
    x = torch.from_numpy(np.ones((256, 128), np.float16), dp=dp)
    out = torch.zeros(256, 128, dp=dp)
    ended: list[float] = []

    def kernel(x: Any, out: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.cycles(10)
            raise ValueError("no good")
        try:
            if waits_for == "a store":
                tl.store(out.local, tl.full((128, 128), 1, "f16"))
            else:
                tl.wait(tl.composite("math", tl.ref(x.local, (128, 128)), out_ptr=out.local, math_op="abs"))
        finally:
            ended.append(torch.now_ns)

    with pytest.raises(LaunchError, match="no good"):
        torch.launch("k", kernel, x, out)
    failed = torch.launches[0].pes[0]
    after = torch.launch("after", lambda x, tl: None, x)
    assert ended == [failed.end_ns + heard_ns(torch, 1)]
    last_ns = max(record.t_end for record in torch.engine.log.records)  # type: ignore[union-attr]  # the engine has a log
    assert after.pes[1].start_ns == last_ns > ended[0]
    assert (out.numpy()[128:] == 1).all()  # all of what the PE had been given


def test_a_launch_that_waits_for_its_turn_never_starts(torch: RuntimeContext) -> None:
    ran: list[int] = []

    def long(tl: Any) -> None:
        tl.cycles(5000)

    def kernel(tl: Any) -> None:
        ran.append(tl.program_id(0))
        raise ValueError("at once")

    first = torch.launch("long", long, wait=False, target_cubes=0, target_pes=1)
    with pytest.raises(LaunchError, match="pe 0: ValueError: at once"):
        torch.launch("k", kernel, target_cubes=0, target_pes=(0, 1))
    assert not first.is_done
    third = torch.launch("long", long, target_cubes=0, target_pes=1)
    assert ran == [0]
    assert third.pes[0].start_ns == first.pes[0].end_ns == first.pes[0].start_ns + 5000


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_on_one_sip_stops_the_others(torch: RuntimeContext, failing: int) -> None:
    rounds = Rounds(failing)
    error = fails_at(torch, rounds, sips=(0, 1), target_cubes=0, target_pes=(0, 2))
    assert error.what == f"kernel 'k' failed on sip {failing}, cube 0, pe 0: ValueError: no good"
    (launch,) = torch.launches
    other = 1 - failing
    stopped = [pe for pe in launch.pes if pe.sip == other]
    assert [(pe.pe, pe.is_aborted) for pe in stopped] == [(0, True), (2, True)]
    # The host hears of the failure, and tells the other SIP, over ways that are the same on both.
    there = latency_ns(torch, "sip0.io0.pcie_ep", "sip0.io0.io_cpu", "sip0.cube0.m_cpu")
    back = latency_ns(torch, pe_cpu(0, 0, 0), "sip0.cube0.m_cpu", "sip0.io0.io_cpu", "sip0.io0.pcie_ep")
    enters = torch.engine.graph.node("sip0.io0.pcie_ep").overhead_ns
    for pe in stopped:
        heard = 10 + back + enters + there + latency_ns(torch, "sip0.cube0.m_cpu", pe_cpu(0, 0, pe.pe))
        assert pe.pe_exec_ns == heard  # in the middle of a round
    assert torch.launch("fine", lambda tl: tl.cycles(3), sips=(0, 1)).pe_exec_ns_max == 3


def test_a_kernel_that_has_returned_is_not_stopped_and_a_second_abort_changes_nothing() -> None:
    engine = GraphEngine(machine())
    rounds = Rounds(failing_sip=-1)
    engine.kernels |= {"short": lambda: None, "long": rounds}
    launch = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("short")))
    engine.wait(launch)
    engine.wait(engine.submit(KernelAbortMsg(sip=0, launch_id=launch.request.id)))
    assert not any(pe.is_aborted for pe in launch.results)
    launch = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("long")))
    for _ in range(2):
        engine.submit(KernelAbortMsg(sip=0, launch_id=launch.request.id))
    assert engine.wait(launch).ok
    assert all(pe.is_aborted for pe in launch.results)
    engine.wait_all()
    assert engine.now_ns < 1000


def test_collect_all_lets_everybody_finish(torch: RuntimeContext) -> None:
    rounds = Rounds()
    fails_at(torch, rounds, sips=(0, 1), target_cubes=(0, 1), target_pes=(0, 3), failure_policy="collect_all")
    assert set(rounds.done.values()) == {ROUNDS - 1}
    (launch,) = torch.launches
    assert len(launch.pes) == 8
    assert not any(pe.is_aborted for pe in launch.pes)


def test_a_launch_that_is_aborted_before_its_start_runs_nowhere() -> None:
    engine, ran = GraphEngine(machine()), []
    engine.kernels["k"] = lambda: ran.append(1)
    launch = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("k"), target_start_ns=1000.0))
    abort = engine.submit(KernelAbortMsg(sip=0, launch_id=launch.request.id))
    assert engine.wait(abort).ok
    assert engine.now_ns < 1000
    assert engine.wait(launch).ok
    assert ran == []
    assert {pe.is_aborted for pe in launch.results} == {True}
    again = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("k")))
    assert engine.wait(again).ok
    assert len(ran) == len(again.results) == 16
