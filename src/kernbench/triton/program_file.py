"""A Python file that launches Triton kernels, run as a bench: its launches are simulated, all else is as it is."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from linecache import getline
from pathlib import Path
from traceback import walk_tb

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton.placement import StoragePlacement
from kernbench.triton.simulation import Schedule, Simulation
from kernbench.triton.sizes import BenchmarkSizes


class ProgramFile:
    """Runs FILE with its arguments as `python FILE ARGS` does. `simulation` has the launches of the latest run."""

    def __init__(
        self,
        file: str,
        args: Sequence[str] = (),
        *,
        schedule: Schedule = "static",
        placement: StoragePlacement = "auto",
        benchmarks: str | None = None,
    ) -> None:
        path = Path(file)
        if not path.is_file():
            raise UsageError(f"no file '{file}'", hint="give a Python file that launches Triton kernels")
        self.file, self.args = str(path.resolve()), list(args)
        self.simulation: Simulation | None = None
        self._schedule, self._placement = schedule, placement
        self._benchmarks, self._sizes = benchmarks, BenchmarkSizes.parse(benchmarks)

    @property
    def started(self) -> dict[str, object]:
        """How it was started besides its name, for a saved run: what starts it again."""
        return {
            "file": Path(self.file).name, "args": self.args, "schedule": self._schedule, "placement": self._placement,
            "benchmarks": self._benchmarks,
        }  # fmt: skip

    def __call__(self, torch: RuntimeContext) -> None:
        simulation = Simulation(torch, schedule=self._schedule, placement=self._placement, sizes=self._sizes)
        self.simulation = simulation
        before = sys.argv[:], sys.path[:]
        sys.argv[:] = [self.file, *self.args]
        sys.path.insert(0, str(Path(self.file).parent))
        try:
            with simulation:
                runpy.run_path(self.file, run_name="__main__")
        except KernBenchError:
            raise
        except SystemExit as error:
            if error.code not in (None, 0):
                raise UsageError(
                    f"{Path(self.file).name} ended with exit code {error.code}", hint="see its output"
                ) from None
        except Exception as error:
            raise self._failure(error) from error
        finally:
            sys.argv[:], sys.path[:] = before

    def _failure(self, error: Exception) -> UsageError:
        places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        file, line = ([place for place in places if place[0] == self.file] or places)[-1]
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno or 1
        return UsageError(
            f"{Path(self.file).name} failed: {type(error).__name__}: {error}",
            where=f"{file}:{line}  {getline(file, line).strip()}",
            hint="fix the program, or give it other arguments",
        )
