"""Plans of a whole model over the SIPs of a tray: tensor, pipeline, data and sequence parallelism.

A plan gives each of `dp` replicas `pp` stages of `tp` SIPs. The time of a layer on `tp` SIPs and that of a stage's
output to the next stage are simulated; this file combines them:

    stage   = ceil(layers / pp) * layer + transfer     the slowest stage; no transfer with one stage
    latency = layers * layer + (pp - 1) * transfer     of one batch through all stages
    rate    = dp * batch * tokens / stage              every stage works on a batch of its own

At decode a sequence has its next token after all stages: with `pp` batches in flight, no sooner than `pp * stage`.
A plan serves `dp * pp * batch` sequences at a time: plans with the same batch serve different numbers of users.
Not counted, as for one layer: the embedding and the last product. A transfer is not overlapped with its stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernbench.models.layer_job import Phase
from kernbench.models.quantised import CacheName, WeightName, layer_bytes
from kernbench.models.shapes import ModelShape

FigureRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What is simulated for one degree of tensor parallelism, and the copies of each weight that its mapping makes."""

    tp: int
    sequence_parallel: bool
    layer_ns: float
    transfer_ns: float
    copies: int


@dataclass(frozen=True, slots=True)
class ReplicaBatch:
    """A batch of one replica: `tokens` of each sequence are worked on, after `context` earlier ones."""

    model: ModelShape
    phase: Phase
    batch: int
    tokens: int
    context: int
    itemsize: int
    weight_type: WeightName = "same"
    cache_type: CacheName = "same"


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """A plan with its figures; `refusal` says why it cannot be taken, and is empty where it can."""

    times: StageTimes
    pp: int
    dp: int
    latency_ns: float
    tokens_per_s: float
    users: int  # sequences in service: the batches of all stages and replicas
    memory_bytes: int
    fits: bool = True
    refusal: str = ""

    @property
    def name(self) -> str:
        return f"tp{self.times.tp} pp{self.pp} dp{self.dp}{' sp' if self.times.sequence_parallel else ''}"

    def as_row(self, best: bool) -> FigureRow:
        return {
            "plan": self.name,
            "tp": self.times.tp,
            "pp": self.pp,
            "dp": self.dp,
            "sequence_parallel": self.times.sequence_parallel,
            "layer_us": self.times.layer_ns / 1e3,
            "transfer_us": self.times.transfer_ns / 1e3 if self.pp > 1 else 0.0,
            "users": self.users,
            "latency_ms": self.latency_ns / 1e6,
            "tokens_per_s": self.tokens_per_s,
            "memory_gb": self.memory_bytes / 1e9,
            "verdict": self.refusal or ("best" if best else "possible"),
        }


def memory_needed(work: ReplicaBatch, times: StageTimes, pp: int) -> int:
    """Bytes of the fullest SIP: weights of its layers, the embedding or the last product, and the cache of all batches
    in flight.
    """
    m, tp = work.model, times.tp
    layers = -(-m.layers // pp)
    ends = (2 if pp == 1 else 1) * m.vocab * m.hidden
    tokens = layers * pp * work.batch * (work.context + work.tokens) * 2 * max(m.kv_heads, tp)
    cached = tokens * m.head_dim * (work.itemsize if work.cache_type == "same" else 1)
    weights = layers * layer_bytes(m, work.itemsize, work.weight_type) * times.copies
    return -(-(weights + ends * work.itemsize + cached) // tp)


def stage_counts(model: ModelShape, sips: int) -> list[int]:
    """Into how many stages a replica can be cut: divisors of its groups of SIPs, no more than there are layers."""
    return [pp for pp in range(1, min(sips, model.layers) + 1) if sips % pp == 0]


def plans_of(
    work: ReplicaBatch,
    simulated: Iterable[StageTimes],
    sips: int,
    memory_bytes: int,
    latency_limit_ns: float | None = None,
) -> list[ParallelPlan]:
    """All plans for a tray, the fastest that can be taken first; a plan that cannot be taken says why."""
    found = list(_plans(work, simulated, sips, memory_bytes, latency_limit_ns))
    return sorted(found, key=lambda plan: (bool(plan.refusal), -plan.tokens_per_s, plan.latency_ns, plan.name))


def _plans(
    work: ReplicaBatch, simulated: Iterable[StageTimes], sips: int, memory_bytes: int, limit_ns: float | None
) -> Iterator[ParallelPlan]:
    layers = work.model.layers
    for times in simulated:
        for pp in stage_counts(work.model, sips // times.tp):
            dp = sips // times.tp // pp
            stage_ns = -(-layers // pp) * times.layer_ns + (times.transfer_ns if pp > 1 else 0.0)
            through_ns = layers * times.layer_ns + (pp - 1) * times.transfer_ns
            latency_ns = max(through_ns, pp * stage_ns) if work.phase == "decode" else through_ns
            needed = memory_needed(work, times, pp)
            refusal = ""
            if needed > memory_bytes:
                refusal = f"needs {needed / 1e9:.1f} GB of a SIP's {memory_bytes / 1e9:.1f}"
            elif limit_ns is not None and latency_ns > limit_ns:
                refusal = f"slower than {limit_ns / 1e6:g} ms"
            rate, fits = dp * work.batch * work.tokens / stage_ns * 1e9, needed <= memory_bytes
            yield ParallelPlan(times, pp, dp, latency_ns, rate, dp * pp * work.batch, needed, fits, refusal)


def plan_rows(plans: Sequence[ParallelPlan]) -> list[FigureRow]:
    """The plans as rows, of which the first is the best where it can be taken."""
    return [plan.as_row(at == 0 and not plan.refusal) for at, plan in enumerate(plans)]
