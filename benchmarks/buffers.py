"""How many flits per second pass links with finite buffers: recorded traffic of a real chip, and the plain loop beside.

    python benchmarks/buffers.py            a table
    python benchmarks/buffers.py --json     the same as JSON
    python benchmarks/buffers.py --quick    one short trace

A flit-hop is one flit on one link. Times are CPU time of the loop and of what drives it, without reading the trace.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernbench.sim_engine.plain_network import plain_network
from kernbench.validation.contract import machine
from kernbench.validation.data import DataFolder
from kernbench.validation.noc_traces import SET, Replay, read_trace

TRACES = ("2x4_BLOCK_TO_4x8_BLOCK", "DRAM_TO_8x1_BLOCK", "DRAM_TO_8x8_HEIGHT")
QUICK = ("1x4_BLOCK_TO_8x4_BLOCK",)


def measured(trace: str) -> dict[str, Any]:
    """One trace, open, with the compiled loop; the second time, when it is loaded."""
    topology, network = plain_network(machine(SET.machine))
    processors = read_trace(DataFolder(SET.folder).json(f"traces/{trace}.json"))
    Replay(topology, network).open(processors)
    replay = Replay(topology, network)
    before = time.process_time()
    end_ns = replay.open(processors)
    seconds = time.process_time() - before
    hops = replay.flit_hops
    return {"trace": trace, "flit_hops": hops, "seconds": seconds, "flit_hops_per_s": hops / seconds, "end_ns": end_ns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = [measured(trace) for trace in (QUICK if options.quick else TRACES)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'trace':<28} {'flit-hops':>10} {'s':>7} {'M/s':>6}")
    for row in rows:
        print(f"{row['trace']:<28} {row['flit_hops']:>10,} {row['seconds']:>7.2f} {row['flit_hops_per_s'] / 1e6:>6.2f}")


if __name__ == "__main__":
    main()
