"""Device data: values of a Triton program that come from a load, or from operations on such values.

A `DeviceHandle` stands where Triton's interpreter has a `TensorHandle`. Its numbers are computed when the command that
makes them ends in simulated time; a look at them before that lets time pass until then. It has room in TCM, and names
the commands that what depends on it must wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from greenlet import getcurrent
from numpy.typing import NDArray

from kernbench.triton.internals import TritonHandle
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import PendingHandle

AnyArray: TypeAlias = NDArray[Any]
Compute: TypeAlias = Callable[[], AnyArray]


class Numbers:
    """Numbers that are there or have yet to be computed, from others. They keep no room in TCM."""

    __slots__ = ("_compute", "_inputs", "array")

    def __init__(self, compute: Compute, inputs: tuple[Numbers, ...]) -> None:
        self.array: AnyArray | None = None
        self._compute: Compute | None = compute
        self._inputs = inputs

    def evaluate(self) -> AnyArray:
        """Compute the numbers, which commands have delivered by now; inputs first, however deep they are nested."""
        left = [self]
        while left:
            node = left[-1]
            missing = [each for each in node._inputs if each.array is None] if node.array is None else []
            if missing:
                left += missing
                continue
            if node.array is None:
                assert node._compute is not None
                with np.errstate(all="ignore"):
                    node.array = node._compute()
                node._compute, node._inputs = None, ()
            left.pop()
        assert self.array is not None
        return self.array


class DeviceHandle(TritonHandle):  # type: ignore[misc]  # Triton has no types
    """A value on the device. `data` is its numbers."""

    recorded_at = -1  # its place among the results of a recording

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: TensorHandle | None,
        numbers: Numbers,
        after: tuple[PendingHandle, ...] = (),
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.attr: dict[str, object] = {}
        self.buffer = buffer  # None for what is in no TCM: addresses
        self.after = after  # the commands that make it
        self.numbers = numbers

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: TensorHandle | None,
        compute: Compute,
        inputs: tuple[DeviceHandle, ...] = (),
        after: tuple[PendingHandle, ...] = (),
    ) -> DeviceHandle:
        """A value that is computed from others."""
        return cls(shape, dtype, buffer, Numbers(compute, tuple([each.numbers for each in inputs])), after)

    @property
    def data(self) -> AnyArray:
        """The numbers; lets time pass until they are there."""
        if self.numbers.array is None:
            program = getattr(getcurrent(), "triton_program", None)
            if program is not None:
                program.wait_for(self.after)
        return self.numbers.evaluate()

    @data.setter
    def data(self, array: AnyArray) -> None:
        self.numbers.array = array

    def __post_init__(self) -> None:
        """Triton checks its arrays here; these are made later."""


def without_room(handle: Any) -> Any:
    """A handle as later computations need it: the numbers of device data without its room in TCM."""
    if not isinstance(handle, DeviceHandle):
        return handle
    return DeviceHandle(handle.shape, handle.dtype, None, handle.numbers, handle.after)


def shape_of(handle: Any) -> tuple[int, ...]:
    """The shape of a handle's array."""
    return handle.shape if isinstance(handle, DeviceHandle) else tuple(np.shape(handle.data))


class Countdown:
    """Calls something when several commands have ended."""

    def __init__(self, done: Callable[[], object]) -> None:
        self.left = 1
        self._done = done

    def one_done(self) -> None:
        self.left -= 1
        if not self.left:
            self._done()

    start = one_done
