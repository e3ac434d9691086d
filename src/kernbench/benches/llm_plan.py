"""Which plan serves a whole model best on this tray: tensor, pipeline, data and sequence parallelism.

For every degree of tensor parallelism a layer runs on all groups of SIPs at once, and then each group sends its output
to the next one, as the stages of a pipeline do. `kernbench.models.parallel_plans` combines the two times. Numbers are
those of `llm-layer`, and checked where it checks them. Setting up is not part of the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from kernbench.benches._layer_work import layer_work
from kernbench.benches._numbers import FloatName, Seed, Size
from kernbench.benches.llm_layer import (
    CacheType,
    StoredTypes,
    WeightType,
    check_size,
    layer_weights,
    run_layer,
)
from kernbench.benches.registry import AtLeast, bench
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import CapacityError
from kernbench.models.figures import memory_there
from kernbench.models.layer_choice import FUSED, LayerRequest, chosen_mapping
from kernbench.models.layer_job import LayerJob
from kernbench.models.mapper import LayerChoice
from kernbench.models.parallel_plans import FigureRow, ReplicaBatch, StageTimes, plan_rows, plans_of
from kernbench.models.plan_answer import answer_rows, figure_rows
from kernbench.runtime_api.bench_params import faults_of_param
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp.placement import Grid


@bench(
    name="llm-plan",
    description="A whole model over the tray: tensor, pipeline, data, sequence parallel plans by tokens per second.",
    devices="whole",
)
def llm_plan(
    torch: RuntimeContext,
    *,
    model: Annotated[str, "a model of models.yaml, or FILE.yaml:NAME"] = "tiny-llama",
    phase: Annotated[Literal["prefill", "decode"], "whole sequences, or one token after a context"] = "decode",
    batch: Annotated[Size, "sequences in flight in each stage"] = 1,
    tokens: Annotated[int, AtLeast(0), "of a sequence at prefill; 0 for 2048, or 32 of a model to validate"] = 0,
    context: Annotated[int, AtLeast(0), "tokens in the cache at decode; 0 for 2048, or 32 of a model to validate"] = 0,
    max_latency_ms: Annotated[float, AtLeast(0), "of a batch through all layers; 0: no limit"] = 0.0,
    mapping: Annotated[str, "of a layer on its SIPs: as of llm-layer"] = "auto",
    weight_type: WeightType = "same",
    cache_type: CacheType = "same",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> list[FigureRow]:
    shape, now, before = layer_work(
        model=model, phase=phase, batch=batch, tokens=tokens, context=context, mapping=mapping,
        weight_type=weight_type, cache_type=cache_type, dtype=dtype,
    )  # fmt: skip
    work = ReplicaBatch(shape, phase, batch, now, before, dtype_of(dtype).itemsize, weight_type, cache_type)
    if not shape.validation and not torch.checks.enabled:
        torch.timing_only()
    refused: list[CapacityError] = []
    simulated = list(_simulated(torch, work, mapping, dtype, seed, refused))
    if not simulated:
        raise refused[-1]
    limit_ns = max_latency_ms * 1e6 if max_latency_ms else None
    memory_bytes = memory_there(torch.spec)
    plans = plans_of(work, simulated, torch.spec.n_sips, memory_bytes, limit_ns)
    return [
        *plan_rows(plans),
        *figure_rows(work, plans, memory_bytes, limit_ns),
        *answer_rows(work, plans, memory_bytes, limit_ns),
        *(FigureRow(answer=f"not simulated: {error.what}") for error in refused),
    ]


def _simulated(
    torch: RuntimeContext, work: ReplicaBatch, mapping: str, dtype: str, seed: int, refused: list[CapacityError]
) -> Iterator[StageTimes]:
    """Each degree of tensor parallelism; `refused` gets why one is left out, whose SIPs do not hold a layer."""
    stored = StoredTypes(work.weight_type, work.cache_type)
    world, rows = torch.ahbm.device_count(), work.batch * work.tokens
    degrees = [tp for tp in range(1, world + 1) if world % tp == 0 and work.model.can_be_split(tp)]
    for tp in degrees:
        whole = LayerRequest(
            work.model, work.phase, work.batch, work.tokens, work.itemsize, tp, world, False, work.context, *stored
        )
        try:
            check_size(torch.spec, whole)
        except CapacityError as error:
            refused.append(error)
            continue
        weights = layer_weights(torch, work.model, work.batch, work.context, dtype, seed, stored, tp)
        splits_tokens = tp > 1 and rows % tp == 0 and mapping != FUSED  # one launch is for whole rows
        for shared in (False, True) if splits_tokens else (False,):
            request = replace(whole, sequence_parallel=shared)
            with faults_of_param("mapping"):
                found, _ = chosen_mapping(mapping, torch, request)
            chosen = found.mapping if isinstance(found, LayerChoice) else found
            job = LayerJob(
                work.model, work.phase, work.batch, work.tokens, work.context, dtype, chosen, shared, weights,
                not work.model.validation, *stored,
            )  # fmt: skip
            run = run_layer(torch, job, tp, seed)
            own = rows // tp if shared else rows  # with sequence parallelism a SIP has its own tokens only
            transfer_ns = _transfer_ns(torch, own, work.model.hidden, dtype, tp) if world > tp else 0.0
            yield StageTimes(tp, shared, run.layer_ns, transfer_ns, run.copies)


def _transfer_ns(torch: RuntimeContext, rows: int, hidden: int, dtype: str, tp: int) -> float:
    """How long the outputs of all stages take to the SIPs of the next ones, at once."""
    ends: list[float] = []
    starts: list[float] = []

    def work(rank: int) -> None:
        torch.ahbm.set_device(rank)
        dist, place = torch.distributed, Grid.of(torch).rows
        mine, theirs = (torch.zeros(rows, hidden, dtype=dtype, dp=place) for _ in range(2))
        dist.barrier()
        starts.append(torch.now_ns)
        pending = []
        if rank + tp < dist.get_world_size():
            pending.append(dist.isend(mine, dst=rank + tp))
        if rank >= tp:
            pending.append(dist.irecv(theirs, src=rank - tp))
        for message in pending:
            message.wait()
        ends.append(torch.now_ns)

    torch.distributed.init_process_group(backend="ahbm")
    torch.multiprocessing.spawn(work, (), nprocs=torch.ahbm.device_count())
    torch.distributed.destroy_process_group()
    return max(ends) - min(starts)
