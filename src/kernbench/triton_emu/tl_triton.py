"""`tl`: aliases with Triton's names for existing functions, so that kernel source need not change."""

from __future__ import annotations

from typing import TypeVar

from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_combine import TlCombine
from kernbench.triton_emu.tl_math import Tensorish
from kernbench.triton_emu.tl_views import TlViews
from kernbench.values.op import broadcast_shape

T = TypeVar("T")


class TlTriton(TlCombine, TlViews):
    """Aliases, and compiler hints, which have no effect here."""

    range = static_range = range

    def view(self, x: TensorHandle, *shape: object) -> TensorHandle:
        """`tl.reshape`. Shape: as given. dtype: kept. Engine: none."""
        return self.reshape(x, *shape)

    def ravel(self, x: TensorHandle) -> TensorHandle:
        """All elements in one row. Shape: (size,). dtype: kept. Engine: none."""
        return self.reshape(x, -1)

    def broadcast(self, a: TensorHandle, b: TensorHandle) -> tuple[TensorHandle, TensorHandle]:
        """Both with the shape that they share by numpy's rule. dtype: kept. Engine: none."""
        x, y = self._local("broadcast", a, "a"), self._local("broadcast", b, "b")
        shape = broadcast_shape("broadcast", [x.shape, y.shape])
        return self.broadcast_to(x, shape), self.broadcast_to(y, shape)

    def join(self, a: TensorHandle, b: TensorHandle) -> TensorHandle:
        """Two tensors side by side along a new last axis. Shape: (..., 2). dtype: mixed. Engine: MATH, the result's
        elements.
        """
        return self.cat([self.expand_dims(each, -1) for each in self.broadcast(a, b)], axis=-1)

    def interleave(self, a: TensorHandle, b: TensorHandle) -> TensorHandle:
        """Elements of a and b alternately along the last axis. Shape: twice the last size. dtype: mixed. Engine: MATH,
        the result's elements.
        """
        joined = self.join(a, b)
        return self.reshape(joined, (*joined.shape[:-2], 2 * joined.shape[-2]))

    def fdiv(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """`tl.div`. Shape: broadcast. dtype: as div. Engine: MATH."""
        return self.div(a, b)

    def div_rn(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """`tl.div`, which rounds to the nearest. Shape: broadcast. dtype: as div. Engine: MATH."""
        return self.div(a, b)

    def sqrt_rn(self, x: TensorHandle) -> TensorHandle:
        """`tl.sqrt`, which rounds to the nearest. Shape: x's. dtype: as sqrt. Engine: MATH."""
        return self.sqrt(x)

    @staticmethod
    def multiple_of(x: T, values: object) -> T:
        """Returns x; a compiler hint without effect. Engine: none."""
        return x

    max_contiguous = max_constancy = multiple_of

    @staticmethod
    def assume(cond: object) -> None:
        """No effect; a compiler hint. Engine: none."""
