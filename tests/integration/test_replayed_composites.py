"""A composite costs its command, not its tiles, and no result changes: logs, times and counters are those of the
tile-by-tile run, with any interfering access at any instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.common.errors import LaunchError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import EXACT, GraphEngine
from kernbench.sim_engine.memo import composite_memo
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog, read_op_stream
from kernbench.topology import load_topology

pytestmark = pytest.mark.needs("n_to_one", reason="composites over channel routers are simulated tile by tile")

PE = "cube.pe_template"
PARTS = f"{PE}.components"
HALF = 1 << 21  # bytes of each tensor on a PE


@pytest.fixture(autouse=True)
def _nothing_is_known():
    composite_memo.composite_recordings.cache_clear()


def machine(changes: dict[str, object] | None = None):
    tiny = {"system.name": "steady", "system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    return load_topology(None, {**tiny, **(changes or {})})


@dataclass
class Step:
    """What a PE does next."""

    what: str  # gemm, gemm_async, load, store, cycles, wait
    m: int = 128
    k: int = 256
    n: int = 128
    source: int = 0  # whose slice the operands lie in, counted from the PE's own
    offset: int = 0
    pinned: bool = False
    bias: bool = False
    relu: str | None = None
    cycles: int = 1


@dataclass
class Outcome:
    """All that can be seen of a run."""

    now_ns: float
    launches: list[object]
    log: list[object]
    links: object
    channels: list[object]
    sums: list[object]
    replayed: int = field(compare=False, default=0)
    restored: int = field(compare=False, default=0)


def run(
    graph,
    programs: list[list[Step]],
    *,
    fast: bool,
    launches: int = 1,
    log: OpLog | None = None,
    layouts: tuple[str, str] = ("tiled", "tiled"),
) -> Outcome:
    pes = len(programs)
    log = log if log is not None else OpLog()
    engine = GraphEngine(graph, op_log=log, data=False, fast=fast)
    seen = {"begin": 0, "interrupted": 0}
    if engine.composite_replayer is not None:
        _count(engine.composite_replayer, seen)

    def kernel(x, y, tl):
        me = tl.program_id(0)
        for step in programs[me]:
            m, k, n = step.m, step.k, step.n
            base = x + (me + step.source) % pes * HALF + step.offset
            out = y + me * HALF + step.offset
            if step.what.startswith("gemm"):
                left = tl.load(base, (m, k)) if step.pinned else tl.ref(base, (m, k))
                after = [{"op": "bias", "bias": tl.ref(base, (n,))}] if step.bias else []
                after += [{"op": "relu", "scope": step.relu}] if step.relu else []
                handle = tl.composite("gemm", left, tl.ref(base, (k, n)), out, epilogue=after)
                if step.what == "gemm":
                    tl.wait(handle)
            elif step.what == "load":
                tl.load(base, (m, n))
            elif step.what == "store":
                tl.store(out, tl.zeros((m, n), "f16"))
            elif step.what == "cycles":
                tl.cycles(step.cycles)
            else:
                tl.wait()
        tl.wait()

    with RuntimeContext(engine) as torch:
        dp = DPPolicy(pe="row_wise", num_cubes=1, num_pes=pes)
        x, y = (torch.empty(pes, HALF // 2, dp=dp, layout=layout) for layout in layouts)
        done = [torch.launch("k", kernel, x, y, target_cubes=0, target_pes=range(pes)) for _ in range(launches)]
    return Outcome(
        engine.now_ns,
        [launch.pes for launch in done],
        list(log.items()) if not isinstance(log, StreamingOpLog) else [],
        engine.link_counters(),
        [engine.channel_counters(f"sip0.cube0.hbm_ctrl.pe{pe}") for pe in range(graph.spec.cube.n_pes)],
        [(launch.engines, launch.links) for launch in done],
        seen["begin"],
        seen["interrupted"],
    )


def _count(owner: composite_memo.CompositeMemo, seen: dict[str, int]) -> None:
    """Count how often composites of an engine begin as one event, and how often they are interrupted."""
    begin = owner.begin

    def counted(scheduler, feed, *, is_only_command):
        found = begin(scheduler, feed, is_only_command=is_only_command)
        if found is not None:
            seen["begin"] += 1
            interrupt = found._interrupt

            def interrupted():
                seen["interrupted"] += 1
                interrupt()

            found._interrupt = interrupted
        return found

    owner.begin = counted


def both(
    graph, programs: list[list[Step]], launches: int = 1, layouts: tuple[str, str] = ("tiled", "tiled")
) -> Outcome:
    """The fast run, which is the same as the other."""
    fast, tiles = (run(graph, programs, fast=fast, launches=launches, layouts=layouts) for fast in (True, False))
    assert fast.log == tiles.log
    assert fast == tiles
    return fast


# ---- without interference


@pytest.mark.parametrize("shape", [(64, 64, 64), (256, 256, 256), (70, 1000, 90), (384, 384, 384), (100, 64, 2000)])
def test_a_product_that_is_only_command_is_replayed_and_is_the_same(shape):
    m, k, n = shape
    seen = both(machine(), [[Step("gemm", m, k, n)]])
    assert (seen.replayed, seen.restored) == (1, 0)


@pytest.mark.parametrize(
    ("offset", "penalty_ns"), [(64, 0.0), (1000, 0.0), (0, 6.0), (256, 6.0), (1000, 6.0), (1536, 6.0)]
)
def test_wherever_the_operands_lie_among_the_channels_and_whatever_a_turn_costs(offset, penalty_ns):
    graph = machine({"cube.components.hbm_ctrl.attrs.switch_penalty_ns": penalty_ns} if penalty_ns else None)
    both(graph, [[Step("gemm", 128, 256, 256, offset=offset), Step("gemm", 128, 256, 256)]])


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
def test_pes_in_step_share_one_recording():
    seen = both(machine(), [[Step("gemm", 128, 256, 128, bias=True, relu="kernel")] for _ in range(8)], launches=2)
    assert (seen.replayed, seen.restored) == (16, 0)


def test_most_tiles_of_a_large_product_are_not_run():
    graph = machine()
    run(graph, [[Step("gemm", 768, 512, 768)]], fast=True)
    (recording,) = composite_memo.composite_recordings(graph).recordings.values()
    assert recording.plan.total_tiles == 24 * 8 * 24
    assert recording.kept_rows < recording.plan.total_tiles / 8
    assert recording.work["pe_gemm", "macs/f16"][2] == 768 * 512 * 768
    read = sum(256 * flits + last * n for (_, is_read, last, *_), (flits, n) in recording.moved.items() if is_read)
    assert read == 2 * (24 * 768 * 512 + 24 * 512 * 768)  # A once per column of tiles, B once per row of them
    written = sum(
        256 * flits + last * n for (_, is_read, last, *_), (flits, n) in recording.moved.items() if not is_read
    )
    assert written == 2 * 768 * 768


@pytest.mark.parametrize(
    ("shape", "layouts", "offset"),
    [  # every pair of layouts twice or more, with and without an offset
        ((128, 256, 128), ("row_major", "row_major"), 0),
        ((70, 600, 90), ("row_major", "tiled"), 1000),
        ((70, 600, 90), ("row_major", "row_major"), 0),
        ((100, 64, 1000), ("tiled", "row_major"), 0),
        ((100, 64, 500), ("row_major", "row_major"), 1000),
        ((40, 1300, 64), ("row_major", "tiled"), 0),
        ((64, 1024, 96), ("tiled", "row_major"), 1000),
    ],
)
def test_rows_that_are_runs_of_their_own_are_recorded(shape, layouts, offset):
    m, k, n = shape
    graph = machine({"hbm.granule_bytes": 32} if m == 70 else None)
    seen = both(graph, [[Step("gemm", m, k, n, offset=offset, bias=True)]], layouts=layouts)
    assert (seen.replayed, seen.restored) == (1, 0)


def test_few_tiles_of_a_large_row_major_product_are_run():
    graph = machine()
    run(graph, [[Step("gemm", 768, 256, 768)]], fast=True, layouts=("row_major", "row_major"))
    (recording,) = composite_memo.composite_recordings(graph).recordings.values()
    assert recording.kept_rows < recording.plan.total_tiles / 8


@pytest.mark.parametrize(
    ("offset", "penalty_ns", "shape"),
    [(0, 0.0, (64, 2048, 96)), (1280, 6.0, (40, 2100, 160)), (0, 0.0, (32, 4096, 64)), (1280, 6.0, (32, 4096, 64))],
)
def test_a_long_loop_is_passed_in_steps(offset, penalty_ns, shape):
    graph = machine({"cube.components.hbm_ctrl.attrs.switch_penalty_ns": penalty_ns} if penalty_ns else None)
    m, k, n = shape
    seen = both(graph, [[Step("gemm", m, k, n, offset=offset)]])
    assert (seen.replayed, seen.restored) == (1, 0)
    (recording,) = composite_memo.composite_recordings(graph).recordings.values()
    assert recording.kept_rows < recording.plan.total_tiles


def test_tiles_that_are_run_do_not_grow_with_the_product():
    graph, rows = machine(), []
    for n in (512, 1024):
        composite_memo.composite_recordings.cache_clear()
        engine = GraphEngine(graph, data=False)
        with RuntimeContext(engine) as torch:

            def kernel(x, n, tl):
                tl.wait(tl.composite("gemm", tl.ref(x, (n, 4096)), tl.ref(x, (4096, n)), x))

            torch.launch("k", kernel, torch.empty(1024, 4096), n)
        (recording,) = composite_memo.composite_recordings(graph).recordings.values()
        rows.append(recording.kept_rows)
        assert recording.work["pe_gemm", "macs/f16"][2] == n * 4096 * n
    assert max(rows) < 400


# ---- with interference


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
def test_an_interfering_access_at_every_stage_of_a_period():
    """Another PE reads from the slice, a little later each time: over more than a period of the pipeline."""
    graph, restored = machine(), 0
    for cycles in range(3000, 3130, 26):
        other = [Step("cycles", cycles=cycles), Step("load", 32, 1, 64, source=-1)]
        restored += both(graph, [[Step("gemm", 128, 256, 128)], other]).restored
    assert restored == len(range(3000, 3130, 26))


@pytest.mark.parametrize("what", ["load", "store", "gemm"])
def test_a_second_command_of_the_same_pe(what):
    for cycles in (1, 333, 2500):
        steps = [
            Step("gemm_async", 128, 256, 128),
            Step("cycles", cycles=cycles),
            Step(what, 64, 64, 64, offset=1 << 16),
        ]
        seen = both(machine(), [steps])
        assert seen.restored == 1


@pytest.mark.parametrize("cycles", [1, 700, 1500, 2300])
def test_a_kernel_that_is_aborted_in_the_middle_of_a_replayed_composite(cycles):
    """PE 1 fails while the product of PE 0 is under way, which is stopped; a second launch finds the same machine."""

    def aborted(*, fast: bool) -> tuple[object, ...]:
        engine = GraphEngine(machine(), op_log=(log := OpLog()), data=False, fast=fast)
        seen = {"begin": 0, "interrupted": 0}
        if engine.composite_replayer is not None:
            _count(engine.composite_replayer, seen)

        def kernel(x, fails, tl):
            if fails and tl.program_id(0) == 1:
                tl.cycles(cycles)
                tl.load(x.local, (HALF, 2))  # runs past its tensor
            left, right = tl.ref(x.local, (128, 256)), tl.ref(x.local, (256, 128))
            tl.wait(tl.composite("gemm", left, right, x.local))

        with RuntimeContext(engine) as torch:
            x = torch.empty(2, HALF // 2, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
            with pytest.raises(LaunchError) as error:
                torch.launch("k", kernel, x, True)
            at_ns = engine.now_ns
            again = torch.launch("k", kernel, x, False)
        counters = engine.link_counters(), [engine.channel_counters(f"sip0.cube0.hbm_ctrl.pe{pe}") for pe in (0, 1)]
        assert seen["begin"] > 0 or not fast
        return str(error.value), at_ns, engine.now_ns, again.pes, list(log.items()), *counters

    assert aborted(fast=True) == aborted(fast=False)


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
def test_a_pe_that_is_interrupted_again_and_again_goes_tile_by_tile():
    shared = [[Step("gemm", 64, 128, 64, source=-pe) for _ in range(6)] for pe in range(4)]
    seen = both(machine(), shared)
    assert seen.replayed < 12


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
def test_to_ask_why_a_composite_is_simulated_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Composites of four PEs interrupt one another, so that they are simulated for several reasons."""
    shared = [[Step("gemm", 64, 128, 64, source=-pe) for _ in range(4)] for pe in range(4)]
    plain, reasons = run(machine(), shared, fast=True), list[str]()
    composite_memo.composite_recordings.cache_clear()
    begin = composite_memo.CompositeMemo.begin

    def asked(memo, scheduler, feed, *, is_only_command):
        env, before = memo._machine.env, list(memo._machine.env.calls())
        blocks = list(memo._machine._components)
        why = [memo.why_simulated(scheduler, feed, is_only_command=is_only_command) for _ in range(5)]
        assert why == why[:1] * 5
        assert list(env.calls()) == before
        assert list(memo._machine._components) == blocks
        reasons.append(why[0])
        return begin(memo, scheduler, feed, is_only_command=is_only_command)

    monkeypatch.setattr(composite_memo.CompositeMemo, "begin", asked)
    assert run(machine(), shared, fast=True) == plain
    assert set(reasons) >= {"", composite_memo.BACKED_OFF}


steps = st.builds(
    Step,
    st.sampled_from(["gemm"] * 5 + ["gemm_async", "load", "store", "cycles", "wait"]),
    st.sampled_from([8, 32, 70, 128]),
    st.sampled_from([16, 64, 200, 256]),
    st.sampled_from([16, 32, 90, 128]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 64, 256, 1280]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "output_tile", "kernel"]),
    st.integers(1, 6000),
)
machines = st.fixed_dictionaries(
    {
        f"{PARTS}.pe_dma.attrs.queue_depth": st.integers(1, 6),
        f"{PARTS}.pe_dma.attrs.outstanding": st.sampled_from([1, 1, 2, 4]),
        f"{PARTS}.pe_dma.attrs.overhead_ns": st.sampled_from([0.0, 1.5]),
        f"{PARTS}.pe_scheduler.attrs.overhead_ns": st.sampled_from([1.0, 0.0]),
        f"{PARTS}.pe_gemm.attrs.overhead_ns": st.sampled_from([0.0, 2.0]),
        f"{PARTS}.pe_fetch_store.attrs.queue_depth": st.integers(1, 4),
        f"{PARTS}.pe_fetch_store.attrs.register_file_bytes": st.sampled_from([12288, 24576, 65536]),
        f"{PE}.links.tcm_read_bw_gbs": st.sampled_from([64.0, 512.0]),
        "cube.memory_map.tcm_scheduler_reserved_mb": st.sampled_from([0.03125, 1.0]),
    }
)
layouts_of_both = st.tuples(*[st.sampled_from(["tiled", "row_major"])] * 2)


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@settings(max_examples=5, deadline=None)  # `make fuzz-exact` has more
@given(
    machines,
    st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 2),
    layouts_of_both,
)
def test_random_kernels_on_random_machines(changes, programs, launches, layouts):
    both(machine(changes), programs, launches, layouts)


# ---- logs and switches


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@pytest.mark.parametrize("chunk", [64, 1000])
def test_a_log_that_streams_is_the_same_file(tmp_path: Path, chunk):
    crossing = [Step("cycles", cycles=3500), Step("load", source=-1), Step("gemm")]
    programs = [[Step("gemm"), Step("gemm", 64, 64, 64)], crossing]
    for name, fast in (("fast", True), ("tiles", False)):
        with StreamingOpLog(tmp_path / name, chunk_records=chunk) as log:
            run(machine(), programs, fast=fast, log=log)
    kept = run(machine(), programs, fast=True).log
    assert list(read_op_stream(tmp_path / "fast")) == list(read_op_stream(tmp_path / "tiles")) == kept


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv(EXACT, "tiles")
    assert GraphEngine(machine()).composite_replayer is None
    monkeypatch.setenv(EXACT, "flits")
    with pytest.raises(UsageError, match="KERNBENCH_EXACT is 'flits'"):
        GraphEngine(machine())
    monkeypatch.delenv(EXACT)
    assert GraphEngine(machine()).composite_replayer is not None
    assert GraphEngine(machine(), mode="flits").composite_replayer is None


def test_run_turns_it_off():
    def bench(torch):
        assert torch.engine.composite_replayer is None

    kernbench.run(bench, machine(), fast=False)
