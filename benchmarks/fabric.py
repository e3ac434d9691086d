"""How fast the fabric is, against the naive SimPy model that serves as its oracle: ratios of CPU time in one run.

    python benchmarks/fabric.py            a table
    python benchmarks/fabric.py --json     the same as JSON
    python benchmarks/fabric.py --quick    small sizes, to see that it works; its ratios mean nothing

Every workload runs in the naive model, flit by flit (`flits`) and in the mode the engine uses (`adaptive`). `identical`
says that every completion time is the same in all three, to the last bit.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import simpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from kernbench.sim_engine.fabric import Fabric, FabricEnvironment  # noqa: E402


def _load(name: str, path: Path) -> Any:
    """A module by its path: neither the tests nor the benchmarks are installed."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NaiveFabric = _load("naive_fabric", HERE.parent / "tests" / "oracle" / "naive_fabric.py").NaiveFabric
workloads = _load("fabric_workloads", HERE / "workloads.py")

AFTER_ALL = 2 * 10**9  # a SimPy priority behind all that settles at one instant in the naive model

Times = list[list[float]]  # of every stream: when each of its messages was done
Send = Callable[[Any], Any]  # a stream's next message; answers the event of its end


@dataclass(frozen=True)
class Row:
    """One workload. Times are CPU time."""

    workload: str
    flit_hops: int
    naive_ms: float
    flits_ms: float
    adaptive_ms: float
    ratio: float  # naive / adaptive
    ratio_flits: float  # naive / flits
    slowdown: float  # adaptive / flits
    identical: bool
    events: int  # of the adaptive mode


def drive(env: simpy.Environment, send: Send, streams: list[Any]) -> Times:
    """Run every stream as a process to its end."""
    times: Times = [[] for _ in streams]

    def process(number: int) -> Generator[Any, Any, None]:
        stream = streams[number]
        if stream.at_ns:
            yield env.timeout(stream.at_ns)
        for _ in range(stream.count):
            yield send(stream)
            times[number].append(env.now)
            # Streams that go on at one instant do so in order of their number, whoever woke them first.
            turn = env.event()
            turn._ok, turn._value = True, None
            env.schedule(turn, priority=AFTER_ALL + number)
            yield turn

    for number in range(len(streams)):
        env.process(process(number))
    env.run()
    return times


def run_naive(workload: Any) -> Times:
    env = simpy.Environment()
    fabric = NaiveFabric(env, workload.network)

    def send(stream: Any) -> Any:
        return fabric.inject(stream.path, stream.nbytes, env.now, write_to=stream.write_to).done

    if workload.by_processes:
        return drive(env, send, workload.streams)
    messages = [fabric.inject(s.path, s.nbytes, s.at_ns, write_to=s.write_to) for s in workload.streams]
    env.run()
    return [[message.done_ns] for message in messages]


def run_fabric(workload: Any, mode: Any) -> tuple[Times, Fabric]:
    fabric = Fabric(workload.network, mode=mode)
    if workload.by_processes:
        env = FabricEnvironment(fabric)
        return drive(env, lambda s: env.transfer(s.path, s.nbytes, write_to=s.write_to), workload.streams), fabric
    transfers = [fabric.inject(s.path, s.nbytes, s.at_ns, write_to=s.write_to) for s in workload.streams]
    fabric.run()
    return [[transfer.done_ns] for transfer in transfers], fabric


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU ms of one call, and its result. As timeit does, the garbage collector stays out of it."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        result = work()
        return (time.process_time() - start) * 1e3, result
    finally:
        gc.enable()


def measure(workload: Any, repeats: int) -> Row:
    naive_ms, expected = timed(lambda: run_naive(workload))
    flits_ms = adaptive_ms = float("inf")
    identical, events = True, 0
    # The two modes take turns, so that a busy moment of the machine hits both.
    for _ in range(repeats):
        ms, (times, _) = timed(lambda: run_fabric(workload, "flits"))
        flits_ms, identical = min(flits_ms, ms), identical and times == expected
        ms, (times, fabric) = timed(lambda: run_fabric(workload, "adaptive"))
        adaptive_ms, identical = min(adaptive_ms, ms), identical and times == expected
        events = fabric.events
    ratios = naive_ms / adaptive_ms, naive_ms / flits_ms, adaptive_ms / flits_ms
    return Row(workload.name, workload.flit_hops, naive_ms, flits_ms, adaptive_ms, *ratios, identical, events)


def table(rows: list[Row]) -> str:
    times, ratios = ["naive ms", "flits ms", "adaptive ms"], ["ratio", "ratio flits", "slowdown"]
    head = ["workload", "flit-hops", *times, *ratios, "identical"]
    lines = [head]
    for row in rows:
        figures = f"{row.naive_ms:.0f}", f"{row.flits_ms:.2f}", f"{row.adaptive_ms:.2f}"
        factors = f"{row.ratio:.0f}x", f"{row.ratio_flits:.0f}x", f"{row.slowdown:.2f}"
        lines.append([row.workload, str(row.flit_hops), *figures, *factors, "yes" if row.identical else "NO"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rest = range(1, len(head))
    return "\n".join("  ".join([line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in rest)]) for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU time of the fabric against the naive SimPy model.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--repeats", type=int, default=7, help="runs of the fast modes, of which the best counts")
    options = parser.parse_args(arguments)
    builders = workloads.QUICK if options.quick else workloads.FULL
    rows = [measure(build(), 1 if options.quick else options.repeats) for build in builders]
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(table(rows))
    return 0 if all(row.identical for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
