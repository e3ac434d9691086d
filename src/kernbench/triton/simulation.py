"""Launches of Triton kernels on a simulated machine.

While a simulation is active, `kernel[grid](...)` runs every program of the grid on the machine, PEs side by side, with
numbers by Triton's interpreter in the memory that PyTorch has. Simulated time passes at launches only.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from greenlet import getcurrent

from kernbench.common.errors import KernelError, LaunchError, UsageError
from kernbench.policy.placement.dp import parts_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.triton.activation import TritonPatches
from kernbench.triton.addresses import LaunchStorage, Storages
from kernbench.triton.benchmarks import WAVES, Benchmarks, CannotWinError, Outlook
from kernbench.triton.copies import Copies, Copy, unchanged
from kernbench.triton.kernel_call import ON_ONE_PE, WITHOUT_MEANING, KernelCall
from kernbench.triton.language import Patches
from kernbench.triton.least_time import LIKELY_MARGIN, MARGIN, LeastTimes, StorageSize
from kernbench.triton.look_ahead import ProgramsAhead
from kernbench.triton.placement import PLACEMENTS, StoragePlacement
from kernbench.triton.program import PeProgram
from kernbench.triton.program_storages import ProgramStorages
from kernbench.triton.recording import Ids
from kernbench.triton.refusals import TritonKernelError
from kernbench.triton.rewriting import rewritten
from kernbench.triton.sizes import ALL_SIZES, BenchmarkSizes

Schedule = Literal["static", "dynamic"]
SCHEDULES = ("static", "dynamic")
_LAUNCHING_NS = 2000.0  # more than the host's request needs to reach all PEs
_WITH_MEANING = ("num_stages", "schedule", "placement")  # of the options of a launch
_ANY_PROCESSOR = ("debug",)  # those that change nothing in a right program
_MISSING = object()


@dataclass(eq=False)
class TritonLaunch:
    """One launch of a Triton kernel: `ns` from the start of its PEs to the end of the last one."""

    kernel: str
    grid: Ids
    config: dict[str, object]
    launch: Launch = field(repr=False)
    index_ops: int = 0
    schedule: Schedule = "static"
    first_ns: float = field(default=0.0, repr=False)  # of its first wave alone, of a launch that is only timed
    waves_left: int = field(default=0, repr=False)  # that were not simulated

    @property
    def ns(self) -> float:
        return self.launch.exec_ns + self.waves_left * max(self.launch.exec_ns - self.first_ns, 0.0)


@dataclass(frozen=True)
class _Grid:
    """A launch that is about to run: the call, what one program runs, what is known of them, where tensors are."""

    call: KernelCall
    run: Callable[[], object]
    ahead: ProgramsAhead
    copies: Sequence[Copy]
    launched: TritonLaunch
    raised: list[Exception] = field(default_factory=list)  # by programs, in that order


class _Estimate(Exception):
    """The work of simulating a launch that is not to be made."""

    def __init__(self, steps: int) -> None:
        self.steps = steps


class Simulation:
    """Makes launches of Triton kernels run on the machine of a context, between `__enter__` and `__exit__`."""

    def __init__(
        self,
        context: RuntimeContext,
        *,
        schedule: Schedule = "static",
        placement: StoragePlacement = "auto",
        cycles_per_op: int = 0,
        sizes: BenchmarkSizes = ALL_SIZES,
        note: Callable[[str], object] | None = None,
    ) -> None:
        _check_choice("schedule", schedule, SCHEDULES)
        _check_choice("placement", placement, PLACEMENTS)
        self.context = context
        self._launches: list[TritonLaunch] = []
        self._schedule, self._placement = schedule, placement
        self._cycles_per_op = cycles_per_op
        self._copies = Copies()
        self._is_trial = False  # launches are only timed
        self._most_ns = float("inf")  # that they may take
        self._is_estimate = False  # launches are not even simulated
        self._least = LeastTimes(context.engine.graph)
        self._likely_ns = 0.0  # of the latest launch
        self._ahead: dict[object, ProgramsAhead] = {}  # of the configurations that are being tried
        self._storages = ProgramStorages()
        self._patches = Patches()
        self._noted: set[str] = set()
        self._note = note or (lambda text: print(text, file=sys.stderr))
        self.benchmarks = Benchmarks(self, sizes)
        spec = context.spec
        self._activation = TritonPatches(
            spec, self.benchmarks, self.launch, lambda: self.context.now_ns, self._storages.remember, self._noted
        )
        self.pes = spec.cube.n_pes * spec.sip.n_cubes

    @property
    def launches(self) -> list[TritonLaunch]:
        """Those of the run so far."""
        return self._launches

    def __enter__(self) -> Simulation:
        self._activation.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._activation.end()

    # ---- launches that are only timed

    @contextmanager
    def trial(self, most_ns: float) -> Iterator[list[TritonLaunch]]:
        """Launches within are made on a machine of their own, and are not part of the run. Raises TimeLimitError when
        one takes longer than `most_ns`.
        """
        before = self.context, self._copies, self._launches
        engine = GraphEngine(self.context.engine.graph, op_log=None)
        try:
            with RuntimeContext(engine) as context:
                self.context, self._copies, self._launches = context, Copies(before[1]), []
                self._is_trial, self._most_ns = True, most_ns
                yield self._launches
                self._copies = Copies()
        finally:
            self.context, self._copies, self._launches = before
            self._is_trial = False

    def work_of(self, run: Callable[[], object]) -> float:
        """About how much work it is to simulate the launch that a call makes; no end where that is not known."""
        self._is_estimate = True
        try:
            with self.trial(float("inf")):
                run()
        except _Estimate as found:
            return found.steps
        except Exception:  # the launch itself reports what is wrong
            return float("inf")
        finally:
            self._is_estimate = False
        return float("inf")

    # ---- launching

    def launch(self, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> TritonLaunch:
        """Run a kernel on the machine; returns when it is done."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # blocks are small
        try:
            with torch._C.DisableTorchFunction():
                return self._launch(kernel, args, grid, kwargs)
        finally:
            torch.set_num_threads(threads)

    def _launch(self, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> TritonLaunch:
        call = KernelCall.of(kernel, args, grid, kwargs)
        self._say_once(call)
        schedule = call.options.get("schedule", self._schedule)
        placement = call.options.get("placement", self._placement)
        _check_choice("schedule", schedule, SCHEDULES)
        _check_choice("placement", placement, PLACEMENTS)
        self._patches.builder.set_debug(call.is_debug)
        with self._patches:
            bound = call.converted()
            body = rewritten(call.fn)
            ahead = self._programs_ahead(call, lambda: body(**bound))
            wanted = self._storages.of(call)
            copies = self._copies.placed(call, wanted, placement, ahead, self.context, self._note_once)
            if self._is_trial:
                self._look_before_trial(call, ahead, copies)
            launched = TritonLaunch(call.name, call.grid, call.config, None, schedule=schedule)  # type: ignore[arg-type]
            run_on = partial(self._run_on_pes, _Grid(call, lambda: body(**bound), ahead, copies, launched))
            with unchanged(list(wanted.values())) if self._is_trial else nullcontext():
                waves = -(-prod(call.grid) // self.pes)
                if self._is_trial and ahead.is_independent and schedule == "static" and waves > WAVES:
                    # A wave begins while the stores of the one before are under way: what a further one adds is the
                    # difference between two launches.
                    launched.first_ns = run_on(1, WAVES * self._most_ns / waves).exec_ns
                    launched.waves_left = waves - WAVES
                    most_ns = (self._most_ns + launched.waves_left * launched.first_ns) / (waves - 1)
                    launched.launch = run_on(WAVES, most_ns)
                else:
                    launched.launch = run_on(waves, self._most_ns)
        self._launches.append(launched)
        return launched

    def _look_before_trial(self, call: KernelCall, ahead: ProgramsAhead, copies: Sequence[Copy]) -> None:
        """Raise what ends a trial before it is simulated: its work, if only that is wanted, or that it cannot win."""
        programs = prod(call.grid)
        if self._is_estimate and ahead.is_independent:
            raise _Estimate(programs * max((each.steps for each in ahead.samples), default=0))
        if self._is_estimate:
            raise UsageError("the work of simulating a launch is not known")
        sizes: dict[int, StorageSize] = {
            at: (copy.end - copy.start, copy.policy.cube == "interleave") for at, copy in enumerate(copies)
        }
        least_ns, self._likely_ns = self._least.of(ahead.samples, programs, -(-programs // self.pes), sizes)
        if least_ns > (1 + MARGIN) * self._most_ns:
            raise CannotWinError(least_ns)

    def _run_on_pes(self, grid: _Grid, waves: int, most_ns: float) -> Launch:
        """Launch the first waves of a grid; of a trial, for at most so long."""
        kernel_of_pes = self._kernel_of_pes(grid, waves, most_ns)
        cubes = _targets(prod(grid.call.grid), self.context.spec)
        if self._is_trial and most_ns < float("inf"):
            self.context.engine.limit_time(self.context.now_ns + _LAUNCHING_NS + most_ns)
        tensors = [copy.tensor for copy in grid.copies]
        try:
            return self.context.launch(grid.call.name, kernel_of_pes, *tensors, target_cubes=cubes, target_pes="all")
        except LaunchError as error:
            if getattr(error.failures[0], "kind", "") == KernelError.__name__:
                raise
            raise TritonKernelError(error) from next(iter(grid.raised), None)

    def _programs_ahead(self, call: KernelCall, run: Callable[[], object]) -> ProgramsAhead:
        """What is known of the programs of a launch: kept from trial to trial, and for the launch that follows."""
        key = call.key
        found = self._ahead.get(key)
        if not self._is_trial:
            self._ahead.clear()
        if found is None:
            programs = prod(call.grid)
            samples = sorted({0, min(1, programs - 1), programs - 1}) if programs else []
            spans = [(start, start + nbytes) for start, (nbytes, *_) in self._storages.of(call).items()]
            found = ProgramsAhead(run, call.grid, [_ids(number, call.grid) for number in samples], spans)
        if self._is_trial:
            self._ahead[key] = found
        return found

    def _kernel_of_pes(self, grid: _Grid, waves: int, most_ns: float) -> Callable[..., object]:
        """What each PE runs: its share of the programs, or the first `waves` of them, one after the other."""
        call, ahead, launched = grid.call, grid.ahead, grid.launched
        programs = prod(call.grid)
        pes_per_cube = self.context.spec.cube.n_pes
        shares = parts_of(programs, self.pes)
        queue = deque(range(programs))
        places = [
            LaunchStorage(copy.start, copy.end, copy.name, at, copy.itemsize, copy.policy.pe == "replicate")
            for at, copy in enumerate(grid.copies)
        ]
        storages, stages, cycles = Storages(places), call.num_stages, self._cycles_per_op
        is_replayed = self.context.engine.fast_paths.programs

        def pe_programs(*pointers: Any, tl: Any) -> None:
            computes = not (self._is_trial and ahead.is_independent)
            program = PeProgram(tl, storages, pointers, call.grid, stages, cycles, computes)
            getcurrent().triton_program = program
            mine: Iterator[int] = _taken(queue, program)
            if launched.schedule == "static":
                first, end = shares[tl.program_id(1) * pes_per_cube + tl.program_id(0)]
                mine = iter(range(first, min(end, first + waves)))
                if self._is_trial and ahead.loads and most_ns < float("inf"):
                    is_late = self._likely_ns > (1 + LIKELY_MARGIN) * self._most_ns
                    outlook = Outlook(program, min(end - first, waves) * ahead.loads, most_ns, is_late)
                    program.before_load.append(partial(outlook.at_load, self.context.engine.limit_time))
            try:
                with np.errstate(all="ignore"):
                    for number in mine:
                        program.begin(_ids(number, call.grid))
                        if launched.schedule == "static":
                            program.polls.next_id = _ids(number + 1, call.grid) if number + 1 < end else None
                        recording = ahead.recording_of(program.program_id) if is_replayed else None
                        if recording is None:
                            grid.run()
                        else:
                            recording.replay(program)
                    program.finish()
            except Exception as error:
                grid.raised.append(error)
                raise
            launched.index_ops += program.index_ops

        return pe_programs

    def _say_once(self, call: KernelCall) -> None:
        """Note the options of a launch that do nothing here, each once."""
        for name, value in call.options.items():
            if value is None or name in (*_WITH_MEANING, *_ANY_PROCESSOR) or name in self._noted:
                continue
            self._noted.add(name)
            self._note(f"note: {name} has no meaning on this machine: {WITHOUT_MEANING.get(name, ON_ONE_PE)}")

    def _note_once(self, text: str) -> None:
        if text not in self._noted and not self._is_trial:
            self._noted.add(text)
            self._note(text)


def _ids(number: int, grid: Ids) -> Ids:
    """Program ids, the first axis fastest."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def _taken(queue: deque[int], program: PeProgram) -> Iterator[int]:
    """Programs of a queue; a PE takes the next one when it has done all of the one before, its stores too."""
    while True:
        program.complete()
        if not queue:
            return
        yield queue.popleft()


def _targets(programs: int, spec: Any) -> tuple[int, ...]:
    """The cubes that have a share of the programs."""
    used = min(max(programs, 1), spec.cube.n_pes * spec.sip.n_cubes)
    return tuple(range(-(-used // spec.cube.n_pes)))


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(f"{name} is {value!r}", hint=f"use one of {', '.join(choices)}")
