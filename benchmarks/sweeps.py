"""What a sweep costs beside its runs: its time over the sum of the runs divided by the workers. Wall time.

    python benchmarks/sweeps.py            a line; exit code 1 when the bar does not hold
    python benchmarks/sweeps.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/sweeps.py --quick    few points, to see that it works; its figure means nothing

The sweep is timed as a user has it: from the call until rows, tables and plot are on disk, start of the workers
included. The runs are timed in the workers, machine included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from kernbench.benches.registry import resolve  # noqa: E402
from kernbench.sweep.points import grid_size  # noqa: E402
from kernbench.sweep.request import SweepRequest, run_sweep  # noqa: E402
from kernbench.sweep.target import target_of  # noqa: E402

BAR = 1.15
WORKERS = 2
BENCH = "matmul-composite"


def overhead(points: int, workers: int = WORKERS) -> tuple[float, int]:
    """The ratio, and over how many points: four machines, each with a quarter of them."""
    spec = resolve(BENCH)
    axes = {
        "m": [32 * (1 + step) for step in range(max(points // 20, 1))],
        "n": [32, 64, 96, 128, 160][: max(points // 4, 1)],
        "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns": [1024, 2048, 4096, 8192],
    }
    defaults = {param.name: param.default for param in spec.params if param.name not in axes}
    with tempfile.TemporaryDirectory() as folder:
        request = SweepRequest(
            target=target_of(spec.run),
            title=spec.name,
            axes=axes,
            params={**defaults, "k": 64},
            workers=workers,
            out=Path(folder) / "sweep",
        )
        began = time.perf_counter()
        report = run_sweep(request)
        took_s = time.perf_counter() - began
    assert all(row.ok for row in report.rows)
    return took_s / (report.run_s / workers), grid_size(axes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    ratio, points = overhead(8 if options.quick else 1000)
    name = f"sweep of {points} points on {WORKERS} workers, over its runs"
    row = {"name": name, "value": ratio, "unit": "x", "bar": BAR, "ok": ratio <= BAR}
    if options.json:
        print(json.dumps({"schema": 1, "rows": [row]}, indent=2))
    else:
        print(f"{name}: {ratio:.3f} x (at most {BAR} x)")
    return 0 if row["ok"] or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
