"""One decoder layer of a large model over the SIPs of the tray: time per part, bounds, tokens per second, memory.

Models that are marked `validation` in models.yaml have random weights, and their output is compared with numpy; others
have zeros. Setting up is not part of the figures.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from kernbench import tp as parallel
from kernbench.benches._numbers import FloatName, Seed, Size, draw
from kernbench.benches.registry import AtLeast, bench
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.models import reference
from kernbench.models.bounds import rates_of
from kernbench.models.figures import LayerRun, Row, copies_of, model_rows, part_rows
from kernbench.models.layer import DecoderLayer, Part
from kernbench.models.mapping import MAPPINGS, Mapping, choose_mapping
from kernbench.models.shapes import ModelShape, load_model
from kernbench.models.tensors import LayerJob, LayerTensors, sip_shape
from kernbench.report.energy import launches_energy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.user_module import load_user_module, split_identifier
from kernbench.tp.parallel_state import model_parallel

TOKENS, TOKENS_TO_VALIDATE = 2048, 32
ROUNDINGS = 16  # of the tensors' type, between input and output; each adds its tolerance


def mapping_of(name: str, torch: RuntimeContext, model: ModelShape, rows: int, itemsize: int, tp: int) -> Mapping:
    """A mapping by name, `auto`, or a user's FILE.py:NAME; raises UsageError when there is none."""
    if name == "auto":
        spec = torch.spec
        weights = model.layers * model.layer_parameters * itemsize // tp
        return choose_mapping(sip_shape(torch), rows, weights, spec.sip.n_cubes * spec.cube.hbm_bytes)
    if name in MAPPINGS:
        return MAPPINGS[name]
    if not any(mark in name for mark in ".:/\\"):
        raise UsageError(f"no mapping '{name}'", hint=f"use auto, {', '.join(MAPPINGS)}, or FILE.py:NAME")
    place, inside = split_identifier(name)
    found = getattr(load_user_module(place), inside or "mapping", None)
    mapping = found() if isinstance(found, type) else found
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{place} has no mapping '{inside or 'mapping'}'", hint="see docs/guides/time-a-layer.md")
    return mapping


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
    mapping: Annotated[str, "auto, columns, tokens, decode, or FILE.py:NAME"] = "auto",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> list[Row]:
    shape = load_model(model)
    usual = TOKENS_TO_VALIDATE if shape.validation else TOKENS
    is_prefill = phase == "prefill"
    if is_prefill and context:
        raise UsageError("context at prefill", hint="context is for phase=decode; tokens is a sequence's length")
    if not is_prefill and tokens > 1:
        raise UsageError(f"tokens={tokens} at decode", hint="decode takes one token of each sequence: set batch")
    torch.distributed.init_process_group(backend="ahbm")
    world = torch.ahbm.device_count()
    now, before = (tokens or usual, 0) if is_prefill else (1, context or usual)
    weights = reference.draw_weights(shape, batch, before, dtype, seed) if shape.validation else None
    rows = batch * now * shape.experts_per_token
    chosen = mapping_of(mapping, torch, shape, rows, dtype_of(dtype).itemsize, tp or world)
    job = LayerJob(shape, phase, batch, now, before, dtype, chosen, sequence_parallel, weights)
    runs: list[list[Part]] = []
    facts: list[tuple[int, int, int]] = []

    def worker(rank: int) -> None:
        torch.ahbm.set_device(rank)
        parallel.initialize_model_parallel(tp or None, torch=torch)
        state = model_parallel(torch)
        group = state.tensor
        x = None
        if job.weights is not None:
            x = draw(np.random.default_rng([seed, state.data.rank]), job.rows, shape.hidden, dtype=dtype)
        own = slice(None)
        if sequence_parallel:
            own = slice(group.rank * job.rows // group.size, (group.rank + 1) * job.rows // group.size)
        tensors = LayerTensors(torch, group, job, None if x is None else x[own])
        layer = DecoderLayer(tensors)
        torch.distributed.barrier()
        out = layer.forward()
        runs.append(layer.parts)
        cubes, pes = torch.spec.sip.n_cubes, torch.spec.cube.n_pes
        used = max(torch.used_bytes(rank, cube, pe) for cube in range(cubes) for pe in range(pes))
        facts.append((group.size, copies_of(tensors), used))
        if x is not None:
            held, input_rows = job.weights, x
            assert held is not None
            tolerance = ROUNDINGS * dtype_of(dtype).rtol
            torch.check(
                out,
                lambda: reference.layer(shape, held, input_rows, batch, job.context)[own],
                name=f"out of rank {rank}",
                rtol=tolerance,
                atol=tolerance,
            )

    torch.multiprocessing.spawn(worker, nprocs=world)
    torch.distributed.destroy_process_group()
    size, copies, used = facts[0]
    run = LayerRun(job, runs, size, copies, used, rates_of(torch.spec), torch.spec)
    return [*part_rows(run), *model_rows(run), _energy_row(run, torch)]


def _energy_row(run: LayerRun, torch: RuntimeContext) -> Row:
    """Joules of all layers for one token, of what the machine has coefficients for; idle SIPs' static power too."""
    seen: dict[int, Launch] = {id(launch): launch for parts in run.ranks for part in parts for launch in part.launches}
    tokens = run.job.rows * run.spec.n_sips // run.tensor_parallel
    joules = launches_energy(seen.values(), torch.engine.graph) * run.job.model.layers / tokens
    return {"figure": "energy per token", "value": joules * 1000, "unit": "mJ"}
