"""What collectives cost to simulate, in units of one SimPy time-out measured in the same run. CPU time of this process.

    python benchmarks/collectives.py            a table; exit code 1 when a bar does not hold
    python benchmarks/collectives.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/collectives.py --quick    small sizes, to see that it works; its figures mean nothing

A unit is what a bare process that yields time-outs in a loop costs a time-out. A flit-hop is a flit crossing a link.
A run has everything in it: the machine is compiled, routes are found, tensors made, ranks spawned, the all-reduce
carried out, and every rank's result evaluated, read and compared. Data and op log are on, and so is the garbage
collector. Of several runs the best counts, of units too.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from kernbench.policy.placement.dp import DPPolicy  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.sim_engine.op_log import OpLog  # noqa: E402
from kernbench.topology import load_topology  # noqa: E402

LRAB, ALL_PES = "lrab_hierarchical_allreduce", "hierarchical_all_pes"


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

    sips: tuple[int, int, int]
    mesh: tuple[int, int]
    n_elem: int  # of an addend
    many_sips: int
    many_bytes: int
    timeouts: int
    repeats: int

    def machine(self, sips: int) -> dict[str, object]:
        return {"system.sips.count": sips, "sip.cube_mesh.w": self.mesh[0], "sip.cube_mesh.h": self.mesh[1]}

    @property
    def cubes(self) -> int:
        return self.mesh[0] * self.mesh[1]


FULL = Sizes((2, 4, 6), (4, 4), 49152, 16, 1 << 20, 100_000, 2)
QUICK = Sizes((2, 3, 4), (2, 1), 512, 3, 4096, 1000, 1)


@dataclass(frozen=True)
class Cost:
    """What one run took, all of it."""

    units: float
    flit_hops: int
    wall_s: float
    cpu_s: float
    simulated_ns: float

    @property
    def per_hop(self) -> float:
        return self.units / self.flit_hops


# ---- measuring


def timeout_s(count: int) -> float:
    """CPU seconds of one SimPy time-out."""
    env = simpy.Environment()

    def process() -> Generator[simpy.Event, Any, None]:
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(process())
    gc.collect()
    start = time.process_time()
    env.run()
    return (time.process_time() - start) / count


def flit_hops(engine: GraphEngine) -> int:
    """Flits times links crossed, of all transfers that are done; control messages have none."""
    engine.interrupt_replays()
    done = engine.fabric.done()
    return sum((flits + transfers) * len(last.route.traversals) for last, flits, transfers in done)


def measure(sizes: Sizes, name: str, work: Callable[[], GraphEngine], repeats: int) -> Cost:
    """The cheapest of several runs; units are measured between them, so that a busy moment hits both. A line on
    standard error says what was found: the whole table takes minutes.
    """
    units, seconds, walls = [timeout_s(sizes.timeouts)], [], []
    for _ in range(repeats):
        gc.collect()
        wall, start = time.perf_counter(), time.process_time()
        engine = work()
        seconds.append(time.process_time() - start)
        walls.append(time.perf_counter() - wall)
        hops = flit_hops(engine)
        units.append(timeout_s(sizes.timeouts))
    cost = Cost(min(seconds) / min(units), hops, min(walls), min(seconds), engine.now_ns)
    print(
        f"{name}: {cost.cpu_s:.1f} s of CPU time, {cost.units:,.0f} time-outs for {hops:,} flit-hops, "
        f"{cost.per_hop:.2f} each; {cost.simulated_ns / 1000:.2f} us simulated",
        file=sys.stderr,
        flush=True,
    )
    return cost


def per_cube(sizes: Sizes, sips: int, n_elem: int, algorithm: str, num_pes: int = 1) -> GraphEngine:
    """Every cube's addend, on its first `num_pes` PEs, is summed over all cubes of all SIPs; everybody has the sum."""
    engine = GraphEngine(load_topology(None, sizes.machine(sips)), op_log=OpLog())
    spread = DPPolicy(cube="row_wise", pe="column_wise" if num_pes > 1 else "replicate", num_pes=num_pes)
    with RuntimeContext(engine) as torch:
        torch.distributed.init_process_group("ahbm", ccl={"defaults": {"algorithm": algorithm}})

        def worker(rank: int) -> None:
            addends = np.full((sizes.cubes, n_elem), rank % 3, np.float16)
            x = torch.from_numpy(addends, dp=spread)
            torch.distributed.all_reduce(x, per="cube")
            assert (x.numpy() == sizes.cubes * sum(each % 3 for each in range(sips))).all()

        torch.multiprocessing.spawn(worker, nprocs=sips)
    return engine


def per_rank(sizes: Sizes, sips: int, nbytes: int) -> GraphEngine:
    """One tensor per SIP, over all its PEs; whatever algorithm the shipped table has for it."""
    engine = GraphEngine(load_topology(None, sizes.machine(sips)), op_log=OpLog())
    with RuntimeContext(engine) as torch:
        torch.distributed.init_process_group("ahbm")

        def worker(rank: int) -> None:
            addend = np.full(nbytes // 2, rank % 3, np.float16)
            x = torch.from_numpy(addend, dp=DPPolicy(cube="row_wise", pe="row_wise"))
            torch.distributed.all_reduce(x)
            assert (x.numpy() == sum(each % 3 for each in range(sips))).all()

        torch.multiprocessing.spawn(worker, nprocs=sips)
    return engine


# ---- the figures


def large(sizes: Sizes) -> list[Row]:
    """Cost per flit-hop, and how it grows with bytes and with ranks."""
    few, some, many = sizes.sips
    pes = load_topology(None, sizes.machine(few)).spec.cube.n_pes
    kib, n = sizes.n_elem * 2 / 1024, sizes.n_elem
    where = f"{many} SIPs x {sizes.cubes} cubes"
    one_pe = measure(sizes, f"{LRAB}, one PE", lambda: per_cube(sizes, many, n, LRAB), sizes.repeats)
    half = measure(sizes, f"{LRAB}, half", lambda: per_cube(sizes, many, n // 2, LRAB), sizes.repeats)
    by_ranks = [
        measure(sizes, f"{ALL_PES}, {sips} SIPs", partial(per_cube, sizes, sips, n, ALL_PES), sizes.repeats)
        for sips in (few, some, many)
    ]
    all_pes = measure(sizes, f"{ALL_PES}, all PEs", lambda: per_cube(sizes, many, n * pes, ALL_PES, pes), 1)
    least, middle, most = (cost.units for cost in by_ranks)
    unit = "time-outs a flit-hop"
    return [
        row(f"all-reduce of {kib:g} KiB per cube on {where}, one PE each", one_pe.per_hop, unit, 2),
        row(f"all-reduce of {kib:g} KiB per PE on {where}, all PEs", all_pes.per_hop, unit, 2),
        row(f"the first, twice the bytes of {kib / 2:g} KiB", one_pe.units / half.units / 2, "x linear", 1, 0.1),
        row(
            f"{kib:g} KiB per cube over all PEs, {some} SIPs after {few}",
            middle * few / least / some,
            "x linear",
            1,
            0.2,
        ),
        row(
            f"{kib:g} KiB per cube over all PEs, {many} SIPs after {few}", most * few / least / many, "x linear", 1, 0.2
        ),
    ]


def small(sizes: Sizes) -> Row:
    """What a collective costs where there is nothing to move: the second of two on one machine."""
    sips = sizes.sips[-1]
    engine = GraphEngine(load_topology(None, sizes.machine(sips)), op_log=OpLog())
    seconds: list[float] = []
    with RuntimeContext(engine) as torch:
        torch.distributed.init_process_group("ahbm", ccl={"defaults": {"algorithm": LRAB}})

        def worker(_: int) -> None:
            spread = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
            x = torch.from_numpy(np.ones((sizes.cubes, 4), np.float16), dp=spread)
            torch.distributed.all_reduce(x, per="cube")
            torch.distributed.barrier()
            start = time.process_time()
            torch.distributed.all_reduce(x, per="cube")
            seconds.append(time.process_time() - start)

        torch.multiprocessing.spawn(worker, nprocs=sips)
    name = f"all-reduce of 8 bytes per cube on {sips} SIPs x {sizes.cubes} cubes, after one before"
    return row(name, max(seconds), "s of CPU time", 1)


def many_sips(sizes: Sizes) -> Row:
    work = f"{sizes.many_sips} SIPs"
    found = measure(sizes, work, lambda: per_rank(sizes, sizes.many_sips, sizes.many_bytes), 1)
    name = f"all-reduce of {sizes.many_bytes // 1024} KiB on {sizes.many_sips} SIPs x {sizes.cubes} cubes"
    return row(name, found.wall_s, "s", 600)


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
    parser = argparse.ArgumentParser(description="What collectives cost to simulate, in SimPy time-outs.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    quicker = [small(sizes), many_sips(sizes)]
    rows = [*large(sizes), *quicker]
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(item) for item in rows]}, indent=1))
    else:
        print(table(rows))
    return 0 if options.quick or all(item.ok for item in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
