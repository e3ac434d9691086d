"""What it costs to save a run, and to write a trace of a million events. CPU time.

    python benchmarks/saves.py            lines; exit code 1 when a bar does not hold
    python benchmarks/saves.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/saves.py --quick    small runs and few events, to see that it works; its figures mean nothing

A run that is saved is seen flit by flit and does without most fast paths; so the ratio is large where those carry a run
(a composite that is one event), and small where flows meet. The bar holds for the worst of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

from kernbench.benches._params import read_params  # noqa: E402
from kernbench.benches.registry import resolve  # noqa: E402
from kernbench.report import open_run  # noqa: E402
from kernbench.report.runs.digests import sealed  # noqa: E402
from kernbench.report.runs.save import About, run_folder  # noqa: E402
from kernbench.report.runs.saved_run import SavedRun  # noqa: E402
from kernbench.report.traces.chrome import write_trace  # noqa: E402
from kernbench.runtime_api.bench_runner import RunOptions, run_bench  # noqa: E402
from kernbench.topology import load_topology  # noqa: E402

RUNS = {"gpt3-qkv": (), "matmul-composite": ("m=512", "k=512", "n=512", "variant=ref"), "flash-attention": ("pes=0",)}
SAVE_BAR, TRACE_BAR_S, TRACE_BAR_MB = 150.0, 20.0, 20.0
EVENTS = 1_000_000


def save_cost(bench: str, settings: tuple[str, ...], folder: Path) -> float:
    """CPU time of a saved run over that of a plain one."""
    spec = resolve(bench)
    params = read_params(spec.params, settings, {})
    graph = load_topology(None, {"system.sips.count": 1})
    run_bench(spec.run, graph, RunOptions(), params=params)  # what is made once per machine is not counted
    began = time.process_time()
    run_bench(spec.run, graph, RunOptions(), params=params)
    plain_s = time.process_time() - began
    began = time.process_time()
    with run_folder(folder) as target:
        options = RunOptions(op_log=target.log, activity=target.activity)
        result = run_bench(spec.run, graph, options, params=params)
        target.write(result, About((), bench, bench, params, "all"))
    return (time.process_time() - began) / plain_s


def repeat(run: SavedRun, times: int) -> SavedRun:
    """The same run again and again, in its own folder: as many ops as are wanted, at no simulation."""
    table = parquet.read_table(run.path / "ops.parquet")
    count, period = len(table), 2 * run.total_ns
    parts = []
    for number in range(times):
        columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
        for name in ("t_asked", "t_ready", "t_start", "t_end"):
            columns[name] = pa.array(table.column(name).to_numpy() + number * period)
        columns["id"] = pa.array(table.column("id").to_numpy() + number * count)
        by = table.column("released_by").to_numpy()
        columns["released_by"] = pa.array(np.where(by >= 0, by + number * count, -1))
        deps = table.column("deps").combine_chunks()
        columns["deps"] = pa.ListArray.from_arrays(deps.offsets, pa.array(deps.values.to_numpy() + number * count))
        parts.append(pa.table(columns).cast(table.schema))
    by_lane = [("lane", "ascending"), ("t_start", "ascending"), ("id", "ascending")]
    parquet.write_table(pa.concat_tables(parts).sort_by(by_lane), run.path / "ops.parquet", compression="zstd")
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["total_ns"], manifest["ops"] = period * times, count * times
    (run.path / "manifest.json").write_text(json.dumps(sealed(manifest, run.path, pa)))
    return open_run(run.path)


def rows(quick: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as root:
        for bench, settings in list(RUNS.items())[-1:] if quick else RUNS.items():
            ratio = save_cost(bench, settings, Path(root) / bench)
            found.append(_row(f"saving {bench}, over a plain run", ratio, "x", SAVE_BAR))
        run = open_run(Path(root) / list(RUNS)[-1])
        run = repeat(run, 2 if quick else EVENTS // len(run.ops) + 1)
        target = Path(root) / "trace.json.gz"
        began = time.process_time()
        events = write_trace(run, target)
        found.append(_row(f"trace of {events:,} events", time.process_time() - began, "s", TRACE_BAR_S))
        found.append(_row(f"trace of {events:,} events", target.stat().st_size / 1e6, "MB", TRACE_BAR_MB))
    return found


def _row(name: str, value: float, unit: str, bar: float) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "bar": bar, "ok": value <= bar}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = rows(options.quick)
    if options.json:
        print(json.dumps({"schema": 1, "rows": found}, indent=2))
    else:
        for row in found:
            print(f"{row['name']}: {row['value']:.2f} {row['unit']} (at most {row['bar']} {row['unit']})")
    return 0 if options.quick or all(row["ok"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
