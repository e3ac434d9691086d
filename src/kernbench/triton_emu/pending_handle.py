"""Handles of commands that a kernel did not wait for: what `tl.wait` takes."""

from __future__ import annotations

from typing import NoReturn
from weakref import ref

from kernbench.triton_emu.call_site import kernel_error
from kernbench.triton_emu.handle import CallOrigin, TensorHandle


class PendingCommand:
    """A command that its kernel did not wait for, under way or done.

    Engines keep this, and the blocks of TCM that the command needs, but no handle: so a handle is dropped when the
    kernel drops it, and where handles are dropped can be compared with a recorded kernel.
    """

    __slots__ = ("_handle", "_held", "_out", "number", "records")

    def __init__(self, handle: PendingHandle, held: tuple[TensorHandle, ...], out: TensorHandle | None) -> None:
        kept = held if out is None else (*held, out)
        self._held = tuple([x.block for x in kept if x.block is not None])  # stay in TCM until it is done
        self._handle = ref(handle)
        self._out = None if out is None else ref(out)
        self.number = -1  # until it is issued
        self.records: tuple[int, ...] = ()  # its op-log ids, once it is done

    def finish(self, records: tuple[int, ...], brought: TensorHandle | None = None) -> None:
        """It is done: its operands may go, and its result may be used. `brought` is what a load or a receive brought,
        which is dropped where the kernel has dropped the handle.
        """
        self._held = ()
        self.records = records
        out = None if self._out is None else self._out()
        if out is not None:
            out.records = records
            out.composite = None
        handle = self._handle()
        if brought is not None and handle is not None:
            handle.keep(brought)


class PendingHandle:
    """A command under way, or done, that the kernel did not wait for.

    Where it leaves a tensor in TCM, the handle keeps that until `tl.wait` has returned it; from then on it is the
    kernel's alone, and its TCM is free when the kernel drops it, whether the handle is still there or not.
    """

    __slots__ = ("__weakref__", "_kept", "_result", "_tl", "came_from", "command")

    def __init__(self, tl: object, held: tuple[TensorHandle, ...] = (), out: TensorHandle | None = None) -> None:
        self._tl = tl
        self.came_from: CallOrigin | None = None  # which call, where calls are recorded
        self._kept = out
        self._result = None if out is None else ref(out)
        self.command = PendingCommand(self, held, out)

    def keep(self, out: TensorHandle) -> None:
        """The command has brought a tensor."""
        self._kept = out
        self._result = ref(out)

    @property
    def tl(self) -> object:
        """The kernel's `tl` that it came from."""
        return self._tl

    @property
    def out(self) -> TensorHandle | None:
        """The tensor that it leaves in TCM, None where it leaves none; raises KernelError for one that was waited for
        and dropped.
        """
        if self._result is None:
            return None
        result = self._result()
        if result is None:
            raise kernel_error(
                "what this handle left in TCM was dropped after tl.wait had returned it",
                "keep what tl.wait returns for as long as you need it: y = tl.wait(h)",
            )
        return result

    def __getattr__(self, name: str) -> NoReturn:
        """What tensors have and this has not: most likely the wait was forgotten."""
        if name.startswith("__") or not hasattr(TensorHandle, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        raise kernel_error(f"{name} of a handle of what is under way", "take what tl.wait(h) returns: y = tl.wait(h)")

    def _no_operand(self, other: object) -> NoReturn:
        raise kernel_error(
            "an operand is a handle of what is under way", "take what tl.wait(h) returns: y = tl.wait(h)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_operand
    __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = _no_operand

    def hand_over(self) -> TensorHandle | None:
        """The tensor; from now on only the caller's reference keeps it."""
        result = self.out
        self._kept = None
        return result


class CompletionHandle(PendingHandle):
    """A composite, from `tl.composite`."""

    __slots__ = ()


class TransferHandle(PendingHandle):
    """A load, a store, a send or a receive, from `tl.load_async` and its like."""

    __slots__ = ()
