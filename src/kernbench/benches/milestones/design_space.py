"""Three questions of an architect, each a sweep of the machine: UCIe connections, TCM, and MACs per HBM bandwidth.

A decoder layer on one SIP, at prefill and at decode, is timed on machines that differ in one parameter, each of which
answers a question, and on some that differ in two. The link between two dies grows with its connections, the links
between a PE and its HBM slice with the slice's bandwidth, and the scheduler's share of TCM with TCM. Objectives are
time of the layer, energy per token, area of the dies' blocks, and the cost model's figure; the
machine that was given is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import Annotated, Literal

from kernbench.benches._numbers import Size
from kernbench.benches.milestones._layers import PHASES, layer_seconds, timed_layer, work_of
from kernbench.benches.registry import evaluation_bench
from kernbench.common.errors import TopologyError
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, where
from kernbench.models.layer_job import Phase
from kernbench.models.shapes import load_model
from kernbench.report.charts import Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sweep.points import MACHINE
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.load import load_spec
from kernbench.topology.spec import MachineSpec

UCIE = "machine:cube.ucie.n_connections"
DIE_LINK = "machine:sip.links.cube_to_cube.bw_gbs"
TCM = "machine:cube.memory_map.tcm_mb_per_pe"
RESERVED = "machine:cube.memory_map.tcm_scheduler_reserved_mb"
MACS = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
HBM = "machine:cube.memory_map.hbm_channel_bw_gbs"
HBM_WAY = ("router_bw_gbs", "pe_dma_to_router_bw_gbs")  # links of a cube that what a PE reads goes over
TITLES = {  # of a question: what its axis counts, and the question
    "ucie": ("UCIe connections per side", "How many UCIe connections?"),
    "tcm": ("TCM per PE (MB)", "How much TCM?"),
    "macs": ("MACs per byte of HBM bandwidth", "Which MAC count per HBM bandwidth?"),
}
NOTES = {
    "ucie": " The link between two dies has the bandwidth of its connections, and a cube a row of routers for each.",
    "tcm": " The scheduler's share of it is in proportion; collectives have 0.5 MB of the rest, so kernels have a "
    "quarter of 2 MB and a sixth of 1.5.",
}
COLUMNS = {"ucie": "ucie", "tcm": "tcm", "macs": "macs_per_byte"}
Factors = dict[str, float]  # of what the machine has, by question; and `hbm`, its bandwidth
# The TCM reserved for collectives is fixed: with much less TCM, kernels have none.
ALONE: dict[str, tuple[float, ...]] = {"ucie": (0.5, 2.0), "tcm": (0.75, 0.875), "macs": (0.5, 2.0, 4.0)}
TOGETHER: tuple[Factors, ...] = ({"macs": 0.5, "hbm": 2.0}, {"hbm": 2.0}, {"macs": 2.0, "hbm": 2.0})
OBJECTIVES = {  # a column -> on an axis
    "cost": "cost (machine as given = 1)",
    "energy_per_token_mj": "energy per token (mJ)",
    "area_mm2": "area of the dies' blocks (mm2)",
}


def points(
    machine: TopologyGraph,
    *,
    model: Annotated[str, "a model of models.yaml"] = "llama3-8b",
    scale: Annotated[Literal["full", "small"], "all values and the front, or two values of each question"] = "full",
    tokens: Annotated[Size, "of a sequence at prefill"] = 2048,
    batch: Annotated[Size, "sequences at decode"] = 16,
    context: Annotated[Size, "tokens in the cache at decode"] = 2048,
) -> list[Setting]:
    load_model(model)  # refused here, before anything is run
    found: list[Setting] = []
    for phase in PHASES:
        work: Setting = {
            "model": model,
            "phase": phase,
            "batch": 1 if phase == "prefill" else batch,
            "tokens": tokens if phase == "prefill" else 1,
            "context": 0 if phase == "prefill" else context,
            "machine:system.sips.count": 1,
        }
        found += [{**work, **changed(machine.spec, factors)} for factors in machines(machine.spec, scale)]
    return found


def machines(spec: MachineSpec, scale: str) -> list[Factors]:
    """The machine as given, those that differ in one parameter, and those that differ in more; invalid ones, as one
    with more connections than routers have room for, are left out.
    """
    alone = {
        name: [{name: value} for value in values if _can_be(spec, {name: value})] for name, values in ALONE.items()
    }
    if scale == "small":
        return [{}, *(factors[-1] for factors in alone.values() if factors)]
    together = [factors for factors in TOGETHER if _can_be(spec, factors)]
    return [{}, *(factors for some in alone.values() for factors in some), *together]


def _can_be(spec: MachineSpec, factors: Factors) -> bool:
    keys = {name.removeprefix(MACHINE): value for name, value in changed(spec, factors).items()}
    try:
        load_spec(spec, {"system.sips.count": 1, **keys})
    except TopologyError:
        return False
    return True


def changed(spec: MachineSpec, factors: Factors) -> Setting:
    """Keys of a machine that has so many times what this one has; connections stay whole."""
    has, keys = resources(spec), Setting()
    for name, factor in factors.items():
        if name == "ucie":
            connections = max(int(has["ucie"] * factor), 1)
            keys |= {UCIE: connections, DIE_LINK: spec.sip.links.cube_to_cube.bw_gbs * connections / has["ucie"]}
        elif name == "hbm":
            links = {f"machine:cube.links.{link}": getattr(spec.cube.links, link) * factor for link in HBM_WAY}
            keys |= {HBM: has["hbm"] * factor, **links}
        elif name == "tcm":
            reserved = spec.cube.memory_map.tcm_scheduler_reserved_mb
            keys |= {TCM: has["tcm"] * factor, RESERVED: reserved * factor}
        else:
            keys[MACS] = has[name] * factor
    return keys


def resources(spec: MachineSpec) -> dict[str, float]:
    """What the questions are about, as a machine has it."""
    return {
        "ucie": float(spec.cube.ucie.n_connections),
        "tcm": float(spec.cube.memory_map.tcm_mb_per_pe),
        "macs": peak_macs(spec.cube.pe_template.components.pe_gemm),
        "hbm": spec.cube.memory_map.hbm_channel_bw_gbs,
    }


def point(
    torch: RuntimeContext, *, model: str, phase: Phase, batch: int, tokens: int, context: int
) -> Mapping[str, float]:
    has, gbs = resources(torch.spec), torch.spec.cube.hbm_link_bw_gbs
    layer = timed_layer(torch, model, phase, batch=batch, tokens=tokens, context=context)
    return {**layer, **has, "macs_per_byte": has["macs"] / gbs, "hbm_gbs": gbs}


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    has = resources(machine.spec)
    base = {str(phase): as_given(where(rows, phase=phase), has) for phase in PHASES}
    relative = [{**row, "cost": number(row, "cost") / number(base[str(row["phase"])], "cost")} for row in rows]
    alone = {name: where(relative, **{other: has[other] for other in has if other != name}) for name in TITLES}
    questions = [_question(some, base, name) for name, some in alone.items()]
    return [*questions, *(_front(relative, has, column) for column in OBJECTIVES if _differs(rows, column))]


def as_given(rows: Rows, has: Mapping[str, float]) -> Row:
    """The row of the machine that was given."""
    (row,) = where(rows, **has)
    return row


def _differs(rows: Rows, column: str) -> bool:
    return len({row.get(column) for row in rows}) > 1


def _work(rows: Rows) -> str:
    return f"One decoder layer of {rows[0]['model']} on one SIP. {work_of(rows)}"


def _question(rows: Rows, base: Mapping[str, Row], name: str) -> Chart:
    axis, title = TITLES[name]
    panels = []
    for phase in PHASES:
        given = base[phase]
        some = [
            {
                **row,
                "speed": number(given, "layer_us") / number(row, "layer_us"),
                "per_cost": number(given, "layer_us") / number(row, "layer_us") / number(row, "cost"),
                "energy": number(row, "energy_per_token_mj") / number(given, "energy_per_token_mj"),
            }
            for row in where(rows, phase=phase)
        ]
        lines = [
            Line("speed", curve(some, COLUMNS[name], "speed")),
            Line("speed per cost", curve(some, COLUMNS[name], "per_cost")),
            Line("energy per token", curve(some, COLUMNS[name], "energy")),
            Line("machine as given", ((number(given, COLUMNS[name]), 1.0),), "point"),
        ]
        panels.append(
            LinePanel(
                axis, "relative to the machine as given", tuple(lines), phase, log="x", from_zero=True, every_x=True
            )
        )
    return Chart(
        f"question-{name}",
        f"{title} {rows[0]['model']} at prefill and decode",
        f"{_work(rows)} Machines differ in this alone; speed is the inverse of the layer's time, cost is the cost "
        f"model's, energy what the known coefficients give.{NOTES.get(name, '')}",
        tuple(panels),
    )


def pareto(rows: Rows, column: str) -> list[Row]:
    """Rows that no other dominates in time and an objective, in ascending order of the objective."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (number(row, column), number(row, "layer_us"))):
        if not best or number(row, "layer_us") < number(best[-1], "layer_us"):
            best.append(row)
    return best


def _name(row: Row, given: Mapping[str, float]) -> str:
    """The parameters in which a machine differs from the one that was given."""
    changes = {
        "macs": f"{number(row, 'macs'):g} MAC/ns",
        "hbm": f"{number(row, 'hbm_gbs'):g} GB/s",
        "ucie": f"{number(row, 'ucie'):g} UCIe",
        "tcm": f"{number(row, 'tcm'):g} MB",
    }
    return " and ".join(words for name, words in changes.items() if number(row, name) != given[name]) or "as given"


def _front(rows: Rows, has: Mapping[str, float], column: str) -> Chart:
    panels = []
    for phase in PHASES:
        some = where(rows, phase=phase)
        best = pareto(some, column)
        letters = ascii_uppercase[: len(best)]
        key = ", ".join(f"{letter} {_name(row, has)}" for letter, row in zip(letters, best, strict=True))
        cloud, front, mine = (
            tuple((number(row, column), number(row, "layer_us")) for row in chosen)
            for chosen in (some, best, [as_given(some, has)])
        )
        lines = (
            Line("machines", cloud, "point"),
            Line("Pareto front", front, names=dict(enumerate(letters))),
            Line("machine as given", mine, "point"),
        )
        panels.append(LinePanel(OBJECTIVES[column], "time of a layer (us)", lines, f"{phase}: {key}"))
    what = OBJECTIVES[column].partition(" (")[0]
    return Chart(
        f"front-{column.split('_')[0]}",
        f"Time against {what}: what no machine beats in both, for {rows[0]['model']}",
        f"{_work(rows)} All machines of the three questions, and others that differ in MACs per PE and HBM bandwidth. "
        "Letters say what a machine of the front has that the one as given has not; GB/s are of a PE's HBM slice and "
        "of the links to it. Cost is the weighted sum of MACs, "
        "on-die memory, HBM and die-to-die bandwidth; energy and area are amounts times coefficients.",
        tuple(panels),
        height_in=3.4,
    )


def seconds(setting: Setting) -> float:
    return layer_seconds(setting)


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
