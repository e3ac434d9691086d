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

from kernbench.common.channel_traffic import ChannelTraffic
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
    """Two matrices of which every PE has its own copy, so that none waits for the memory of another."""
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


def alone(kernel: Callable[..., None], **where: Any) -> Figures:
    with context(OpLog()) as torch:
        return figures(torch.launch("k", kernel, *matrices(torch, where.pop("sip", 0)), **where))


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
    assert launch.hbm == {"sip1.cube0.hbm_ctrl.pe0": ChannelTraffic(2 * MATRIX_BYTES, MATRIX_BYTES, MATRIX_BYTES)}


def test_the_roof_of_a_launch_that_reads_another_sip_is_over_the_slices_it_reached() -> None:
    def bench(torch: Any) -> None:
        torch.ahbm.set_device(1)
        x, out = torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE)
        torch.launch("product", product, x, out, sips=0, target_cubes=0, target_pes=0)

    ((_, roofline),) = figures_of(run(bench, machine(), device=0)).launches
    assert roofline.memory_ns == 2 * MATRIX_BYTES / 256  # one slice, of SIP 1
    assert 0 < roofline.share < 1


def test_only_the_slices_that_a_launch_touched_count_for_its_roof() -> None:
    """The host writes to eight slices, the kernel reads 512 KiB of its own at 256 bytes a ns."""

    def reads(x: Any, tl: Any) -> None:
        for row in range(0, 256, 64):
            tl.load(x.local + row * 2048, shape=(64, 1024))

    def bench(torch: Any) -> None:
        x = torch.zeros(256, 1024, dp=DPPolicy(num_cubes=1))
        torch.launch("reads", reads, x, target_cubes=0, target_pes=0)

    ((launch, roofline),) = figures_of(run(bench, machine(), device=0)).launches
    assert launch.hbm == {"sip0.cube0.hbm_ctrl.pe0": ChannelTraffic(512 << 10, read_bytes=512 << 10)}
    assert (roofline.memory_ns, roofline.peak.gbs) == ((512 << 10) / 256, 256.0)
    assert 0.95 < roofline.share <= 1


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.needs("addresses", reason="its kernels read and write parts of other PEs")
@pytest.mark.parametrize("is_write", [False, True])
@pytest.mark.parametrize("slices", [1, 2, 8])
def test_one_pe_is_bound_by_its_own_port_each_way(is_write: bool, slices: int) -> None:
    """However many slices serve it, a PE takes and gives 256 bytes a ns."""
    rows = 128 // slices  # 256 KiB in all

    def moves(x: Any, tl: Any) -> None:
        block = tl.zeros((rows, 1024), "f16")
        for part in range(slices):
            if is_write:
                tl.store(x + part * rows * 2048, block)
            else:
                tl.load(x + part * rows * 2048, shape=(rows, 1024))

    def bench(torch: Any) -> None:
        x = torch.zeros(128, 1024, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=slices))
        torch.launch("moves", moves, x, target_cubes=0, target_pes=0)

    ((launch, roofline),) = figures_of(run(bench, machine(), device=0)).launches
    assert len(launch.hbm) == slices
    assert (roofline.memory_ns, roofline.peak.gbs) == ((256 << 10) / 256, 256.0)
    assert 0.75 < roofline.share <= 1


@pytest.mark.parametrize("pes", [2, 8])
def test_pes_that_share_a_slice_are_bound_by_it(pes: int) -> None:
    def bench(torch: Any) -> None:
        torch.launch("load", lambda x, tl: tl.load(x), torch.zeros(64, 1024), target_cubes=0, target_pes=range(pes))

    ((_, roofline),) = figures_of(run(bench, machine(), device=0)).launches
    assert roofline.memory_ns == pes * (128 << 10) / 256
    assert (roofline.peak.gflops, roofline.peak.gbs) == (pes * 8192.0, 256.0)
    assert 0.9 < roofline.share <= 1


@pytest.mark.needs("addresses", reason="its kernels read and write parts of other PEs")
def test_a_port_carries_reads_and_writes_at_once() -> None:
    """One slice serves both ways at 256 bytes a ns together, two slices at 512: then the port is full both ways."""

    def copies(x: Any, y: Any, offset: int, tl: Any) -> None:
        tl.store(y + offset, tl.load(x))

    def bench(torch: Any, apart: bool) -> None:
        x = torch.zeros(64, 1024)
        y = torch.zeros(128, 1024, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)) if apart else x
        torch.launch("copies", copies, x, y, 128 << 10 if apart else 0, target_cubes=0, target_pes=0)

    for apart, memory_ns in ((False, 1024.0), (True, 512.0)):  # 128 KiB each way
        ((launch, roofline),) = figures_of(run(bench, machine(), device=0, params={"apart": apart})).launches
        assert launch.bytes_hbm == 256 << 10
        assert roofline.memory_ns == memory_ns


def test_a_launch_whose_pes_had_to_wait_is_timed_from_the_first_start_to_the_last_end() -> None:
    """PE 0 comes to the second launch late, so that the one slice serves the two of them one after the other."""

    def reads(x: Any, tl: Any) -> None:
        tl.load(x, shape=(256, 1024))

    def bench(torch: Any) -> None:
        x = torch.zeros(256, 1024)
        torch.launch("first", reads, x, wait=False, target_cubes=0, target_pes=0)
        torch.launch("second", reads, x, wait=False, target_cubes=0, target_pes=(0, 1))

    (_, _), (second, roofline) = figures_of(run(bench, machine(), device=0)).launches
    assert roofline.memory_ns == 2 * (512 << 10) / 256 == 4096
    starts, ends = [pe.start_ns for pe in second.pes], [pe.end_ns for pe in second.pes]
    assert starts[0] > starts[1]
    assert roofline.exec_ns == max(ends) - min(starts) >= roofline.memory_ns
    assert roofline.exec_ns > second.pe_exec_ns_max


PARTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), min_size=1, max_size=5
)  # whose part, how many rows, whether it is written


@pytest.mark.needs("addresses", reason="its kernels read and write parts of other PEs")
@settings(max_examples=15, deadline=None)
@given(plans=st.lists(PARTS, min_size=1, max_size=3), pes=st.sets(st.integers(0, 3), min_size=1), gemm=st.booleans())
def test_no_launch_is_faster_than_its_roof_and_no_engine_busier_than_the_launch(
    plans: list[list[tuple[int, int, bool]]], pes: set[int], gemm: bool
) -> None:
    def kernel(x: Any, number: int, tl: Any) -> None:
        for part, rows, is_write in plans[number]:
            at = x + part * 64 * 128
            if is_write:
                tl.store(at, tl.zeros((rows, 64), "f16"))
            else:
                block = tl.load(at, shape=(rows, 64))
                if gemm:
                    tl.composite("gemm", block, tl.ref(x, shape=(64, 64)))

    def bench(torch: Any) -> None:
        x = torch.zeros(4 * 64, 64, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4))
        for number in range(len(plans)):
            torch.launch("k", kernel, x, number, wait=False, target_cubes=0, target_pes=sorted(pes))

    for launch, roofline in figures_of(run(bench, machine(), device=0)).launches:
        assert 0 < roofline.bound_ns <= roofline.exec_ns
        for use in launch.engines.values():
            assert use.busy_ns_max <= launch.pe_exec_ns_max
            assert use.busy_ns <= sum(pe.pe_exec_ns for pe in launch.pes)


def test_an_engine_with_two_channels_is_busy_while_either_is() -> None:
    """Tile after tile: 16 ns of fetch and, beside the next one, 4 ns of store; 64 tiles are less than 64 * 20."""

    def kernel(a: Any, b: Any, tl: Any) -> None:
        tl.wait(tl.composite("gemm", tl.load(a), tl.load(b)))

    def bench(torch: Any) -> None:
        torch.launch("k", kernel, torch.zeros(256, 64), torch.zeros(64, 256))

    (launch,) = run(bench, machine(), device=0).launches
    (pe,) = launch.pes
    dma, moves = launch.engines["pe_dma"], launch.engines["pe_fetch_store"]
    assert dma.busy_ns == dma.busy_ns_max == pe.dma_ns
    assert moves.ops == 2 * 64
    # A tile is fetched (16 ns) while the one before is multiplied (16 ns) and the one before that is stored (4 ns):
    # only the last store has no fetch beside it.
    assert moves.busy_ns == moves.busy_ns_max == pe.tcm_ns
    assert 64 * 16 <= moves.busy_ns <= 64 * 16 + 2 * 4


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
        records = [r for r in torch.engine.log.records if r.op_name == "composite_gemm"]  # type: ignore[union-attr]  # the engine has a log
    assert after.pes[0].start_ns == records[0].t_end > failing.pes[0].end_ns
    assert figures(after) == alone(product, **here)


@settings(max_examples=15, deadline=None)
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
