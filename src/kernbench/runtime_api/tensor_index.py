"""Indexing by lists, arrays, masks and tensors: which rows of which tensor a copy consists of."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import BOOL
from kernbench.common.errors import TensorIndexError
from kernbench.runtime_api.op_host import OpHost
from kernbench.runtime_api.tensor_views import TensorViews


def selection(torch: OpHost, x: TensorViews, index: Any) -> tuple[TensorViews, TensorViews, Shape]:
    """A tensor, the numbers of its rows that `x[index]` consists of, and the shape of `x[index]`.

    Integers of a tensor on the device are read by the kernel. Masks and mixed indices are resolved on the host.
    """
    if isinstance(index, TensorViews) and index.element is not BOOL and not index.element.is_float and x.shape:
        return x, index.reshape(-1), (*index.shape, *x.shape[1:])
    found: Any = _as_numpy(index)
    try:
        numbers = np.arange(x.numel()).reshape(x.shape)[found]
    except (IndexError, TypeError) as error:
        raise TensorIndexError(f"{x.title}: {error}", hint="index it as a numpy array of its shape") from None
    row = prod(x.shape[1:])
    if isinstance(found, np.ndarray) and row and numbers.shape[-len(x.shape[1:]) or numbers.ndim :] == x.shape[1:]:
        rows = np.asarray(numbers.reshape(-1, row)[:, 0] // row)
        return x, _uploaded(torch, x, rows), numbers.shape
    return flat(torch, x), _uploaded(torch, x, numbers.reshape(-1)), numbers.shape


def flat(torch: OpHost, x: TensorViews) -> TensorViews:
    """The elements of x as a vector, which is a copy where its columns are split over PEs."""
    if not x.storage.is_row_major:
        ways: Any = {name: "row_wise" for name in ("cube", "pe") if getattr(x.dp, name) == "column_wise"}
        with torch.ahbm.device(x.allocation.sip):
            copy = torch.unwritten(x.shape, x.element, replace(x.dp, **ways), "flat", None)
        x = copy.copy_(x)
    return x.contiguous().view(-1)


def _uploaded(torch: OpHost, x: TensorViews, numbers: Any) -> TensorViews:
    """Row numbers in the device's memory, written by the host."""
    return torch.from_numpy(numbers.astype(np.int64), name="index", device=x.device)


def _as_numpy(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_as_numpy(item) for item in index)
    if isinstance(index, list):
        return np.asarray(index, np.int64 if not index else None)
    return index.numpy() if hasattr(index, "numpy") else index
