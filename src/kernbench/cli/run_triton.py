"""`kernbench run --triton`: a program with Triton kernels as a bench, and its launches in text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernbench.benches.registry import BenchSpec

if TYPE_CHECKING:
    from kernbench.runtime_api.bench_runner import BenchResult
    from kernbench.triton.program_file import ProgramFile

Schedule = Literal["static", "dynamic"]
Placement = Literal["auto", "slabs", "interleave", "replicate"]


def triton_program(
    file: str, args: Sequence[str], schedule: Schedule | None, placement: Placement | None, points: int | None
) -> tuple[ProgramFile, BenchSpec]:
    """The program, and as the bench that runs it. Raises UsageError without the extra `kernbench[triton]`."""
    from kernbench.triton.program_file import ProgramFile  # other runs need no Triton

    program = ProgramFile(
        file, args, schedule=schedule or "static", placement=placement or "auto", benchmark_points=points
    )

    def run(torch: Any) -> None:
        program(torch)

    return program, BenchSpec(Path(file).stem, f"the Triton program {file}", run)


def triton_as_text(result: BenchResult, program: ProgramFile) -> str:
    """The table of launches, and what autotuning tried."""
    from kernbench.triton.table import launches_as_text

    assert program.simulation is not None
    parts = [launches_as_text(program.simulation.launches, result.engine.graph)]
    parts += [table.as_text() for table in program.simulation.benchmarks.tables]
    return "\n\n".join(parts)


def triton_as_json(data: dict[str, Any], program: ProgramFile) -> dict[str, Any]:
    """The run's JSON with what is Triton's of its launches."""
    from kernbench.triton.table import launches_as_json

    assert program.simulation is not None
    return launches_as_json(data, program.simulation)
