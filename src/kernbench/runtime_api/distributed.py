"""`torch.distributed`: collectives, messages, objects and groups of ranks, with PyTorch's calls and PyTorch's meaning.

The parts, each built on the one before: groups (`groups.py`), collectives of tensors and messages (`collectives.py`),
lists of different sizes (`list_collectives.py`), objects (`object_collectives.py`); and `torch.distributed.tensor`
(`dtensor_api.py`).

Not modelled: other backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from kernbench.ccl.calls import ReduceOp
from kernbench.runtime_api.device_mesh import DeviceMesh
from kernbench.runtime_api.dtensor_api import TensorNamespace
from kernbench.runtime_api.list_collectives import P2POp
from kernbench.runtime_api.not_modelled import NAMES, refuse_name
from kernbench.runtime_api.object_collectives import ObjectCollectives
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.work import Work

__all__ = ["DistributedContext", "ProcessGroup", "ReduceOp", "Work"]


class _Types:
    """Types by their names in `torch.distributed`."""

    ReduceOp = ReduceOp
    ProcessGroup = ProcessGroup
    Work = Work
    P2POp = P2POp


class DistributedContext(ObjectCollectives, _Types):
    """`torch.distributed`."""

    @cached_property
    def tensor(self) -> TensorNamespace:
        """`torch.distributed.tensor`."""
        return TensorNamespace(self._host, self._host.spec.sip.n_cubes)

    @property
    def device_mesh(self) -> TensorNamespace:
        """`torch.distributed.device_mesh`, of which the names are in `torch.distributed.tensor`."""
        return self.tensor

    def init_device_mesh(
        self, device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
    ) -> DeviceMesh:
        """A mesh of the world's ranks, in row-major order."""
        return self.tensor.init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names the replacement of a PyTorch function that is not modelled."""
            refuse_name("torch.distributed", name, NAMES.get(name), dir(type(self)))
