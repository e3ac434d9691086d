"""`kernbench run --triton`: a program with Triton kernels as a bench, and its launches in text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kernbench.benches.registry import BenchSpec
from kernbench.common.errors import UsageError

if TYPE_CHECKING:
    from kernbench.runtime_api.bench_result import BenchResult
    from kernbench.triton.program_file import ProgramFile

Schedule = Literal["static", "dynamic"]
StoragePlacement = Literal["auto", "slabs", "interleave", "replicate"]


def triton_program(
    file: str,
    args: Sequence[str],
    schedule: Schedule | None,
    placement: StoragePlacement | None,
    benchmarks: str | None,
) -> tuple[ProgramFile, BenchSpec]:
    """The program, and as the bench that runs it. Raises UsageError without the extra `kernbench[triton]`."""
    from kernbench.triton.program_file import ProgramFile  # other runs need no Triton

    program = ProgramFile(
        file, args, schedule=schedule or "static", placement=placement or "auto", benchmarks=benchmarks
    )

    def run(torch: Any) -> None:
        program(torch)

    return program, BenchSpec(Path(file).stem, f"the Triton program {file}", run)


def triton_program_again(file: str, started: object, run: Path) -> BenchSpec:
    """The program of a saved run as the bench that runs it again, as `ProgramFile.started` has it.

    Raises UsageError if the run was made by other means, or its manifest is damaged.
    """
    if not isinstance(started, Mapping) or not isinstance(started.get("file"), str):
        raise UsageError(
            "the run was made by a program that calls kernbench.triton.simulate",
            where=str(run),
            hint="run the program again with another machine: simulate(overrides={...}, save=DIR)",
        )
    args, benchmarks = started.get("args"), started.get("benchmarks")
    schedule, placement = started.get("schedule"), started.get("placement")
    if (
        not isinstance(args, list)
        or not (benchmarks is None or isinstance(benchmarks, (int, str)))
        or schedule not in get_args(Schedule)
        or placement not in get_args(StoragePlacement)
    ):
        raise UsageError("the saved run is damaged: its manifest has a wrong program", where=str(run))
    sizes = None if benchmarks is None else str(benchmarks)
    return triton_program(file, [str(arg) for arg in args], schedule, placement, sizes)[1]


def triton_as_text(result: BenchResult, program: ProgramFile) -> str:
    """The table of launches, and what autotuning tried."""
    from kernbench.triton.table import launches_as_text

    assert program.simulation is not None
    launches = program.simulation.launches
    parts = [launches_as_text(launches, result.engine.graph) if launches else "note: the program launched no kernel"]
    parts += [table.as_text() for table in program.simulation.benchmarks.tables]
    return "\n\n".join(parts)


def triton_as_json(data: dict[str, Any], result: BenchResult, program: ProgramFile) -> dict[str, Any]:
    """The run's JSON with what is Triton's of its launches."""
    from kernbench.triton.table import launches_as_json

    assert program.simulation is not None
    return launches_as_json(data, result.launches, program.simulation)
