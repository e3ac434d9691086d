"""`tl`, the kernel's side of a PE.

A kernel is a plain function with a parameter `tl`. Calls look synchronous; each takes the simulated time of the
engine it names. One object per kernel and PE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kernbench.common.commands import CpuCmd, GemmCmd
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import DataError, UnknownNameError
from kernbench.common.nearest import nearest
from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.call_site import kernel_line
from kernbench.triton_emu.handle import TensorHandle, TensorOps
from kernbench.triton_emu.kernel_env import KernelEnv, TensorRange
from kernbench.triton_emu.names import INSTEAD, Names
from kernbench.triton_emu.pending_handle import CompletionHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_barrier import TlBarrier
from kernbench.triton_emu.tl_composite import TlComposite
from kernbench.triton_emu.tl_debug import TlDebug
from kernbench.triton_emu.tl_engines import TlEngines
from kernbench.triton_emu.tl_ipcq import TlIpcq
from kernbench.triton_emu.tl_multicast import TlMulticast
from kernbench.triton_emu.tl_triton import TlTriton

__all__ = ["CompletionHandle", "KernelEnv", "TLContext", "TensorHandle", "TensorPtr", "TensorRange"]

_AXES = "0 (PE), 1 (cube) or 2 (SIP)"


class TLContext(TlEngines, TlMulticast, TlIpcq, TlBarrier, TlDebug, TlTriton, TlComposite, Names):
    """What a kernel gets as `tl`."""

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Called for unknown names: raises an error at the kernel's line, with the nearest existing name."""
            names = [known for known in dir(type(self)) if not known.startswith("_")]
            near = nearest(name, names)
            hint = INSTEAD.get(name) or (f"did you mean tl.{near}?" if near else "dir(tl) lists what there is")
            raise UnknownNameError(f"tl has no '{name}'", where=kernel_line(), hint=hint)

    # ---- where this kernel runs

    def program_id(self, axis: int = 0) -> int:
        """This kernel's number along axis 0 (PE), 1 (cube) or 2 (SIP). Engine: none."""
        return self._env.program[self._axis(axis)]

    def num_programs(self, axis: int = 0) -> int:
        """How many kernels of this launch there are along axis 0 (PE) or 1 (cube); along 2, how many SIPs the machine
        has, since launches on each of them work side by side. Engine: none.
        """
        return self._env.grid[self._axis(axis)]

    def physical_id(self, axis: int = 0) -> int:
        """The number that the machine gives this kernel's PE (axis 0) in its cube, its cube (1) in its SIP, its SIP
        (2); `program_id` counts within the launch. Engine: none.
        """
        return self._env.place[2 - self._axis(axis)]

    def _axis(self, axis: int) -> int:
        if not is_whole(axis) or axis not in (0, 1, 2):
            self._fail(f"axis {axis!r} of the grid", f"use {_AXES}")
        return int(axis)

    # ---- scalar work

    def cycles(self, n: int) -> None:
        """Keep PE_CPU busy for `n` cycles. Engine: none; takes n cycles of the kernel's time."""
        if not is_whole(n) or n < 0:
            self._fail(f"cycles({n!r})", "give a whole number of 0 or more")
        if n:
            self._call(CpuCmd(int(n)))

    # ---- matrix product

    def dot(
        self, a: TensorHandle, b: TensorHandle, acc: TensorHandle | None = None, out_dtype: object = None
    ) -> TensorHandle:
        """a @ b of tensors in TCM, plus `acc` where that is given, and wait for it. The whole sum, `acc` included, is
        kept in f32 (integers: i32, unsigned ones u32) and rounded once.

        Shape: (..., M, K) by (..., K, N) gives (..., M, N), leading axes broadcast; `acc` has that shape. dtype:
        `out_dtype`, or acc's, or: two-byte and wider floats give the mixed type, one-byte floats f32, integers what
        they are summed in. `acc` has any float type for floats, the summing type for integers. Engine: GEMM, M * K * N
        per matrix, with `acc` or without; none where that is 0 (a sum over no K is 0). No MATH.
        """
        x, y = self._local("dot", a, "a"), self._local("dot", b, "b")
        z = None if acc is None else self._accumulator(acc)
        if out_dtype is not None:
            dtype = self._dtype(out_dtype)
        else:
            dtype = self._product_dtype(x, y) if z is None else dtype_of(z.dtype)
        operands = (x, y) if z is None else (z, x, y)
        op = "dot" if z is None else "dot_acc"
        out = self._new(self._apply(op, tuple(self._known(t) for t in operands), dtype=dtype))
        if not (x.size and y.size):
            return out
        m, n = out.shape[-2:]
        slower = min((x.dtype, y.dtype), key=lambda name: dtype_of(name).compute_scale)
        batch, deps = out.size // (m * n), self._made_by(operands)
        added = None if z is None else z.operand()
        cmd = GemmCmd(x.operand(), y.operand(), out.operand(), m, x.shape[-1], n, slower, batch, deps, added)
        out.records = self._call(cmd)
        return out

    def _accumulator(self, acc: object) -> TensorHandle:
        """The accumulator. A dtype in its place is an error that names `out_dtype`, the next parameter."""
        if not isinstance(acc, TensorHandle):
            try:
                named = dtype_of(acc)
            except DataError:
                pass
            else:
                self._fail(f"dot: acc is the type {named}, expected a tensor to add to", f"say out_dtype='{named}'")
        return self._local("dot", acc, "acc")


_CONFORMS: type[TensorOps] = TLContext
