"""What collectives need of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from numpy.typing import ArrayLike

from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import MachineSpec


class CollectiveHost(Protocol):
    """The part of the context that collectives need."""

    @property
    def spec(self) -> MachineSpec:
        """The machine's checked description."""

    def empty(self, *size: int, dtype: str, name: str) -> Tensor:
        """A tensor without contents, on the caller's device."""

    def from_numpy(self, array: ArrayLike, *, name: str) -> Tensor:
        """A tensor with an array's contents, on the caller's device."""

    def wait(self, what: Launch) -> object:
        """Return when a launch is done; raises LaunchError for one that failed."""

    def wait_all(self) -> None:
        """Return when everything that the calling program issued is done."""

    def wait_for_users(self, tensors: Sequence[Tensor]) -> None:
        """Return when no running launch of the calling program uses one of these tensors."""

    def check_ours(self, tensor: Tensor) -> None:
        """Raise UsageError for a tensor of another context."""
