"""The part of the context that operations on tensors need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import ArrayLike

from kernbench.common.array_types import Shape
from kernbench.common.commands import Space
from kernbench.common.dtypes import DType
from kernbench.common.messages import Completion
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.device import AhbmNamespace
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.random_state import RandomState
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.sim_engine.engine import GraphEngine
from kernbench.triton_emu.registry import Kernel


class OpHost(Protocol):
    """Makes tensors, launches kernels, and waits for them."""

    engine: GraphEngine
    ahbm: AhbmNamespace
    random_state: RandomState

    def get_default_dtype(self) -> DType:
        """The dtype of float tensors that are made without one."""

    def unwritten(self, shape: Shape, dtype: DType, dp: DPPolicy, name: str, space: Space | None) -> Tensor:
        """The output of an operation, on the current device; nothing waits for its mapping."""

    def full(self, size: Shape, fill_value: float, **where: Any) -> Tensor:
        """A tensor of one number, written by the host."""

    def from_numpy(self, array: ArrayLike, **where: Any) -> Tensor:
        """A tensor with an array's contents, written by the host."""

    def check_ours(self, tensor: TensorBase) -> None:
        """Raise UsageError for a tensor of another context, or after closing."""

    def launch_op(
        self, name: str, kernel: Kernel, args: Sequence[object], sip: int, cubes: Sequence[int], pes: Sequence[int]
    ) -> Launch:
        """Launch a kernel of the host's own, without waiting for it."""

    def launches_on(self, tensors: Sequence[TensorBase]) -> list[Launch]:
        """Running launches of this program that use one of these tensors."""

    def wait(self, what: Launch) -> Completion:
        """Return when a launch is done; raises LaunchError for one that failed."""
