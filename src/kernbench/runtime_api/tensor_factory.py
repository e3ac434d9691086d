"""The functions of `torch` that make tensors: where they lie, and their initial contents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.commands import Space
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.device import AhbmNamespace
from kernbench.runtime_api.host_numbers import as_elements, real_numbers
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_store import Contents, TensorStore
from kernbench.values.graph import Value

ONE_PE = DPPolicy(num_cubes=1, num_pes=1)
Size = int | Sequence[int]


class TensorFactory:
    """Makes tensors on the current device, through the host's queue."""

    def __init__(self, queue: HostQueue, ahbm: AhbmNamespace) -> None:
        self.engine = queue.engine
        self.ahbm = ahbm
        self._queue = queue
        self._store = TensorStore(queue)

    def empty(
        self,
        *size: Size,
        dtype: DType | str = "f16",
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space = "hbm",
    ) -> Tensor:
        """A tensor without contents. It is placed by `dp`; without `dp`, on one PE.

        `space` is the memory of each PE that holds a part: "hbm", its slice; "tcm", its TCM, of which kernels then have
        less; or "sram", its cube's, which all PEs of the cube share.
        """
        return self._create(_shape(size), dtype_of(dtype), dp, name, None, space)

    def zeros(
        self,
        *size: Size,
        dtype: DType | str = "f16",
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space = "hbm",
        preset: bool = False,
    ) -> Tensor:
        """A tensor of zeros, written by the host. With `preset`, memory holds them before the program begins: nothing
        is written and no time passes.
        """
        if not preset:
            return self.full(_shape(size), 0, dtype=dtype, dp=dp, name=name, space=space)
        tensor = self.empty(*size, dtype=dtype, dp=dp, name=name, space=space)
        self._store.preset(tensor, lambda part: self.engine.values.full(part.local_shape, 0, tensor.element))
        return tensor

    def full(
        self,
        size: Size,
        fill_value: float,
        *,
        dtype: DType | str = "f16",
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space = "hbm",
    ) -> Tensor:
        """A tensor of one number, written by the host."""
        element, values = dtype_of(dtype), self.engine.values

        def contents(part: ShardSpec) -> Value:
            return values.full(part.local_shape, fill_value, element)

        return self._create(_shape((size,)), element, dp, name, contents, space)

    def from_numpy(
        self,
        array: ArrayLike,
        *,
        dtype: DType | str | None = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space = "hbm",
    ) -> Tensor:
        """A tensor with an array's contents, converted to `dtype` if that is given, written by the host.

        Raises DataError for numbers that an integer dtype cannot hold.
        """
        given = real_numbers(array, "from_numpy")
        element, values = dtype_of(given.dtype if dtype is None else dtype), self.engine.values
        held = as_elements(given, element, "from_numpy")
        shared: dict[int, Value] = {}  # replicas share one value, by offset

        def contents(part: ShardSpec) -> Value:
            if part.offset_bytes not in shared:
                shared[part.offset_bytes] = values.constant(held[part.index], element)
            return shared[part.offset_bytes]

        return self._create(held.shape, element, dp, name, contents, space)

    def from_values(
        self,
        contents: Contents,
        size: Sequence[int],
        *,
        dtype: DType | str,
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space = "hbm",
    ) -> Tensor:
        """A tensor of values of `engine.values`, written by the host: `contents(part)` is what a part holds."""
        return self._create(tuple(size), dtype_of(dtype), dp, name, contents, space)

    def preset(self, tensor: Tensor, contents: Contents) -> None:
        """Set the contents of a tensor's parts to `contents(part)` without simulating a write: no time passes. For data
        that is set up before the timed program.
        """
        self._store.check_ours(tensor)
        self._queue.wait_all()
        self._store.preset(tensor, contents)

    def _create(
        self,
        shape: tuple[int, ...],
        element: DType,
        dp: DPPolicy | None,
        name: str | None,
        contents: Contents | None,
        space: Space,
    ) -> Tensor:
        if dp is not None and not isinstance(dp, DPPolicy):
            raise UsageError(f"dp is {dp!r}", hint="give a DPPolicy, or leave it out for one PE")
        device = self.ahbm.current_device()
        return self._store.create(shape, element, dp or ONE_PE, device, name, contents, space)


def _shape(size: tuple[Size, ...]) -> tuple[int, ...]:
    """`(4, 8)` and `((4, 8),)` alike."""
    sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    return tuple(int(n) if isinstance(n, np.integer) else n for n in sizes)  # type: ignore[misc]  # placement checks
