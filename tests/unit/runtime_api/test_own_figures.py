"""What a launch reports is its own work, whatever runs beside it, before it or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.run_figures import figures_of
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import EngineUse, Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog
from kernbench.topology import TopologyGraph, load_topology

BURST = 256
EVERYWHERE = DPPolicy(cube="replicate", pe="replicate", num_cubes=2, num_pes=4)
EDGE = 64
MATRIX_BYTES = 2 * EDGE * EDGE

Figures = tuple[int, int, dict[str, EngineUse]]


@cache
def machine() -> TopologyGraph:
    """Two SIPs of two cubes with 8 PEs each."""
    return load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


@contextmanager
def context(log: OpLog | None) -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(), op_log=log)) as made:
        yield made


def matrices(torch: RuntimeContext, sip: int = 0) -> tuple[Tensor, Tensor]:
    """Two matrices of which every PE has its own copy, so that nobody waits for another one's memory."""
    torch.ahbm.set_device(sip)
    return torch.zeros(EDGE, EDGE, dp=EVERYWHERE), torch.zeros(EDGE, EDGE, dp=EVERYWHERE)


def product(x: Any, out: Any, tl: Any) -> None:
    a = tl.load(x)
    tl.store(out, tl.dot(a, a))


def streamed(x: Any, out: Any, tl: Any) -> None:
    for _ in range(3):
        tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out)


def one_row(x: Any, out: Any, tl: Any) -> None:
    tl.neg(tl.load(x, (EDGE + 1,)))


# By hand: a product is 2 * 64^3 flops; it reads one matrix and writes one. The streamed one has two rows and two
# columns of tiles, so it reads both operands twice, and writes one. 65 elements are 130 bytes, one burst.
KERNELS: dict[Callable[..., None], tuple[int, int]] = {
    product: (2 * EDGE**3, 2 * MATRIX_BYTES),
    streamed: (3 * 2 * EDGE**3, 3 * 5 * MATRIX_BYTES),
    one_row: (EDGE + 1, BURST),
}
COUNTED = list(KERNELS)


def figures(launch: Launch) -> Figures:
    return launch.flops, launch.bytes_hbm, launch.engines


def alone(kernel: Callable[..., None], **where: object) -> Figures:
    with context(OpLog()) as torch:
        return figures(torch.launch("k", kernel, *matrices(torch, where.pop("sip", 0)), **where))  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_launch_alone_reports_what_can_be_counted_by_hand(kernel: Callable[..., None]) -> None:
    flops, nbytes, _ = alone(kernel, target_cubes=0, target_pes=0)
    assert (flops, nbytes) == KERNELS[kernel]


@pytest.mark.parametrize("other", [{"target_cubes": 0, "target_pes": 3}, {"target_cubes": 1, "target_pes": (0, 1)}])
def test_launches_that_overlap_on_one_sip_report_what_they_do_alone(other: dict[str, Any]) -> None:
    here = {"target_cubes": 0, "target_pes": 0}
    with context(OpLog()) as torch:
        args = matrices(torch)
        first = torch.launch("streamed", streamed, *args, wait=False, **here)
        second = torch.launch("product", product, *args, wait=False, **other)
        torch.wait_all()
        assert first.start_ns == second.start_ns
        assert first.pes[0].start_ns <= second.pes[0].start_ns < first.pes[0].end_ns
    assert figures(first) == alone(streamed, **here)
    assert figures(second) == alone(product, **other)


@pytest.mark.parametrize("stream", [False, True])
def test_launches_that_queue_on_one_pe_report_what_they_do_alone(stream: bool, tmp_path: Path) -> None:
    here = {"target_cubes": 0, "target_pes": 0}
    log = StreamingOpLog(tmp_path / "ops", chunk_records=5) if stream else OpLog()  # chunks end within launches
    with context(log) as torch:
        args = matrices(torch)
        queued = [torch.launch("k", kernel, *args, wait=False, **here) for kernel in KERNELS]
        torch.wait_all()
        log.close()
    ends = [launch.pes[0].end_ns for launch in queued]
    assert [launch.pes[0].start_ns for launch in queued[1:]] == ends[:-1]
    assert [figures(launch) for launch in queued] == [alone(kernel, **here) for kernel in KERNELS]


def test_launches_on_two_sips_report_what_they_do_alone() -> None:
    with context(OpLog()) as torch:
        zero, one = matrices(torch, 0), matrices(torch, 1)
        both = torch.launch("both", streamed, *zero, wait=False, sips=(0, 1), target_cubes=0, target_pes=0)
        far = torch.launch("far", product, *one, wait=False, target_cubes=1, target_pes=(2, 3))
        torch.wait_all()
    assert figures(far) == alone(product, sip=1, target_cubes=1, target_pes=(2, 3))
    flops, nbytes = KERNELS[streamed]
    assert (both.flops, both.bytes_hbm) == (2 * flops, 2 * nbytes)  # SIP 1 works on the matrices of SIP 0
    assert [pe.hbm_bytes for pe in both.pes] == [((0, nbytes),), ((0, nbytes),)]


def test_without_an_op_log_bytes_are_known_all_the_same() -> None:
    with context(None) as torch:
        args = matrices(torch)
        first = torch.launch("streamed", streamed, *args, wait=False, target_cubes=0, target_pes=0)
        second = torch.launch("product", product, *args, wait=False, target_cubes=0, target_pes=(0, 1))
        torch.wait_all()
    assert (first.bytes_hbm, first.engines) == (KERNELS[streamed][1], {})
    assert second.bytes_hbm == 2 * KERNELS[product][1]


def test_what_the_host_writes_meanwhile_is_not_the_kernels() -> None:
    with context(OpLog()) as torch:
        args = matrices(torch)
        launch = torch.launch("streamed", streamed, *args, wait=False, target_cubes=0, target_pes=0)
        before = torch.engine.hbm_bytes(0)
        torch.from_numpy(np.ones(1 << 16, np.float16))
        torch.wait_all()
        moved = torch.engine.hbm_bytes(0) - before
    assert launch.bytes_hbm == KERNELS[streamed][1]
    assert moved == launch.bytes_hbm + (2 << 16)


def test_hbm_of_another_sip_counts_for_who_reads_it() -> None:
    with context(OpLog()) as torch:
        args = matrices(torch, 1)
        launch = torch.launch("product", product, *args, sips=0, target_cubes=0, target_pes=0)
    assert figures(launch)[:2] == KERNELS[product]
    assert launch.pes[0].hbm_bytes == ((1, 2 * MATRIX_BYTES),)
    assert launch.hbm_sips == (0, 1)


def test_the_roof_of_a_launch_that_reads_another_sip_is_over_the_slices_it_reached() -> None:
    def bench(torch: Any) -> None:
        torch.ahbm.set_device(1)
        x, out = torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE)
        torch.launch("product", product, x, out, sips=0, target_cubes=0, target_pes=0)

    ((_, roofline),) = figures_of(run(bench, machine(), device=0)).launches
    assert roofline.memory_ns == 2 * MATRIX_BYTES / 256  # one slice, of SIP 1
    assert 0 < roofline.share < 1


@pytest.mark.parametrize("policy", ["fail_fast", "collect_all"])
def test_what_a_failed_kernel_left_going_is_not_the_next_ones(policy: str) -> None:
    def fails(x: Any, out: Any, tl: Any) -> None:
        tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out)
        raise ValueError("too early")

    here = {"target_cubes": 0, "target_pes": 0}
    with context(OpLog()) as torch:
        args = matrices(torch)
        failing = torch.launch("fails", fails, *args, wait=False, failure_policy=policy, **here)
        after = torch.launch("product", product, *args, wait=False, **here)
        with pytest.raises(LaunchError, match="too early"):
            torch.wait_all()
        torch.wait(after)
        records = [r for r in torch.engine.log.records if r.op_name == "composite_gemm"]  # type: ignore[union-attr]
    assert after.pes[0].start_ns == records[0].t_end > failing.pes[0].end_ns
    assert figures(after) == alone(product, **here)


@settings(max_examples=25, deadline=None)
@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(COUNTED),
            st.integers(0, 1),
            st.sets(st.integers(0, 1), min_size=1),
            st.sets(st.integers(0, 3), min_size=1),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    logged=st.booleans(),
)
def test_any_mix_of_launches_counts_each_ones_own(plan: list[Any], logged: bool) -> None:
    with context(OpLog() if logged else None) as torch:
        tensors = {sip: matrices(torch, sip) for sip in (0, 1)}
        launches = []
        for kernel, sip, cubes, pes, wait in plan:
            targets = {"target_cubes": sorted(cubes), "target_pes": sorted(pes)}
            launches.append(torch.launch("k", kernel, *tensors[sip], wait=wait, **targets))
        torch.wait_all()
    for launch, (kernel, _, cubes, pes, _) in zip(launches, plan, strict=True):
        n, (flops, nbytes) = len(cubes) * len(pes), KERNELS[kernel]
        assert launch.bytes_hbm == n * nbytes
        assert launch.flops == (n * flops if logged else 0)
        assert len(launch.pes) == n
