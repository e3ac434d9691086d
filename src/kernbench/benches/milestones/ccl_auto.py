"""Which algorithm is the fastest for every collective, by size and number of SIPs, and what `auto` takes.

SIPs of 2 x 2 cubes; sizes as nccl-tests counts them; tensors spread over all PEs. Every algorithm of the package is
measured, except where the bytes that it moves over a SIP's link alone take 3 us longer than those of the algorithm that
moves least: it cannot be near the fastest there. `auto` needs no rows of its own: simulated time is exact, so it takes
as long as the algorithm that it chooses. `scripts/ccl-table` makes the package's table of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from kernbench.benches._collective_calls import bus_factor
from kernbench.benches._collectives import Wanted, measure
from kernbench.benches.registry import evaluation_bench
from kernbench.ccl.config import choose
from kernbench.ccl.config_check import checked
from kernbench.ccl.config_layers import shipped
from kernbench.ccl.config_spec import AUTO, AutoRow, CclConfig
from kernbench.ccl.measured import machine_key
from kernbench.ccl.tuned import Measurement, choose_rows
from kernbench.common.errors import UsageError
from kernbench.common.units import KIB, MIB, format_bytes
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, values_of, where
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
SIPS = (2, 3, 4, 6, 8, 12, 16)
SIZES = (256, KIB, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, MIB)
CUBES: Setting = {"machine:sip.cube_mesh.w": 2, "machine:sip.cube_mesh.h": 2}
DTYPE, LINK_GBS = "f16", 128.0
BAR = 1.1  # times the fastest algorithm
MARGIN_NS = 3000.0
FACTS = ("messages between PEs", "two kernels on a PE", "store and forward", "routing")
FEW_BYTES = 64 * KIB  # up to here short_messages_all_pes is measured; from here on other chunks are
LONG_CHUNKS = {"direct": 4 * KIB, "ring_all_gather": 4 * KIB, "ring_reduce_scatter": 4 * KIB, "ring_allreduce": 4 * KIB}
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": (
        "lrab_hierarchical_allreduce",
        "ring_allreduce",
        "recursive_doubling",
        "tree",
        "hierarchical_all_pes",
        "long_messages_all_pes",
        "short_messages_all_pes",
    ),
    "all_gather": ("ring_all_gather", "direct"),
    "reduce_scatter": ("ring_reduce_scatter", "direct"),
    "all_to_all": ("direct",),
    "broadcast": ("tree", "chain", "direct"),
    "reduce": ("tree", "chain", "direct"),
    "gather": ("direct",),
    "scatter": ("direct",),
}


def link_share(collective: str, algorithm: str, sips: int) -> float:
    """What the busiest link carries at least, as a share of the size."""
    rounds = (sips - 1).bit_length()
    if algorithm == "lrab_hierarchical_allreduce" or (algorithm == "direct" and collective in ("broadcast", "reduce")):
        return sips - 1
    return rounds if algorithm in ("recursive_doubling", "tree") else bus_factor(collective, sips)


def is_measured(collective: str, algorithm: str, sips: int, nbytes: int) -> bool:
    if algorithm == "short_messages_all_pes" and nbytes > FEW_BYTES:
        return False
    if algorithm == "long_messages_all_pes" and nbytes < FEW_BYTES:
        return False  # its chunks are those of hierarchical_all_pes
    more = link_share(collective, algorithm, sips) - bus_factor(collective, sips)
    return more * nbytes / LINK_GBS <= MARGIN_NS


def points(
    machine: TopologyGraph,
    *,
    sips: Annotated[str, "numbers of SIPs, with commas"] = ",".join(map(str, SIPS)),
    max_bytes: Annotated[int, "sizes up to this one"] = MIB,
) -> list[Setting]:
    counts = [int(each) for each in sips.split(",") if each.strip().isdecimal()]
    if not counts or any(count < 2 for count in counts):
        raise UsageError(f"sips is {sips!r}", hint="give numbers of 2 or more: 2,4,8")
    found: list[Setting] = []
    for count in counts:
        keys: Setting = {"machine:system.sips.count": count, **CUBES}
        for collective in COLLECTIVES:
            for nbytes in (each for each in SIZES if each <= max_bytes):
                for name in ALGORITHMS[collective]:
                    if not is_measured(collective, name, count, nbytes):
                        continue
                    row: Setting = {"collective": collective, "sips": count, "size_bytes": nbytes, "algorithm": name}
                    chunks = [4 * KIB] if name == "chain" else [0]
                    if nbytes >= FEW_BYTES and name in LONG_CHUNKS:
                        chunks.append(LONG_CHUNKS[name])
                    found += [{**row, "chunk_bytes": chunk, **keys} for chunk in chunks]
    return found


def point(
    torch: RuntimeContext, *, collective: str, sips: int, size_bytes: int, algorithm: str, chunk_bytes: int
) -> Mapping[str, float]:
    """`chunk_bytes` is 0 for the algorithm's own."""
    named: dict[str, object] = {"collectives": {collective: algorithm}}
    if collective == "all_reduce":
        named = {"defaults": {"algorithm": algorithm}}
    if chunk_bytes:
        named["algorithms"] = {algorithm: {"chunk_bytes": chunk_bytes}}
    torch.distributed.init_process_group("ahbm", ccl=named)
    found = measure(torch, Wanted(collective, size_bytes, DTYPE), check=False)  # type: ignore[arg-type]  # one of them
    return {"time_ns": found.time_ns, "busbw_gbs": found.busbw_gbs}


def seconds(setting: Setting) -> float:
    size, sips = float(setting["size_bytes"]) / MIB, float(setting["sips"])
    return 1 + 0.2 * size * sips * sips


# --------------------------------------------------------------------------------------------------------------- table


def table_of(rows: Rows, collective: str) -> tuple[AutoRow, ...]:
    """The rows of `auto` that take the fastest algorithm at every size and number of ranks that was measured, or what
    the table for all machines takes where that is as fast. Larger messages and more ranks have no row.
    """
    here, config = where(rows, collective=collective), present()
    found: list[AutoRow] = []
    for count in sorted(int(str(each)) for each in values_of(here, "sips")):
        measured = [_measurement(row) for row in where(here, sips=count)]
        sizes = sorted({each.nbytes for each in measured})
        before = []
        for nbytes in sizes:
            at_size = [each for each in measured if each.nbytes == nbytes]
            taken = taken_by_auto(config, None, collective, count, nbytes)
            same = [each for each in at_size if (each.algorithm, each.chunk_bytes or 0) == taken]
            before.append(same[0] if same else min(at_size, key=lambda each: each.time_ns))
        chosen, _ = choose_rows(measured, before)
        found += [replace(row, up_to_ranks=count, up_to_bytes=row.up_to_bytes or sizes[-1]) for row in chosen]
    return tuple(found)


def _measurement(row: Row) -> Measurement:
    nbytes, chunk = int(number(row, "size_bytes")), int(number(row, "chunk_bytes"))
    return Measurement(nbytes, str(row["algorithm"]), chunk or None, number(row, "time_ns"))


# ------------------------------------------------------------------------------------------------------------- figures


def present() -> CclConfig:
    """The configuration of the package."""
    return checked(shipped())


def machine_of(sips: int) -> str:
    """The key of the machine with so many SIPs."""
    keys = {str(key).removeprefix("machine:"): value for key, value in CUBES.items()}
    return machine_key(load_topology(None, {"system.sips.count": sips, **keys}).spec)


def taken_by_auto(config: CclConfig, machine: str | None, collective: str, sips: int, nbytes: int) -> tuple[str, int]:
    """The algorithm that `auto` takes, and its chunks: 0 for the algorithm's own."""
    taken = choose(config, collective, nbytes, algorithm=AUTO, ranks=sips, machine=machine)  # type: ignore[arg-type]
    own = config.algorithms[taken.algorithm].get("chunk_bytes", config.settings["chunk_bytes"])
    return taken.algorithm, 0 if taken.chunk_bytes == own else taken.chunk_bytes


def auto_ns(rows: Rows, config: CclConfig, machine: str | None, collective: str, sips: int, nbytes: int) -> float:
    """The time of what `auto` takes; raises KeyError where that was not measured."""
    algorithm, chunk = taken_by_auto(config, machine, collective, sips, nbytes)
    same = where(rows, collective=collective, sips=sips, size_bytes=nbytes)
    found = where(same, algorithm=algorithm, chunk_bytes=chunk)
    if not found:
        raise KeyError(f"{collective} of {nbytes} bytes on {sips} SIPs: {algorithm}, chunks of {chunk} bytes")
    return number(found[0], "time_ns")


def ratios(rows: Rows, machine: str | None = None) -> dict[tuple[str, int, int], float]:
    """The time of `auto` over that of the fastest algorithm, by collective, number of SIPs and size."""
    config = present()
    found = {}
    for collective in map(str, values_of(rows, "collective")):
        for sips in (int(str(each)) for each in values_of(rows, "sips")):
            here = where(rows, collective=collective, sips=sips)
            for nbytes in (int(str(each)) for each in values_of(here, "size_bytes")):
                least = min(number(row, "time_ns") for row in where(here, size_bytes=nbytes))
                taken = auto_ns(here, config, machine, collective, sips, nbytes)
                found[collective, sips, nbytes] = taken / least
    return found


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    counts = [int(str(each)) for each in values_of(rows, "sips")]
    shown = 8 if 8 in counts else max(counts)
    names = [name for name in COLLECTIVES if where(rows, collective=name, sips=shown)]
    panels = tuple(_times(where(rows, collective=name, sips=shown), name) for name in names)
    caption = f"Device time of every algorithm with its own chunks, on {shown} SIPs of 2 x 2 cubes, {DTYPE}."
    return [_worst(rows, counts), Chart("times", f"Time by size and algorithm, {shown} SIPs", caption, panels)]


def _worst(rows: Rows, counts: list[int]) -> Chart:
    found = ratios(rows, machine_of(counts[0]))
    names = tuple(name for name in COLLECTIVES if any(key[0] == name for key in found))

    def worst(n: int) -> Bars:
        values = [max(found[key] for key in found if key[:2] == (name, n)) for name in names]
        return Bars("largest of all sizes", tuple(values))

    panels = tuple(BarPanel("time of auto / least time", names, (worst(n),), title=f"{n} SIPs") for n in counts)
    sizes = [key[2] for key in found]
    caption = (
        f"The algorithm that auto takes, against the fastest of the package, from {format_bytes(min(sizes))} to "
        f"{format_bytes(max(sizes))}. The bar is {BAR:g}."
    )
    return Chart("auto", "auto takes an algorithm that is near the fastest", caption, panels)


def _times(rows: Rows, name: str) -> LinePanel:
    lines = [
        (algorithm, where(rows, algorithm=algorithm, chunk_bytes=4 * KIB if algorithm == "chain" else 0))
        for algorithm in map(str, values_of(rows, "algorithm"))
    ]
    drawn = tuple(Line(label, curve(found, "size_bytes", "time_ns", 1e-3)) for label, found in lines if found)
    return LinePanel("size", "us", drawn, title=name, log="xy", x_unit="bytes")


EVALUATION = evaluation_bench(
    name="ccl-auto",
    description="Evaluation: every collective by every algorithm, size and number of SIPs, and what auto takes.",
    evaluation=Evaluation(
        points, point, figures, seconds, ("messages between PEs", "two kernels on a PE", "store and forward", "routing")
    ),
)
