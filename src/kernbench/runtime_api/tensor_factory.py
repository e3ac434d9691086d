"""The functions of `torch` that make tensors: where they lie, and their initial contents.

A tensor lies on the current device, or on `device`, and is placed by `dp`; without `dp`, on one PE. Contents are
written by the host, which is simulated; random ones by a kernel. A float tensor without `dtype` has the default dtype:
f16, until `torch.set_default_dtype` changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.array_types import Shape
from kernbench.common.commands import TILED, Space
from kernbench.common.dtypes import BOOL, F16, I64, DType, dtype_of
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.device import AhbmNamespace, sip_of
from kernbench.runtime_api.device_ops import DeviceOps
from kernbench.runtime_api.host_numbers import as_elements, real_numbers
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.not_modelled import check_no_grad
from kernbench.runtime_api.random_state import Generator, RandomState
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_base import DeviceOperations
from kernbench.runtime_api.tensor_store import Contents, TensorStore
from kernbench.runtime_api.tensor_views import SizeArguments
from kernbench.values.graph import Value

ONE_PE = DPPolicy(num_cubes=1, num_pes=1)
Dtype = DType | str | type | None


class TensorFactory:
    """Makes tensors on a device, through the host's queue. Every function that makes a tensor takes `dtype`, `device`,
    `dp`, `name` and `space` by keyword, and `requires_grad`, which must be False.
    """

    ops: DeviceOps  # what computes on the device

    def __init__(self, queue: HostQueue, ahbm: AhbmNamespace) -> None:
        self.engine = queue.engine
        self.ahbm = ahbm
        self._queue = queue
        self._store = TensorStore(queue, lambda: cast(DeviceOperations, self.ops))  # every tensor is a Tensor
        self._default_dtype = F16
        self.random_state = RandomState()

    def set_default_dtype(self, d: DType | str) -> None:
        """The dtype of float tensors that are made without one."""
        dtype = dtype_of(d)
        if not dtype.is_float:
            raise UsageError(f"set_default_dtype({dtype})", hint="give a float dtype, e.g. torch.float32")
        self._default_dtype = dtype

    def get_default_dtype(self) -> DType:
        return self._default_dtype

    # ---- of one number

    def empty(self, *size: SizeArguments, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor without contents.

        `space` is the memory of each PE that holds a part: "hbm", its slice; "tcm", its TCM, of which kernels then have
        less; "sram", its cube's, which all PEs of the cube share;
        or "far", memory behind a link (`system.far_memory`), which all PEs of the SIP share. `layout` is what a
        composite's tile of the tensor is to HBM: "tiled", its bytes end to end, whatever the tile; or "row_major", a
        run of bytes for each of its rows, which pays for the bursts and granules it touches.
        """
        return self._create(_shape(size), self._dtype(dtype), None, **where)

    def zeros(self, *size: SizeArguments, dtype: Dtype = None, preset: bool = False, **where: Any) -> Tensor:
        """A tensor of zeros, written by the host. With `preset`, memory holds them before the program begins: nothing
        is written and no time passes.
        """
        if not preset:
            return self.full(_shape(size), 0, dtype=dtype, **where)
        tensor = self.empty(*size, dtype=dtype, **where)
        self._store.preset(tensor, lambda part: self.engine.values.full(part.local_shape, 0, tensor.element))
        return tensor

    def ones(self, *size: SizeArguments, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor of ones, written by the host."""
        return self.full(_shape(size), 1, dtype=dtype, **where)

    def full(self, size: SizeArguments, fill_value: float, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor of one number, written by the host."""
        element, values = self._dtype(dtype), self.engine.values

        def contents(part: ShardSpec) -> Value:
            return values.full(part.local_shape, fill_value, element)

        return self._create(_shape((size,)), element, contents, **where)

    def empty_like(self, input: Tensor, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor without contents, with the shape, dtype, placement and device of another."""
        return self.empty(input.shape, dtype=dtype or input.element, **_like(input, where))

    def zeros_like(self, input: Tensor, *, dtype: Dtype = None, **where: Any) -> Tensor:
        return self.full_like(input, 0, dtype=dtype, **where)

    def ones_like(self, input: Tensor, *, dtype: Dtype = None, **where: Any) -> Tensor:
        return self.full_like(input, 1, dtype=dtype, **where)

    def full_like(self, input: Tensor, fill_value: float, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor of one number, with the shape, dtype, placement and device of another."""
        return self.full(input.shape, fill_value, dtype=dtype or input.element, **_like(input, where))

    # ---- of the host's numbers

    def from_numpy(self, array: ArrayLike, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor with an array's contents, converted to `dtype` if that is given, written by the host.

        Raises DataError for numbers that an integer dtype cannot hold.
        """
        given = real_numbers(array, "from_numpy")
        element, values = dtype_of(given.dtype if dtype is None else dtype), self.engine.values
        held = as_elements(given, element, "from_numpy")
        placed = held if held.shape else held.reshape(1)
        shared: dict[int, Value] = {}  # replicas share one value, by offset

        def contents(part: ShardSpec) -> Value:
            if part.offset_bytes not in shared:
                shared[part.offset_bytes] = values.constant(placed[part.index], element)
            return shared[part.offset_bytes]

        return self._create(held.shape, element, contents, **where)

    def tensor(self, data: Any, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A tensor of numbers, nested lists or an array, written by the host. Python's floats have the default dtype,
        its integers i64. Of a tensor, a copy.
        """
        if isinstance(data, Tensor):
            return data.clone() if dtype is None else data.to(dtype, copy=True)
        return self.from_numpy(_array(data), dtype=dtype or self._dtype_of_numbers(data), **where)

    def as_tensor(self, data: Any, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """As `tensor`; of a tensor that has the dtype and device already, that tensor."""
        if isinstance(data, Tensor):
            moved: Tensor = data.to(dtype=dtype, device=where.get("device"))
            return moved
        return self.tensor(data, dtype=dtype, **where)

    def arange(
        self, start: float, end: float | None = None, step: float = 1, *, dtype: Dtype = None, **where: Any
    ) -> Tensor:
        """start, start + step, ... below end; with one number, from 0 on."""
        first, last = (0, start) if end is None else (start, end)
        if not step or any(isinstance(each, bool) or not isinstance(each, int | float) for each in (first, last, step)):
            raise UsageError(f"arange({first!r}, {last!r}, {step!r})", hint="give numbers, and a step that is not 0")
        whole = all(isinstance(each, int) for each in (first, last, step))
        element = I64 if dtype is None and whole else self._dtype(dtype)
        return self.from_numpy(np.arange(first, last, step), dtype=element, **where)

    def linspace(self, start: float, end: float, steps: int, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """`steps` numbers from start to end, at equal distances."""
        return self.from_numpy(np.linspace(start, end, steps), dtype=self._dtype(dtype), **where)

    def eye(self, n: int, m: int | None = None, *, dtype: Dtype = None, **where: Any) -> Tensor:
        """A matrix with ones on its diagonal and zeros elsewhere."""
        return self.from_numpy(np.eye(n, m), dtype=self._dtype(dtype), **where)

    def from_values(self, contents: Contents, size: Sequence[int], *, dtype: DType | str, **where: Any) -> Tensor:
        """A tensor of values of `engine.values`, written by the host: `contents(part)` is what a part holds."""
        return self._create(tuple(size), dtype_of(dtype), contents, **where)

    def preset(self, tensor: Tensor, contents: Contents) -> None:
        """Set the contents of a tensor's parts to `contents(part)` without simulating a write: no time passes. For data
        that is set up before the timed program.
        """
        self._store.check_ours(tensor)
        self._queue.wait_all()
        self._store.preset(tensor, contents)

    # ---- of random numbers, by a kernel

    def rand(
        self, *size: SizeArguments, dtype: Dtype = None, generator: Generator | None = None, **where: Any
    ) -> Tensor:
        """Numbers uniformly distributed over [0, 1)."""
        return self.empty(*size, dtype=dtype, **where).uniform_(generator=generator)

    def randn(
        self, *size: SizeArguments, dtype: Dtype = None, generator: Generator | None = None, **where: Any
    ) -> Tensor:
        """Normally distributed numbers: mean 0, standard deviation 1."""
        return self.empty(*size, dtype=dtype, **where).normal_(generator=generator)

    def rand_like(self, input: Tensor, *, dtype: Dtype = None, **where: Any) -> Tensor:
        return self.empty_like(input, dtype=dtype, **where).uniform_()

    def randn_like(self, input: Tensor, *, dtype: Dtype = None, **where: Any) -> Tensor:
        return self.empty_like(input, dtype=dtype, **where).normal_()

    def randint(
        self, low: int, *more: Any, dtype: Dtype = I64, generator: Generator | None = None, **where: Any
    ) -> Tensor:
        """Whole numbers of [low, high): `randint(high, size)` or `randint(low, high, size)`."""
        start, end, size = (0, low, more[0]) if len(more) == 1 else (low, *more)
        out = self.empty(size, dtype=dtype, **where)
        self.ops.randoms(out, "integers", self.ops.next_seed(generator), start, end)
        return out

    def randperm(self, n: int, *, generator: Generator | None = None, **where: Any) -> Tensor:
        """The numbers 0 to n - 1 in random order."""
        return self.rand(n, dtype="f32", generator=generator, **where).argsort()

    # ---- inside

    def unwritten(self, shape: Shape, dtype: DType, dp: DPPolicy, name: str, space: Space | None) -> Tensor:
        """The output of an operation, on the current device."""
        return self._store.create(shape, dtype, dp, self.ahbm.current_device(), name, None, space, wait=False)

    def _dtype(self, dtype: Dtype) -> DType:
        return self._default_dtype if dtype is None else dtype_of(dtype)

    def _dtype_of_numbers(self, data: Any) -> DType | None:
        """The dtype of Python's numbers; None for an array, which has its own."""
        if isinstance(data, np.ndarray | np.generic):
            return None
        kind = _array(data).dtype.kind
        return {"f": self._default_dtype, "i": I64, "u": I64, "b": BOOL}.get(kind)

    def _create(
        self,
        shape: Shape,
        element: DType,
        contents: Contents | None,
        *,
        dp: DPPolicy | None = None,
        name: str | None = None,
        space: Space | None = None,
        device: object = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
        layout: object = None,
        memory_format: object = None,
    ) -> Tensor:
        """`pin_memory` and `memory_format` are accepted for compatibility: they mean nothing here."""
        check_no_grad(requires_grad)
        if dp is not None and not isinstance(dp, DPPolicy):
            raise UsageError(f"dp is {dp!r}", hint="give a DPPolicy, or leave it out for one PE")
        sip = sip_of(self.ahbm, device)
        return self._store.create(shape, element, dp or ONE_PE, sip, name, contents, space, layout=layout)


def _like(input: Tensor, where: dict[str, Any]) -> dict[str, Any]:
    """Where a tensor like another lies."""
    space = input.space if input.space == "sram" else None
    layout = input.storage.tile_layout if input.storage.tile_layout != TILED else None
    return {"dp": input.dp, "device": input.device, "space": space, "layout": layout, **where}


def _array(data: Any) -> Any:
    """Numbers as an array; tensors among them count by their contents."""
    if isinstance(data, list | tuple):
        return np.asarray([_array(each) for each in data]) if data else np.zeros(0)
    return np.asarray(data)


def _shape(size: tuple[SizeArguments, ...]) -> Shape:
    """`(4, 8)` and `((4, 8),)` alike."""
    sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    return tuple(int(n) if isinstance(n, np.integer) else n for n in sizes)  # type: ignore[misc]  # placement checks
