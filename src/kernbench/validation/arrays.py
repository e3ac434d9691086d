"""Products on a systolic array, against the cycles that another simulator counts.

A kernel multiplies two matrices in the PE's own memory with one command; compared is how long the array is busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder

ATTRS = "cube.pe_template.components.pe_gemm.attrs"
REGIMES = {"OS": "output stationary", "WS": "weight stationary"}


def product(m: int, k: int, n: int, *, tl: Any) -> None:
    tl.dot(tl.zeros((m, k), "f16"), tl.zeros((k, n), "f16"))


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    found: dict[CaseName, float] = {}
    for row in data.rows("scalesim.csv"):
        show(f"arrays {_name(row)}")
        rows, columns = int(row["array_rows"]), int(row["array_cols"])
        geometry = {"rows": rows, "columns": columns, "dataflow": row["dataflow"].lower(),
                    "macs_per_ns": float(rows * columns)}  # fmt: skip
        graph = machine(SET.machine, {f"{ATTRS}.{name}": value for name, value in geometry.items()})
        with RuntimeContext(GraphEngine(graph)) as torch:
            sizes = [int(row[side]) for side in ("m", "k", "n")]
            launch = torch.launch(product, *sizes, target_cubes=0, target_pes=0)
            (result,) = launch.pes
            found[REGIMES[row["dataflow"]], _name(row)] = result.compute_ns
    return found


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    rows = [row for row in data.rows("scalesim.csv") if row.get("cycles")]
    return {(REGIMES[row["dataflow"]], _name(row)): float(row["cycles"]) for row in rows}


def _name(row: Mapping[str, str]) -> str:
    return f"{row['m']} x {row['k']} x {row['n']} on {row['array_rows']} x {row['array_cols']}"


SET = ValidationSet(
    name="arrays",
    title="Products on systolic arrays",
    folder="5_memory_and_arrays",
    machine="systolic-32x32.yaml",
    quantity="cycles that the array is busy",
    unit="pct",
    fitted=(),
    differs="it does not: SCALE-Sim is a simulator of the same rules, and its own memories are left out on both sides",
    peers=(OtherSimulator("SCALE-Sim", "none", "it is what is compared with; it is not silicon"),),
    source="SCALE-Sim v3 (MIT), own runs",
    simulate=simulate,
    measured=measured,
)
