"""How an operation of the host becomes a launch: which PEs compute what of its output, in which order with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernbench.common.array_types import Shape
from kernbench.common.commands import Space
from kernbench.common.dtypes import DType
from kernbench.common.errors import CapacityError, TensorError, UsageError
from kernbench.policy.placement.dp import Box, DPPolicy
from kernbench.runtime_api import op_kernels as kernels
from kernbench.runtime_api.host_line import host_call
from kernbench.runtime_api.op_host import OpHost
from kernbench.runtime_api.op_kernels import OperandLayout, OpPlan, Share
from kernbench.runtime_api.op_order import OpOrder
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.runtime_api.tensor_views import TensorViews
from kernbench.triton_emu.registry import Kernel

ONE_PE = DPPolicy(num_cubes=1, num_pes=1)
WIDE_BYTES = 8  # of an element in TCM at most


class OpLauncher:
    """Launches kernels on the PEs that hold their outputs."""

    def __init__(self, torch: OpHost) -> None:
        self._torch = torch
        self.order = OpOrder(torch)

    def check(self) -> None:
        """Raise LaunchError for an operation that has failed."""
        self.order.check()

    def _launch(
        self,
        name: str,
        kernel: Kernel,
        plan: OpPlan,
        outputs: Sequence[TensorViews],
        inputs: Sequence[object],
        *,
        whole: bool = True,
    ) -> None:
        """Launch a kernel on the PEs that have a share; nothing waits for it."""
        if not outputs[0].numel():
            return
        tensors = [each for each in (*outputs, *inputs) if isinstance(each, TensorViews)]
        for each in tensors:
            self._torch.check_ours(each)
            if each.storage.is_split and each.allocation.va_base is None and not plan.is_local:
                raise UsageError(
                    f"{name}: with physical addresses a PE does not reach all of {each.title}",
                    where="system.address_model",
                    hint="place all operands alike, or set system.address_model to va",
                )
        sip = outputs[0].allocation.sip
        cubes = tuple(sorted({cube for cube, _, _ in plan.shares}))
        pes = tuple(sorted({pe for _, pe, _ in plan.shares}))
        where = (sip, cubes, pes)
        self.order.before(outputs, tensors, where, is_local=plan.is_local)
        args = [each.whole() if whole and isinstance(each, TensorViews) else each for each in (*outputs, *inputs)]
        bound = kernels.kernel_for(kernel, plan)
        launch = self._torch.launch_op(name, bound, args, sip, cubes, pes)
        launch.called_at, launch.is_tensor_op = host_call(), True
        self.order.launched(launch, outputs, tensors, where, is_local=plan.is_local)

    def _shares(self, out: TensorViews) -> tuple[Share, ...]:
        """What each PE computes of an output: what it holds, where that is a box; else few PEs compute all of it."""
        storage = out.storage
        full: Box = tuple((0, n) for n in out.shape or (1,))
        if storage.dp.cube == "interleave":  # a PE has several parts
            return self._writers(out)
        if not storage.is_split:
            return tuple((part.cube, part.pe, full) for part in storage.whole.placement)
        try:
            return tuple((part.cube, part.pe, part.box or full) for part in out.placement)
        except TensorError:
            return self._writers(out)

    def _writers(self, out: TensorViews) -> tuple[Share, ...]:
        """PEs that together reach every replica of every element: each computes all of the output."""
        storage, full = out.storage, tuple((0, n) for n in out.shape or (1,))
        parts, (over_cubes, over_pes) = storage.whole.placement, storage.dp.split_by(len(storage.shape))
        cubes = [part.cube for part in parts] if over_cubes is None else [parts[0].cube]
        pes = [part.pe for part in parts] if over_pes is None else [parts[0].pe]
        return tuple(
            (part.cube, part.pe, full) for part in parts if part.cube in cubes and part.pe in pes
        )  # fmt: skip

    def _like(
        self,
        tensors: Sequence[TensorViews],
        shape: Shape,
        dtype: DType,
        name: str,
        sip: int,
        dp: DPPolicy | None = None,
    ) -> Tensor:
        """A new tensor, placed as the operand of its shape is, or else as the largest is."""
        same = [each for each in tensors if each.shape == shape]
        model = (same or sorted(tensors, key=lambda each: -each.numel()))[0]
        wanted = dp or model.dp
        if wanted.starts is not None and shape != model.shape:
            wanted = replace(wanted, starts=None)  # they are rows of another shape
        space = model.space if model.space == "sram" else None
        return self._empty(shape, dtype, wanted, name, sip, space)

    def _empty(
        self, shape: Shape, dtype: DType, dp: DPPolicy, name: str, sip: int, space: Space | None = None
    ) -> Tensor:
        """A new tensor; one that is too small for tiles is placed by rows."""
        with self._torch.ahbm.device(sip):
            try:
                return self._torch.unwritten(shape, dtype, dp, name, space)
            except UsageError:
                cube, pe = ("row_wise" if each.startswith("tiled") else each for each in (dp.cube, dp.pe))
                if (cube, pe) == (dp.cube, dp.pe):
                    raise
                rows = replace(dp, cube=cube, pe=pe)
                return self._torch.unwritten(shape, dtype, rows, name, space)

    def _same_device(self, name: str, tensors: Sequence[TensorViews]) -> int:
        first = tensors[0]
        for other in tensors[1:]:
            if other.allocation.sip != first.allocation.sip:
                raise TensorError(
                    f"{name}: expected all tensors to be on the same device, found {first.title} on {first.device} and "
                    f"{other.title} on {other.device}",
                    hint="copy one of them: x.to(device)",
                )
        return first.allocation.sip

    def _tcm(self, sip: int) -> int:
        """Bytes of TCM that a kernel may use on every PE of a SIP; half of what is left, for tensors that are there."""
        spec = self._torch.engine.graph.spec
        left = spec.least_of_cubes(
            lambda cube: cube.tcm_allocatable_bytes
        ) - self._torch.engine.communication_tcm_bytes(sip)
        if left < 4096:
            raise CapacityError(
                f"{left} bytes of a PE's TCM are left for kernels",
                where="cube.memory_map.tcm_mb_per_pe",
                hint="lower cube.memory_map.tcm_scheduler_reserved_mb, or make the TCM larger",
            )
        return left // 2

    def _block(self, sip: int, copies: int) -> int:
        """Elements at a time, with that many copies of them in TCM."""
        return max(1, self._tcm(sip) // (WIDE_BYTES * copies))


def site_of(x: TensorBase, shape: Shape) -> OperandLayout:
    """Where the elements of x lie for an output of this shape."""
    if not shape:
        return OperandLayout(x.layout.offset, (1,))
    return OperandLayout(x.layout.offset, x.layout.expanded(shape).strides)
