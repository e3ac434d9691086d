"""Makes single tensors of a decoder layer on one SIP: a rank's share of heads and columns, its part of every weight,
and the placement of activations and inputs. `LayerTensors` (`tensors.py`) makes all tensors of a layer with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.commands import Space
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.models.layer_job import LayerJob
from kernbench.models.numbers import by_expert, cut, parts_by_box
from kernbench.models.plans import SipShape
from kernbench.models.quantised import weight_forms
from kernbench.models.shapes import rows_of_weights
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_store import Contents
from kernbench.tp.launches import tcm_budget
from kernbench.tp.mappings import divide
from kernbench.tp.parallel_state import ParallelGroup
from kernbench.tp.placement import Grid
from kernbench.values.graph import Value

PIECE_BYTES = 1024  # the least size of a piece of a row that is spread over slices


def sip_shape(torch: RuntimeContext) -> SipShape:
    """The shape of this machine's SIPs, for a mapping."""
    mesh = torch.spec.sip.cube_mesh
    return SipShape(mesh.w, mesh.h, torch.spec.cube.n_pes, tcm_budget(torch))


class TensorMaker:
    """One rank's share of a layer, and tensors for it."""

    def __init__(self, torch: RuntimeContext, group: ParallelGroup, job: LayerJob) -> None:
        self.torch, self.group, self.job = torch, group, job
        self.values = torch.engine.values
        self.grid = Grid.of(torch)
        self.sip = sip_shape(torch)
        self.item = dtype_of(job.dtype).itemsize
        m, size = job.model, group.size
        self.heads = divide(m.heads, size, f"{m.name}: heads")
        if m.kv_heads % size and size % m.kv_heads:
            raise UsageError(f"{m.name}: {m.kv_heads} key heads over {size} ranks", hint="use another tp")
        self.kv_heads = max(1, m.kv_heads // size)
        self.first_kv_head = group.rank * m.kv_heads // size
        self.ffn = divide(m.ffn, size, f"{m.name}: ffn")
        self.own_rows = divide(job.rows, size, "tokens") if job.sequence_parallel else job.rows
        self.forms = weight_forms(job.weight_type, rows_of_weights(m, size), self.sip.pes)
        self._preset: list[tuple[Tensor, Contents]] = []

    # ---- placement

    @property
    def is_split(self) -> bool:
        return self.job.sequence_parallel and self.group.size > 1

    def _empty(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str | None = None,
        dp: DPPolicy | None = None,
        space: Space | None = None,
    ) -> Tensor:
        given = dtype or self.job.dtype
        return self.torch.empty(*shape, dtype=given, dp=dp or self.grid.rows, name=name, space=space)

    def _blank(
        self, name: str, shape: Sequence[int], dtype: str | None = None, dp: DPPolicy | None = None,
        space: Space | None = None,
    ) -> Tensor:  # fmt: skip
        """An input without contents: preset zeros."""
        given = dtype or self.job.dtype
        return self.torch.zeros(*shape, dtype=given, dp=dp or self.grid.rows, name=name, preset=True, space=space)

    def _held(
        self,
        name: str,
        contents: Contents | None,
        shape: Sequence[int],
        dp: DPPolicy | None = None,
        dtype: str | None = None,
        space: Space | None = None,
    ) -> Tensor:
        """An input of the layer, with contents or without."""
        if contents is None or self.job.preset:
            tensor = self._blank(name, shape, dtype, dp, space)
            if contents is not None:
                self._preset.append((tensor, contents))
            return tensor
        given = dtype or self.job.dtype
        return self.torch.from_values(contents, shape, dtype=given, dp=dp or self.grid.rows, name=name, space=space)

    def _parts(self, whole: Value | None) -> Contents | None:
        return None if whole is None else parts_by_box(self.values, whole)

    def _rows(self, name: str, rows: int, columns: int) -> Tensor:
        return self._empty(name, (rows, columns))

    def _shared_rows(self, name: str, rows: int, columns: int) -> Tensor:
        """A row-major matrix that all PEs read. Few rows would lie in so few slices that PEs wait for each
        other: such rows are spread over slices piece by piece, and kernels know them by address and width.
        """
        pieces = self._pieces_of(rows, columns)
        return self._empty(name, (rows * pieces, columns // pieces))

    def _pieces_of(self, rows: int, columns: int) -> int:
        """The number of pieces over which a row is spread."""
        if rows >= self.sip.cubes:
            return 1
        most = min(self.sip.size // rows, columns * self.item // PIECE_BYTES)
        return next(count for count in range(max(most, 1), 0, -1) if columns % count == 0)

    # ---- weights

    def _whole(self, name: str) -> Value | None:
        return None if self.job.weights is None else self.job.weights[name]

    def _qkv_weights(self, name: str) -> Value | None:
        """This rank's columns: at prefill as `ByHead` has them; else of all query heads, key heads, value heads."""
        whole, m = self._whole(name), self.job.model
        if whole is None:
            return None
        query, key, count = self.group.rank * self.heads, m.heads + self.first_kv_head, self.kv_heads
        starts = [(query, self.heads), (key, count), (key + m.kv_heads, count)]
        if self.job.phase == "prefill":
            shared = self.heads // count
            starts = [
                each
                for head in range(count)
                for each in ((query + head * shared, shared), (key + head, 1), (key + m.kv_heads + head, 1))
            ]
        heads = [(first * m.head_dim, (first + count) * m.head_dim) for first, count in starts]
        return cut(self.values, by_expert(self.values, whole), 2, heads)

    def _own(self, name: str, axis: int) -> Value | None:
        """This rank's rows (axis 1) or columns (2) of a weight (K, N) or of one for each expert."""
        whole = self._whole(name)
        if whole is None:
            return None
        whole = by_expert(self.values, whole)
        size = whole.shape[axis] // self.group.size
        return cut(self.values, whole, axis, [(self.group.rank * size, (self.group.rank + 1) * size)])
