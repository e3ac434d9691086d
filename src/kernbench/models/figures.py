"""The figures of a layer's run: rows for its parts, and rows for the whole model.

A part's time is that of the slowest rank, from its first PE's start to its last PE's end. The layer's time is from the
host's first request to its last answer; the difference to the sum of its parts is `launching`: the host's requests and
answers. Tokens per second count all layers, one after the other, and neither the embedding nor the last product.
Bounds are those of `bounds.py`: `bound_us` and `of_bound_pct` are the machine's, `mapping_bound_us` the mapping's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.common.dtypes import dtype_of
from kernbench.models.bounds import SipRates
from kernbench.models.layer import LayerPart
from kernbench.models.layer_job import LayerJob
from kernbench.models.parallel_plans import FigureRow
from kernbench.models.quantised import layer_bytes
from kernbench.models.tensors import LayerTensors
from kernbench.topology.spec import MachineSpec

Limit = tuple[str, float]  # the name of a bound, and its ns
NO_LIMIT: Limit = ("-", 0.0)


@dataclass(frozen=True)
class LayerRun:
    """The parts of all ranks, rank by rank."""

    job: LayerJob
    ranks: Sequence[Sequence[LayerPart]]
    tensor_parallel: int
    copies: int  # of each weight on a SIP
    used_bytes: int  # of the fullest HBM slice, TCM or SRAM
    rates: SipRates
    spec: MachineSpec

    @property
    def layer_ns(self) -> float:
        launches = [launch for parts in self.ranks for part in parts for launch in part.launches]
        return max(launch.end_ns for launch in launches) - min(launch.start_ns for launch in launches)

    @property
    def part_ns(self) -> list[float]:
        return [max(part.exec_ns for part in same) for same in zip(*self.ranks, strict=True)]

    @property
    def communication_ns(self) -> float | None:
        """Of collectives and copies between cubes; None for one launch, which exchanges sums beside its other work."""
        if self.job.fused is not None:
            return None
        flags = [part.is_communication for part in self.ranks[0]]
        return sum(ns for ns, is_communication in zip(self.part_ns, flags, strict=True) if is_communication)


def part_rows(run: LayerRun) -> list[FigureRow]:
    """Time, share and bounds of every part, and of the layer."""
    total, rows = run.layer_ns, list[FigureRow]()
    machine_ns, mapping_ns = 0.0, 0.0
    for part, ns in zip(run.ranks[0], run.part_ns, strict=True):
        machine, mapped = part.need.bound(run.rates), part.mapped.bound(run.rates)
        machine_ns, mapping_ns = machine_ns + machine[1], mapping_ns + mapped[1]
        rows.append(_row(part.name, ns, total, machine, mapped))
    rows.append(_row("launching", total - sum(run.part_ns), total))
    rows.append(_row("layer", total, total, ("-", machine_ns), ("-", mapping_ns)))
    return rows


def _row(name: str, ns: float, total: float, machine: Limit = NO_LIMIT, mapped: Limit = NO_LIMIT) -> FigureRow:
    """A bound of 0 is shown as none: copies are work of the mapping only."""
    bound, bound_ns = machine
    return {
        "part": name,
        "time_us": ns / 1000,
        "share_pct": 100 * ns / total,
        "bound": bound if bound_ns else "-",
        "bound_us": bound_ns / 1000 if bound_ns else None,
        "of_bound_pct": 100 * bound_ns / ns if bound_ns and ns else None,
        "mapping_bound": mapped[0] if mapped[1] else "-",
        "mapping_bound_us": mapped[1] / 1000 if mapped[1] else None,
    }


def model_rows(run: LayerRun) -> list[FigureRow]:
    """Figures of the whole model: name, value, unit."""
    job, m = run.job, run.job.model
    step_s = run.layer_ns * m.layers * 1e-9
    replicas = run.spec.n_sips // run.tensor_parallel
    home = run.spec.cube.home
    apart = run.communication_ns
    share = (None, "within the launch") if apart is None else (100 * apart / run.layer_ns, "% of the layer")
    found: list[tuple[str, float | bool | None, str]] = [
        ("communication", *share),
        ("tokens per second per user", job.tokens / step_s, "1/s"),
        ("tokens per second in total", job.rows * replicas / step_s, "1/s"),
        (f"time of {m.layers} layers", step_s * 1000, "ms"),
        ("memory needed per SIP", memory_needed(run) / 1e9, "GB"),
        ("memory there per SIP", memory_there(run.spec) / 1e9, "GB"),
        ("fits", memory_needed(run) <= memory_there(run.spec), f"all layers and the cache in a SIP's {home.name}"),
        (f"fullest {home.unit}, this layer", run.used_bytes / 1e6, "MB"),
    ]
    return [{"figure": name, "value": value, "unit": unit} for name, value, unit in found]


def memory_needed(run: LayerRun) -> int:
    """Bytes of a SIP for the weights of all layers, embedding and last product, and the cache of all sequences."""
    job, m, tp = run.job, run.job.model, run.tensor_parallel
    item = dtype_of(job.dtype).itemsize
    weights = m.layers * layer_bytes(m, item, job.weight_type) * run.copies + 2 * m.vocab * m.hidden * item
    tokens = m.layers * job.batch * (job.context + job.tokens) * 2 * max(m.kv_heads, tp)
    return -(-(weights + tokens * m.head_dim * (item if job.cache_type == "same" else 1)) // tp)


def memory_there(spec: MachineSpec) -> int:
    """Bytes for tensors of a SIP: of HBM, or without HBM of TCM or SRAM. Layers are divided evenly: the cube with the
    least counts.
    """
    return spec.sip.n_cubes * spec.least_of_cubes(lambda cube: cube.home_bytes)


def copies_of(tensors: LayerTensors) -> int:
    plans = [tensors.qkv_product.plan, tensors.up_product.plan]
    return max(plan.copies for plan in plans)
