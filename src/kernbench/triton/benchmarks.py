"""`triton.testing` and autotuning in simulated time.

A function that is timed is called once: a launch takes the same simulated time whenever it is repeated. Configurations
of an autotuned kernel are tried on a machine of their own, so that the run itself has only the launch of the chosen
one; those that differ in what has no meaning here (`num_warps`) are tried once. Large grids are tried in part: programs
run in waves, one on each PE, and each wave after the second is taken to add what the second adds. A configuration is
given up when it has taken longer than the best so far, or when its loads so far show that it would: by half as much at
first, by less the more of its time has passed. Those that are the least work to simulate are tried first,
so that the others have a time to be compared with; one that cannot take less than the best so far (`least_time.py`) is
not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from math import isnan
from typing import Any, Protocol

from kernbench.common.errors import KernBenchError, LaunchError, TimeLimitError
from kernbench.common.units import format_ns
from kernbench.triton.internals import autotuner
from kernbench.triton.sizes import BenchmarkSizes

SLOWER = "slower than the best so far"
OUTLOOK_FROM = 1 / 8  # of the best time so far that a trial has taken before its pace is judged
LIKELY_FROM, LIKELY_MARGIN = 1 / 32, 0.1  # the same for a trial that is likely to lose
MARGIN = 0.5  # of the best so far, that a trial may be slower at its pace when it begins; less of it as time goes by
WAVES = 2  # of a large grid that are simulated when configurations are compared


class TimedLaunch(Protocol):
    """A launch and its simulated time."""

    @property
    def ns(self) -> float: ...


class Launches(Protocol):
    """What makes launches."""

    @property
    def launches(self) -> Sequence[TimedLaunch]:
        """Those of the run so far."""

    def trial(self, most_ns: float) -> AbstractContextManager[Sequence[TimedLaunch]]:
        """Launches within are made on a machine of their own; raises TimeLimitError for one that takes longer."""

    def work_of(self, run: Callable[[], object]) -> float:
        """About how much work it is to simulate the launch that a call makes; no end where that is not known."""


class CannotWinError(KernBenchError):
    """A configuration takes longer than the best so far in any case: at least `ns`."""

    def __init__(self, ns: float) -> None:
        super().__init__(f"{format_ns(ns)} at least")
        self.ns = ns


class SimulatedClock(Protocol):
    """What has a simulated time."""

    @property
    def now_ns(self) -> float: ...


class Outlook:
    """Ends a trial early that is bound to be slower than the best one so far: after a part of that one's time, a PE
    whose loads so far, at the pace so far, would take longer than the best and a margin, which shrinks to nothing as
    the pace gets certain. Loads run ahead of work, so that the share of loads is more than that of work.
    """

    def __init__(self, program: SimulatedClock, loads: int, most_ns: float, is_likely_to_lose: bool) -> None:
        self._program, self._loads, self._most_ns = program, loads, most_ns
        part, self._margin = (LIKELY_FROM, LIKELY_MARGIN) if is_likely_to_lose else (OUTLOOK_FROM, MARGIN)
        self._from_ns = part * most_ns
        self._start_ns, self._done = program.now_ns, 0

    def at_load(self, limit_time: Callable[[float], object]) -> None:
        """A load is about to be issued: those before it were."""
        now_ns = self._program.now_ns
        took_ns = now_ns - self._start_ns
        longest_ns = self._most_ns + self._margin * (self._most_ns - took_ns)
        if took_ns > self._from_ns and took_ns * self._loads > longest_ns * self._done:
            limit_time(now_ns)
        self._done += 1


class BenchmarkTrial:
    """One configuration of a kernel and its simulated time, or why it failed."""

    def __init__(self, config: dict[str, object], ns: float, error: str = "") -> None:
        self.config, self.ns, self.error = config, ns, error

    def as_json(self) -> dict[str, object]:
        return {"config": self.config, "ns": self.ns, "error": self.error}


class TuningTable:
    """The configurations that were tried for one key of an autotuned kernel."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.trials: list[BenchmarkTrial] = []

    @property
    def best(self) -> BenchmarkTrial:
        return min(self.trials, key=lambda trial: trial.ns)

    def as_text(self) -> str:
        rows = [(_in_words(each.config), each.error or format_ns(each.ns)) for each in self.trials]
        width, best = max(len(config) for config, _ in rows), self.best
        lines = [
            f"  {config:<{width}}  {text}{'  <- best' if trial is best and not trial.error else ''}"
            for (config, text), trial in zip(rows, self.trials, strict=True)
        ]
        return "\n".join((f"autotune of '{self.kernel}'", *lines))

    def as_json(self) -> dict[str, object]:
        return {"kernel": self.kernel, "trials": [each.as_json() for each in self.trials]}


class _Tuning:
    """A call of an autotuned kernel whose configurations are tried: its arguments, and the trials so far."""

    def __init__(self, arguments: object, table: TuningTable) -> None:
        self.arguments, self.table = arguments, table
        self.tried: dict[
            object, BenchmarkTrial
        ] = {}  # configurations that differ in nothing that has a meaning are one


def _in_words(config: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items()) or "nothing"


class Benchmarks:
    """Times functions by the launches they make. `sizes` are those of every `perf_report` that are run."""

    def __init__(self, simulation: Launches, sizes: BenchmarkSizes) -> None:
        self._simulation = simulation
        self._sizes = sizes
        self.tables: list[TuningTable] = []
        self._chosen: dict[int, tuple[Any, dict[Any, Any]]] = {}  # by tuner: itself, and its choices on this machine

    def do_bench(self, fn: Callable[[], object], *_: Any, **options: Any) -> Any:
        """The simulated ms of the launches that a call makes: the same for every repetition. NaN without launches."""
        before = len(self._simulation.launches)
        fn()
        launches = self._simulation.launches[before:]
        ms = sum(launch.ns for launch in launches) / 1e6 if launches else float("nan")
        quantiles: Sequence[float] | None = options.get("quantiles")
        if quantiles is not None:
            return [ms] * len(quantiles) if len(quantiles) > 1 else ms
        return [ms] if options.get("return_mode") == "all" else ms

    # ---- autotuning

    def run_of_tuner(self) -> Callable[..., Any]:
        """What stands for `Autotuner.run`: what was chosen on another machine, or a GPU, is not taken."""
        before = autotuner.Autotuner.run

        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            outside = tuner.cache
            tuner.cache = self._chosen.setdefault(id(tuner), (tuner, {}))[1]
            try:
                return before(tuner, *args, **kwargs)
            finally:
                tuner.cache = outside

        return run

    def bench_of_tuner(self) -> Callable[..., Any]:
        """What stands for `Autotuner._bench`: one configuration's time, three times over as quantiles are."""
        latest: list[_Tuning] = []  # of one kernel at a time: a call that is tuned has arguments of its own

        def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
            if not latest or latest[0].arguments is not tuner.nargs:
                latest[:] = [_Tuning(tuner.nargs, TuningTable(tuner.base_fn.__name__))]
                self.tables.append(latest[0].table)
            tuning = latest[0]
            shown = {**config.kwargs, "num_stages": config.num_stages}
            key = tuple(sorted((name, repr(value)) for name, value in shown.items()))
            if key not in tuning.tried:
                best_ns = min((each.ns for each in tuning.table.trials), default=float("inf"))
                tuning.tried[key] = self._tried(tuner, args, config, meta, shown, best_ns)
                tuning.table.trials.append(tuning.tried[key])
            return [tuning.tried[key].ns] * 3

        return bench

    def configs_of_tuner(self) -> Callable[..., Any]:
        """What stands for `Autotuner.prune_configs`: those of little work come first, equal ones in order."""
        before = autotuner.Autotuner.prune_configs

        def prune_configs(tuner: Any, kwargs: dict[str, Any]) -> list[Any]:
            configs = list(before(tuner, kwargs))
            return sorted(configs, key=lambda config: self._work_of(tuner, config, kwargs)) if configs[1:] else configs

        return prune_configs

    def _work_of(self, tuner: Any, config: Any, meta: dict[str, Any]) -> float:
        current = {**meta, **config.all_kwargs()}
        if config.pre_hook:
            config.pre_hook({**tuner.nargs, **current})
        return self._simulation.work_of(lambda: tuner.fn.run(*tuner.nargs.values(), **current))

    def _tried(
        self, tuner: Any, args: Sequence[Any], config: Any, meta: Any, shown: dict[str, object], best_ns: float
    ) -> BenchmarkTrial:
        current = {**meta, **config.all_kwargs()}
        named = {**tuner.nargs, **current}
        if config.pre_hook:
            config.pre_hook(named)
        tuner.pre_hook(named)
        failure: Exception | None = None
        with suppress(TimeLimitError), self._simulation.trial(best_ns) as launches:
            try:
                tuner.fn.run(*args, **current)
            except (LaunchError, CannotWinError) as error:
                failure = error
            except TimeLimitError as error:
                failure = error
                raise
        tuner.post_hook(named, exception=failure)
        if failure is not None:
            slower = isinstance(failure, TimeLimitError)
            return BenchmarkTrial(shown, float("inf"), SLOWER if slower else str(failure).splitlines()[0])
        return BenchmarkTrial(shown, sum(launch.ns for launch in launches))

    # ---- reports

    def perf_report(self, benchmarks: Any) -> Callable[[Callable[..., Any]], Report]:
        """What stands for `triton.testing.perf_report`."""
        return lambda fn: Report(fn, benchmarks, self._sizes)


class Report:
    """A function over sizes and providers. `run` prints a table of what it returns."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Any, sizes: BenchmarkSizes) -> None:
        self.fn = fn
        self.benchmarks = benchmarks if isinstance(benchmarks, list) else [benchmarks]
        self._sizes = sizes
        self.__name__ = getattr(fn, "__name__", "benchmark")

    def run(self, show_plots: bool = False, print_data: bool = False, save_path: str = "", **kwargs: Any) -> None:
        """Call the function for every size that was asked for, and every provider."""
        for bench in self.benchmarks:
            rows = list(self._rows(bench, kwargs))
            if rows:
                print(f"{bench.plot_name} (simulated):")
                names = [*bench.x_names, *(f"{line} ({bench.ylabel})" for line in bench.line_names)]
                print("  ".join(names))
                for row in rows:
                    print("  ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in row))

    def _rows(self, bench: Any, kwargs: dict[str, Any]) -> Iterator[list[Any]]:
        for xs in self._sizes.of(bench.x_names, bench.x_vals, bench.plot_name):
            row = list(xs)
            for line in bench.line_vals:
                named = {bench.line_arg: line} if bench.line_arg else {}
                got = self.fn(**dict(zip(bench.x_names, xs, strict=True)), **named, **bench.args, **kwargs)
                value = got[0] if isinstance(got, (tuple, list)) else got
                row.append("not simulated" if value is None or isnan(float(value)) else float(value))
            yield row
