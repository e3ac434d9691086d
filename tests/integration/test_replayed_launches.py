"""Repeatable kernels that do what others did before are replayed, and no result changes: op log, results, counters
and times are those of a run that moves every tile.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from kernbench import repeatable
from kernbench.common.errors import AllocationError, LaunchError
from kernbench.common.messages import KernelAbortMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.components.builtin.pe_gemm import PeGemmComponent
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.check_fast import check_fast
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.observation import Observation, Observer
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fast_paths import ALL, FastPaths
from kernbench.sim_engine.memo import launch_recorder
from kernbench.sim_engine.memo.regions import regions_of
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog
from kernbench.sim_engine.purposes import purpose_of
from kernbench.topology import TopologyGraph, load_topology
from kernbench.triton_emu.tl_context import TLContext

CUBES, PES = 2, 4
EVERYWHERE: dict[str, Any] = {"target_cubes": range(CUBES), "target_pes": range(PES)}
SPLIT = DPPolicy(cube="row_wise", pe="row_wise")
COPY_PER_CUBE = DPPolicy(cube="replicate", num_pes=1)
ROUND = 8 * 256  # bytes: once over the channels of a slice
PENALTY = "cube.components.hbm_ctrl.attrs.switch_penalty_ns"
Program = Callable[["Run"], object]


@cache
def machine(**changes: object) -> TopologyGraph:
    """Two SIPs of two cubes with one PE per corner."""
    small = {"system.name": "known", "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return load_topology(None, {**small, **changes})


class Run:
    """A program's run: its launches, and what it noted."""

    def __init__(self, graph: TopologyGraph, *, fast: bool | FastPaths = True, known: bool = True) -> None:
        self.graph = graph
        self.log = OpLog()
        self.engine = GraphEngine(graph, op_log=self.log, data=False, fast=fast)
        if not known:
            self.engine.launch_replayer = None
        self.torch = RuntimeContext(self.engine)
        self.observer = Observer(self.torch)
        self.launches: list[Launch] = []
        self.notes: list[object] = []
        self.kept: list[Tensor] = []

    def tensors(self, sip: int = 0, count: int = 2, dp: DPPolicy = SPLIT, shape: tuple[int, ...] = (64, 256)):
        self.torch.ahbm.set_device(sip)
        return [self.torch.empty(*shape, dp=dp) for _ in range(count)]

    def launch(self, kernel: Any, *args: object, wait: bool = True, **options: Any) -> Launch:
        made = self.torch.launch("k", kernel, *args, wait=False, **{**EVERYWHERE, **options})
        self.launches.append(made)
        if wait:
            try:
                self.torch.wait(made)
            except LaunchError as wrong:
                self.notes.append(str(wrong))
        return made

    def happens(self, after_ns: float, what: Callable[[], object]) -> None:
        self.engine.at(self.engine.now_ns + after_ns, lambda _: what(), None)

    def observed(self) -> Observation:
        """All that can be seen."""
        return self.observer.take(self.notes)

    @property
    def copied(self) -> int:
        known = self.engine.launch_replayer
        return 0 if known is None else known.replayed_regions


def outcome(program: Program, graph: TopologyGraph, **how: Any) -> Run:
    run = Run(graph, **how)
    with run.torch:
        program(run)
    return run


def same(program: Program, graph: TopologyGraph | None = None) -> int:
    """Check a program's fast paths; returns in how many regions no kernel was run."""
    graph = machine() if graph is None else graph

    def observed(paths: FastPaths, _: OpLog | None) -> Observation:
        exact = outcome(program, graph, fast=paths)
        assert exact.copied == 0
        return exact.observed()

    known = outcome(program, graph)
    check = check_fast(known.observed(), ALL, observed)
    assert check.ok, check.as_text()
    return known.copied


def noted_calls(patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Cube and PE of every kernel from now on that asks for its `tl.physical_id`, which no recording answers."""
    calls: list[tuple[int, int]] = []
    plain = TLContext.physical_id

    def noted(self: TLContext, axis: int = 0) -> int:
        calls.append((plain(self, 1), plain(self, 0)))
        return plain(self, axis)

    patch.setattr(TLContext, "physical_id", noted)
    return calls


# ---- kernels


@repeatable
def products(x: Any, y: Any, tl: Any) -> None:
    """Keeps to its PE: a load, an exponential, a composite, what is still under way at the end."""
    tl.store(y.local, tl.exp(tl.load(x.local, (8, 64))))
    tl.wait(tl.composite("gemm", tl.ref(x.local, (8, 64)), tl.ref(x.local, (64, 16)), y.local))
    tl.store_async(y.local + 512, tl.zeros((4, 64)))


@repeatable
def uneven(x: Any, y: Any, tl: Any) -> None:
    """PEs end one after the other."""
    for _ in range(1 + tl.program_id(0)):
        tl.store(y.local, tl.exp(tl.load(x.local, (8, 64))))


@repeatable
def one_more(x: Any, y: Any, tl: Any) -> None:
    """One PE of one cube does more."""
    uneven(x, y, tl)
    if (tl.program_id(1), tl.program_id(0)) == (1, 2):
        tl.dot(tl.zeros((16, 16)), tl.zeros((16, 16)))


@repeatable
def across(x: Any, y: Any, tl: Any) -> None:
    """All read the first PE's part: what they ask for leaves their cubes."""
    tl.store(y.local, tl.load(x, (8, 64)))


@repeatable
def rows(x: Any, y: Any, apart: int, cubes_apart: int, tl: Any) -> None:
    """PEs of a cube share one part: each writes its own rows of it, and reads what was written there."""
    at = tl.program_id(1) * int(cubes_apart) + tl.program_id(0) * int(apart)
    tl.store(y + at, tl.load(x + at, (8, 64)))
    tl.load(y + at, (8, 64))
    tl.store(x + at, tl.wait(tl.load_async(y + at + 256, (4, 64))))


@repeatable
def everything(x: Any, y: Any, seed: int, tl: Any) -> None:
    """A random program, the same on all PEs of one number."""
    rng = random.Random(f"{int(seed)}/{tl.program_id(0) % 2}")
    for _ in range(4):
        m, n = rng.choice([1, 8, 16]), rng.choice([16, 64])
        what = rng.choice(["load", "store", "async", "strided", "views", "math", "dot", "cycles", "numbers", "gemm"])
        if what == "load":
            tl.load(x.local + 64 * rng.randint(0, 9), (m, n))
        elif what == "store":
            tl.store(y.local, tl.full((m, n), 2.0))
        elif what == "async":
            arrives = tl.load_async(x.local, (m, n))
            tl.cycles(3)
            tl.store_async(y.local, tl.wait(arrives) * 2.0)
        elif what == "strided":
            tl.load(x.local, (8, 32), strides=(200, 1))
        elif what == "views":
            tl.store(y.local, tl.reshape(tl.load(x.local, (m, n)), (n, m))[:4] + 1.0)
        elif what == "math":
            tl.sum(tl.softmax(tl.load(x.local, (m, n))), axis=1)
        elif what == "dot":
            tl.dot(tl.zeros((m, n)), tl.zeros((n, 8)))
        elif what == "cycles":
            tl.cycles(rng.randint(1, 300))
        elif what == "numbers":
            if not tl.load(x.local, (1, 8)).numpy().any():
                tl.cycles(5)
        else:
            tile = rng.choice([{}, {"tile_shape": "auto"}])
            tl.composite("gemm", tl.ref(x.local, (m, 64)), tl.ref(x.local, (64, n)), y.local, **tile)


# ---- without interference


@pytest.mark.parametrize(("kernel", "copied"), [(products, 4 * CUBES), (uneven, 4 * CUBES), (one_more, 4 * CUBES)])
def test_kernels_that_keep_to_their_cube(kernel: Any, copied: int) -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        u, v = run.tensors(sip=1)
        run.launch(kernel, x, y)
        run.launch(kernel, u, v, sips=(1,))
        run.launch(kernel, y, x, sips=(0,))
        run.launch(kernel, v, v, sips=(1,))

    assert same(program) == copied


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
def test_kernels_that_leave_their_cube_replay_the_recording_of_a_sip() -> None:
    def program(run: Run) -> None:
        for sip in (0, 1, 0):
            x, y = run.tensors(sip)
            run.launch(across, x, y, sips=(sip,))

    assert same(program) == 3


def test_kernels_that_leave_their_sip_are_run() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors(sip=0)
        for _ in range(2):
            run.launch(across, x, y, sips=(0, 1))

    assert same(program) == 0


def test_several_sips_at_once() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        u, v = run.tensors(sip=1)
        for _ in range(2):
            run.launch(uneven, x, y, sips=(0,), wait=False)
            run.launch(uneven, u, v, sips=(1,), wait=False)
            run.torch.wait_all()

    assert same(program) == 4 * CUBES


def test_ranks() -> None:
    def program(run: Run) -> None:
        def rank(number: int) -> None:
            x, y = run.tensors(number)
            for kernel in (products, uneven, products):
                run.launch(kernel, x, y, sips=(number,))

        run.torch.multiprocessing.spawn(rank, nprocs=2)

    assert same(program) == 6 * CUBES


def test_other_sizes_arguments_and_targets() -> None:
    def program(run: Run) -> None:
        for shape in ((64, 256), (37, 300), (6, 600)):  # PEs with more rows than others, and with none
            x, y = run.tensors(shape=shape)
            run.launch(sized, x, y, 1.0)
            run.launch(sized, y, x, 2.0)
        for targets in ({"target_pes": (2, 0)}, {"target_cubes": 1}, {"target_cubes": (0,), "target_pes": 3}):
            run.launch(sized, x, y, 1.0, **targets)

    assert same(program) == 6 * CUBES + 4


@repeatable
def sized(x: Any, y: Any, scale: float, tl: Any) -> None:
    if 0 not in x.local_shape:
        tl.store(y.local, tl.load(x.local, x.local_shape) * scale)


def test_a_launch_with_other_text_types_or_tuples_is_not_a_replay_of_an_earlier_one() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        for op, dtype, rows in (
            ("exp", "f32", (8, 8)),
            ("neg", "f32", (8, 8)),
            ("neg", None, (8, 8)),
            ("neg", None, (4,)),
        ):
            run.launch(chosen, x, y, op, dtype=dtype, rows=rows)
        run.launch(chosen, x, y, "exp", dtype="f32", rows=(8, 8))

    assert same(program) == 5 * CUBES
    times = [launch.total_ns for launch in outcome(program, machine()).launches]
    assert times[0] == times[4]  # the same arguments again
    assert len(dict.fromkeys(times)) == 4


@repeatable
def chosen(x: Any, y: Any, op: str, *, dtype: str | None, rows: tuple[int, ...], tl: Any) -> None:
    for count in rows:
        block = tl.load(x.local, (count, 256))
        if op == "exp":
            block = tl.exp(tl.exp(block))
        tl.store(y.local, (block if dtype is None else -block.to(dtype)).to("f16"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"system.address_model": "pa"}, {PENALTY: 7.5}, {"sip.cube_mesh.w": 1, "system.sips.count": 1}],
    ids=["plain", "pa", "penalty", "one cube"],
)
def test_random_kernels_one_after_the_other(changes: dict[str, object]) -> None:
    graph = machine(**changes)
    cubes = graph.spec.sip.n_cubes

    def program(run: Run) -> None:
        x, y, z = run.tensors(count=3, shape=(256, 256))
        for seed in (1, 2, 1, 3, 2, 4):
            x, y, z = y, z, x
            run.launch(everything, x, y, seed, target_cubes=range(cubes))

    assert same(program, graph) == 6 * cubes


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
@pytest.mark.parametrize("dp", [DPPolicy(), DPPolicy(cube="row_wise"), COPY_PER_CUBE])
def test_replicas(dp: DPPolicy) -> None:
    def program(run: Run) -> None:
        (x,), (y,) = run.tensors(count=1, dp=dp), run.tensors(count=1, dp=COPY_PER_CUBE)
        for a, b in ((x, y), (x, x), (x, y)):
            run.launch(uneven, a, b)

    assert same(program) == 3 * CUBES


def test_tensors_in_sram_and_in_tcm() -> None:
    """What the host has of a PE's TCM its kernels have not: from then on they are elsewhere in it."""

    def program(run: Run) -> None:
        x, y = run.tensors()
        shared = run.torch.empty(64, 64, dp=DPPolicy(cube="row_wise"), space="sram")
        kept = [run.torch.empty(8, 64, space="tcm", dp=DPPolicy(num_cubes=1, num_pes=2))]
        run.launch(uneven, x, y)
        run.launch(uneven, x, shared)
        kept.clear()
        run.launch(uneven, x, y)
        near = run.torch.empty(8 * CUBES * PES, 64, space="tcm", dp=SPLIT)
        run.launch(uneven, near, y)

    assert same(program) == 4 * CUBES


# ---- which op waits for which


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
@pytest.mark.parametrize(
    ("apart", "cubes_apart"),  # PEs on the same bytes, on half of them, on others
    [(0, 0), (0, ROUND), (512, ROUND), (512, 200), (ROUND, 0), (ROUND, 8 * ROUND), (ROUND, ROUND // 2)],
)
def test_ops_wait_for_those_that_wrote_their_bytes(apart: int, cubes_apart: int) -> None:
    def program(run: Run) -> None:
        x, y = run.tensors(dp=COPY_PER_CUBE)
        run.launch(rows, x, y, apart, cubes_apart)
        run.launch(rows, y, x, 512, ROUND)  # other rows, of several writers
        run.launch(rows, x, y, apart, cubes_apart)
        run.launch(rows, x, x, apart, cubes_apart)

    assert same(program) >= 4 * CUBES - 2


@repeatable
def every_second(x: Tensor, y: Tensor, tl: TLContext) -> None:
    """Stores 32 rows of 64 elements, each 128 elements after the one before."""
    tl.store(y.local, tl.load(x.local, (32, 64)), strides=(128, 1))


@repeatable
def reads_them(x: Tensor, y: Tensor, tl: TLContext) -> None:
    tl.store(y.local, tl.load(x.local, (2, 64)))


def test_ops_wait_for_those_that_wrote_their_bytes_in_many_runs() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors(shape=(32 * CUBES * PES, 128))
        for _ in range(2):
            run.launch(every_second, x, y)
            run.launch(reads_them, y, x)

    assert same(program) == 4 * CUBES


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
def test_cubes_at_other_rows_replay_one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rounds of channels apart kernels do the same."""
    calls = noted_calls(monkeypatch)

    @repeatable
    def kernel(x: Any, y: Any, apart: int, tl: Any) -> None:
        tl.physical_id(1)
        rows(x, y, ROUND, apart, tl)

    def program(run: Run) -> None:
        run.launch(kernel, *run.tensors(dp=COPY_PER_CUBE), 8 * ROUND)

    assert same(program) == CUBES
    exact, known = calls[: CUBES * PES], calls[CUBES * PES :]
    assert sorted(exact) == sorted(known)  # run on cube 0, elsewhere, and followed on cube 1


def test_a_write_of_the_host_that_was_on_its_way_when_the_launch_began() -> None:
    """Its bytes were there before, but it is done, and waited for, when the host knows."""

    def program(run: Run) -> None:
        x, y = run.tensors()
        run.launch(uneven, x, y)
        run.launch(uneven, x, y, wait=False)
        for before_ns in (20, 60, 90, 120):
            run.happens(before_ns, lambda: write_of_host(run, 0))
        run.torch.wait_all()
        run.launch(uneven, y, x)

    same(program)


# ---- kernels that fail


@pytest.mark.parametrize("policy", ["fail_fast", "collect_all"])
@pytest.mark.parametrize("where", [0, 6, None])
def test_kernels_that_fail(where: int | None, policy: str) -> None:
    @repeatable
    def kernel(x: Any, y: Any, tl: Any) -> None:
        uneven(x, y, tl)
        if tl.program_id(2) and where in (None, tl.program_id(1) * PES + tl.program_id(0)):
            raise ValueError("no")

    def program(run: Run) -> None:
        x, y = run.tensors()
        u, v = run.tensors(sip=1)
        run.launch(kernel, x, y, sips=(0,))
        run.launch(kernel, u, v, sips=(1,), failure_policy=policy, wait=False)
        run.launch(uneven, x, y, sips=(0,), wait=False)
        for launch in run.launches:
            try:
                run.torch.wait(launch)
            except LaunchError as wrong:
                run.notes.append(str(wrong))
        run.launch(uneven, u, v, sips=(1,))

    assert same(program) >= CUBES


# ---- with interference


def place(run: Run, sip: int, cube: int, pe: int, offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(sip, cube, pe, offset, run.graph.spec.cube.hbm_slice_bytes).encode()


def write_of_host(run: Run, sip: int = 1) -> None:
    run.engine.submit(MemoryWriteMsg(dst_sip=sip, dst_cube=0, dst_pe=1, dst_pa=place(run, sip, 0, 1), nbytes=3000))


def read_of_host(run: Run) -> None:
    run.engine.submit(MemoryReadMsg(src_sip=1, src_cube=1, src_pe=2, src_pa=place(run, 1, 1, 2, 512), nbytes=2000))


def read_of_its_pe(run: Run) -> None:
    run.engine.submit(PeDmaMsg(1, 1, 3, place(run, 1, 0, 0), 5000))


def read_of_another_sip(run: Run) -> None:
    run.engine.submit(PeDmaMsg(0, 1, 3, place(run, 1, 1, 0), 5000))


def look_at_the_log(run: Run) -> None:
    run.notes.append([repr(item) for item in run.log.items()])


def look_at_counters(run: Run) -> None:
    run.engine.link_counters()


def launch_behind(run: Run) -> None:
    run.launch(products, *run.kept, sips=(1,), wait=False)


def abort(run: Run) -> None:
    every = {"target_cubes": tuple(range(CUBES)), "target_pes": tuple(range(PES))}
    run.engine.submit(KernelAbortMsg(sip=1, launch_id=run.launches[-1].handles[0].request.id, **every))


def take_tcm(run: Run) -> None:
    try:
        run.notes.append(str(run.engine.pe_memory(1, 1, 3).alloc_tcm(4096)))
    except AllocationError as wrong:
        run.notes.append(str(wrong))


def ask_who_waits(run: Run) -> None:
    run.notes.append(run.engine.blocked_kernels())


INTERFERING = [
    write_of_host, read_of_host, read_of_its_pe, read_of_another_sip, look_at_the_log, look_at_counters,
    launch_behind, abort, take_tcm, ask_who_waits,
]  # fmt: skip


@cache
def instants() -> list[float]:
    """From the launch on: when its kernels begin and end, in between, and when the fabric or an op begins or ends."""
    begun: list[float] = []

    def program(run: Run) -> None:
        x, y = run.tensors(sip=1)
        begun.append(run.engine.now_ns)
        run.launch(uneven, x, y, sips=(1,))

    run = outcome(program, machine(), fast=False)
    pes = run.launches[0].pes
    found = {t for pe in pes for t in (pe.start_ns, pe.end_ns)}
    ops = [op for _, op in run.log.items() if op.component_id.startswith("sip1.cube1.pe3")]
    found.update(t for op in ops for t in (op.t_start, op.t_end, (op.t_start + op.t_end) / 2 + 0.0625))
    return [t - begun[0] for t in sorted(found)]


def with_interference(access: Callable[[Run], object], after_ns: float) -> Program:
    def program(run: Run) -> None:
        run.kept = x, y = run.tensors(sip=1)
        run.happens(after_ns, lambda: access(run))
        run.launch(uneven, x, y, sips=(1,), wait=False)
        run.torch.wait_all()
        run.launch(uneven, x, y, sips=(1,))

    return program


@pytest.mark.parametrize("number", range(len(INTERFERING)), ids=[access.__name__ for access in INTERFERING])
def test_an_interfering_access_changes_nothing(number: int) -> None:
    """At the begin or at the last end, at the end of some PEs, and between. Kernels then run as if they always had; who
    only finds that their TCM is taken interferes with none.
    """
    times, access = instants(), INTERFERING[number]
    copied = [same(with_interference(access, at)) for at in (*times[number % 19 :: 19], times[-(number % 2)])]
    assert min(copied) == (2 * CUBES if access is take_tcm else CUBES)


def test_a_request_that_begins_at_the_instant_of_a_dma_of_the_kernel() -> None:
    """Calls of one instant are made before what one of them starts goes on."""
    for after_ns in instants()[1:8:3]:
        same(with_interference(read_of_its_pe, after_ns))


def test_a_request_that_has_the_dma_when_the_launch_begins() -> None:
    """Nothing of it is on the SIP's links then, and the kernel waits for it nevertheless."""

    def program(run: Run) -> None:
        x, y = run.tensors()
        run.launch(uneven, x, y)
        for after_ns in (20, 60, 80):
            run.happens(after_ns, lambda: run.engine.submit(PeDmaMsg(0, 1, 3, place(run, 1, 1, 0), 5000)))
            run.launch(uneven, x, y, wait=False)
            run.torch.wait_all()

    same(program)


def test_a_kernel_of_another_sip_interferes() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        u, v = run.tensors(sip=1)
        for cycles in (20, 130):
            run.launch(uneven, u, v, sips=(1,), wait=False)
            run.launch(reads_late, v, cycles, sips=(0,), target_cubes=0, target_pes=0)
            run.torch.wait_all()
            run.launch(uneven, x, y, sips=(0,))

    assert same(program) >= CUBES


def reads_late(x: Any, cycles: int, tl: Any) -> None:
    tl.cycles(int(cycles))
    tl.load(x, (8, 64))


def test_a_kernel_that_communicates_comes_to_the_same_pes() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        run.engine.reserve_communication_tcm([0], 1 << 16, 1 << 17)
        for first, second in (("compute", "communication"), ("communication", "compute")):
            run.launch(uneven, x, y, stream=first, wait=False)
            run.launch(products, y, x, stream=second, wait=False, target_cubes=1, target_pes=(0, 2))
            run.torch.wait_all()
            run.launch(uneven, x, y)

    assert same(program) >= 2 * CUBES


@pytest.mark.parametrize("first", ["compute", "communication"])
def test_kernels_of_two_streams_that_begin_at_one_instant_keep_their_order(first: str) -> None:
    def program(run: Run) -> None:
        (x, y), (u, v) = run.tensors(), run.tensors()
        run.engine.reserve_communication_tcm([0], 1 << 16, 1 << 17)
        streams = ["compute", "communication"]
        for stream in streams if first == "compute" else streams[::-1]:
            run.launch(uneven, *((x, y) if stream == "compute" else (u, v)), stream=stream, wait=False)
        run.torch.wait_all()

    assert same(program) == 0


def test_a_kernel_that_never_ends_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_recorder, "MOST_STEPS", 1 << 11)
    monkeypatch.setattr(launch_recorder, "STEPS_OF_A_KERNEL", 1 << 6)

    @repeatable
    def forever(x: Any, y: Any, tl: Any) -> None:
        while True:
            tl.cycles(100)

    def program(run: Run) -> None:
        run.kept = x, y = run.tensors(sip=1)
        run.happens(400, lambda: abort(run))
        run.launch(forever, x, y, sips=(1,), wait=False)
        run.torch.wait_all()

    assert same(program) == 0


@pytest.mark.parametrize("steps_of_a_kernel", [0, 1 << 10])
def test_a_launch_of_many_kernels_may_take_more_steps(monkeypatch: pytest.MonkeyPatch, steps_of_a_kernel: int) -> None:
    monkeypatch.setattr(launch_recorder, "MOST_STEPS", 0)
    monkeypatch.setattr(launch_recorder, "STEPS_OF_A_KERNEL", steps_of_a_kernel)

    def program(run: Run) -> None:
        x, y = run.tensors()
        for _ in range(2):
            run.launch(uneven, x, y)

    assert (same(program) > 0) is (steps_of_a_kernel > 0)


def test_launches_that_wait_for_each_other() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        for kernel in (uneven, products, uneven):
            run.launch(kernel, x, y, wait=False)
        run.launch(uneven, y, x, wait=False, target_cubes=1, target_pes=(0, 3))
        run.torch.wait_all()
        run.launch(uneven, x, y)

    assert same(program) == CUBES


def test_a_kernel_that_is_interrupted_again_and_again_is_run() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors(sip=1)
        for _ in range(3):
            run.happens(instants()[4], lambda: read_of_host(run))
            run.launch(uneven, x, y, sips=(1,), wait=False)
            run.torch.wait_all()
        run.launch(uneven, x, y, sips=(1,))

    assert same(program) == 0


# ---- whose launches can be known


def calls_of(patch: pytest.MonkeyPatch, marked: bool, launches: int = 1, **how: bool) -> list[tuple[int, int]]:
    """The PEs for which a kernel was called, in a program of so many launches."""
    calls = noted_calls(patch)

    def kernel(x: Any, y: Any, tl: Any) -> None:
        tl.physical_id(1)
        uneven(x, y, tl)

    def program(run: Run) -> None:
        x, y = run.tensors()
        for _ in range(launches):
            run.launch(repeatable(kernel) if marked else kernel, x, y)

    run = outcome(program, machine(), **how)
    assert run.copied == (launches * CUBES if marked and how.get("known", True) else 0)
    return calls


def test_a_kernel_is_called_once_for_every_pe(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is marked too, where the recording of its cube is found or replayed at once."""
    once = [(cube, pe) for cube in range(CUBES) for pe in range(PES)]
    for marked, how in ((False, {}), (True, {}), (True, {"known": False})):
        assert sorted(calls_of(monkeypatch, marked, **how)) == once
    assert sorted(calls_of(monkeypatch, True, launches=2)) == sorted(2 * once)


class OtherGemm(PeGemmComponent):
    """A user's own, that does what ours does."""


def test_whose_launches_are_known(tmp_path: Any) -> None:
    """Where races, lines or flits are asked for, kernels are run; so they are on blocks of the user's. With contents,
    nothing is known before the first repeatable kernel.
    """
    graph = machine()

    def knows(**options: Any) -> bool:
        return GraphEngine(graph, **{"op_log": OpLog(), "data": False, **options}).launch_replayer is not None

    assert knows()
    assert knows(op_log=None)
    assert not knows(data=True)
    assert not knows(check_races=True)
    assert not knows(fast=False)
    assert not knows(mode="flits")
    assert not knows(activity=Activity(purpose_of))
    assert not knows(op_log=OpLog(lines=True))
    with StreamingOpLog(tmp_path / "ops.parquet") as log:
        assert not knows(op_log=log)


def test_blocks_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("other_gemm")
    module.OtherGemm = OtherGemm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other_gemm", module)
    graph = machine(**{"cube.pe_template.components.pe_gemm.impl": "other_gemm:OtherGemm"})
    assert GraphEngine(graph, data=False).launch_replayer is None


def test_contents_that_are_dropped_make_launches_known() -> None:
    engine = GraphEngine(machine(), op_log=OpLog())
    assert engine.launch_replayer is None
    with RuntimeContext(engine) as torch:
        torch.timing_only()
        x = torch.zeros(64, 256, dp=SPLIT)
        torch.launch("k", uneven, x, x, **EVERYWHERE)
    assert engine.launch_replayer is not None
    assert engine.launch_replayer.replayed_regions == CUBES


@pytest.mark.parametrize("overrides", [{}, {"system.sips.count": 4, "sip.cube_mesh.w": 3, "sip.cube_mesh.h": 2}])
def test_cubes_and_sips_of_a_machine_are_alike(overrides: dict[str, int]) -> None:
    """In nodes, links, their order and timing: so one recording serves all of them, and does not compare it."""
    engine = GraphEngine(load_topology(None, overrides), data=False)
    graph, network = engine.graph, engine.fabric.network
    alike: dict[bool, set[tuple[object, ...]]] = {True: set(), False: set()}
    for region, parts in regions_of(graph, network).items():
        cut, found = len(region.name), list[object]()
        for at, name in enumerate(network.names):
            node = graph.node(str(name))
            if region.holds(node.place.sip, node.place.cube):
                spec = network.channel_specs.get(at)
                found.append(
                    (node.id[cut:], node.impl, sorted(node.attrs.items(), key=str), network.overhead_ns[at], spec)
                )
        for link in parts.links:
            ends = [str(network.names[end])[cut:] for end in network.link_ends[link]]
            is_series = region.cube is None and link in network.sole_feeder  # those of cubes come from outside
            found.append((*ends, network.bw_gbs[link], network.tail_ns[link], is_series))
        alike[region.cube is None].add((str(found),))
    assert [len(each) for each in alike.values()] == [1, 1]


@pytest.mark.needs("va", reason="other address models have no MMU")
def test_a_recording_asks_mmus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an MMU remembered of the translations of a recording would be wrong for the machine."""
    asked: list[PeMmuComponent] = []
    plain = PeMmuComponent.translate

    def noted(self: PeMmuComponent, va: int, nbytes: int) -> list[tuple[int, int]]:
        asked.append(self)
        return plain(self, va, nbytes)

    monkeypatch.setattr(PeMmuComponent, "translate", noted)
    run = outcome(lambda run: run.launch(uneven, *run.tensors()), machine())
    assert run.copied == CUBES
    assert asked
    assert not any(mmu is run.engine.component(mmu.node.id) for mmu in asked)
