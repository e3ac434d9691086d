"""Launches that are replayed leave the contents that their kernels would have left, bit for bit, in runs that
keep some: at every look, and at any instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.integration.test_replayed_launches import (
    COPY_PER_CUBE,
    CUBES,
    PES,
    ROUND,
    SPLIT,
    Run,
    instants,
    launch_behind,
    look_at_counters,
    look_at_the_log,
    machine,
    place,
    products,
    read_of_host,
    read_of_its_pe,
    rows,
    uneven,
    write_of_host,
)
from tests.integration.test_replayed_messages import pass_round, swap, talk_last

import kernbench
from kernbench import repeatable
from kernbench.benches.llm_layer import llm_layer
from kernbench.common.dtypes import F16
from kernbench.common.messages import MemoryWriteMsg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.check_fast import check_fast
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.observation import Observation, Observer
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fast_paths import ALL, FastPaths
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import TopologyGraph
from kernbench.values.evaluate import evaluate


class ContentsRun(Run):
    """A run that keeps contents: of tensors that it names, they are part of what can be seen."""

    def __init__(self, graph: TopologyGraph, *, fast: bool | FastPaths = True, log: bool = True) -> None:
        super().__init__(graph, fast=fast)
        self.log = OpLog()
        self.engine = GraphEngine(graph, op_log=self.log if log else None, fast=fast)
        self.torch = RuntimeContext(self.engine)
        self.observer = Observer(self.torch)
        self.made: list[Tensor] = []
        self.numbers = np.random.default_rng(7)

    def tensors(self, sip: int = 0, count: int = 2, dp: DPPolicy = SPLIT, shape: tuple[int, ...] = (64, 256)):
        """Random numbers, that were always there."""
        self.torch.ahbm.set_device(sip)
        found = [self.torch.from_numpy(self._drawn(shape), dtype="f16", dp=dp) for _ in range(count)]
        self.made += found
        return found

    def _drawn(self, shape: tuple[int, ...]) -> Any:
        return self.numbers.standard_normal(shape).astype(np.float16)

    def look(self, pa: int, nbytes: int) -> None:
        """Note what bytes hold now, as the host's own code would."""
        value = self.engine.memory.read(pa, (nbytes // 2,), F16, zero_fill=True)
        self.notes.append(evaluate([value], keep_inputs=True)[0].tobytes())


Program = Callable[[ContentsRun], object]


def outcome(program: Program, graph: TopologyGraph, **how: Any) -> tuple[ContentsRun, Observation]:
    """Contents are those of all tensors when they are freed: at the latest when the context is closed."""
    run = ContentsRun(graph, **how)
    with run.torch:
        program(run)
        found = run.observed()
    return run, found


def same(program: Program, graph: TopologyGraph | None = None, *, log: bool = True) -> int:
    """Check a program's fast paths; returns in how many regions no kernel was run."""
    graph = machine() if graph is None else graph

    def observed(paths: FastPaths, _: OpLog | None) -> Observation:
        exact, found = outcome(program, graph, fast=paths, log=log)
        assert exact.copied == 0
        assert found.contents
        return found

    known, found = outcome(program, graph, log=log)
    check = check_fast(found, ALL, observed)
    assert check.ok, check.as_text()
    return known.copied


# ---- kernels


@repeatable
def neighbours(x: Any, y: Any, tl: Any) -> None:
    """Each writes its part, and later changes that of the next PE of its cube, which has been written meanwhile."""
    tl.store(x.local, tl.load(x.local, (8, 64)) * 2.0)
    tl.cycles(3000)
    here = tl.program_id(0)
    cube = x + tl.program_id(1) * PES * 8 * 512
    other = cube + (here + 1) % PES * 8 * 512
    tl.store(other + 1024, tl.load(other, (2, 64)) + tl.load(x.local + 512, (2, 64)))
    tl.store(y.local, tl.load(other + 1024, (4, 64)))


@repeatable
def masked(x: Any, y: Any, tl: Any) -> None:
    """Looks at numbers that come from nowhere but itself."""
    lanes = tl.arange(0, 64) < 40
    tl.store(y.local, tl.load(x.local, (8, 64), mask=lanes, other=3.0), mask=lanes)
    chosen = tl.arange(0, 4) * 2
    tl.store(y.local + 4096 - 1024, tl.load(x.local, (4, 128), strides=(200, 1)))
    if int(tl.max(chosen)) == 6:
        tl.store(y.local + 256, tl.cast(tl.where(tl.load(x.local, (1, 64)) > 0.0, 1.5, -0.0), "f16"))


@repeatable
def everything(x: Any, y: Any, seed: int, tl: Any) -> None:
    """A random program, the same on all PEs of one number: loads, ops and stores anywhere in the parts."""
    rng = random.Random(f"{int(seed)}/{tl.program_id(0) % 2}")
    held = [tl.load(x.local, (4, 32))]
    for _ in range(8):
        tensor, at = rng.choice((x, y)), 64 * rng.randrange(8)
        what = rng.choice(["load", "strided", "math", "mixed", "view", "store", "async", "gemm", "product", "again"])
        if what == "load":
            held.append(tl.load(tensor.local + at, (4, 32)))
        elif what == "strided":
            held.append(tl.load(tensor.local + at, (4, 32), strides=(50, 1)))
        elif what == "math":
            held.append(rng.choice((tl.exp, tl.softmax, tl.abs))(tl.minimum(rng.choice(held), 4.0)))
        elif what == "mixed":
            held.append(rng.choice(held) * rng.choice((0.5, -1.0)) + rng.choice(held))
        elif what == "view":
            held.append(tl.reshape(tl.trans(rng.choice(held)), (4, 32)))
        elif what == "store":
            tl.store(tensor.local + at, rng.choice(held))
        elif what == "async":
            tl.store_async(tensor.local + at, rng.choice(held))
            held.append(tl.wait(tl.load_async(tensor.local + at, (4, 32))))
        elif what == "gemm":
            tl.composite("gemm", tl.ref(x.local, (8, 64)), tl.ref(y.local, (64, 16)), tensor.local + 1024)
        elif what == "product":
            held.append(tl.dot(rng.choice(held), tl.load(x.local, (32, 32))))
        else:
            tl.store(tensor.local + at, tl.load(tensor.local + at, (4, 32)) + 1.0)
    tl.store(y.local, held[-1])


# ---- without interference


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
@pytest.mark.parametrize(
    ("kernel", "log"),
    [(products, True), (uneven, True), (masked, True), (neighbours, True), (uneven, False), (neighbours, False)],
)
def test_kernels_that_keep_to_their_cube(kernel: Any, log: bool) -> None:
    """On other SIPs, on other tensors, in place, and on what an earlier launch has left."""

    def program(run: ContentsRun) -> None:
        x, y = run.tensors()
        u, v = run.tensors(sip=1)
        run.launch(kernel, x, y, sips=(0,))
        run.launch(kernel, u, v, sips=(1,))
        run.launch(kernel, y, x, sips=(0,))
        run.launch(kernel, v, v, sips=(1,))

    assert same(program, log=log) == 4 * CUBES


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
def test_kernels_that_leave_their_cube() -> None:
    @repeatable
    def across(x: Any, y: Any, tl: Any) -> None:
        tl.store(y.local, tl.load(x, (8, 64)) + tl.load(y.local, (8, 64)))

    def program(run: ContentsRun) -> None:
        for sip in (0, 1, 0):
            x, y = run.tensors(sip)
            run.launch(across, x, y, sips=(sip,))
            run.launch(across, y, y, sips=(sip,))

    assert same(program) == 6


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
@pytest.mark.parametrize(
    ("apart", "cubes_apart"), [(0, 0), (512, ROUND), (512, 200), (ROUND, 0), (ROUND, 8 * ROUND), (ROUND, ROUND // 2)]
)
def test_kernels_elsewhere_in_their_parts(apart: int, cubes_apart: int) -> None:
    def program(run: ContentsRun) -> None:
        x, y = run.tensors(dp=COPY_PER_CUBE)
        run.launch(rows, x, y, apart, cubes_apart)
        run.launch(rows, y, x, 512, ROUND)
        run.launch(rows, x, y, apart, cubes_apart)
        run.launch(rows, x, x, apart, cubes_apart)

    assert same(program) >= 4 * CUBES - 2


@pytest.mark.parametrize(("seed", "model"), [(0, "va"), (1, "va"), (2, "va"), (3, "pa"), (4, "pa")])
def test_random_kernels_one_after_the_other(seed: int, model: str) -> None:
    def program(run: ContentsRun) -> None:
        x, y, z = run.tensors(count=3, shape=(64, 256))
        for number in (1, 2, 1, 2):
            x, y, z = y, z, x
            run.launch(everything, x, y, 10 * seed + number)

    assert same(program, machine(**{"system.address_model": model})) == 4 * CUBES


@pytest.mark.parametrize("kernel", [swap, pass_round, talk_last])
def test_messages(kernel: Any) -> None:
    args = (3,) if kernel is swap else ()

    def program(run: ContentsRun) -> None:
        run.torch.install_ipcq()
        for _ in range(2):
            x, y = run.tensors()
            run.launch(kernel, x, y, *args)
            run.launch(kernel, y, x, *args)

    assert same(program) >= 4


def test_tensors_in_sram_and_in_tcm() -> None:
    @repeatable
    def through(x: Any, shared: Any, near: Any, tl: Any) -> None:
        tl.store(near.local, tl.load(x.local, (8, 64)))
        tl.store(shared.local + 1024 * tl.program_id(0), tl.load(near.local, (8, 64)) * 2.0)
        tl.store(x.local, tl.load(shared.local + 1024 * tl.program_id(0), (8, 64)) + tl.load(near.local, (8, 64)))

    def program(run: ContentsRun) -> None:
        (x,) = run.tensors(count=1)
        shared = run.torch.empty(64, 64, dp=DPPolicy(cube="row_wise"), space="sram")
        near = run.torch.empty(8 * CUBES * PES, 64, space="tcm", dp=SPLIT)
        for _ in range(2):
            run.launch(through, x, shared, near)
        run.made += [shared, near]

    assert same(program) == 2 * CUBES


def test_other_types_and_replicas() -> None:
    @repeatable
    def counted(x: Any, flags: Any, tl: Any) -> None:
        numbers = tl.load(x.local, (4, 64))
        tl.store(flags.local, numbers > 3)
        tl.store(x.local, tl.cast(tl.where(tl.load(flags.local, (4, 64)), numbers * 2, numbers - 1), "i32"))

    def program(run: ContentsRun) -> None:
        x = run.torch.from_numpy(np.arange(64 * 64).reshape(64, 64) % 9, dtype="i32", dp=DPPolicy())
        flags = run.torch.zeros(64, 64, dtype="bool", dp=DPPolicy())
        for _ in range(3):
            run.launch(counted, x, flags)
        run.made += [x, flags]

    assert same(program) == 3 * CUBES


# ---- what was never written


def test_a_kernel_that_reads_what_was_never_written_fails_as_when_simulated() -> None:
    def program(run: ContentsRun) -> None:
        (x,) = run.tensors(count=1)
        y = run.torch.empty(64, 256, dp=SPLIT)
        run.launch(uneven, x, y)
        run.launch(uneven, y, x)  # of y only some was written, and no more is read
        z = run.torch.empty(64, 256, dp=SPLIT)
        run.launch(uneven, z, x)
        z.copy_(x)
        run.launch(uneven, z, x)

    assert same(program) >= 2 * CUBES
    assert "never written" in str(outcome(program, machine())[0].notes)


def test_a_kernel_that_reads_only_what_it_has_written() -> None:
    @repeatable
    def back_and_forth(x: Any, y: Any, tl: Any) -> None:
        tl.store(y.local, tl.load(x.local, (8, 64)))
        tl.store(x.local, tl.load(y.local, (4, 64)) + tl.load(y.local + 512, (4, 64)))

    def program(run: ContentsRun) -> None:
        (x,) = run.tensors(count=1)
        for _ in range(2):
            y = run.torch.empty(64, 256, dp=SPLIT)
            run.launch(back_and_forth, x, y)
            run.kept.append(y)

    assert same(program) == 2 * CUBES


# ---- kernels that look


def by_numpy(x: Any, tl: Any) -> float:
    return float(tl.load(x.local, (1, 8)).numpy().sum())


def by_number(x: Any, tl: Any) -> float:
    return float(tl.max(tl.load(x.local, (1, 8))))


def by_truth(x: Any, tl: Any) -> float:
    return 1.0 if tl.max(tl.load(x.local, (1, 8))) > 0.5 else 2.0


def by_mask(x: Any, tl: Any) -> Any:
    return tl.load(x.local, (8, 64), mask=tl.load(x.local, (8, 64)) > 0.0)


def by_rows(x: Any, tl: Any) -> Any:
    numbers = tl.cast(tl.abs(tl.load(x.local, (4,))), "i32")
    return tl.load(x.local, (4, 256), rows=numbers)[:, :64]


def by_what_it_has_written(x: Any, tl: Any) -> float:
    tl.store(x.local, tl.full((1, 8), 3.0))
    return float(tl.max(tl.load(x.local, (1, 8))))


@pytest.mark.parametrize("look", [by_numpy, by_number, by_truth, by_mask, by_rows, by_what_it_has_written])
def test_kernels_that_look_at_contents_are_run(look: Callable[..., Any]) -> None:
    @repeatable
    def kernel(x: Any, y: Any, tl: Any) -> None:
        try:
            seen = look(x, tl)
        except ValueError:
            seen = 0.0
        tl.store(y.local, tl.load(x.local, (4, 64)) * 0.5)
        if isinstance(seen, float):
            tl.store(y.local, tl.full((4, 64), min(seen, 100.0)))
        else:
            tl.store(y.local, seen)

    def program(run: ContentsRun) -> None:
        x, y = run.tensors()
        run.launch(kernel, x, y)
        run.launch(uneven, y, x)
        run.launch(kernel, x, y)

    assert same(program) == CUBES


# ---- with interference


def write_of_numbers(run: ContentsRun) -> None:
    value = run.engine.values.full((1500,), 0.75, "f16")
    pa = place(run, 1, 0, 1)
    run.engine.submit(
        MemoryWriteMsg(dst_sip=1, dst_cube=0, dst_pe=1, dst_pa=pa, nbytes=3000, src_kind="host_buffer_ref"), value
    )


def look_at_memory(run: ContentsRun) -> None:
    for tensor in run.made:
        for shard in tensor.shards:
            run.look(shard.pa, 4096)


def preset(run: ContentsRun) -> None:
    run.torch._store.preset(run.kept[1], lambda part: run.engine.values.full(part.local_shape, 4.0, "f16"))


INTERFERING = [
    write_of_numbers, write_of_host, read_of_host, read_of_its_pe, look_at_the_log, look_at_counters, launch_behind,
    look_at_memory, preset,
]  # fmt: skip


def with_interference(access: Callable[[Any], object], after_ns: float) -> Program:
    def program(run: ContentsRun) -> None:
        run.kept = x, y = run.tensors(sip=1)
        run.happens(after_ns, lambda: access(run))
        run.launch(uneven, x, y, sips=(1,), wait=False)
        run.torch.wait_all()
        run.launch(uneven, y, x, sips=(1,))

    return program


@pytest.mark.parametrize("number", range(len(INTERFERING)), ids=[access.__name__ for access in INTERFERING])
def test_an_interfering_access_changes_nothing(number: int) -> None:
    times = instants()
    for at in (times[7 * number % len(times)], times[-(number % 2)]):  # one on the way, and the first or the last
        assert same(with_interference(INTERFERING[number], at)) >= CUBES


def test_reads_of_memory_without_a_log() -> None:
    for at in instants()[::29]:
        for access in (look_at_memory, preset, write_of_numbers):
            assert same(with_interference(access, at), log=False) >= CUBES


def test_the_host_looks_at_once() -> None:
    """Also while the last credits of messages are still under way."""
    slow = machine(**{"cube.pe_template.components.pe_dma.attrs.overhead_ns": 2000.0})

    @repeatable
    def stores_first(x: Any, y: Any, tl: Any) -> None:
        tl.store(y.local, tl.load(x.local, (8, 64)) + 1.0)
        talk_last(x, y, tl)

    def program(run: ContentsRun) -> None:
        run.torch.install_ipcq()
        x, y = run.tensors()
        for kernel in (stores_first, uneven, stores_first):
            run.launch(kernel, x, y)
            look_at_memory(run)
            run.notes.append(y.numpy().tobytes())

    assert same(program) >= 2 * CUBES
    same(program, slow)


def test_tensors_that_are_dropped_while_a_launch_is_under_way() -> None:
    def program(run: ContentsRun) -> None:
        x, y = run.tensors()
        run.torch.ahbm.set_device(0)
        other = run.torch.zeros(64, 256, dp=SPLIT)
        is_there = ref(other)
        run.launch(uneven, x, y, wait=False)
        del other
        assert is_there() is None
        run.launch(uneven, y, x, wait=False)
        run.torch.wait_all()
        run.notes.append(x.numpy().tobytes())

    same(program)


def test_ranks_and_several_sips() -> None:
    def program(run: ContentsRun) -> None:
        def rank(number: int) -> None:
            x, y = run.tensors(number)
            for kernel in (products, uneven, neighbours):
                run.launch(kernel, x, y, sips=(number,))
                run.notes.append(y.numpy().tobytes())

        run.torch.multiprocessing.spawn(rank, nprocs=2)

    assert same(program) >= 3 * CUBES


# ---- whole layers


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("options", [{"tokens": 4}, {"phase": "decode", "batch": 2}], ids=["prefill", "decode"])
def test_a_layer(options: dict[str, object]) -> None:
    def layer(fast: bool) -> Any:
        log = OpLog()
        params = {"model": "tiny-llama", **options}
        one_cube = machine(**{"sip.cube_mesh.w": 1})
        return kernbench.run(
            llm_layer, one_cube, device="whole", params=params, verify_data=True, op_log=log, fast=fast
        )

    exact, known = layer(False), layer(True)
    assert exact.engine.launch_replayer is None
    assert known.engine.launch_replayer.replayed_regions > 0
    assert known.completion.ok
    assert known.data == exact.data
    assert [launch.as_json() for launch in known.launches] == [launch.as_json() for launch in exact.launches]
    assert list(map(repr, known.engine.log.records)) == list(map(repr, exact.engine.log.records))


# ---- whose launches can be known


def test_nothing_is_loaded_for_kernels_that_are_not_repeatable() -> None:
    def plain(x: Any, y: Any, tl: Any) -> None:
        uneven(x, y, tl)

    def program(run: ContentsRun) -> None:
        x, y = run.tensors()
        run.launch(plain, x, y)
        assert run.engine.launch_replayer is None
        run.launch(uneven, x, y)
        assert run.engine.launch_replayer is not None

    run, _ = outcome(program, machine())
    assert run.copied == CUBES


def test_lines_of_values_are_those_of_kernels_that_ran() -> None:
    def bench(torch: Any) -> None:
        x = torch.from_numpy(np.ones((64, 256)), dtype="f16", dp=SPLIT)
        torch.launch("k", uneven, x, x, target_cubes=range(CUBES), target_pes=range(PES))
        torch.check(x, np.where(np.arange(64 * 256).reshape(64, 256) < 0, 0.0, x.numpy()))

    result = kernbench.run(bench, machine(), device=0, debug_ops=True)
    assert result.engine.launch_replayer is None
    assert any("test_replayed_launches.py" in check.tensor for check in result.ops)
