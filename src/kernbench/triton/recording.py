"""A Triton program as the calls that it made of the builder, to be made again by other programs of its grid.

Triton's language layer decides from types, constants and the numbers that it looks at which calls of the builder a
program makes. Numbers that follow from the program id are *varying*; what follows from arguments and constants alone is
computed once. A recording has the calls on varying and on device data, in order, with the places of their results; a
program for which all varying numbers that were looked at are those of the recorded one (*guards*) makes the same
calls. It is replayed: the calls are made again, with its own program id, at the user's lines. Results are dropped where
the recorded program dropped them, so that room in TCM is free at the same instants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np
from greenlet import getcurrent

from kernbench.triton.internals import TritonHandle, core
from kernbench.triton_emu.call_site import is_own_code

Ids = tuple[int, int, int]
StackFrame = tuple[str, int, str]  # file, line, module
LoopEvent = Literal["loop", "begin", "end", "over"]
CallStack = tuple[StackFrame, ...]  # the innermost first


class ResultSlot:
    """The place of a result among those of a recording; `kind` is the type of the tensor that has it, if any."""

    __slots__ = ("at", "kind")

    def __init__(self, at: int, kind: Any = None) -> None:
        self.at, self.kind = at, kind

    def filled(self, results: Sequence[Any]) -> Any:
        found = results[self.at]
        return found if self.kind is None else core.tensor(found, self.kind)


class Nested:
    """A sequence with places of results in it."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[[list[Any]], Any], parts: list[Any]) -> None:
        self.make, self.parts = make, parts

    def filled(self, results: Sequence[Any]) -> Any:
        return self.make(
            [each.filled(results) if isinstance(each, (ResultSlot, Nested)) else each for each in self.parts]
        )


class RecordedStep:
    """A step of a recording. `dropped` are the results that are not used after it."""

    __slots__ = ("dropped", "places")

    def __init__(self, places: CallStack) -> None:
        self.places = places
        self.dropped: list[int] = []


class CallStep(RecordedStep):
    """A call, after `ops` operations on constants."""

    __slots__ = ("args", "fills", "fn", "is_index", "needs", "ops", "results")

    def __init__(self, fn: Callable[..., Any], args: list[Any], ops: int, is_index: bool, places: CallStack) -> None:
        super().__init__(places)
        self.fn, self.ops, self.is_index = fn, ops, is_index
        self.fills = tuple([(at, arg) for at, arg in enumerate(args) if isinstance(arg, (ResultSlot, Nested))])
        self.needs = tuple([slot for _, arg in self.fills for slot in _slots_in(arg)])
        self.args = args
        self.results: Any = None  # places of what it returns

    def arguments(self, results: Sequence[Any]) -> list[Any]:
        args = self.args.copy()
        for at, template in self.fills:
            args[at] = template.filled(results)
        return args

    def again(self, results: list[Any]) -> None:
        """Make the call, and keep what it returns."""
        got = self.fn(*self.arguments(results))
        if self.results is not None:
            _keep(got, self.results, results)


def _slots_in(template: Any) -> Iterator[int]:
    if isinstance(template, ResultSlot):
        yield template.at
    elif isinstance(template, Nested):
        for each in template.parts:
            yield from _slots_in(each)


def _keep(got: Any, places: Any, results: list[Any]) -> None:
    if isinstance(places, list):
        for each, place in zip(got, places, strict=True):
            _keep(each, place, results)
    elif places is not None:
        results[places] = got.handle if isinstance(got, core.tensor) else got


class Pipeline(Protocol):
    """The iterations of a loop, of which some run ahead of others."""

    def begin(self) -> None:
        """Start an iteration; those that must be done before are waited for."""

    def end(self) -> None:
        """All of an iteration is issued."""


class ReplayingProgram(Protocol):
    """A program that makes the calls of a recording."""

    index_ops: int

    def pipeline(self, num_stages: int | None) -> Pipeline:
        """A loop begins."""


class LoopStep(RecordedStep):
    """A loop begins, with so many stages or those of the launch; an iteration of it does, or ends; or it is over."""

    __slots__ = ("num_stages", "what")

    def __init__(self, what: LoopEvent, num_stages: int | None, places: CallStack) -> None:
        super().__init__(places)
        self.what, self.num_stages = what, num_stages


class Recording:
    """The calls of one program, and the numbers that it looked at."""

    def __init__(self) -> None:
        self.steps: list[CallStep | LoopStep] = []
        self.size = 0  # places of results
        self.guards: list[tuple[int, Any]] = []  # place and numbers
        self.last_ops = 0  # on constants, after the last call
        self._checks: list[CallStep] = []

    def close(self) -> None:
        """The program is over: find the calls whose results were looked at, with all that they need."""
        needed = {at for at, _ in self.guards}
        for step in reversed(self.steps):
            if isinstance(step, CallStep) and step.is_index and not needed.isdisjoint(_slots_of(step.results)):
                needed.update(step.needs)
                self._checks.append(step)
        self._checks.reverse()

    def fits(self, program_id: Ids, grid: Ids) -> bool:
        """Whether the program with this id makes the same calls."""
        if not self.guards:
            return True
        results: list[Any] = [None] * self.size
        thread = getcurrent()
        before = getattr(thread, "triton_program", None)
        thread.triton_program = _Identity(program_id, grid)
        try:
            for call in self._checks:
                call.again(results)
        finally:
            thread.triton_program = before
        return all(np.array_equal(results[at].data, numbers) for at, numbers in self.guards)

    def replay(self, program: ReplayingProgram) -> None:
        """Make the calls for the program that runs."""
        results: list[Any] = [None] * self.size
        loops: list[Pipeline] = []
        for step in self.steps:
            if isinstance(step, CallStep):
                program.index_ops += step.ops
                _at(step.places)(step.again, results)
            elif step.what == "loop":
                loops.append(program.pipeline(step.num_stages))
            elif step.what == "begin":
                _at(step.places)(loops[-1].begin)
            elif step.what == "end":
                loops[-1].end()
            else:
                loops.pop()
            for at in step.dropped:
                results[at] = None
        program.index_ops += self.last_ops


def _slots_of(places: Any) -> Iterator[int]:
    if isinstance(places, list):
        for each in places:
            yield from _slots_of(each)
    elif places is not None:
        yield places


class _Identity:
    """A program of which only the id matters."""

    is_recording = False

    def __init__(self, program_id: Ids, grid: Ids) -> None:
        self.program_id, self.grid, self.index_ops = program_id, grid, 0


# ---- lines of the user


def places_of(frame: FrameType | None, end: FrameType) -> CallStack:
    """The user's lines that led to a frame, up to the frame that called the kernel."""
    found = []
    while frame is not None and frame is not end:
        if not is_own_code(frame):
            found.append((frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__", ""))))
        frame = frame.f_back
    return tuple(found)


@lru_cache(maxsize=4096)
def _at(places: CallStack) -> Callable[..., Any]:
    """A function that calls another from the user's lines, as the recorded program did: reports name them."""
    call = None
    for file, line, module in places:
        source = "\n" * (line - 1) + ("lambda f, *a: f(*a)" if call is None else "lambda f, *a: _inner(f, *a)")
        call = eval(compile(source, file, "eval"), {"__name__": module, "_inner": call})
    return call if call is not None else _directly


def _directly(f: Callable[..., Any], *args: Any) -> Any:
    return f(*args)


# ---- while a program is recorded


class VaryingHandle(TritonHandle):  # type: ignore[misc]  # Triton has no types
    """Index data that follows from the program id. Who looks at its numbers outside of a call is noted."""

    def __init__(self, numbers: Any, dtype: Any, attr: dict[str, Any], looked: Callable[[int, Any], None]) -> None:
        self.numbers, self.dtype, self.attr = numbers, dtype, attr
        self.recorded_at = -1
        self._looked = looked

    @property
    def data(self) -> Any:
        self._looked(self.recorded_at, self.numbers)
        return self.numbers

    @data.setter
    def data(self, numbers: Any) -> None:
        self._looked(-1, self.numbers)
        self.numbers = numbers


def recordable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls a program that is recorded keeps. Arguments are given by position."""

    @wraps(fn)
    def call(*args: Any) -> Any:
        program = getattr(getcurrent(), "triton_program", None)
        if program is None or not program.is_recording:
            return fn(*args)
        return program.recorded(fn, args)

    return call
