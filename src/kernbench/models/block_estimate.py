"""The time of a product by blocks in closed form (`block_plans.py`): whether PEs read their chunks or pass them on."""

from __future__ import annotations

from kernbench.models.block_plans import PASSING_RINGS, PASSING_SLOTS, BlocksPlan
from kernbench.models.machine_model import EVEN_SHARE, LAUNCH_NS, MachineModel
from kernbench.models.product_size import ProductSize

FAR_EXTRA = 0.5  # of bytes from other cubes: they share links too
STEP_NS = 20.0  # for the commands of a chunk, which PE_CPU and the scheduler pass on
OVERLAP_POWER = 8.0


def blocks_ns(machine: MachineModel, plan: BlocksPlan, size: ProductSize) -> dict[str, float]:
    """A PE's blocks, one after the other, and the copy of the rows if they come by rows. A plan's columns are those of
    all weights together.
    """
    item, chunks = size.itemsize, plan.chunk_count
    own_rows = -(-size.rows // plan.groups // plan.row_parts)
    own_columns = -(-size.n // plan.column_parts)
    blocks = -(-own_rows // plan.block_rows) * -(-own_columns // max(1, plan.block_columns // size.weights))
    rows, columns, k = plan.block_rows, plan.block_columns, -(-size.k // chunks)
    x_bytes, w_bytes = rows * k * item, columns * k * item
    strips = min(plan.strips, rows)  # of which each is a product, for each of the weights
    dot_ns = machine.engines.product.product_ns
    compute = strips * size.weights * dot_ns(-(-rows // strips), k, -(-columns // size.weights), size.dtype)
    moves = _passing_ns if plan.passes else _reading_ns
    step = overlapped_ns(compute, *moves(machine, plan, size, x_bytes, w_bytes)) + STEP_NS
    first = step  # until the first chunks are there
    if plan.passes:
        first = _first_reads_ns(machine, plan, x_bytes, w_bytes)
        step += max(0.0, first - plan.ahead * step) / plan.round
    finish = rows * columns / size.weights * (1 + size.weights) / machine.lanes
    spread = 0.0
    if size.x_by == "rows":
        spread = 4 * size.rows * size.k * item / machine.sip.size / machine.hbm + LAUNCH_NS
        spread += chunks * machine.far_latency_ns(plan.cubes_per_group) / machine.places  # a row lies in as many pieces
    return {"copies": spread, "product": blocks * (chunks * step + finish) + first, "launches": LAUNCH_NS}


def overlapped_ns(*times: float) -> float:
    """The time of work that proceeds at once on several resources: the longest, and more where others are nearly as
    busy, since each has gaps when another one is late. Never less if one of them takes longer.
    """
    longest = max(times)
    return longest * sum((each / longest) ** OVERLAP_POWER for each in times) ** (1 / OVERLAP_POWER) if longest else 0.0


def _far_ns(machine: MachineModel, plan: BlocksPlan, x_bytes: float, w_bytes: float) -> tuple[float, float]:
    """Bytes of a chunk that come from other cubes of the group, and how long the links of a cube take for all of its
    PEs', which read one by one and not evenly.
    """
    cubes = plan.cubes_per_group
    far_bytes = (x_bytes + (w_bytes if plan.row_parts > machine.sip.pes else 0)) * (1 - 1 / cubes)
    return far_bytes, machine.sip.pes * far_bytes / machine.team_link(cubes)


def _reading_ns(
    machine: MachineModel, plan: BlocksPlan, size: ProductSize, x_bytes: float, w_bytes: float
) -> tuple[float, ...]:
    """Moving a chunk of x and of the weights to every PE, each of which reads its own: times of each resource."""
    x_turns, w_turns = (max(1.0, parts / plan.chunk_count) for parts in (plan.column_parts, plan.row_parts))
    far_bytes, link = _far_ns(machine, plan, x_bytes, w_bytes)
    hbm = (x_bytes * x_turns + w_bytes * w_turns + FAR_EXTRA * far_bytes) / machine.hbm / EVEN_SHARE
    return hbm, machine.load_ns(1 + size.weights, x_bytes + w_bytes), link


def _passing_ns(
    machine: MachineModel, plan: BlocksPlan, size: ProductSize, x_bytes: float, w_bytes: float
) -> tuple[float, ...]:
    """Moving a chunk of x and of the weights from neighbour to neighbour, while others are multiplied; PEs take turns
    at reading.
    """
    far_bytes, far = _far_ns(machine, plan, x_bytes, w_bytes)
    x_read, w_read = x_bytes / plan.columns_in_cube, w_bytes / plan.rows_in_cube
    read = x_read + w_read
    hbm = (read + FAR_EXTRA * far_bytes / plan.columns_in_cube) / machine.hbm / EVEN_SHARE
    one = (machine.far_latency_ns(plan.cubes_per_group) + read / min(machine.hbm, machine.port)) / plan.ahead
    ring = machine.message_gbs(PASSING_RINGS, PASSING_SLOTS)
    moved = max((x_bytes + w_bytes) / min(machine.port, machine.slot), max(x_bytes, w_bytes) / ring)
    crowded = machine.crowded_ns(plan.rows_in_cube, x_bytes, w_bytes)
    loads = machine.load_ns(1 / plan.columns_in_cube + size.weights / plan.rows_in_cube, read)
    return hbm, max(one, loads, machine.message_ns + moved, crowded), far / plan.columns_in_cube


def _first_reads_ns(machine: MachineModel, plan: BlocksPlan, x_bytes: float, w_bytes: float) -> float:
    """At the start of a round all PEs read a chunk of x and of the weights at once. Cubes of a grid row, or column,
    have different rounds, as far as there are any, and so do not read from one memory.
    """
    _, link = _far_ns(machine, plan, x_bytes, w_bytes)
    x_turns, w_turns = (
        -(-count // plan.round_count)
        for count in (plan.column_parts // plan.columns_in_cube, plan.row_parts // plan.rows_in_cube)
    )
    nbytes = x_turns * x_bytes + w_turns * w_bytes
    return machine.far_latency_ns(plan.cubes_per_group) + max(nbytes / min(machine.hbm, machine.port), link)
