"""A PE runs a compute kernel and a communication kernel at the same time: they share its engines and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import AddressError, AllocationError, LaunchError, MessageError, UsageError
from kernbench.common.messages import KernelAbortMsg, KernelLaunchMsg, KernelRef
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog
from kernbench.topology import TopologyGraph, load_topology

KIB = 1024
RINGS, WORK = 64 * KIB, 128 * KIB
COLLECTIVES, MESSAGES = WORK * 6 // 8, WORK // 8  # of that: for collectives, and for messages each way
TCM = 1024 * KIB  # of a PE, for the host and its kernels
HERE: dict[str, Any] = {"target_cubes": 0, "target_pes": 0}
EDGE = 64


@cache
def machine() -> TopologyGraph:
    """Two SIPs of one cube with one PE per corner."""
    return load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1})


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(), op_log=OpLog())) as made:
        made.engine.reserve_communication_tcm([0], RINGS, WORK)
        yield made


def both(torch: RuntimeContext, compute: Any, communicate: Any, *args: Any) -> tuple[Launch, Launch]:
    """Two kernels on PE 0, one in each stream, launched at one time; neither is waited for."""
    first = torch.launch("compute", compute, *args, wait=False, **HERE)
    second = torch.launch("communicate", communicate, *args, wait=False, stream="communication", **HERE)
    return first, second


def alone(kernel: Callable[..., None], *args: tuple[int, ...], stream: str = "compute") -> Launch:
    """The same kernel by itself."""
    with RuntimeContext(GraphEngine(machine(), op_log=OpLog())) as torch:
        torch.engine.reserve_communication_tcm([0], RINGS, WORK)
        return torch.launch(kernel, *(torch.zeros(*shape) for shape in args), stream=stream, **HERE)


def products(tl: Any) -> None:
    a = tl.zeros((EDGE, EDGE), "f16")
    for _ in range(3):
        tl.dot(a, a)  # 64^3 / 4096 = 64 ns, and 1 ns in the scheduler before


def exponentials(tl: Any) -> None:
    x = tl.zeros((1024,), "f16")
    for _ in range(2):
        x = tl.exp(x)  # 1024 / 256 = 4 ns, and 1 ns in the scheduler before


# ---- time


def test_kernels_of_both_streams_start_at_once_and_wait_for_each_others_compute_slot(torch: RuntimeContext) -> None:
    compute, communicate = both(torch, products, exponentials)
    torch.wait_all()
    (first,), (second,) = compute.pes, communicate.pes
    assert first.start_ns == second.start_ns
    start = first.start_ns + 1  # both have their first op at the slot, the product before
    log = torch.engine.log
    assert isinstance(log, OpLog)
    ops = [(op.op_name, op.t_start - start, op.t_end - start, op.release) for op in log.records]
    assert ops == [
        ("gemm_f16", 0, 64, "launch"),
        ("exp", 64, 68, "lane"),
        ("gemm_f16", 68, 132, "lane"),  # asked for at 65, while the slot serves the other kernel
        ("exp", 132, 136, "lane"),  # asked for at 69
        ("gemm_f16", 136, 200, "lane"),
    ]
    assert (first.pe_exec_ns, second.pe_exec_ns) == (201, 137)
    # Alone they take 3 * 65 and 2 * 5 ns: together less than one after the other.
    assert (alone(products).pes[0].pe_exec_ns, alone(exponentials).pes[0].pe_exec_ns) == (195, 10)
    assert max(first.end_ns, second.end_ns) - first.start_ns < 195 + 10


def test_launches_of_one_stream_still_wait_for_each_other(torch: RuntimeContext) -> None:
    first, other = both(torch, products, exponentials)
    second, another = both(torch, exponentials, exponentials)
    torch.wait_all()
    assert second.pes[0].start_ns == first.pes[0].end_ns
    assert another.pes[0].start_ns == other.pes[0].end_ns < first.pes[0].end_ns


def test_a_load_waits_for_the_dma_channel_that_the_other_stream_has(torch: RuntimeContext) -> None:
    def long_load(x: Any, tl: Any) -> None:
        tl.load(x, (EDGE, EDGE))

    def short_load(x: Any, tl: Any) -> None:
        tl.load(x, (EDGE,))

    _, communicate = both(torch, long_load, short_load, torch.zeros(EDGE, EDGE))
    torch.wait_all()
    log = torch.engine.log
    assert isinstance(log, OpLog)
    long, short = (op for op in log.records if op.op_name == "dma_read")
    assert (short.t_start, short.release) == (long.t_end, "lane")
    assert communicate.pes[0].end_ns == short.t_end


def test_data_of_both_is_right(torch: RuntimeContext) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((128, 128)).astype(np.float16)
    x, out = torch.from_numpy(a), torch.empty(128, 128)
    halved, before = torch.empty(128, 128), torch.from_numpy(a)

    def product(x: Any, out: Any, tl: Any) -> None:
        tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out)

    def halve(x: Any, out: Any, tl: Any) -> None:
        for at in range(0, 2 * 128 * 128, 4096):
            tl.store(out + at, tl.load(x + at, (2048,)) * 0.5)

    compute = torch.launch(product, x, out, wait=False, **HERE)
    communicate = torch.launch(halve, before, halved, wait=False, stream="communication", **HERE)
    torch.wait_all()
    assert compute.pes[0].start_ns <= communicate.pes[0].start_ns < compute.pes[0].end_ns
    wanted = a.astype(np.float32) @ a.astype(np.float32)
    np.testing.assert_allclose(out.numpy().astype(np.float32), wanted, rtol=1e-2, atol=1e-1)
    np.testing.assert_array_equal(halved.numpy(), a * np.float16(0.5))


def test_two_runs_are_the_same() -> None:
    def logged() -> list[object]:
        with RuntimeContext(GraphEngine(machine(), op_log=OpLog())) as torch:
            torch.engine.reserve_communication_tcm([0], RINGS, WORK)
            both(torch, streamed, streamed, torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE))
            torch.wait_all()
            log = torch.engine.log
            assert isinstance(log, OpLog)
            return list(log.records)

    assert logged() == logged()


# ---- figures


def streamed(x: Any, out: Any, tl: Any) -> None:
    for _ in range(3):
        tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=out)


def product(x: Any, out: Any, tl: Any) -> None:
    a = tl.load(x, (EDGE, EDGE))
    tl.store(out, tl.exp(tl.dot(a, a)))


def own_figures(launch: Launch) -> object:
    """What is counted for each launch, whatever the PE does for the other: not how long DMA and TCM ports are busy."""
    (pe,) = launch.pes
    busy = {kind: use.busy_ns for kind, use in launch.engines.items() if kind not in ("pe_dma", "pe_fetch_store")}
    ops = {kind: (use.ops, use.flops) for kind, use in launch.engines.items()}
    return ops, busy, pe.compute_ns, pe.composites, pe.tcm_peak_bytes


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(("compute", "communicate"), [(streamed, product), (product, streamed), (streamed, streamed)])
def test_each_launch_has_its_own_engine_sums(compute: Any, communicate: Any, in_file: bool, tmp_path: Path) -> None:
    log = StreamingOpLog(tmp_path / "ops", chunk_records=5) if in_file else OpLog()  # chunks end within launches
    with RuntimeContext(GraphEngine(machine(), op_log=log)) as torch:
        torch.engine.reserve_communication_tcm([0], RINGS, WORK)
        args = torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE)
        first = torch.launch("compute", compute, args[0], args[1], wait=False, **HERE)
        second = torch.launch("communicate", communicate, args[0], args[2], wait=False, stream="communication", **HERE)
        torch.wait_all()
        assert first.pes[0].start_ns <= second.pes[0].start_ns < first.pes[0].end_ns
        log.close()
    shapes = ((EDGE, EDGE), (EDGE, EDGE))
    assert own_figures(first) == own_figures(alone(compute, *shapes))
    assert own_figures(second) == own_figures(alone(communicate, *shapes, stream="communication"))
    # What the PE's DMA moved while both ran is in the figures of both.
    assert first.bytes_hbm >= alone(compute, *shapes).bytes_hbm
    for pe in (*first.pes, *second.pes):
        assert max(pe.dma_ns, pe.compute_ns, pe.tcm_ns) <= pe.pe_exec_ns


def test_a_launch_that_is_stopped_in_the_queue_takes_no_figures_of_the_one_that_runs() -> None:
    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        x, out = torch.zeros(EDGE, EDGE), torch.zeros(EDGE, EDGE)
        running = torch.launch(streamed, x, out, wait=False, **HERE)
        engine.kernels["queued"] = lambda: None
        where: dict[str, Any] = {"target_cubes": (0,), "target_pes": (0,)}
        queued = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("queued"), **where))
        engine.submit(KernelAbortMsg(sip=0, launch_id=queued.request.id, **where))
        torch.wait(running)
        engine.wait(queued)
    assert [use.composites for use in running.pes[0].composites] == [3]
    assert (queued.results[0].is_aborted, queued.results[0].composites) == (True, ())


# ---- failures


@pytest.mark.parametrize("failing", ["compute", "communication"])
def test_a_failure_in_one_stream_does_not_stop_the_other(torch: RuntimeContext, failing: str) -> None:
    def fails(tl: Any) -> None:
        tl.cycles(10)
        raise ValueError("no good")

    def goes_on(tl: Any) -> None:
        tl.cycles(1000)

    other = "communication" if failing == "compute" else "compute"
    wrong = torch.launch("wrong", fails, wait=False, stream=failing, **HERE)
    fine = torch.launch("fine", goes_on, wait=False, stream=other, **HERE)
    with pytest.raises(LaunchError, match="no good"):
        torch.wait(wrong)
    assert not fine.is_done
    torch.wait(fine)
    assert (fine.pes[0].pe_exec_ns, fine.pes[0].is_aborted) == (1000, False)
    assert torch.launch("next", goes_on, stream=failing, **HERE).pe_exec_ns_max == 1000


@pytest.mark.parametrize("stopped", ["compute", "communication"])
def test_an_abort_finds_its_launch_in_either_stream(stopped: str) -> None:
    engine = GraphEngine(machine())
    engine.reserve_communication_tcm([0], RINGS, WORK)
    engine.kernels["k"] = lambda tl: [tl.cycles(100) for _ in range(10)]
    launches = {
        stream: engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("k"), stream=stream))
        for stream in ("compute", "communication")
    }
    abort = engine.submit(KernelAbortMsg(sip=0, launch_id=launches[stopped].request.id))
    engine.wait(abort)
    engine.wait_all()
    for stream, handle in launches.items():
        assert {pe.is_aborted for pe in handle.results} == {stream == stopped}
        assert {pe.pe_exec_ns == 1000 for pe in handle.results} == {stream != stopped}


def test_a_communication_launch_without_reserved_tcm_says_what_to_do_first(torch: RuntimeContext) -> None:
    with pytest.raises(UsageError, match=r"in stream 'communication', for which SIP 1 keeps no TCM") as caught:
        torch.launch(exponentials, sips=1, stream="communication")
    assert "init_process_group" in str(caught.value.hint)
    torch.launch(exponentials, sips=1)


def test_a_stream_that_there_is_not_is_refused(torch: RuntimeContext) -> None:
    with pytest.raises(MessageError, match="stream is 'copy'") as caught:
        torch.launch(exponentials, stream="copy")
    assert caught.value.hint == "use one of compute, communication, send, receive"


# ---- TCM


def test_kernels_of_both_streams_have_tcm_of_their_own(torch: RuntimeContext) -> None:
    held: dict[str, tuple[int, int]] = {}

    def fills(name: str, nbytes: int) -> Callable[[Any], None]:
        def kernel(tl: Any) -> None:
            x = tl.zeros((nbytes,), "i8")
            held[name] = (x.address, x.address + nbytes)
            tl.cycles(1000)

        return kernel

    ring = torch.engine.communication_rings(0, 0, 0).alloc(RINGS, 4096)
    both(torch, fills("compute", TCM - RINGS - WORK), fills("communication", COLLECTIVES))
    for stream in ("send", "receive"):
        torch.launch(stream, fills(stream, MESSAGES), stream=stream, wait=False, **HERE)
    torch.wait_all()
    base = PhysAddr.pe_tcm_addr(0, 0, 0, 0).raw
    assert held["communication"] == (base, base + COLLECTIVES)
    assert held["send"] == (base + COLLECTIVES, base + COLLECTIVES + MESSAGES)
    assert held["receive"] == (base + COLLECTIVES + MESSAGES, base + WORK)
    assert ring.raw == base + WORK
    assert held["compute"] == (base + WORK + RINGS, base + TCM)
    with pytest.raises(LaunchError, match=f"TCM overflow.* free of {COLLECTIVES}"):
        torch.launch(fills("too much", COLLECTIVES + 1), stream="communication", **HERE)


def test_an_overflow_says_what_rings_and_other_holders_took(torch: RuntimeContext) -> None:
    kept = torch.empty(4096, dtype="f16", space="tcm")  # 8 KiB

    def hoards(tl: Any) -> None:
        first = tl.zeros((256 * KIB,), "i8")
        tl.zeros((TCM,), "i8")
        del first

    with pytest.raises(LaunchError) as caught:
        torch.launch(hoards, **HERE)
    assert caught.value.what.endswith(
        "; taken by this kernel's tensors 256 KiB, tile buffers of the scheduler 1 MiB, communication kernels 128 KiB, "
        "ring buffers of messages 64 KiB, tensors that the host placed there 8 KiB"
    )
    assert kept.shape == (4096,)  # alive until here


def test_ring_buffers_are_placed_in_their_part_only(torch: RuntimeContext) -> None:
    rings = torch.engine.communication_rings(0, 0, 1)
    first, second = rings.alloc(RINGS // 2), rings.alloc(RINGS // 2, 4096)
    assert [address.sub_offset for address in (first, second)] == [WORK + RINGS // 2, WORK]
    assert torch.engine.communication_rings(0, 0, 1) is rings
    with pytest.raises(AllocationError, match=r"sip0\.cube0\.pe1 TCM for rings overflow"):
        rings.alloc(1)
    rings.free(first, RINGS // 2)
    with pytest.raises(AllocationError, match="is not in it"):
        rings.free(PhysAddr.pe_tcm_addr(0, 0, 2, WORK), 64)
    with pytest.raises(AllocationError, match=r"sip1\.cube0\.pe0 has no TCM reserved"):
        torch.engine.communication_rings(1, 0, 0)
    with pytest.raises(AllocationError, match=r"there is no sip0\.cube0\.pe9"):
        torch.engine.communication_rings(0, 0, 9)


def free_tcm(torch: RuntimeContext, sip: int) -> list[int]:
    return [torch.engine.pe_memory(sip, 0, pe).tcm.free_bytes for pe in range(4)]


def test_a_reservation_is_made_once_and_goes_back_whole(torch: RuntimeContext) -> None:
    engine = torch.engine
    engine.reserve_communication_tcm([0, 1, 0], RINGS, WORK)  # SIP 0 has it already
    assert free_tcm(torch, 0) == free_tcm(torch, 1) == 4 * [TCM - RINGS - WORK]
    with pytest.raises(AllocationError, match=f"sip 0 keeps {RINGS} bytes .* not {RINGS} and {2 * WORK}") as caught:
        engine.reserve_communication_tcm([0], RINGS, 2 * WORK)
    assert "destroy_process_group" in str(caught.value.hint)
    engine.release_communication_tcm([0, 1])
    assert free_tcm(torch, 0) == free_tcm(torch, 1) == 4 * [TCM]
    with pytest.raises(AllocationError, match="sip 1 has no TCM reserved"):
        engine.release_communication_tcm([1])
    engine.reserve_communication_tcm([0], 0, 16)  # rings may lie elsewhere
    assert free_tcm(torch, 0) == 4 * [TCM - 16]


@pytest.mark.parametrize("sizes", [(-1, WORK), (RINGS, 0), (0.5, WORK)])
def test_sizes_that_are_none_are_refused(torch: RuntimeContext, sizes: Any) -> None:
    with pytest.raises(AllocationError, match=r"TCM for communication: (ring|work)_bytes is"):
        torch.engine.reserve_communication_tcm([1], *sizes)


def test_without_room_on_one_pe_nothing_is_reserved(torch: RuntimeContext) -> None:
    engine = torch.engine
    engine.release_communication_tcm([0])
    torch.memory.alloc_tcm(1, 0, 3, TCM - RINGS - WORK + 1)  # the last PE of all
    with pytest.raises(AllocationError, match=r"cannot be reserved: sip1\.cube0\.pe3 TCM overflow") as caught:
        engine.reserve_communication_tcm([0, 1], RINGS, WORK)
    assert caught.value.hint is not None
    assert free_tcm(torch, 0) == 4 * [TCM]
    assert free_tcm(torch, 1) == [TCM, TCM, TCM, RINGS + WORK - 1]
    with pytest.raises(AddressError, match="names SIP 2"):
        engine.reserve_communication_tcm([0, 2], RINGS, WORK)
    assert free_tcm(torch, 0) == 4 * [TCM]


def test_a_tcm_that_is_too_small_for_communication_names_its_key_and_what_is_reserved(torch: RuntimeContext) -> None:
    with pytest.raises(AllocationError, match=f"rings take {RINGS} bytes and kernels of collectives {TCM}") as caught:
        torch.engine.reserve_communication_tcm([1], RINGS, TCM)
    assert caught.value.where == "cube.memory_map.tcm_mb_per_pe"


def test_nothing_is_reserved_under_a_kernel_that_runs(torch: RuntimeContext) -> None:
    launch = torch.launch("long", lambda tl: tl.cycles(1000), sips=1, wait=False)
    torch.launch("other", lambda tl: tl.cycles(1), sips=0)  # lets the first begin
    with pytest.raises(
        AllocationError, match=r"cannot be reserved: sip1\.cube0\.pe0 TCM: .* a kernel is running"
    ) as it:
        torch.engine.reserve_communication_tcm([1], RINGS, WORK)
    assert "when it is over" in str(it.value.hint)
    torch.wait(launch)
    torch.engine.reserve_communication_tcm([1], RINGS, WORK)


def test_what_is_in_use_is_not_released(torch: RuntimeContext) -> None:
    engine = torch.engine
    launch = torch.launch("long", lambda tl: tl.cycles(1000), stream="communication", wait=False, **HERE)
    torch.launch("other", lambda tl: tl.cycles(1), target_cubes=0, target_pes=1)  # lets the first begin
    with pytest.raises(AllocationError, match=r"sip0\.cube0\.pe0 runs a communication kernel"):
        engine.release_communication_tcm([0])
    torch.wait(launch)
    ring = engine.communication_rings(0, 0, 2).alloc(256)
    with pytest.raises(
        AllocationError, match=r"sip0\.cube0\.pe2 TCM for rings cannot be released: 256 bytes are in use"
    ):
        engine.release_communication_tcm([0])
    engine.communication_rings(0, 0, 2).free(ring, 256)
    engine.release_communication_tcm([0])
    assert free_tcm(torch, 0) == 4 * [TCM]


def test_a_compute_kernel_may_run_while_reserved_tcm_is_released(torch: RuntimeContext) -> None:
    launch = torch.launch("long", lambda tl: tl.cycles(1000), wait=False, **HERE)
    torch.launch("other", lambda tl: tl.cycles(1), target_cubes=0, target_pes=1)
    torch.engine.release_communication_tcm([0])
    torch.wait(launch)
    assert free_tcm(torch, 0) == 4 * [TCM]


# ---- races


def raced(*streams: str, wait: bool = False) -> list[str]:
    """Kinds of races between launches on one PE, each of which adds to the same number."""

    def add(x: Any, tl: Any) -> None:
        tl.store(x, tl.load(x, (1,)) + 1)

    engine = GraphEngine(machine(), check_races=True)
    engine.reserve_communication_tcm([0], RINGS, WORK)
    with RuntimeContext(engine) as torch:
        x = torch.zeros(1, dtype="i32")
        for stream in streams:
            torch.launch(add, x, stream=stream, wait=wait, **HERE)
        torch.wait_all()
        return sorted(race.kind for race in engine.found_races())


def test_kernels_of_two_streams_of_one_pe_are_ordered_by_who_waits_only() -> None:
    assert raced("compute", "compute") == raced("communication", "communication") == []
    assert raced("compute", "communication") == ["read-write", "write-write"]
    assert raced("compute", "communication", "compute", wait=True) == []
