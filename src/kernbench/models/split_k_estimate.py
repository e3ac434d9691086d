"""The time of a product with K over the PEs of a cube in closed form (`split_k.py`), and how many rounds it takes.

In one round all weights are streamed, then the sums of all are joined and reduced. In several, one for each weight and
block of columns, a stream proceeds while the sums of the round before are reduced. So more rounds hide more of the
reduction, and each has a stream that is shorter, and messages of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from kernbench.models.bounds import F32_LANES
from kernbench.models.machine_model import LAUNCH_NS, MachineModel
from kernbench.models.mapping import SplitKPlan
from kernbench.models.plans import F32_BYTES
from kernbench.models.quantised import WeightName, form_of_weight

MOST_BLOCKS = 8
ALIKE = 0.01  # of a time
LEAST_COLUMNS = 32  # of a block: less is latency
SLOTS, LEAST_SLOT = 2, 256  # of a ring of sums; bytes of a slot


class WeightsSize(Protocol):
    """What counts of a product's size besides its plan."""

    @property
    def weights(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def weight_type(self) -> WeightName: ...


def fastest_rounds(machine: MachineModel, plan: SplitKPlan, size: WeightsSize) -> SplitKPlan:
    """A plan in the number of rounds that takes least: the plan as it is, or rounds of one weight each and 1, 2 or more
    blocks of columns; of those within `ALIKE` of the least the fewest rounds. What a smaller TCM forces is among them,
    so that more TCM is not slower by this estimate.
    """
    most = min(MOST_BLOCKS, -(-plan.n // plan.sip.cubes) // LEAST_COLUMNS)
    found = [plan, *(replace(plan, blocks=blocks) for blocks in range(1 + (size.weights == 1), most + 1))]
    times = [sum(split_k_ns(machine, each, size).values()) for each in found]
    return next(each for each, ns in zip(found, times, strict=True) if ns <= (1 + ALIKE) * min(times))


def split_k_ns(machine: MachineModel, plan: SplitKPlan, size: WeightsSize) -> dict[str, float]:
    """The time of a product, in ns by cause. `product` has what is reduced while weights are streamed."""
    found = plan.for_weights(size.weights, size.itemsize)
    columns, item = -(-plan.n // plan.sip.cubes), size.itemsize
    joined = size.weights if plan.joins_sums(size.weights, item) else 1  # weights of a round
    blocks = -(-columns // found.block_columns)
    rounds = blocks * size.weights // joined
    experts = min(size.experts, plan.rows)
    depth, sums = -(-plan.k // plan.sip.pes), plan.rows * found.block_columns * joined
    one = _stream_ns(machine, plan, size, -(-plan.rows // experts), found.block_columns)
    stream = joined * experts * one
    reduced = _reduction_ns(machine, plan, sums) + sums / machine.lanes * ((joined > 1) + (experts > 1))
    results = plan.rows * columns * plan.final_share / blocks  # elements of a block, of a leading PE
    finish = results * (2 * size.weights - 1) / machine.lanes  # activation, factor, cast
    streamed = stream + (rounds - 1) * max(stream, reduced + finish * blocks / rounds)
    rows_bytes = plan.rows * depth * item
    rows = machine.latency_ns + max(rows_bytes / min(machine.hbm, machine.port), _far_rows_ns(machine, plan, item))
    copies = plan.rows * plan.k * item / machine.cube_link + LAUNCH_NS if plan.is_relayed else 0.0
    stored = results * item / min(machine.hbm, machine.port) + machine.latency_ns
    return {
        "copies": copies + rows,
        "product": streamed,
        "results": reduced + finish + stored,
        "launches": LAUNCH_NS,
    }


def _stream_ns(machine: MachineModel, plan: SplitKPlan, size: WeightsSize, rows: int, columns: int) -> float:
    """A PE's rows by so many columns of one weight: quantised ones are widened by the engine that then multiplies."""
    depth, form = -(-plan.k // plan.sip.pes), form_of_weight(size.weight_type, "weights", plan.k, plan.sip.pes)
    if form is None:
        one = machine.stream_ns(rows, depth, columns, size.dtype, "f32", x_in_tcm=True)
        return max(one, depth * columns * size.itemsize / machine.hbm)
    sums = rows * columns * depth / form.group  # that are multiplied by scales
    widened = form.passes * depth * columns * F32_LANES
    compute = rows * depth * columns / machine.macs + (widened + sums) / machine.lanes
    return max(compute, form.weight_bytes(depth, columns) / machine.hbm)


def _far_rows_ns(machine: MachineModel, plan: SplitKPlan, itemsize: int) -> float:
    """Rows that all cubes read from those that have them; relayed ones lie in the PE's own slice."""
    cubes = plan.sip.cubes
    if plan.is_relayed or cubes == 1:
        return 0.0
    return plan.rows * plan.k * itemsize * (1 - 1 / cubes) / machine.team_link(cubes)


def _reduction_ns(machine: MachineModel, plan: SplitKPlan, sums: float) -> float:
    """A reduction of so many sums of a PE: messages and additions, one stage after the other."""
    rings = max(1, sum(count - 1 for _, count in plan.stages))
    slot = max(machine.ring_bytes // (SLOTS * rings + 1), LEAST_SLOT)
    slot = 1 << slot.bit_length() - 1
    ring_gbs = SLOTS * slot / (slot / machine.port + 2 * slot / machine.slot + machine.message_ns)
    total, left = 0.0, sums
    for place, count in plan.stages:
        is_one_way = count == 2 and (place, count) == plan.stages[-1]
        moved = left if is_one_way else left * (count - 1) / count
        nbytes = moved * F32_BYTES
        total += machine.message_ns + nbytes / min(machine.port, ring_gbs) + 2 * min(nbytes, slot) / machine.slot
        total += moved / machine.lanes
        left = left if is_one_way else left / count
    return total
