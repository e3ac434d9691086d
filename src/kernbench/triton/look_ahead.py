"""Programs of a grid that are run ahead: without a machine, without time and without effects.

They show which bytes programs touch, how many loads they have, and which calls they make of the builder. Numbers are
computed only where the program looks at them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
from greenlet import getcurrent

from kernbench.triton.addresses import covered
from kernbench.triton.dtypes import kb_dtype
from kernbench.triton.handles import Compute, DeviceHandle, shape_of
from kernbench.triton.internals import TritonHandle, core, interpreter, native, np_dtype_of
from kernbench.triton.recording import (
    CallStep,
    Ids,
    LoopEvent,
    LoopStep,
    Nested,
    Recording,
    ResultSlot,
    VaryingHandle,
    places_of,
)

_MOST_OPS = 20_000  # of a program that is run ahead
_FEWEST = 4  # programs of a grid that are worth a recording
_TRIES = 16  # recordings before it is judged whether they are worth while

ByteRange = tuple[int, int]  # first byte and end
# The newest releases make block pointers of tensors and have no handle for them.
_OPAQUE = tuple(
    getattr(interpreter, name) for name in ("BlockPointerHandle", "TensorDescHandle") if hasattr(interpreter, name)
)


class _Stop(BaseException):
    """Ends a program that is run ahead."""


class LookAhead:
    """A program without a machine: its accesses are noted, its stores are not done. `recording` has its calls, where
    they follow from its id alone.
    """

    has_effects = False

    def __init__(self, grid: Ids, program_id: Ids, spans: Sequence[ByteRange]) -> None:
        self.grid, self._program_id = grid, program_id
        self._spans = list(spans)
        self.touched: dict[int, ByteRange] = {}  # by storage
        self.written: dict[int, ByteRange] = {}
        self.reads_its_stores = False
        self.bytes: dict[int, int] = {}
        self.reads: dict[int, int] = {}  # bytes that loads bring, by storage
        self.loads = self.runs = 0  # runs of bytes are what loads read
        self.index_ops = 0
        self.now_ns = 0.0
        self.is_complete = False
        self._ops = 0
        self.recording: Recording | None = Recording()
        self._depth = 0  # of calls that are recorded
        self._uses_id = self._uses_device = False  # the call that is being recorded
        self._constant_ops = 0  # operations that need not be done again, since the last call
        self._watched: list[weakref.ref[Any]] = []
        self._guarded: set[int] = set()
        self._caller: FrameType | None = None

    def run(self, body: Callable[[], object]) -> None:
        """Run the program as far as it goes."""
        thread = getcurrent()
        before = getattr(thread, "triton_program", None)
        thread.triton_program = self
        self._caller = sys._getframe()
        try:
            with np.errstate(all="ignore"):
                body()
            self.is_complete = True
        except (_Stop, Exception):  # the launch itself reports what is wrong
            self.give_up()
        finally:
            thread.triton_program = before
            self._caller = None
            self._watched.clear()
        if self.recording is not None:
            self.recording.last_ops = self._constant_ops
            self.recording.close()

    # ---- recording

    @property
    def is_recording(self) -> bool:
        """Whether a call is to be recorded: those that it makes itself are part of it."""
        return not self._depth and self.recording is not None

    def give_up(self) -> None:
        """The calls of this program do not follow from its id alone."""
        self.recording = None

    @property
    def program_id(self) -> Ids:
        self._uses_id = True
        return self._program_id

    def recorded(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Make a call and keep it, unless its arguments are constants."""
        templates = [self._template(arg) for arg in args]
        before = self.index_ops
        self._uses_id = self._uses_device = False
        self._depth += 1
        try:
            got = fn(*args)
        finally:
            self._depth -= 1
        recording = self.recording
        if recording is None:
            return got
        varies = self._uses_id or any(isinstance(each, (ResultSlot, Nested)) for each in templates)
        if not varies and not self._uses_device:
            self._constant_ops += self.index_ops - before
            return got
        assert self._caller is not None
        places = places_of(sys._getframe(1), self._caller) if self._uses_device else ()
        call = CallStep(fn, templates, self._constant_ops, not self._uses_device, places)
        self._constant_ops = 0
        recording.steps.append(call)
        found, call.results = self._kept(recording, got)
        return found

    def _template(self, arg: Any) -> Any:
        """An argument as a recording has it."""
        if isinstance(arg, core.tensor):
            found = self._template(arg.handle)
            return ResultSlot(found.at, arg.type) if isinstance(found, ResultSlot) else arg
        if isinstance(arg, (DeviceHandle, VaryingHandle, *_OPAQUE)):
            at = getattr(arg, "recorded_at", -1)
            if at < 0 and not isinstance(arg, _OPAQUE):
                self.give_up()
            return ResultSlot(at) if at >= 0 else arg
        if type(arg) in (tuple, list):
            parts = [self._template(each) for each in arg]
            return Nested(type(arg), parts) if any(isinstance(each, (ResultSlot, Nested)) for each in parts) else arg
        if isinstance(arg, core.tuple) and any(isinstance(self._template(each), (ResultSlot, Nested)) for each in arg):
            self.give_up()
        return arg

    def _kept(self, recording: Recording, got: Any) -> tuple[Any, Any]:
        """What a call returned, with its places."""
        if got is None:
            return None, None
        if type(got) in (tuple, list):
            pairs = [self._kept(recording, each) for each in got]
            return type(got)([each for each, _ in pairs]), [at for _, at in pairs]
        if isinstance(got, core.tensor):
            got.handle, at = self._kept(recording, got.handle)
            return got, at
        if isinstance(got, TritonHandle) and not isinstance(got, (DeviceHandle, VaryingHandle)):
            got = VaryingHandle(got.data, got.dtype, got.attr, self._looked)
        elif not isinstance(got, (DeviceHandle, VaryingHandle, *_OPAQUE)):
            self.give_up()
            return got, None
        if getattr(got, "recorded_at", -1) < 0:
            got.recorded_at = at = recording.size
            recording.size += 1
            self._watched.append(weakref.ref(got, lambda _: recording.steps[-1].dropped.append(at)))
        return got, got.recorded_at

    def _looked(self, at: int, numbers: Any) -> None:
        """The program looks at varying numbers: another one makes the same calls if it finds the same."""
        if self._depth or self.recording is None or at in self._guarded:
            return
        if at < 0:
            self.give_up()
        else:
            self._guarded.add(at)
            self.recording.guards.append((at, numbers))

    # ---- operations

    def _note_op(self) -> None:
        self._uses_device = True
        if not self._depth:  # a call that is not recorded
            self.give_up()
        self._ops += 1
        if self._ops + self.index_ops > _MOST_OPS:
            raise _Stop

    def _room(self, *_: Any) -> None:
        """There is no TCM."""

    def view(self, compute: Compute, inputs: tuple[DeviceHandle, ...], shape: tuple[int, ...], dtype: Any) -> Any:
        self._note_op()
        return DeviceHandle.of(shape, dtype, None, compute, inputs)

    def math(
        self,
        op: str,
        compute: Compute,
        inputs: tuple[DeviceHandle, ...],
        shape: tuple[int, ...],
        dtype: Any,
        held: Any,
        elements: int | None = None,
    ) -> Any:
        self._note_op()
        return DeviceHandle.of(shape, dtype, None, compute, inputs)

    def dot(self, compute: Compute, a: Any, b: Any, acc: Any, scales: Sequence[Any] = ()) -> Any:
        self._note_op()
        inputs = tuple([each for each in (a, b, acc, *scales) if isinstance(each, DeviceHandle)])
        return DeviceHandle.of(shape_of(acc), acc.dtype.scalar, None, compute, inputs)

    def load(self, ptrs: Any, mask: Any, other: Any) -> Any:
        self.loads += 1
        addresses, live = self._note(ptrs, mask, self.reads)
        if self.written and not self.reads_its_stores and live.any():
            low, high = int(addresses[live].min()), int(addresses[live].max())
            self.reads_its_stores = any(low <= last and first <= high for first, last in self.written.values())
        dtype = ptrs.get_element_ty()
        found, shape = np_dtype_of(dtype), addresses.shape

        def read() -> Any:
            held = np.zeros(shape, found) if other is None else np.broadcast_to(other.data, shape)
            return native.load(addresses, live, np.ascontiguousarray(held), found)

        inputs = (other,) if isinstance(other, DeviceHandle) else ()
        return DeviceHandle.of(shape, dtype, None, read, inputs)

    def store(self, ptrs: Any, value: Any, mask: Any) -> None:
        self._note_write(ptrs, mask)

    def _note_write(self, ptrs: Any, mask: Any) -> None:
        addresses, live = self._note(ptrs, mask)
        touched = addresses[live]
        if touched.size:
            low, high = int(touched.min()), int(touched.max())
            for at, (start, end) in enumerate(self._spans):
                if start <= low < end:
                    first, last = self.written.get(at, (low, high))
                    self.written[at] = (min(first, low), max(last, high))

    @property
    def read_bytes(self) -> int:
        return sum(self.reads.values())

    @property
    def steps(self) -> int:
        """About how many events its simulation has."""
        return self._ops + self.index_ops + self.runs

    def _note(self, ptrs: Any, mask: Any, reads: dict[int, int] | None = None) -> tuple[Any, Any]:
        self._note_op()
        addresses = ptrs.data
        live = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask.data, addresses.shape)
        touched = addresses[live]
        if touched.size:
            low, high = int(touched.min()), int(touched.max())
            size = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
            for at, (start, end) in enumerate(self._spans):
                if start <= low < end:
                    if high >= end:
                        raise _Stop  # the launch itself names it
                    first, last = self.touched.get(at, (low, high))
                    self.touched[at] = (min(first, low), max(last, high))
                    self.bytes[at] = self.bytes.get(at, 0) + touched.size * size
                    if reads is not None:
                        dtype = kb_dtype(ptrs.get_element_ty())
                        nbytes, runs = covered(addresses, live, low, dtype)
                        reads[at] = reads.get(at, 0) + nbytes
                        self.runs += runs
                    break
            else:
                raise _Stop
        return addresses, np.ascontiguousarray(live)

    def atomic(self, op: str, ptrs: Any, values: Sequence[Any], mask: Any, *_: Any) -> Any:
        self._note_write(ptrs, mask)
        raise _Stop

    def materialize(self, handle: Any) -> Any:
        if isinstance(handle, DeviceHandle):
            self.wait_for(())
        return handle.data

    def fence(self) -> None:
        raise _Stop

    def wait_for(self, _: Any) -> None:
        """The program looks at numbers of the device: there is no time, and what follows depends on them."""
        self._uses_device = True
        if not self._depth:
            self.give_up()

    def loop(self, items: Iterable[Any], num_stages: int | None) -> Iterator[Any]:
        self._loop_step("loop", num_stages)
        try:
            for item in items:
                self._loop_step("begin", None)
                yield item
                self._loop_step("end", None)
        finally:
            self._loop_step("over", None)

    def _loop_step(self, what: LoopEvent, num_stages: int | None) -> None:
        if self.recording is not None and self._caller is not None:
            places = places_of(sys._getframe(1), self._caller) if what == "begin" else ()
            self.recording.steps.append(LoopStep(what, num_stages, places))


class ProgramsAhead:
    """What is known of the programs of a launch before they run. `run` is the kernel with its arguments."""

    def __init__(
        self, run: Callable[[], object], grid: Ids, samples: Sequence[Ids], spans: Sequence[ByteRange]
    ) -> None:
        self._run, self._grid, self._spans = run, grid, spans
        self._sample_ids = samples
        self._samples: list[LookAhead] = []
        self._recordings: list[Recording] = []
        self._is_worth_while = grid[0] * grid[1] * grid[2] >= _FEWEST
        self._tries = self._hits = 0

    @property
    def samples(self) -> list[LookAhead]:
        """Some programs, as far as they came."""
        if not self._samples:
            self._samples = [self._look(program_id) for program_id in self._sample_ids]
        return self._samples

    @property
    def is_independent(self) -> bool:
        """Whether the programs that were looked at need no effects of others, nor of their own stores."""
        return bool(self.samples) and all(each.is_complete and not each.reads_its_stores for each in self.samples)

    @property
    def loads(self) -> int | None:
        """Those of each program, where the ones that were looked at have equally many."""
        return (
            self.samples[0].loads if self.is_independent and len({each.loads for each in self.samples}) == 1 else None
        )

    def _look(self, program_id: Ids) -> LookAhead:
        program = LookAhead(self._grid, program_id, self._spans)
        program.run(self._run)
        if program.recording is None:
            self._is_worth_while = False
        elif not any(each.fits(program_id, self._grid) for each in self._recordings):
            self._recordings.append(program.recording)
        return program

    def recording_of(self, program_id: Ids) -> Recording | None:
        """The calls that a program makes; None where they are not known and not worth a recording."""
        if not self._is_worth_while:
            return None
        for found in self._recordings:
            if found.fits(program_id, self._grid):
                self._hits += 1
                return found
        self._tries += 1
        if self._tries > _TRIES and self._hits < self._tries:
            self._is_worth_while = False
            return None
        return self._look(program_id).recording
