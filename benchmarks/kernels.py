"""What kernels cost to simulate, in units of one SimPy time-out measured in the same run. CPU time of this process.

    python benchmarks/kernels.py            a table; exit code 1 when a bar does not hold
    python benchmarks/kernels.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/kernels.py --quick    small sizes, to see that it works; its figures mean nothing

A unit is what a bare process that yields time-outs in a loop costs a time-out. Other processes of the machine slow a
simulation, which uses much code and memory, more than that loop, which uses little: on a busy machine, twelve launches
of one process took 82 to 167 time-outs a command. What is spread over many functions therefore has its bar in calls of
functions, Python's and builtin ones, which are the same in every run; each is the difference of a larger and a smaller
run, without what a run costs once. Everything runs as a user has it: data and op log on, garbage collector on. Of
several runs the best counts, of units too. BLAS has one thread, for pass 2 and for what it is compared with. Memory is
the resident set of this process. A launch is measured from `torch.launch` until it returns. Its first row is the first
launch ever on the machine, which finds the routes; the next is the first launch on a new engine of a machine in use,
which makes the blocks; the last is any later launch.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from kernbench.policy.placement.dp import DPPolicy  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.data_executor import DataExecutor  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.sim_engine.op_log import OpLog  # noqa: E402
from kernbench.sim_engine.op_stream import StreamingOpLog  # noqa: E402
from kernbench.topology import load_topology  # noqa: E402
from kernbench.topology.graph import TopologyGraph  # noqa: E402
from kernbench.values.graph import ValueGraph  # noqa: E402

TILE = (32, 64, 32)  # m, k, n
EDGE, COMMANDS = 64, 6  # of the blocks, and per round of the kernel that loops over simple commands
MB = 1e6


@dataclass(frozen=True)
class Row:
    """One figure and what it may be at most."""

    name: str
    value: float
    unit: str
    bar: float | None
    ok: bool


def row(name: str, value: float, unit: str, bar: float | None = None, noise: float = 0.0) -> Row:
    return Row(name, value, unit, bar, bar is None or value <= bar * (1 + noise))


@dataclass(frozen=True)
class Sizes:
    """How much is done. `repeats` runs of each, of which the best counts."""

    edge: int  # of a square matrix
    cubes: int
    timeouts: int
    repeats: int  # of what is long; of what is short, four times as many

    @property
    def tiles(self) -> int:
        m, k, n = (-(-self.edge // tile) for tile in TILE)
        return m * k * n


FULL = Sizes(edge=512, cubes=16, timeouts=100_000, repeats=3)
QUICK = Sizes(edge=64, cubes=2, timeouts=1000, repeats=1)


# ---- measuring


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls, Python's and builtin ones."""
    calls = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # finalisers run when their objects go, not when the collector comes
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def timeout_s(count: int) -> float:
    """CPU seconds of one SimPy time-out."""
    env = simpy.Environment()

    def process() -> Generator[simpy.Event, Any, None]:
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(process())
    return cpu_s(env.run) / count


def best(sizes: Sizes, repeats: int, *works: Callable[[], float]) -> list[float]:
    """The least that each work takes, in units. Works and units take turns, so that a busy moment hits all of them."""
    seconds: list[list[float]] = [[] for _ in works]
    units = [timeout_s(sizes.timeouts)]
    for _ in range(repeats):
        for found, work in zip(seconds, works, strict=True):
            found.append(work())
        units.append(timeout_s(sizes.timeouts))
    return [min(found) / min(units) for found in seconds]


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # elsewhere only the largest so far is known, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- pass 1


def gemm(a: Any, b: Any, c: Any, tl: Any) -> None:
    """Each PE its own product, both operands streamed from its own memory."""
    left, right = tl.ref(a.local, a.local_shape), tl.ref(b.local, b.local_shape)
    tl.wait(tl.composite("gemm", left, right, out_ptr=c.local, tile_shape=TILE))


def loop(x: Any, y: Any, rounds: int, tl: Any) -> None:
    """Each PE goes through blocks of its own slice with simple commands, `COMMANDS` per round."""
    for at in range(rounds):
        block = tl.load(x.local + at * 2 * EDGE * EDGE, (EDGE, EDGE))
        power = tl.exp(block - tl.max(block, axis=1))
        product = tl.dot(power, block)
        tl.store(y.local + at * 2 * EDGE * EDGE, product)


def empty(tl: Any) -> None:
    pass


def launch_gemm(graph: TopologyGraph, edge: int, cubes: int, pes: int, log: OpLog, progress: Any = None) -> float:
    """CPU seconds of a launch in which every PE multiplies matrices of its own."""
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    engine = GraphEngine(graph, op_log=log)
    engine.progress = progress
    with RuntimeContext(engine) as torch:
        a, b, c = (torch.zeros(edge * cubes * pes, edge, dp=dp) for _ in range(3))
        seconds = cpu_s(lambda: torch.launch("gemm", gemm, a, b, c))
    assert engine.hbm_bytes(0) > 0
    return seconds


def pass_1(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    edge, cubes, pes = sizes.edge, sizes.cubes, graph.spec.cube.n_pes
    all_pes = cubes * pes

    def one() -> float:
        return min(launch_gemm(graph, edge, 1, 1, OpLog()) for _ in range(4))

    def many() -> float:
        return launch_gemm(graph, edge, cubes, pes, OpLog())

    units, units_of_all = best(sizes, sizes.repeats, one, many)
    ratio = units_of_all / (all_pes * units)
    return [
        row(f"pass 1, composite GEMM {edge}^3 f16 on one PE", units / sizes.tiles, "time-outs a tile", 40),
        row(f"pass 1, the same on {all_pes} PEs", ratio, f"x {all_pes} times one PE", 1, noise=0.05),
    ]


def simple_commands(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    """What a command costs from the kernel to the op log; without the first launch, which makes the PEs' blocks."""
    rounds, pes = sizes.edge // 8, graph.spec.cube.n_pes
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=1, num_pes=pes)

    def launch() -> float:
        with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
            x, y = (torch.zeros(pes * rounds * EDGE, EDGE, dp=dp) for _ in range(2))
            torch.launch("loop", loop, x, y, 1)
            return cpu_s(lambda: torch.launch("loop", loop, x, y, rounds))

    def calls(rounds: int) -> int:
        with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
            x, y = (torch.zeros(pes * rounds * EDGE, EDGE, dp=dp) for _ in range(2))
            torch.launch("loop", loop, x, y, 1)
            return calls_of(lambda: torch.launch("loop", loop, x, y, rounds))

    (units,) = best(sizes, 2 * sizes.repeats, launch)
    name, commands = f"pass 1, simple commands in a loop on {pes} PEs", COMMANDS * pes
    return [
        row(name, units / (commands * rounds), "time-outs a command"),
        row(f"{name}, calls", (calls(12) - calls(4)) / (commands * 8), "calls a command", 260),
    ]


def contend(word: Any, rounds: int, tl: Any) -> None:
    """Each PE adds to one word of memory, again and again."""
    for _ in range(rounds):
        tl.atomic_add(word, 1)


def spin(lock: Any, cycles: int, tl: Any) -> None:
    """One PE holds a lock for some cycles; the others poll it until it is free."""
    if tl.program_id(0) == 0:
        tl.cycles(cycles)
        tl.atomic_xchg(lock, 1)
    else:
        while int(tl.atomic_cas(lock, 1, 1)) == 0:
            pass


def atomics(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    """What an atomic on a word costs that all PEs of a cube use: one that changes it, and a poll that does not."""
    pes, polls = graph.spec.cube.n_pes, [0]

    def launch(kernel: Callable[..., None], amount: int, measure: Callable[..., float] = cpu_s) -> float:
        log = OpLog()
        with RuntimeContext(GraphEngine(graph, op_log=log)) as torch:
            word = torch.zeros(1, dtype="i32")
            torch.launch("first", kernel, word, 1, target_cubes=0, target_pes="all")
            word.copy_(torch.zeros(1, dtype="i32"))
            before = len(log)
            measured = measure(
                lambda: torch.launch(kernel.__name__, kernel, word, amount, target_cubes=0, target_pes="all")
            )
            polls[0] = len(log) - before
        return measured

    def calls_per_op(kernel: Callable[..., None], few: int, many: int) -> float:
        less, fewer = launch(kernel, few, calls_of), polls[0]
        return (launch(kernel, many, calls_of) - less) / (polls[0] - fewer)

    rounds = sizes.edge // 2
    (added,) = best(sizes, sizes.repeats, lambda: launch(contend, rounds))
    (polled,) = best(sizes, sizes.repeats, lambda: launch(spin, 20 * sizes.edge))
    polled /= polls[0]
    changes, looks = f"atomics on one word, {pes} PEs", f"polls of one word, {pes - 1} PEs"
    return [
        row(changes, added / (rounds * pes), "time-outs an atomic"),
        row(f"{changes}, calls", calls_per_op(contend, 4, 12), "calls an atomic", 640),
        row(looks, polled, "time-outs a poll"),
        row(f"{looks}, calls", calls_per_op(spin, 500, 1500), "calls a poll", 590),
    ]


def launches(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    targets: dict[str, Any] = {"sips": range(graph.spec.n_sips), "target_cubes": "all", "target_pes": "all"}

    def first() -> float:
        with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
            return cpu_s(lambda: torch.launch("empty", empty, **targets))

    def later() -> float:
        with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
            torch.launch("empty", empty, **targets)
            return min(cpu_s(lambda: torch.launch("empty", empty, **targets)) for _ in range(3))

    def calls(cubes: int) -> int:
        with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
            few = {**targets, "target_cubes": tuple(range(cubes))}
            torch.launch("empty", empty, **few)
            return calls_of(lambda: torch.launch("empty", empty, **few))

    (ever,) = best(sizes, 1, first)
    firsts, laters = best(sizes, 4 * sizes.repeats, first, later)
    pes = graph.spec.n_sips * graph.spec.sip.n_cubes * graph.spec.cube.n_pes
    more = graph.spec.n_sips * graph.spec.cube.n_pes  # PEs, of one more cube in each SIP
    return [
        row(f"empty kernel on {pes} PEs, first on the machine", ever, "time-outs"),
        row(f"empty kernel on {pes} PEs, first on an engine", firsts, "time-outs"),
        row(f"empty kernel on {pes} PEs, later", laters, "time-outs"),
        row(f"empty kernel on {pes} PEs, later, calls", (calls(2) - calls(1)) / more, "calls a PE", 230),
    ]


# ---- pass 2


def pass_2(sizes: Sizes) -> list[Row]:
    edge, rng = sizes.edge, np.random.default_rng(0)
    a, b = (rng.standard_normal((edge, edge)).astype(np.float16) for _ in range(2))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    ours, plain = [], []
    for _ in range(4 * sizes.repeats):
        values = ValueGraph()
        product = values.apply("dot", (values.constant(a), values.constant(b)), dtype="f16")
        ours.append(cpu_s(lambda out=product: DataExecutor(threads=1).run([out])))
        plain.append(cpu_s(lambda: np.matmul(wide_a, wide_b)))
    return [row(f"pass 2, {edge}^3 f16", min(ours) / max(min(plain), 1e-9), "x one f32 np.matmul", 3)]


# ---- memory


def memory(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    """What the resident set grows by during one launch on many PEs, for a million records."""
    edge, cubes, pes = sizes.edge, sizes.cubes, graph.spec.cube.n_pes
    gc.collect()
    before, log = resident_bytes(), OpLog()
    launch_gemm(graph, edge, cubes, pes, log)
    kept = (resident_bytes() - before) / len(log) * 1e6
    del log
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        chunk = 1 << 14 if sizes is FULL else 1 << 9
        with closing(StreamingOpLog(Path(folder) / "ops.parquet", chunk_records=chunk)) as stream:
            launch_gemm(graph, edge, cubes, pes, stream, lambda _: seen.append(resident_bytes()))
            count = len(stream)
    early, late = max(seen[: len(seen) // 3], default=0), max(seen[len(seen) // 3 :], default=0)
    growth = (late - early) / (count * 2 / 3) * 1e6
    return [
        row("op log in memory", kept / MB, "MB a million records", 500),
        row("op log streaming, growth", growth / MB, "MB a million records", 10),
    ]


# ---- the table


def table(rows: list[Row]) -> str:
    lines = [("", "figure", "bar", "", "")]
    for item in rows:
        bar = "" if item.bar is None else f"{item.bar:,.6g}"
        lines.append((item.name, f"{item.value:,.2f}", bar, item.unit, "" if item.ok else "TOO MUCH"))
    widths = [max(len(line[at]) for line in lines) for at in range(5)]
    shown = []
    for name, value, bar, unit, note in lines:
        figures = f"{value.rjust(widths[1])}  {bar.rjust(widths[2])}  {unit.ljust(widths[3])}"
        shown.append(f"{name.ljust(widths[0])}  {figures}  {note}".rstrip())
    return "\n".join(shown)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What kernels cost to simulate, in SimPy time-outs.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    graph = load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1} if options.quick else None)
    ever_first = launches(graph, sizes)
    # Memory comes before pass 1: what an earlier run has freed would hide what this one takes.
    log = memory(graph, sizes)
    rows = [
        *pass_1(graph, sizes),
        *simple_commands(graph, sizes),
        *atomics(graph, sizes),
        *pass_2(sizes),
        *log,
        *ever_first,
    ]
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(item) for item in rows]}, indent=1))
    else:
        print(table(rows))
    return 0 if options.quick or all(item.ok for item in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
