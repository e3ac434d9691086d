"""`tl`, the kernel's side of a PE: ADR-0046 without send and recv.

A kernel is a plain function with a parameter `tl`. Calls look synchronous; each takes the simulated time of the
engine it names. One object a kernel and PE.
"""

from __future__ import annotations

from numbers import Integral

from kernbench.common.commands import CpuCmd, GemmCmd
from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.handle import CompletionHandle, TensorHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_atomics import TlAtomics
from kernbench.triton_emu.tl_composite import TlComposite
from kernbench.triton_emu.tl_core import KernelEnv, TensorRange
from kernbench.triton_emu.tl_math import TlMath
from kernbench.triton_emu.tl_memory import TlMemory

__all__ = ["CompletionHandle", "KernelEnv", "TLContext", "TensorHandle", "TensorPtr", "TensorRange"]

_AXES = "0 (PE), 1 (cube) or 2 (SIP)"


class TLContext(TlAtomics, TlMemory, TlMath, TlComposite):
    """What a kernel gets as `tl`."""

    # ---- where this kernel runs

    def program_id(self, axis: int = 0) -> int:
        """This kernel's number along axis 0 (PE), 1 (cube) or 2 (SIP). Engine: none."""
        return self._env.program[self._axis(axis)]

    def num_programs(self, axis: int = 0) -> int:
        """How many kernels of this launch there are along axis 0 (PE) or 1 (cube); along 2, how many SIPs the machine
        has, since launches on each of them work side by side. Engine: none.
        """
        return self._env.grid[self._axis(axis)]

    def _axis(self, axis: int) -> int:
        if isinstance(axis, bool) or not isinstance(axis, Integral) or axis not in (0, 1, 2):
            self._fail(f"axis {axis!r} of the grid", f"use {_AXES}")
        return int(axis)

    # ---- scalar work

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        """a / b, rounded up. Engine: none."""
        return -(-a // b)

    def cycles(self, n: int) -> None:
        """Let PE_CPU be busy for `n` cycles. Engine: none; takes n cycles of the kernel's time."""
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 0:
            self._fail(f"cycles({n!r})", "give a whole number of 0 or more")
        if n:
            self._call(CpuCmd(int(n)))

    # ---- matrix product

    def dot(self, a: TensorHandle, b: TensorHandle, out_dtype: object = None) -> TensorHandle:
        """a @ b of tensors in TCM, and wait for it; sums are kept in f32 (integers: i32) and rounded once.

        Shape: (..., M, K) by (..., K, N) gives (..., M, N), leading axes broadcast. dtype: `out_dtype`, or: two-byte
        and wider floats give the mixed type, one-byte floats f32, integers i32. Engine: GEMM, M * K * N a matrix; none
        where that is 0 (a sum over no K is 0).
        """
        x, y = self._local("dot", a, "a"), self._local("dot", b, "b")
        dtype = self._dtype(out_dtype) if out_dtype is not None else self._product_dtype(x, y)
        out = self._new(self._apply("dot", (self._known(x), self._known(y)), dtype=dtype))
        if not (x.size and y.size):
            return out
        m, n = out.shape[-2:]
        slower = min((x.dtype, y.dtype), key=lambda name: dtype_of(name).compute_scale)
        batch, deps = out.size // (m * n), tuple(dict.fromkeys((*x.records, *y.records)))
        cmd = GemmCmd(x.operand(), y.operand(), out.operand(), m, x.shape[-1], n, slower, batch, deps)
        out.records = self._call(cmd)
        return out
