"""Random programs on random machines, each with and without fast paths: all that can be seen must be the same.

    python -m tests.fuzz_exact --programs 200 --seed 0

A program that differs is made smaller while it still differs, then printed as source with its machine and the command
that runs it again. The suite runs a few of them (tests/integration/test_fuzz_exact.py), `make fuzz-exact` 200.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz_programs import Program, program

from kernbench.benches.registry import resolve
from kernbench.common.errors import FastCheckError, KernBenchError
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.runtime_api.check_fast import CheckFast
from kernbench.sim_engine import machine as machine_module
from kernbench.topology import load_topology

MOST_STEPS = 60  # of making a program smaller
FEW_EVENTS = 300  # every third program loads the compiled loop so early that it has something to do


@dataclass
class Outcome:
    """How a program ended: "same", "refused" (an error, the same one in both runs) or the difference."""

    how: str
    text: str = ""
    reused: int = 0


def run_one(made: Program, folder: Path, check: CheckFast = True) -> Outcome:
    """Run a program with and without fast paths."""
    file = folder / f"program{made.seed}.py"
    file.write_text(made.source())
    try:
        spec, graph = resolve(str(file)), load_topology(None, made.machine)
        with _compiled_early(made.seed % 3 == 0):
            result: BenchResult = run_bench(spec.run, graph, RunOptions(check_fast=check), name="random-program")
    except FastCheckError as error:
        return Outcome("differs", str(error))
    except KernBenchError as error:  # the same with all fast paths off
        return Outcome("refused", f"{type(error).__name__}: {error}")
    assert result.fast_check is not None
    stats = result.simulation
    reused = stats.launches.reused + stats.collectives.reused + stats.composites.one_event
    if result.fast_check.ok:
        return Outcome("same", reused=reused)
    return Outcome("differs", result.fast_check.as_text(), reused)


@contextlib.contextmanager
def _compiled_early(wanted: bool):
    before = machine_module.MANY_EVENTS
    machine_module.MANY_EVENTS = FEW_EVENTS if wanted else before
    try:
        yield
    finally:
        machine_module.MANY_EVENTS = before


def smallest(made: Program, folder: Path) -> Program:
    """A program that still differs and has less in it."""
    steps, found = 0, True
    while found and steps < MOST_STEPS:
        found = False
        for each in made.smaller():
            steps += 1
            if steps > MOST_STEPS:
                break
            if run_one(each, folder).how == "differs":
                made, found = each, True
                break
    return made


def report(made: Program, outcome: Outcome) -> str:
    """A failing program: what differs, the program, its machine, and how to run it again."""
    machine = "\n".join(f"  {key}: {value}" for key, value in made.machine.items())
    again = f"python -m tests.fuzz_exact --programs 1 --seed {made.seed}"
    return f"program {made.seed}: {outcome.text}\n\nmachine:\n{machine}\n\n{made.source()}\nagain: {again}"


def run_programs(
    programs: int, seed: int, *, each: bool = False, shrinks: bool = True
) -> tuple[Counter[str], list[str]]:
    """Outcomes counted, `reused` among them, and the reports of programs that differ."""
    counts: Counter[str] = Counter()
    reports: list[str] = []
    os.environ.setdefault("KERNBENCH_WORKERS", "0")  # fast paths of one process: the programs are too short for workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(seed, seed + programs):
            made = program(number)
            outcome = run_one(made, folder, "each" if each else True)
            counts[outcome.how] += 1
            counts["reused"] += outcome.reused
            if outcome.how == "differs":
                if shrinks:
                    made = smallest(made, folder)
                    outcome = run_one(made, folder, "each")
                reports.append(report(made, outcome))
                print(reports[-1], flush=True)
    return counts, reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--each", action="store_true", help="also switch fast paths off one at a time")
    parser.add_argument("--show", action="store_true", help="print the first program and end")
    options = parser.parse_args()
    if options.show:
        print(program(options.seed).source())
        return 0
    counts, reports = run_programs(options.programs, options.seed, each=options.each)
    print(f"{options.programs} programs from seed {options.seed}: {dict(sorted(counts.items()))}")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
