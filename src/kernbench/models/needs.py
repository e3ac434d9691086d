"""What the parts of a layer need of a machine: multiplications, lanes and bytes, for their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernbench.models.bounds import F32_LANES, SOFTMAX_PASSES, Need
from kernbench.models.mapping import ProductPlan, SplitKPlan
from kernbench.models.plans import ColumnsPlan, Job, SipShape
from kernbench.models.quantised import QuantisedForm
from kernbench.policy.placement.dp import parts_of


def product_needs(
    plan: ProductPlan, jobs: Sequence[Job], weights: int, item: int, form: QuantisedForm | None = None
) -> tuple[Need, Need]:
    """The machine's: the weights of every expert that has rows once; if they are quantised, widened, and their scales
    multiplied with sums. The mapping's: once for every group of cubes that has rows of that expert.
    """
    rows = sum(job.rows for job in jobs)
    groups = [(0, plan.rows)] if isinstance(plan, SplitKPlan) else plan.group_rows
    readers = sum(job.first < end and first < job.first + job.rows for job in jobs for first, end in groups)
    each = plan.k * plan.n * item if form is None else form.weight_bytes(plan.k, plan.n)
    of_weights, of_rows, experts = weights * each, rows * plan.k * item, len({job.expert for job in jobs})
    lanes = 0.0
    if form is not None:  # elements of two bytes are widened, and each row's sums of a group, in f32, get their scales
        lanes = weights * plan.k * plan.n * (form.passes * experts * F32_LANES + rows / form.group)
    need = Need(
        macs=rows * plan.k * plan.n * weights,
        lanes=lanes,
        read_bytes=experts * of_weights + of_rows,
        written_bytes=rows * plan.n * item,
    )
    return need, replace(need, read_bytes=readers * of_weights + of_rows)


def spread_need(plan: ColumnsPlan, item: int, *, from_rows: bool) -> Need:
    """The work of copying a product's input: from rows, every PE gets its part; otherwise only
    other cubes get copies.
    """
    row_bytes, cubes = plan.k * item, plan.cubes_per_group
    corners = zip(_corners(plan.sip), corner_rows(plan.sip, plan.rows), strict=True)
    received = max(end - first - own for (first, end), own in ((plan.rows_of(cube), own) for cube, own in corners))
    copies = plan.column_parts * (cubes if from_rows else cubes - 1)
    copied = copies * plan.rows * row_bytes
    return Need(cube_bytes=received * row_bytes, read_bytes=copied, written_bytes=copied)


def _corners(sip: SipShape) -> list[int]:
    """The cubes at the corners of the mesh, which have the fewest links."""
    return [0, sip.mesh_w - 1, sip.cubes - sip.mesh_w, sip.cubes - 1]


def corner_rows(sip: SipShape, rows: int) -> list[int]:
    """How many of the rows of a matrix lie in each of those."""
    parts = parts_of(rows, sip.cubes)
    return [parts[cube][1] - parts[cube][0] for cube in _corners(sip)]


def attention_need(scores: int, head_dim: int, read: int, written: int) -> Need:
    macs, lanes = 2 * scores * head_dim, SOFTMAX_PASSES * scores
    return Need(macs=macs, lanes=lanes, read_bytes=read, written_bytes=written)
