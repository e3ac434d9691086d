"""The placement of a rank's tensors on its SIP: over which cubes and PEs they are split, and how.

Activations are split by rows: their address range is then the plain row-major matrix, which every PE can read; norms
and additions find whole rows in the PE's own memory; and every collective supports them. Weights are split by columns,
so that each PE has the weights of its outputs in its own HBM slice. They are split over as many cubes as the weight is
large enough for, since a PE with few columns would read all activations for little work, and write its outputs in small
pieces. Short tensors that every PE needs (gains, biases that are added to rows) are replicated.

Not supported: activations split by columns. With fewer rows than PEs, some PEs hold no activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy, Split
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor

ENOUGH_COLUMNS = 32  # of a weight per PE: those of the native tile
ENOUGH_BYTES = 64 * 1024  # or bytes of a weight per PE: 256 ns of a PE's link


@dataclass(frozen=True, slots=True)
class Grid:
    """The cubes and PEs of a SIP that a rank's layers use: the first `cubes`, and in each the first `pes`."""

    cubes: int
    pes: int

    @classmethod
    def of(cls, torch: RuntimeContext, cubes: int | None = None, pes: int | None = None) -> Grid:
        """All of a SIP, or part of it; raises UsageError for more than it has and for physical addresses."""
        spec = torch.spec
        if spec.system.address_model == "pa":
            raise UsageError(
                "parallel layers need virtual or logical addresses: their PEs read blocks that span parts of a tensor",
                where="system.address_model",
                hint="set system.address_model to va",
            )
        counts = []
        for what, asked, there in (("cubes", cubes, spec.sip.n_cubes), ("pes", pes, spec.cube.n_pes)):
            if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= there):
                raise UsageError(f"{what} is {asked!r}", hint=f"give 1 to {there}, or leave it out for all")
            counts.append(there if asked is None else asked)
        return cls(*counts)

    @property
    def size(self) -> int:
        return self.cubes * self.pes

    @classmethod
    def holding(cls, weight: Tensor) -> Grid:
        """The part of a grid that `for_weight` has chosen for a weight."""
        assert weight.dp.num_cubes is not None
        assert weight.dp.num_pes is not None
        return cls(weight.dp.num_cubes, weight.dp.num_pes)

    def for_weight(self, inputs: int, outputs: int, dtype: str) -> Grid:
        """The part of the grid with as many cubes as a weight is large enough for."""
        nbytes = inputs * outputs * dtype_of(dtype).itemsize
        pes = max(outputs // ENOUGH_COLUMNS, nbytes // ENOUGH_BYTES)
        return Grid(max(1, min(self.cubes, -(-pes // self.pes))), self.pes)

    @property
    def rows(self) -> DPPolicy:
        """The placement of activations."""
        return self._split("row_wise")

    @property
    def columns(self) -> DPPolicy:
        """The placement of weights."""
        return self._split("column_wise")

    @property
    def everywhere(self) -> DPPolicy:
        """The placement of replicated tensors."""
        return self._split("replicate")

    def _split(self, split: Split) -> DPPolicy:
        return DPPolicy(cube=split, pe=split, num_cubes=self.cubes, num_pes=self.pes)

    def launch(self, torch: RuntimeContext, name: str, kernel: object, *args: object, **named: object) -> Launch:
        """Run a kernel on every PE of the grid, wherever its tensors lie: program ids are then
        positions in the grid.
        """
        where: dict[str, object] = {"target_cubes": range(self.cubes), "target_pes": range(self.pes)}
        return torch.launch(name, kernel, *args, **where, **named)  # type: ignore[arg-type]  # no name is `wait`


def check_activation(torch: RuntimeContext, x: object, features: int | None, what: str) -> Tensor:
    """Raise UsageError unless x is a (tokens, features) matrix on this rank's SIP with contiguous rows."""
    if not isinstance(x, Tensor):
        raise UsageError(f"{what}: got a {type(x).__name__}", hint="give a tensor of this context")
    if x.ndim != 2 or (features is not None and x.shape[1] != features):
        wants = "any number" if features is None else str(features)
        raise UsageError(f"{what}: got a tensor of shape {x.shape}", hint=f"give (tokens, features), features: {wants}")
    if 1 in x.dp.split_axes(x.ndim):
        raise UsageError(
            f"{what}: the columns of '{x.name}' are split over PEs, so its rows do not lie end to end",
            hint="place it by rows: dp=Grid.of(torch).rows",
        )
    check_device(torch, x, what)
    return x


def check_device(torch: RuntimeContext, x: Tensor, what: str) -> None:
    """Raise UsageError for a tensor of another SIP than the calling rank's."""
    here = torch.ahbm.current_device()
    if x.allocation.sip != here:
        raise UsageError(
            f"{what}: '{x.name}' is on SIP {x.allocation.sip}, this rank works on SIP {here}",
            hint="call torch.ahbm.set_device(rank) before tensors and layers are made",
        )
