"""What sweeps cost: what one takes beside its runs, as its time over the sum of the runs divided by the workers; and
the minutes of two over 100 machines, a decode step of a layer of llama3-8b on each. Wall time.

One of these has dies like that of examples/machines/one-die-64.yaml, and a bar. The other one has trays like the
default one: two SIPs, 256 PEs, share the layer and exchange sums within its launch, so that both are simulated.

    python benchmarks/sweeps.py            a table; exit code 1 when a bar does not hold
    python benchmarks/sweeps.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/sweeps.py --quick    few points, to see that it works; its figures mean nothing
    python benchmarks/sweeps.py --only layers    one part: overhead, layers or tray

A sweep is timed as a user has it: from the call until rows, tables and plot are on disk, start of the workers included.
The runs are timed in the workers, machine included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE))

from kernels import Row, row, table  # noqa: E402

from kernbench.benches.registry import resolve  # noqa: E402
from kernbench.sweep.points import grid_size  # noqa: E402
from kernbench.sweep.request import SweepRequest, run_sweep  # noqa: E402
from kernbench.sweep.target import target_of  # noqa: E402

WORKERS = 2
DIE = HERE.parent / "examples" / "machines" / "one-die-64.yaml"
OVERHEAD_BAR, LAYERS_BAR_MIN = 1.15, 10.0
MACS = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
HBM_GBS = "machine:cube.memory_map.hbm_channel_bw_gbs"


class Timed(NamedTuple):
    """A sweep: seconds on the wall, those of its runs together, and how many points it has."""

    took_s: float
    run_s: float
    points: int


def timed(bench: str, axes: dict[str, list[object]], params: dict[str, object], topology: Path | None = None) -> Timed:
    """Sweep a bench over `axes` on machines like one of a file; raises SystemExit where a point fails."""
    spec = resolve(bench)
    defaults = {param.name: param.default for param in spec.params if param.name not in axes}
    with tempfile.TemporaryDirectory() as folder:
        request = SweepRequest(
            target=target_of(spec.run),
            title=spec.name,
            axes=axes,
            params={**defaults, **params},
            topology=topology,
            device=spec.device_for(None),
            workers=WORKERS,
            out=Path(folder) / "sweep",
        )
        began = time.perf_counter()
        report = run_sweep(request)
        took_s = time.perf_counter() - began
    if not all(row.ok for row in report.rows):
        raise SystemExit(f"points of the sweep of {bench} failed")
    return Timed(took_s, report.run_s, grid_size(axes))


def overhead(*, quick: bool) -> Row:
    """Four machines, each with a quarter of the points."""
    points = 8 if quick else 1000
    axes: dict[str, list[object]] = {
        "m": [32 * (1 + step) for step in range(max(points // 20, 1))],
        "n": [32, 64, 96, 128, 160][: max(points // 4, 1)],
        MACS: [1024, 2048, 4096, 8192],
    }
    found = timed("matmul-composite", axes, {"k": 64})
    name = f"sweep of {found.points} points on {WORKERS} workers, over its runs"
    return row(name, found.took_s / (found.run_s / WORKERS), "x", OVERHEAD_BAR)


def layers(*, quick: bool) -> Row:
    """A die for each point."""
    sizes = 1 if quick else 10
    axes: dict[str, list[object]] = {
        MACS: [2048 * (1 + step) for step in range(sizes)],
        HBM_GBS: [9.375 * (1 + step) for step in range(sizes)],
    }
    return _decode("dies of 64 PEs", axes, DIE, LAYERS_BAR_MIN, quick=quick)


def tray(*, quick: bool) -> Row:
    """A tray for each point."""
    sizes = 1 if quick else 10
    axes: dict[str, list[object]] = {
        MACS: [1024 * (1 + step) for step in range(sizes)],
        HBM_GBS: [16.0 * (1 + step) for step in range(sizes)],
    }
    if quick:
        axes |= {"machine:sip.cube_mesh.w": [1], "machine:sip.cube_mesh.h": [1]}
    return _decode("trays of two SIPs", axes, None, None, quick=quick)


def _decode(what: str, axes: dict[str, list[object]], topology: Path | None, bar: float | None, *, quick: bool) -> Row:
    model = "tiny-llama" if quick else "llama3-8b"
    found = timed("llm-layer", axes, {"model": model, "phase": "decode"}, topology)
    name = f"decode layers of {model} on {found.points} {what}, {WORKERS} workers"
    return row(name, found.took_s / 60, "min", bar)


PARTS = {"overhead": overhead, "layers": layers, "tray": tray}


def main() -> int:
    parser = argparse.ArgumentParser(description="What sweeps cost.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part")
    options = parser.parse_args()
    rows = [part(quick=options.quick) for name, part in PARTS.items() if options.only in (None, name)]
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(each) for each in rows]}, indent=2))
    else:
        print(table(rows))
    return 0 if options.quick or all(each.ok for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
