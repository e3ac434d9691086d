"""How many flits per second pass links with finite buffers: all recorded traces of a real chip, compiled loop.

    python benchmarks/buffers.py            a table; exit code 1 if a trace is below the bar
    python benchmarks/buffers.py --json     the same as JSON
    python benchmarks/buffers.py --quick    one short trace

A flit-hop is one flit on one link. Times are CPU time of the loop and of what drives it, without reading the trace: the
best of three, after one that loads the compiled loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernbench.sim_engine.gc_threshold import raised_gc_threshold
from kernbench.sim_engine.plain_network import plain_network
from kernbench.validation.contract import machine
from kernbench.validation.data import DataFolder
from kernbench.validation.noc_traces import SET, Replay, read_trace

BAR = 3e6  # flit-hops per second, on every trace
REPEATS = 3
QUICK = ["1x4_BLOCK_TO_8x4_BLOCK"]


def measured(trace: str, data: DataFolder) -> dict[str, Any]:
    """One trace, each read issued when the chip issued it."""
    topology, network = plain_network(machine(SET.machine))
    processors = read_trace(data.json(f"traces/{trace}.json"))
    Replay(topology, network, mode="flits").open(processors)
    seconds = float("inf")
    for _ in range(REPEATS):
        replay = Replay(topology, network, mode="flits")
        with raised_gc_threshold():  # as the engine does while time passes
            before = time.process_time()
            end_ns = replay.open(processors)
            seconds = min(seconds, time.process_time() - before)
    hops = replay.flit_hops
    return {"trace": trace, "flit_hops": hops, "seconds": seconds, "flit_hops_per_s": hops / seconds, "end_ns": end_ns}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    data = DataFolder(SET.folder)
    rows = [measured(trace, data) for trace in (QUICK if options.quick else data.names("traces", ".json"))]
    rates = sorted(row["flit_hops_per_s"] for row in rows)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'trace':<28} {'flit-hops':>10} {'s':>7} {'M/s':>6}")
        for row in rows:
            rate = row["flit_hops_per_s"] / 1e6
            print(f"{row['trace']:<28} {row['flit_hops']:>10,} {row['seconds']:>7.3f} {rate:>6.2f}")
        least, most = rates[0] / 1e6, rates[-1] / 1e6
        print(f"{len(rows)} traces: {least:.2f} to {most:.2f} M flit-hops/s; the bar is {BAR / 1e6:.2f}")
    return 1 if rates[0] < BAR else 0


if __name__ == "__main__":
    sys.exit(main())
