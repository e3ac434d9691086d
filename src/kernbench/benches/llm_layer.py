"""One decoder layer of a large model over the SIPs of the tray: time per part, bounds, tokens per second, memory.

Models that are marked `validation` in models.yaml have random weights, and their output is compared with numpy. Others
have zeros, unless the run is verified: then they have preset random numbers, which are not written by the host, and the
output is compared with numpy, or with PyTorch on its device where `--backend torch` keeps values there. Setting up is
not part of the figures.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench import tp as parallel
from kernbench.benches._layer_work import layer_work
from kernbench.benches._numbers import FloatName, Seed, Size, draw
from kernbench.benches._trials import TrialSettings, simulated_choice
from kernbench.benches.registry import AtLeast, bench
from kernbench.ccl.config import CclSource
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import CapacityError, UsageError
from kernbench.common.output_files import MAPPING, check_output
from kernbench.common.units import counted, format_bytes
from kernbench.models import reference
from kernbench.models.bounds import rates_of
from kernbench.models.choice_report import report_rows
from kernbench.models.figures import LayerRun, copies_of, memory_there, model_rows, part_rows
from kernbench.models.judge import expected_rows
from kernbench.models.layer import DecoderLayer, LayerPart
from kernbench.models.layer_choice import LayerRequest, chosen_mapping
from kernbench.models.layer_job import LayerJob
from kernbench.models.mapper import LayerChoice
from kernbench.models.mapping import Mapping
from kernbench.models.numbers import constants, cut, input_rows, random_weights
from kernbench.models.parallel_plans import FigureRow
from kernbench.models.pinned import write_choice
from kernbench.models.quantised import (
    CacheName,
    QuantisedForm,
    WeightName,
    layer_bytes,
    quantised_weights,
    weight_forms,
)
from kernbench.models.shapes import ModelShape, rows_of_weights
from kernbench.models.tensors import LayerTensors
from kernbench.report.energy import launches_work
from kernbench.report.static_power import static_power
from kernbench.runtime_api.bench_params import faults_of_param
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.topology.spec import MachineSpec
from kernbench.tp.parallel_state import model_parallel
from kernbench.values.graph import Value, ValueGraph

WeightType = Annotated[WeightName, "of weights at decode: as dtype, or in fewer bits with scales"]
CacheType = Annotated[CacheName, "of the cache at decode: as dtype, or in fewer bits with scales"]
ROUNDINGS = 16  # of the tensors' type, between input and output; each adds its tolerance


class StoredTypes(NamedTuple):
    """How weights and the cache are stored."""

    weights: WeightName = "same"
    cache: CacheName = "same"


def _check_heads(shape: ModelShape, ranks: int, world: int) -> None:
    """Raises UsageError where heads cannot be divided over so many SIPs."""
    if not shape.can_be_split(ranks):
        fitting = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0 and shape.can_be_split(n))
        raise UsageError(
            f"{shape.name} has {shape.heads} heads and {shape.kv_heads} key heads, which {ranks} SIPs cannot share",
            where="parameter 'tp'",
            hint=f"set tp to one of {fitting}, or use another model",
        )


def check_size(spec: MachineSpec, request: LayerRequest) -> None:
    """Raise CapacityError where the weights and the cache of one layer are more than the memory of the SIPs that share
    it.
    """
    model, tp, there = request.model, request.tp, memory_there(spec)
    weights = layer_bytes(model, request.itemsize, request.weight_type)
    cache = 2 * request.batch * request.context * max(model.kv_heads, tp) * model.head_dim * request.cache_itemsize
    if weights + cache <= tp * there:
        return
    held = f"{format_bytes(weights)} of weights" + (f" and {format_bytes(cache)} of cache" if cache else "")
    raise CapacityError(
        f"one layer of {model.name} has {held}, and the {spec.cube.home.name} of "
        f"{counted(tp, 'SIP')} of '{spec.system.name}' has {format_bytes(tp * there)}",
        where="parameter 'model'",
        hint="share it over more SIPs (system.sips.count; tp of llm-layer), store weights or cache in less "
        "(weight_type, cache_type), or give the machine more memory",
    )


@bench(
    name="llm-layer",
    description="One decoder layer of a large model: time per part, bounds, tokens per second.",
    devices="whole",
)
def llm_layer(
    torch: RuntimeContext,
    *,
    model: Annotated[str, "a model of models.yaml, or FILE.yaml:NAME"] = "tiny-llama",
    phase: Annotated[Literal["prefill", "decode"], "whole sequences, or one token after a context"] = "prefill",
    batch: Annotated[Size, "sequences, of each group of ranks"] = 1,
    tokens: Annotated[int, AtLeast(0), "of a sequence at prefill; 0 for 2048, or 32 of a model to validate"] = 0,
    context: Annotated[int, AtLeast(0), "tokens in the cache at decode; 0 for 2048, or 32 of a model to validate"] = 0,
    tp: Annotated[int, AtLeast(0), "SIPs that share the layer; 0 for all"] = 0,
    sequence_parallel: Annotated[bool, "norms on a rank's own tokens: reduce-scatter and all-gather"] = False,
    mapping: Annotated[str, "auto, columns, tokens, decode, fused, FILE.yaml (pinned), or FILE.py:NAME"] = "auto",
    weight_type: WeightType = "same",
    cache_type: CacheType = "same",
    simulate: Annotated[int, AtLeast(0), "of auto: the best so many candidates of each part are simulated"] = 0,
    mapping_report: Annotated[str, "- prints what auto chose from; FILE.yaml also gets the choice"] = "",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> list[FigureRow]:
    if mapping_report not in ("", "-"):
        check_output(mapping_report, MAPPING, "parameter 'mapping_report'")
    shape, now, before = layer_work(
        model=model, phase=phase, batch=batch, tokens=tokens, context=context, mapping=mapping,
        weight_type=weight_type, cache_type=cache_type, dtype=dtype,
    )  # fmt: skip
    if not shape.validation and not torch.checks.enabled:
        torch.timing_only()
    world = torch.ahbm.device_count()
    if tp and world % tp:
        fitting = ", ".join(str(size) for size in range(1, world + 1) if world % size == 0)
        raise UsageError(
            f"{tp} SIPs do not share a tray of {world}", where="parameter 'tp'", hint=f"use one of {fitting}"
        )
    _check_heads(shape, tp or world, world)
    stored = StoredTypes(weight_type, cache_type)
    request = LayerRequest(
        shape, phase, batch, now, dtype_of(dtype).itemsize, tp or world, world, True, before, *stored,
        sequence_parallel,
    )  # fmt: skip
    check_size(torch.spec, request)
    with faults_of_param("mapping"):
        found, ccl = chosen_mapping(mapping, torch, request)
    if simulate:
        found = _simulated(found, torch, request, dtype, simulate, sequence_parallel, ccl)
    report = choice_rows(found, mapping_report, request)
    chosen = found.mapping if isinstance(found, LayerChoice) else found
    weights = layer_weights(torch, shape, batch, before, dtype, seed, stored, tp or world)
    job = LayerJob(
        shape, phase, batch, now, before, dtype, chosen, sequence_parallel, weights, not shape.validation, *stored
    )
    run = run_layer(torch, job, tp, seed, ccl)
    return [*part_rows(run), *model_rows(run), *_energy_rows(run, torch), *report]


def _simulated(
    found: LayerChoice | Mapping,
    torch: RuntimeContext,
    request: LayerRequest,
    dtype: str,
    most: int,
    sequence_parallel: bool,
    ccl: CclSource,
) -> LayerChoice | Mapping:
    """A choice after its best candidates have been simulated; raises UsageError where there is none at prefill."""
    if not isinstance(found, LayerChoice) or request.phase != "prefill":
        raise UsageError(
            "candidates of mappings are simulated at prefill, for mapping=auto",
            where="parameter 'simulate'",
            hint="use phase=prefill and mapping=auto, or leave simulate out",
        )
    job = LayerJob(request.model, "prefill", request.batch, request.tokens, 0, dtype, found.mapping, sequence_parallel)
    kept = ccl["defaults"] if isinstance(ccl, dict) else {}
    settings = TrialSettings(request.tp, tuple(sorted(kept.items())))
    return simulated_choice(found, job, torch.engine.graph, settings, _part_ns, most)


def _part_ns(torch: RuntimeContext, job: LayerJob, settings: TrialSettings) -> float:
    """How long the only part of a job takes on an idle machine, with the launches of what it consists of."""
    torch.timing_only()
    ccl: CclSource = {"defaults": dict(settings.kept)} if settings.kept else None
    return run_layer(torch, job, settings.tp, ccl=ccl).layer_ns


def choice_rows(found: LayerChoice | Mapping, report: str, request: LayerRequest) -> list[FigureRow]:
    """What a choice was made from, if a report is asked for; also writes it to a file that is named. Raises UsageError
    where there was no choice.
    """
    if not report:
        return []
    with faults_of_param("mapping_report"):
        if not isinstance(found, LayerChoice):
            raise UsageError(
                f"mapping={found.name} takes what it says: there is no choice to report",
                hint="leave --mapping-report out, or --param mapping to see what auto chooses from",
            )
        if report != "-":
            write_choice(report, found, request.work)
    return report_rows(found)


def run_layer(torch: RuntimeContext, job: LayerJob, tp: int, seed: int = 0, ccl: CclSource = None) -> LayerRun:
    """Run a layer on every group of `tp` SIPs of the tray; 0: on all together. `ccl` configures the collectives."""
    torch.distributed.init_process_group(backend="ahbm", ccl=ccl)
    ranks: list[RankRun] = []
    rows = JobRows(torch.engine.values, job, seed)
    torch.multiprocessing.spawn(work, (torch, job, tp, rows, ranks), nprocs=torch.ahbm.device_count())
    torch.distributed.destroy_process_group()
    first, parts = ranks[0], [rank.parts for rank in ranks]
    return LayerRun(job, parts, first.group_size, first.copies, first.used_bytes, rates_of(torch.spec), torch.spec)


def layer_weights(
    torch: RuntimeContext,
    model: ModelShape,
    batch: int,
    context: int,
    dtype: str,
    seed: int,
    stored: StoredTypes | None = None,
    tp: int = 1,
) -> dict[str, Value] | None:
    """Weights of the layer, and the cache of `context` tokens; None for one that is only timed. Raises UsageError for
    quantised ones that are not offered.
    """
    graph = torch.engine.values
    stored = stored or StoredTypes()
    is_quantised = stored != StoredTypes()
    if is_quantised:
        _check_numbers(torch, model)
    if model.validation:
        arrays = reference.draw_weights(model, batch, context, dtype, seed)
        if is_quantised:
            forms = weight_forms(stored.weights, rows_of_weights(model, tp), torch.spec.cube.n_pes)
            cache = None if stored.cache == "same" else QuantisedForm(stored.cache)
            return constants(graph, quantised_weights(arrays, forms, cache))
        return constants(graph, arrays)
    return random_weights(graph, model, batch, context, dtype, seed) if torch.checks.enabled else None


def _check_numbers(torch: RuntimeContext, model: ModelShape) -> None:
    """Raise UsageError where numbers of quantised weights are asked for that there are not."""
    if torch.checks.enabled and not model.validation:
        raise UsageError(
            f"numbers of quantised weights of {model.name}",
            where="parameters 'weight_type' and 'cache_type'",
            hint="they are checked for models to validate, such as tiny-llama",
        )


class JobRows:
    """What each group of ranks works on, and what must come out of it; both are made once for all ranks of a group."""

    def __init__(self, graph: ValueGraph, job: LayerJob, seed: int) -> None:
        self.graph, self.job = graph, job
        self._seed = seed
        self._given: dict[int, Value] = {}
        self._expected: dict[int, NDArray[np.float64]] = {}

    def given(self, replica: int) -> Value:
        """The rows that enter the layer."""
        if replica not in self._given:
            self._given[replica] = self._drawn(replica)
        return self._given[replica]

    def expected(self, replica: int) -> NDArray[np.float64]:
        """The rows that must leave it."""
        if replica not in self._expected:
            job = self.job
            assert job.weights is not None
            found = expected_rows(self.graph, job.model, job.weights, self.given(replica), job.batch, job.context)
            self._expected[replica] = found
        return self._expected[replica]

    def _drawn(self, replica: int) -> Value:
        job = self.job
        if not job.model.validation:
            return input_rows(self.graph, job.rows, job.model, job.dtype, self._seed, replica)
        rng = np.random.default_rng([self._seed, replica])
        return self.graph.constant(draw(rng, job.rows, job.model.hidden, dtype=job.dtype))


class RankRun(NamedTuple):
    """What a rank has done: `copies` of each weight on its SIP, `used_bytes` of its fullest HBM slice, TCM or SRAM."""

    parts: list[LayerPart]
    group_size: int
    copies: int
    used_bytes: int


def work(rank: int, torch: RuntimeContext, job: LayerJob, tp: int, rows: JobRows, ranks: list[RankRun]) -> None:
    """A rank's part of the layer: set up, run, and checked where it has numbers; `ranks` gets what it has done."""
    torch.ahbm.set_device(rank)
    parallel.initialize_model_parallel(tp or None, torch=torch)
    state = model_parallel(torch)
    group, replica = state.tensor, state.data.rank
    own = (0, job.rows)
    if job.sequence_parallel:
        own = (group.rank * job.rows // group.size, (group.rank + 1) * job.rows // group.size)
    x = None if job.weights is None else cut(rows.graph, rows.given(replica), 0, [own])
    tensors = LayerTensors(torch, group, job, x)
    layer = DecoderLayer(tensors)
    torch.distributed.barrier()
    with torch.record_ahead():
        out = layer.forward()
    cubes, pes = torch.spec.sip.n_cubes, torch.spec.cube.n_pes
    used = max(torch.used_bytes(rank, cube, pe) for cube in range(cubes) for pe in range(pes))
    ranks.append(RankRun(layer.parts, group.size, copies_of(tensors), used))
    if x is not None:
        tolerance = ROUNDINGS * dtype_of(job.dtype).rtol
        name, shape = f"out of rank {rank}", out.shape  # what is kept for the check is no tensor, whose memory is freed

        def expected() -> NDArray[np.float64]:
            return rows.expected(replica)[slice(*own)].reshape(shape)

        torch.check(out, expected, name=name, rtol=tolerance, atol=tolerance)


def _energy_rows(run: LayerRun, torch: RuntimeContext) -> list[FigureRow]:
    """Joules of all layers for one token: of the counted work, and with the static power of the whole tray over the
    layer's time.
    """
    seen: dict[int, Launch] = {id(launch): launch for parts in run.ranks for part in parts for launch in part.launches}
    graph, tokens = torch.engine.graph, run.job.rows * run.spec.n_sips // run.tensor_parallel
    work = launches_work(seen.values(), graph)
    named = {
        "energy of work per token": work,
        "energy per token": work + static_power(graph) * (run.layer_ns * 1e-9),
    }
    found: list[FigureRow] = []
    for name, joules in named.items():
        value, low, high = (j * run.job.model.layers / tokens * 1000 for j in (joules.value, joules.low, joules.high))
        found.append({"figure": name, "value": value, "unit": "mJ", "low": low, "high": high})
    return found
