"""A launch that has failed is reported at once, and is over when its PEs have done what they were given.

Until then its tensors stay, and a look at memory waits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import TopologyGraph, load_topology

N = 256  # a product of this size takes far longer than a failure to be heard
TWO_PES = {"target_pes": (0, 1)}


@cache
def machine() -> TopologyGraph:
    """Two SIPs of one cube with 8 PEs each."""
    return load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(machine(), op_log=OpLog())


@pytest.fixture
def torch(engine: GraphEngine) -> Iterator[RuntimeContext]:
    with RuntimeContext(engine) as made:
        yield made


def product_then_failure(x: Any, out: Any, tl: Any) -> None:
    """PE 0 is asked to stop while its product is under way: PE 1 has failed."""
    if tl.program_id(0) == 1:
        tl.cycles(100)
        raise ValueError("no good")
    tl.wait(tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out))


def failure_with_a_product(x: Any, out: Any, tl: Any) -> None:
    """The PE that fails has a product of its own under way."""
    if tl.program_id(0) == 0:
        tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out)
        raise ValueError("no good")


KERNELS = pytest.mark.parametrize("kernel", [product_then_failure, failure_with_a_product])
POLICIES = pytest.mark.parametrize("policy", ["fail_fast", "collect_all"])


def fails(torch: RuntimeContext, kernel: Any, *args: object, **options: Any) -> None:
    with pytest.raises(LaunchError, match="no good"):
        torch.launch("k", kernel, *args, **(TWO_PES | options))


def ones(torch: RuntimeContext) -> Any:
    return torch.from_numpy(np.ones((N, N), np.float16))


def records(engine: GraphEngine, op_name: str) -> list[Any]:
    assert engine.log is not None
    return [record for record in engine.log.records if record.op_name == op_name]


def ways_ns(engine: GraphEngine, pe: int) -> tuple[float, float]:
    """From the host to a PE and back, as control messages go."""
    nodes = ("sip0.io0.pcie_ep", "sip0.io0.io_cpu", "sip0.cube0.m_cpu", f"sip0.cube0.pe{pe}.pe_cpu")
    there, back = (
        sum(engine.latency_ns(engine.router.find_node_path(a, b)) for a, b in pairwise(way))
        for way in (nodes, nodes[::-1])
    )
    return engine.graph.node(nodes[0]).overhead_ns + there, back


# ---- memory after a failure


@KERNELS
@POLICIES
def test_a_failed_launch_writes_no_later_tensor(torch: RuntimeContext, kernel: Any, policy: str) -> None:
    x, out = ones(torch), torch.zeros(N, N)
    fails(torch, kernel, x, out, failure_policy=policy)
    del x, out
    gc.collect()
    later = [torch.zeros(N, N) for _ in range(3)]
    torch.engine.env.run()
    assert [tensor.numpy().max() for tensor in later] == [0, 0, 0]


@KERNELS
def test_memory_of_a_failed_launch_is_handed_out_again_once_it_is_over(torch: RuntimeContext, kernel: Any) -> None:
    x, out = ones(torch), torch.zeros(N, N)
    used = torch.used_bytes(0, 0, 0)
    fails(torch, kernel, x, out)
    del x, out
    gc.collect()
    torch.launch("other", lambda tl: None, target_pes=7)
    assert torch.used_bytes(0, 0, 0) == used  # its product is under way
    torch.wait_all()
    torch.launch("other", lambda tl: None, target_pes=7)
    assert torch.used_bytes(0, 0, 0) == 0


@KERNELS
@POLICIES
def test_reading_waits_until_the_failed_launch_is_over(torch: RuntimeContext, kernel: Any, policy: str) -> None:
    x, out = ones(torch), torch.zeros(N, N)
    fails(torch, kernel, x, out, failure_policy=policy)
    told_ns = torch.now_ns
    assert (out.numpy() == N).all()
    (product,) = records(torch.engine, "composite_gemm")
    # The host asks when it is notified of the failure; PE 0 answers when its product is done, PE 1 at once.
    (there, back), (there_1, back_1) = (ways_ns(torch.engine, pe) for pe in (0, 1))
    over_ns = max(told_ns + there, product.t_end) + back
    assert torch.now_ns == max(over_ns, told_ns + there_1 + back_1)
    assert (told_ns < product.t_end) == (policy == "fail_fast" or kernel is failure_with_a_product)
    torch.engine.env.run()
    assert (out.numpy() == N).all()


def test_reading_waits_for_a_launch_that_fails_meanwhile_and_then_for_its_end(torch: RuntimeContext) -> None:
    x, out = ones(torch), torch.zeros(N, N)
    launch = torch.launch("k", product_then_failure, x, out, wait=False, **TWO_PES)
    assert (out.numpy() == N).all()
    assert launch.is_over
    with pytest.raises(LaunchError, match="no good"):
        torch.wait_all()


def test_the_next_context_of_the_engine_is_not_written_by_the_failed_launch(engine: GraphEngine) -> None:
    with pytest.raises(LaunchError, match="no good"), RuntimeContext(engine) as torch:
        torch.launch("k", product_then_failure, ones(torch), torch.zeros(N, N), **TWO_PES)
    with RuntimeContext(engine) as torch:
        later = [torch.zeros(N, N) for _ in range(3)]
        engine.env.run()
        assert [tensor.numpy().max() for tensor in later] == [0, 0, 0]


def test_a_store_that_the_engine_has_is_in_memory_though_its_kernel_was_stopped(torch: RuntimeContext) -> None:
    def kernel(out: Any, tl: Any) -> None:
        if tl.program_id(0) == 1:
            tl.cycles(10)
            raise ValueError("no good")
        tl.store(out, tl.full((N, N), 7.0))
        tl.store(out, tl.full((N, N), 8.0))

    out = torch.zeros(N, N)
    fails(torch, kernel, out)
    assert not records(torch.engine, "dma_write")  # under way
    assert (out.numpy() == 7).all()
    (store,) = records(torch.engine, "dma_write")
    assert torch.now_ns == store.t_end + ways_ns(torch.engine, 0)[1]


def test_a_function_of_the_same_name_is_another_kernel_until_the_failed_one_is_over(torch: RuntimeContext) -> None:
    fails(torch, product_then_failure, ones(torch), torch.zeros(N, N))
    assert torch.launch("k", lambda tl: None, target_pes=7).kernel_ref == "k#2"
    torch.wait_all()
    assert torch.launch("k", lambda tl: None, target_pes=7).kernel_ref == "k"


def test_a_kernel_that_sets_composites_going_whatever_it_catches_is_ended(torch: RuntimeContext) -> None:
    caught: list[int] = []

    def kernel(x: Any, out: Any, tl: Any) -> None:
        if tl.program_id(0) == 1:
            tl.cycles(100)
            raise ValueError("no good")
        while len(caught) < 1000:
            try:
                tl.wait(tl.composite("math", tl.ref(x), math_op="exp", out_ptr=out))
            except BaseException:  # the mistake
                caught.append(1)

    x, out = torch.zeros(8), torch.zeros(8)
    fails(torch, kernel, x, out)
    torch.wait_all()
    assert 0 < len(caught) <= 16
    assert torch.launch("fine", lambda tl: tl.cycles(3), target_pes=0).pe_exec_ns_max == 3


# ---- who is notified


def test_wait_all_tells_a_rank_of_its_own_launches_only(torch: RuntimeContext) -> None:
    seen: list[str] = []

    def bad(tl: Any) -> None:
        raise ValueError("no good")

    def failing() -> None:
        torch.launch("bad", bad, wait=False, sips=(1,))
        torch.zeros(4)  # time passes
        torch.zeros(4096, 64)
        with pytest.raises(LaunchError, match="no good"):
            torch.wait_all()
        seen.append("notified")

    def other() -> None:
        torch.launch("good", lambda tl: tl.cycles(300))
        assert torch.launches[0].is_done
        torch.wait_all()
        seen.append("not notified")

    torch.ranks.run([failing, other])
    assert sorted(seen) == ["not notified", "notified"]
    assert seen[0] == "not notified"


def test_a_rank_waits_for_the_end_of_its_own_failed_launch(torch: RuntimeContext) -> None:
    def failing() -> float:
        x, out = ones(torch), torch.zeros(N, N)
        fails(torch, product_then_failure, x, out)
        assert (out.numpy() == N).all()
        return torch.now_ns

    def other() -> float:
        torch.ahbm.set_device(1)
        torch.launch("good", lambda tl: tl.cycles(1000))
        torch.wait_all()
        return torch.now_ns

    late, early = torch.ranks.run([failing, other])
    assert isinstance(early, float)
    assert isinstance(late, float)
    assert early < late


def test_closing_reports_a_failure_that_was_not_waited_for_once(engine: GraphEngine) -> None:
    torch = RuntimeContext(engine)
    torch.launch("k", failure_with_a_product, ones(torch), torch.zeros(N, N), wait=False)
    with pytest.raises(LaunchError, match="no good"):
        torch.close()
    assert torch.used_bytes(0, 0, 0) == 0
    torch.close()


def test_closing_does_not_hide_the_error_that_is_under_way(engine: GraphEngine) -> None:
    def program() -> None:
        with RuntimeContext(engine) as torch:
            torch.launch("k", failure_with_a_product, ones(torch), torch.zeros(N, N), wait=False)
            torch.launch("other", lambda tl: tl.cycles(1000), target_pes=7)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


def test_closing_tells_of_what_a_rank_left_behind(engine: GraphEngine) -> None:
    torch = RuntimeContext(engine)
    x, out = ones(torch), torch.zeros(N, N)
    torch.ranks.run([lambda: torch.launch("k", failure_with_a_product, x, out, wait=False)])
    torch.wait_all()  # this program has launched nothing itself
    with pytest.raises(LaunchError, match="no good"):
        torch.close()


# ---- figures


def test_what_stopped_pes_did_is_in_no_figure(torch: RuntimeContext) -> None:
    parts = DPPolicy(pe="row_wise", num_cubes=1)
    x = torch.zeros(8, 128, dp=parts)

    def kernel(x: Any, tl: Any) -> None:
        if tl.program_id(2) == 1 and tl.program_id(0) == 0:
            tl.load(x, (1, 128))
            raise ValueError("no good")
        while True:
            tl.load(x, (1, 128)) + 1

    fails(torch, kernel, x, sips=(0, 1), target_pes="all")
    (launch,) = torch.launches
    assert [pe.sip for pe in launch.pes if pe.is_aborted] == [0] * 8
    assert [(pe.sip, pe.pe) for pe in launch.ended] == [(1, 0)]
    assert launch.bytes_hbm == sum(use.burst_bytes for use in launch.hbm.values()) == 256  # one load of 128 f16
    assert {kind: use.ops for kind, use in launch.engines.items()} == {"pe_dma": 1}
    assert launch.pe_exec_ns_max == launch.pe_exec_ns_min == launch.exec_ns == launch.ended[0].pe_exec_ns
    assert len(launch.as_json()["per_pe"]) == 1  # type: ignore[arg-type]  # a list
