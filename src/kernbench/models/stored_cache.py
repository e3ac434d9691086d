"""A unit's keys and values where its caches are quantised (`quantised.py`): queries are multiplied by the scale of the
keys, and results by that of the values. A new token's key and value are divided by them, used as they are, and stored
as the nearest elements. Caches in the tensors' own type have no scales, and none of this costs anything there.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.models.quantised import QuantisedForm
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_context import TLContext


class StoredUnit:
    """How numbers go in and out of one unit's caches. `scales`: of its keys and of its values, if there is a form."""

    def __init__(self, form: QuantisedForm | None, scales: Sequence[TensorHandle], dtype: str, tl: TLContext) -> None:
        self._form, self._scales, self._dtype, self._tl = form, scales, dtype, tl

    def queries(self, x: TensorHandle) -> TensorHandle:
        """Queries for keys as they are stored."""
        return x if self._form is None else self._tl.cast(x * self._scales[0], self._dtype)

    def widened(self, x: TensorHandle) -> TensorHandle:
        """Keys or values in the type of the queries."""
        return x if self._form is None else self._tl.cast(x, self._dtype)

    def over_scales(self, new: Sequence[TensorHandle]) -> list[TensorHandle]:
        """A new token's key and value, as multiples of the scales."""
        if self._form is None:
            return list(new)
        return [x / scale for x, scale in zip(new, self._scales, strict=True)]

    def narrowed(self, x: TensorHandle) -> TensorHandle:
        """A key or value over its scale as the cache stores it: the nearest element, at most the largest."""
        form = self._form
        if form is None:
            return x
        limited = self._tl.clamp(x, -form.largest, form.largest)
        if form.name != "fp8":
            limited = self._tl.floor(limited + 0.5)
        return self._tl.cast(limited, form.dtype)

    def results(self, x: TensorHandle) -> TensorHandle:
        """Weighted sums of values as they are stored, times their scale."""
        return x if self._form is None else x * self._scales[1]
