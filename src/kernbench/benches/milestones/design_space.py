"""Three questions of an architect, each a sweep of the machine: UCIe connections, TCM, and MACs per HBM bandwidth.

A decoder layer on one SIP, at prefill and at decode, is timed on machines that differ in one thing (`ucie`, `tcm` and
`macs` points) or in several (`front` points). Cost is the cost model's, relative to the shipped machine; the machine
that was given is marked. Rows have a place for energy and area where the machine says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from kernbench.benches._numbers import Size
from kernbench.benches.milestones._layers import PHASES, Phase, timed_layer
from kernbench.benches.registry import evaluation_bench
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, where
from kernbench.report.charts import Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

UCIE = "machine:cube.ucie.n_connections"
TCM = "machine:cube.memory_map.tcm_mb_per_pe"
MACS = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
HBM = "machine:cube.memory_map.hbm_channel_bw_gbs"
QUESTIONS = {"ucie": UCIE, "tcm": TCM, "macs": MACS}
TITLES = {
    "ucie": ("UCIe connections per side", "How many UCIe connections?"),
    "tcm": ("TCM per PE (MB)", "How much TCM?"),
    "macs": ("MACs per byte of HBM bandwidth", "Which MAC count per HBM bandwidth?"),
}
TCM_FACTORS = (0.8125, 0.875, 1.0)
FRONT = (1.0, 2.0)
FACTORS = {"full": (0.5, 1.0, 2.0), "small": (1.0, 2.0)}


def points(
    machine: TopologyGraph,
    *,
    model: Annotated[str, "a model of models.yaml"] = "llama3-8b",
    scale: Annotated[Literal["full", "small"], "all three questions and the front, or two values of each"] = "full",
    tokens: Annotated[Size, "of a sequence at prefill"] = 32,
    batch: Annotated[Size, "sequences at decode"] = 1,
    context: Annotated[Size, "tokens in the cache at decode"] = 2048,
) -> list[Setting]:
    spec, factors = machine.spec, FACTORS[scale]
    shared: Setting = {"model": model, "tokens": tokens, "context": context, "machine:system.sips.count": 1}
    found: list[Setting] = []
    for phase in PHASES:
        users: Setting = {**shared, "phase": phase, "batch": 1 if phase == "prefill" else batch}
        for question, key in QUESTIONS.items():
            found += [{"part": question, **users, key: value} for value in values_for(spec, question, factors)]
        if scale == "full":
            found += [
                {"part": "front", **users, MACS: macs, HBM: gbs}
                for macs in values_for(spec, "macs", FRONT)
                for gbs in values_for(spec, "hbm", FRONT)
            ]
    return found


def values_for(spec: MachineSpec, question: str, factors: tuple[float, ...]) -> list[float | int]:
    """What the machine has, times each factor; a number of connections stays whole."""
    has = {
        "ucie": float(spec.cube.ucie.n_connections),
        "tcm": float(spec.cube.memory_map.tcm_mb_per_pe),
        "macs": spec.cube.pe_template.components.pe_gemm.number_attr("macs_per_ns"),
        "hbm": spec.cube.memory_map.hbm_channel_bw_gbs,
    }[question]
    found = [has * factor for factor in factors]
    if question == "tcm":  # the scheduler's and the rings' shares are fixed, so little less leaves kernels nothing
        found = [has * factor for factor in TCM_FACTORS[-len(factors) :]]
    return [max(int(value), 1) if question == "ucie" else value for value in found]


def point(
    torch: RuntimeContext, *, part: str, model: str, phase: Phase, batch: int, tokens: int, context: int
) -> Mapping[str, float]:
    spec = torch.spec
    macs = spec.cube.pe_template.components.pe_gemm.number_attr("macs_per_ns")
    sizes = {
        "ucie": float(spec.cube.ucie.n_connections),
        "tcm": float(spec.cube.memory_map.tcm_mb_per_pe),
        "macs_per_byte": macs / spec.cube.hbm_link_bw_gbs,
        "hbm_gbs": spec.cube.hbm_link_bw_gbs,
    }
    return {**timed_layer(torch, model, phase, batch=batch, tokens=tokens, context=context), **sizes}


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    charts = [_question(where(rows, part=name), name, machine.spec) for name in QUESTIONS]
    front = where(rows, part="front")
    return [*charts, _front(front, machine)] if front else charts


def _question(rows: Rows, name: str, spec: MachineSpec) -> Chart:
    axis, title = TITLES[name]
    column = {"macs": "macs_per_byte"}.get(name, name)
    panels = []
    for phase in PHASES:
        some = where(rows, phase=phase)
        (base,) = where(some, **{QUESTIONS[name]: values_for(spec, name, (1.0,))[0]})
        relative = [
            {**row, "speed": number(base, "layer_us") / number(row, "layer_us"), "per_cost": number(base, "layer_us")
             / number(row, "layer_us") / number(row, "cost") * number(base, "cost")}
            for row in some
        ]  # fmt: skip
        lines = (
            Line("speed, relative to the machine as given", curve(relative, column, "speed")),
            Line("speed per cost", curve(relative, column, "per_cost")),
        )
        panels.append(LinePanel(axis, "relative", lines, phase, log="x", from_zero=True, every_x=True))
    return Chart(
        f"question-{name}",
        f"{title} {rows[0]['model']} at prefill and decode",
        "Time of one decoder layer on machines that differ in this alone, relative to the machine as given; and the "
        "same per unit of the cost model.",
        tuple(panels),
    )


def pareto(rows: Rows) -> list[Row]:
    """Rows that no other beats in both time and cost, the cheapest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (number(row, "cost"), number(row, "layer_us"))):
        if not best or number(row, "layer_us") < number(best[-1], "layer_us"):
            best.append(row)
    return best


def _front(rows: Rows, machine: TopologyGraph) -> Chart:
    panels = []
    macs = machine.spec.cube.pe_template.components.pe_gemm.number_attr("macs_per_ns")
    gbs = machine.spec.cube.hbm_link_bw_gbs
    for phase in PHASES:
        some = where(rows, phase=phase)
        best = pareto(some)
        given = [row for row in some if row[MACS] == macs and number(row, "hbm_gbs") == gbs]
        cloud = tuple((number(row, "cost"), number(row, "layer_us")) for row in some)
        names = {
            at: f"{float(str(row[MACS])):g} MAC/ns, {number(row, 'hbm_gbs'):g} GB/s" for at, row in enumerate(best)
        }
        lines = [
            Line("machines", cloud, "point"),
            Line("Pareto front", tuple((number(row, "cost"), number(row, "layer_us")) for row in best), names=names),
        ]
        if given:
            mine = tuple((number(row, "cost"), number(row, "layer_us")) for row in given)
            lines.append(Line("machine as given", mine, "point"))
        panels.append(
            LinePanel("cost (shipped machine = 1)", "time of a layer (us)", tuple(lines), phase, from_zero=True)
        )
    return Chart(
        "pareto-front",
        f"Time against cost for {rows[0]['model']}: MACs and HBM bandwidth, and what no machine beats in both",
        "Machines with other MAC counts per PE and other HBM bandwidths per slice. Cost is the weighted sum of MACs, "
        "on-die memory, HBM and die-to-die bandwidth relative to the shipped machine.",
        tuple(panels),
        height_in=3.4,
    )


def seconds(setting: Setting) -> float:
    if str(setting["model"]).startswith("tiny"):
        return 3.0
    return 35.0 if setting["phase"] == "decode" else 2.0 * int(setting["tokens"])


EVALUATION = evaluation_bench(
    name="design-space",
    description="Evaluation: which UCIe connections, TCM, MACs and HBM bandwidth serve a layer best, for what cost.",
    evaluation=Evaluation(
        points,
        point,
        figures,
        seconds,
        ("launches and mappings", "HBM timing", "UCIe", "MAC array", "geometry"),
    ),
)
