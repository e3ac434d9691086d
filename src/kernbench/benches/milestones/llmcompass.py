"""Published conclusions on an A100-like card: cores, memory bandwidth and local buffers against prefill and decode.

Figures 7 to 9 of LLMCompass (ISCA 2024) vary what an A100 is made of, and give the time of a layer of GPT-3 175B on 4
cards. Here one card runs its quarter of the layer on machines that differ in the same way; what cards exchange is left
out on both sides. Designs of cores (figure 7) have 128 cores, or fewer and larger ones with as many MACs, vector lanes
and bytes of local buffers; design A has a quarter of the MACs and lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import yaml

from kernbench.benches._numbers import Size
from kernbench.benches.milestones._layers import PHASES, timed_layer
from kernbench.benches.registry import evaluation_bench
from kernbench.common.errors import UsageError
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, number, where
from kernbench.models.layer_job import Phase
from kernbench.models.mapping import FEW_ROWS
from kernbench.models.shapes import load_model
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

GEMM = "machine:cube.pe_template.components.pe_gemm.attrs"
LANES = "machine:cube.pe_template.components.pe_math.attrs.lanes_per_ns"
CHANNEL = "machine:cube.memory_map.hbm_channel_bw_gbs"
MACHINE = "examples/machines/a100-cores.yaml"
PUBLISHED = Path(__file__).with_name("llmcompass.yaml")
BASE = "as given"
GBS = (400, 800, 1200, 1600, 3200)  # and 2000, as given
LOCAL_KB = (64, 128, 256, 1024)  # and 192, as given
OURS, THEIRS = "KernBench", "LLMCompass, published"


class Design(NamedTuple):
    """Cores of a card, arrays of a core, MACs on a side of an array, lanes of a core, KB of its local buffer."""

    cores: int
    arrays: int
    side: int
    lanes: int
    local_kb: int


DESIGNS = {  # of figure 7
    "A": Design(128, 4, 8, 32, 192),
    "B": Design(128, 4, 16, 128, 192),
    "C": Design(128, 1, 32, 128, 192),
    "D": Design(32, 1, 64, 512, 768),
    "E": Design(8, 1, 128, 2048, 3072),
}
STUDIES = {  # a study -> the axis, what the machines differ in, which figure it is
    "cores": ("design of the cores", "How large should a core be?", 7),
    "bandwidth": ("memory bandwidth (GB/s)", "How much memory bandwidth?", 8),
    "buffer": ("local buffer of a core (KB)", "How large should a core's local buffer be?", 9),
}


@cache
def published() -> Mapping[str, Mapping[str, Mapping[str | int, float]]]:
    """Times in ms, by study, phase and place on its axis."""
    found: Mapping[str, Mapping[str, Mapping[str | int, float]]] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return found


def points(
    machine: TopologyGraph,
    *,
    model: Annotated[str, "a model of models.yaml: the part of a layer that one card has"] = "gpt3-175b-quarter",
    scale: Annotated[Literal["full", "small"], "all machines, or the ends of each study"] = "full",
    tokens: Annotated[Size, "of a sequence at prefill"] = 1024,
    batch: Annotated[Size, "sequences at decode"] = 8,
    context: Annotated[Size, "tokens in the cache at decode"] = 3072,
) -> list[Setting]:
    load_model(model)  # refused here, before anything is run
    impl = machine.spec.cube.pe_template.components.pe_gemm.impl
    if impl != "builtin.core_group":
        raise UsageError(
            f"machine '{machine.spec.system.name}' has no cores to vary: its pe_gemm is {impl}",
            hint=f"give a machine whose pe_gemm is builtin.core_group: --topology {MACHINE}",
        )
    found: list[Setting] = []
    for phase in PHASES:
        work: Setting = {
            "model": model,
            "phase": phase,
            "batch": 1 if phase == "prefill" else batch,
            "tokens": tokens if phase == "prefill" else 1,
            "context": 0 if phase == "prefill" else context,
        }
        found += [{**work, **each} for each in machines(machine.spec, scale)]
    return found


def machines(spec: MachineSpec, scale: str) -> list[Setting]:
    """The machine as given, and those of each study; `place` is that on the axis of its study."""
    pes = spec.sip.n_cubes * spec.cube.n_pes
    channels = pes * spec.cube.hbm_channels_per_pe
    cores: list[Setting] = [
        {"study": "cores", "place": name, **design_keys(spec, pes, each)} for name, each in DESIGNS.items()
    ]
    rates: list[Setting] = [{"study": "bandwidth", "place": str(gbs), CHANNEL: gbs / channels} for gbs in GBS]
    sizes: list[Setting] = [{"study": "buffer", "place": str(kb), f"{GEMM}.local_kb": kb} for kb in LOCAL_KB]
    given: Setting = {"study": BASE, "place": BASE}
    every = [cores, rates, sizes]
    if scale == "small":
        every = [[study[0], study[-1]] for study in every]
    return [given, *(each for study in every for each in study)]


def design_keys(spec: MachineSpec, pes: int, design: Design) -> Setting:
    """Keys of a card with these cores, dealt over its PEs."""
    clock = spec.cube.pe_template.components.pe_gemm.number_attr("clock_ghz")
    cores = design.cores // pes
    attrs = {
        "cores": cores,
        "arrays": design.arrays,
        "rows": design.side,
        "columns": design.side,
        "local_kb": design.local_kb,
        "macs_per_ns": cores * design.arrays * design.side**2 * clock,
    }
    return {**{f"{GEMM}.{name}": value for name, value in attrs.items()}, LANES: cores * design.lanes * clock}


def point(
    torch: RuntimeContext, *, study: str, place: str, model: str, phase: Phase, batch: int, tokens: int, context: int
) -> Mapping[str, float]:
    spec = torch.spec
    gemm, pes = spec.cube.pe_template.components.pe_gemm, spec.sip.n_cubes * spec.cube.n_pes
    in_parts = phase == "decode" and batch <= FEW_ROWS  # as the layers of the published times
    mapping = "decode" if in_parts else "auto"
    layer = timed_layer(torch, model, phase, batch=batch, tokens=tokens, context=context, mapping=mapping)
    return {
        **layer,
        "cores": pes * gemm.number_attr("cores"),
        "array_side": gemm.number_attr("rows"),
        "local_kb": gemm.number_attr("local_kb"),
        "hbm_gbs": pes * spec.cube.hbm_channels_per_pe * spec.cube.memory_map.hbm_channel_bw_gbs,
        "tflops": 2e-3 * pes * peak_macs(gemm),
    }


# ------------------------------------------------------------------------------------------------------------ figures


def times_of(rows: Rows, study: str, phase: str) -> dict[str, tuple[float, float]]:
    """By place on the axis of a study, in its order: our time of a layer and the published one, each relative to that
    of the machine that the paper calls its baseline (design B, 2000 GB/s, 192 KB).
    """
    found = {str(row["place"]): number(row, "layer_us") for row in where(rows, study=study, phase=phase)}
    theirs = {str(place): time for place, time in published()[study][phase].items()}
    base = baseline(where(rows, phase=phase), study)
    found.setdefault(base, number(where(rows, study=BASE, phase=phase)[0], "layer_us"))
    return {place: (found[place] / found[base], theirs[place] / theirs[base]) for place in theirs if place in found}


def baseline(rows: Rows, study: str) -> str:
    """The place of the baseline on the axis of a study."""
    (given,) = where(rows, study=BASE)
    return {
        "cores": "B",
        "bandwidth": f"{number(given, 'hbm_gbs'):g}",
        "buffer": f"{number(given, 'local_kb'):g}",
    }[study]


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    return [_study(rows, name) for name in STUDIES]


def _study(rows: Rows, study: str) -> Chart:
    axis, title, figure = STUDIES[study]
    label = "time of a layer (baseline = 1)"
    panels: list[BarPanel | LinePanel] = []
    for phase in PHASES:
        times = times_of(rows, study, phase)
        ours, theirs = zip(*times.values(), strict=True)
        if study == "cores":
            bars = Bars(OURS, ours), Bars(THEIRS, theirs)
            panels.append(BarPanel(label, tuple(times), bars, phase, x_label=axis, with_values=True))
            continue
        xs = [float(place) for place in times]
        lines = (
            Line(OURS, tuple(zip(xs, ours, strict=True))),
            Line(THEIRS, tuple(zip(xs, theirs, strict=True)), "theory"),
        )
        log: Literal["", "x"] = "x" if study == "buffer" else ""
        panels.append(LinePanel(axis, label, lines, phase, log=log, from_zero=True, every_x=True))
    return Chart(study, f"{title} Figure {figure} of LLMCompass", _caption(rows, study), tuple(panels))


def _caption(rows: Rows, study: str) -> str:
    prefill, decode = (where(rows, phase=phase)[0] for phase in PHASES)
    figure, base = STUDIES[study][2], baseline(where(rows, phase="prefill"), study)
    designs = "; ".join(
        f"{name} {d.cores} cores of {d.arrays} x {d.side} x {d.side} MACs and {d.local_kb} KB"
        for name, d in DESIGNS.items()
    )
    named = f" Designs: {designs}." if study == "cores" else ""
    return (
        f"A quarter of a layer of GPT-3 175B on one A100-like card, relative to the baseline, {base}: "
        f"{_ms(rows, study, 'prefill')} at prefill, {_ms(rows, study, 'decode')} at decode.{named} Prefill: "
        f"{prefill['batch']} sequence(s) of {prefill['tokens']} tokens (published: 8 of 2048). Decode: one token of "
        f"{decode['batch']} sequences after {decode['context']}. Published: H. Zhang et al., LLMCompass, ISCA 2024, "
        f"figure {figure}, less its all-reduces; bars of the artifact's graphics "
        "(https://github.com/PrincetonUniversity/LLMCompass, ae/expected_results)."
    )


def _ms(rows: Rows, study: str, phase: str) -> str:
    """The baseline of both, in ms."""
    base = baseline(where(rows, phase=phase), study)
    some: list[Row] = where(rows, study=study, place=base, phase=phase) or where(rows, study=BASE, phase=phase)
    theirs = {str(place): time for place, time in published()[study][phase].items()}
    return f"{number(some[0], 'layer_us') / 1000:.3g} ms (published {theirs[base]:.3g} ms)"


def seconds(setting: Setting) -> float:
    return 3.0 if setting["phase"] == "decode" else 2 + 0.012 * int(setting["tokens"])


EVALUATION = evaluation_bench(
    name="llmcompass",
    description="Evaluation: core size, memory bandwidth and local buffers of an A100-like card, as in LLMCompass.",
    evaluation=Evaluation(
        points,
        point,
        figures,
        seconds,
        ("launches and mappings", "HBM timing", "MAC array", "vector functions"),
    ),
)
