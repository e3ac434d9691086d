"""Which algorithm is the fastest for every collective, by size and number of SIPs, and what `auto` takes.

SIPs of 2 x 2 cubes, and the shipped machine: 2 SIPs of 4 x 4. Sizes are what nccl-tests counts; tensors are spread over
all PEs. An algorithm is not measured where it cannot be the fastest, by `least_ns`: what its rounds and the bytes on
its busiest link take at least, against an estimate of what the fastest takes (a test compares both with the rows); nor
where it does what another one does (`is_same_as_another`). Where runs take minutes (`is_long`), algorithms are measured
one after the other, the one with the least bound first, and none whose bound is above what the fastest so far takes by
the bar of 10 %: it could not make `auto` fail. `auto` needs no rows of its own: simulated time is exact, so it takes as
long as the algorithm that it chooses. `scripts/ccl-table` makes the package's table of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from kernbench.benches._collective_calls import bus_factor
from kernbench.benches._collectives import WantedCollective, measure
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
SMALL, SHIPPED = 2, 4  # width and height of the cube mesh; the shipped machine has 2 SIPs
MESH = "machine:sip.cube_mesh.w"
DTYPE, LINK_GBS = "f16", 128.0
BAR = 1.1  # times the fastest algorithm
HOP_NS = 135.0  # a message between SIPs takes longer, with what comes before it and after it
ESTIMATE = (1.3, 300.0)  # the fastest algorithm takes less than so many times the least bound, and so many ns
FACTS = ("messages between PEs", "two kernels on a PE", "store and forward", "routing")
CUBE_PES = 8
LONG_SIPS = 8  # runs on more SIPs take minutes, and runs with more bytes on all of them, by the width of the cube mesh
LONG_BYTES = {SMALL: 2 * MIB, SHIPPED: 128 * KIB}
LONG_CHUNK = 4 * KIB  # of rings, besides their own chunks
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
    "all_gather": ("ring_all_gather", "direct", "long_messages_direct"),
    "reduce_scatter": ("ring_reduce_scatter", "direct", "long_messages_direct"),
    "all_to_all": ("direct", "long_messages_direct"),
    "broadcast": ("tree", "chain", "two_rounds", "direct", "long_messages_direct"),
    "reduce": ("tree", "chain", "two_rounds", "direct", "long_messages_direct"),
    "gather": ("direct", "long_messages_direct"),
    "scatter": ("direct", "long_messages_direct"),
}


def least_ns(collective: str, algorithm: str, sips: int, nbytes: int) -> float:
    """What an algorithm takes at least: a hop between SIPs per round, or a hop and the bytes on the link that carries
    most. Not their sum: chunks of several PEs overlap.
    """
    doublings, halvings = (sips - 1).bit_length(), sips.bit_length() - 1  # log2 of SIPs, rounded up and down
    share, rounds = bus_factor(collective, sips), 1
    if algorithm == "lrab_hierarchical_allreduce":
        share, rounds = sips - 1, sips - 1
    elif algorithm == "ring_allreduce":
        rounds = 2 * (sips - 1)
    elif algorithm in ("ring_all_gather", "ring_reduce_scatter", "chain"):
        rounds = sips - 1
    elif algorithm == "tree":
        share, rounds = doublings, halvings * (2 if collective == "all_reduce" else 1)
    elif algorithm == "recursive_doubling":
        share, rounds = halvings, doublings
    elif algorithm == "two_rounds":
        rounds = min(2, sips - 1)
    elif collective in ("broadcast", "reduce"):  # direct
        share = sips - 1
    return max(rounds * HOP_NS, HOP_NS + share * nbytes / LINK_GBS)


def can_be_fastest(collective: str, algorithm: str, sips: int, nbytes: int) -> bool:
    """Whether its bound is below an estimate of what the fastest takes."""
    factor, more_ns = ESTIMATE
    least = min(least_ns(collective, name, sips, nbytes) for name in ALGORITHMS[collective])
    return least_ns(collective, algorithm, sips, nbytes) <= factor * least + more_ns


def is_same_as_another(collective: str, algorithm: str, sips: int, nbytes: int, pes: int) -> bool:
    """Whether an algorithm does exactly what another one does: variants with other slots and chunks, where messages are
    shorter than either, and `short_messages_all_pes` where `hierarchical_all_pes` has a ring for every SIP too.
    """
    piece = nbytes / pes
    if sips == 2 and algorithm in ("lrab_hierarchical_allreduce", "recursive_doubling"):
        return piece <= KIB  # one exchange of the whole, as by hierarchical_all_pes
    if sips == 2 and algorithm in ("tree", "chain", "two_rounds") and collective != "all_reduce":
        return piece <= 512  # one message, as by direct
    if algorithm == "short_messages_all_pes":
        return sips <= 12 or nbytes > 64 * KIB  # longer ones are for rings that a short slot only delays
    if algorithm == "long_messages_all_pes":
        return piece < 2 * KIB
    if algorithm == "long_messages_direct":
        is_whole = collective in ("broadcast", "reduce", "all_to_all")
        return piece / (1 if is_whole else sips) <= 512
    return False


def points(
    machine: TopologyGraph,
    *,
    sips: Annotated[str, "numbers of SIPs, with commas; 16:4096 for sizes up to 4096"] = ",".join(map(str, SIPS)),
    max_bytes: Annotated[int, "sizes up to this one"] = MIB,
    shipped_max_bytes: Annotated[int, "sizes on the shipped machine up to this one; 0: none"] = MIB,
) -> list[Setting]:
    found: list[Setting] = []
    for each in sips.split(","):
        count, _, most = each.strip().partition(":")
        if not count.isdecimal() or int(count) < 2 or (most and not most.isdecimal()):
            raise UsageError(f"sips is {sips!r}", hint="give numbers of 2 or more, with sizes if need be: 2,4,8:65536")
        found += _points(int(count), SMALL, min(max_bytes, int(most or max_bytes)))
    return found + _points(2, SHIPPED, shipped_max_bytes)


def _points(count: int, mesh: int, max_bytes: int) -> list[Setting]:
    found: list[Setting] = []
    for collective in COLLECTIVES:
        for nbytes in (each for each in SIZES if each <= max_bytes):
            settings = _settings(mesh, collective, count, nbytes)
            found += settings[:1] if is_long(mesh, count, nbytes) else settings
    return found


def _settings(mesh: int, collective: str, count: int, nbytes: int) -> list[Setting]:
    """The algorithms of one collective and size that may be measured; where runs are long, the most promising first."""
    keys: Setting = {"machine:system.sips.count": count, MESH: mesh, "machine:sip.cube_mesh.h": mesh}
    pes = mesh * mesh * CUBE_PES
    found: list[Setting] = []
    names = [name for name in ALGORITHMS[collective] if not is_same_as_another(collective, name, count, nbytes, pes)]
    if not is_long(mesh, count, nbytes):
        names = [name for name in names if can_be_fastest(collective, name, count, nbytes)]
    else:
        likely = _likely(collective, count, nbytes)
        names.sort(key=lambda name: (least_ns(collective, name, count, nbytes), name != likely))
    for name in names:
        row: Setting = {"collective": collective, "sips": count, "size_bytes": nbytes, "algorithm": name}
        chunks = [LONG_CHUNK] if name == "chain" else [0]
        if name.startswith("ring_") and nbytes / (pes * count) > LONG_CHUNK:
            chunks.append(LONG_CHUNK)
        found += [{**row, "chunk_bytes": chunk, **keys} for chunk in chunks]
    return found


def is_long(mesh: int, sips: int, nbytes: int) -> bool:
    return sips > LONG_SIPS or sips * nbytes > LONG_BYTES[mesh]


def _likely(collective: str, sips: int, nbytes: int) -> str:
    """Of algorithms with equal bounds, the one that is measured first."""
    if collective == "all_reduce":
        return "hierarchical_all_pes"
    if collective in ("broadcast", "reduce") and sips > LONG_SIPS:
        return "two_rounds"
    if nbytes < 20 * KIB * sips:
        return "direct"
    return "ring_reduce_scatter" if collective == "reduce_scatter" else "long_messages_direct"


def further(rows: Rows) -> list[Setting]:
    """Where runs are long, the next algorithm of each collective and size that could be faster, by more than the bar,
    than all that were measured.
    """
    cells: dict[tuple[int, str, int, int], list[Row]] = {}
    for row in rows:
        mesh, sips, nbytes = (int(number(row, name)) for name in (MESH, "sips", "size_bytes"))
        if is_long(mesh, sips, nbytes):
            cells.setdefault((mesh, str(row["collective"]), sips, nbytes), []).append(row)
    found: list[Setting] = []
    for (mesh, collective, sips, nbytes), here in cells.items():
        best = min(number(row, "time_ns") for row in here)
        done = {(row["algorithm"], row["chunk_bytes"]) for row in here}
        left = [
            setting
            for setting in _settings(mesh, collective, sips, nbytes)
            if (setting["algorithm"], setting["chunk_bytes"]) not in done
            and is_worth_measuring(collective, str(setting["algorithm"]), sips, nbytes, best)
        ]
        found += left[:1]
    return found


def is_worth_measuring(collective: str, algorithm: str, sips: int, nbytes: int, best_ns: float) -> bool:
    """Whether an algorithm may be so much faster than the fastest so far that `auto` would miss the bar without it."""
    return BAR * least_ns(collective, algorithm, sips, nbytes) < best_ns


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
    found = measure(torch, WantedCollective(collective, size_bytes, DTYPE), check=False)  # type: ignore[arg-type]  # one of them
    return {"time_ns": found.time_ns, "busbw_gbs": found.busbw_gbs}


def seconds(setting: Setting) -> float:
    size, sips = float(setting["size_bytes"]) / MIB, float(setting["sips"]) * float(setting[MESH]) / SMALL
    return 0.3 + (0.03 + 0.25 * size) * sips * sips


# --------------------------------------------------------------------------------------------------------------- table


def table_of(rows: Rows, collective: str, mesh: int = SMALL) -> tuple[AutoRow, ...]:
    """The rows of `auto` that take the fastest algorithm at every size and number of ranks that was measured, or what
    the table for all machines takes where that is as fast. Larger messages and more ranks have no row.
    """
    here, config = where(on_mesh(rows, mesh), collective=collective), present()
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


def on_mesh(rows: Rows, mesh: int) -> Rows:
    """The rows of machines whose SIPs have so many cubes each way."""
    return where(rows, **{MESH: mesh})


def machine_of(mesh: int) -> str:
    """The key of machines whose SIPs have so many cubes each way."""
    return machine_key(load_topology(None, {"sip.cube_mesh.w": mesh, "sip.cube_mesh.h": mesh}).spec)


def taken_by_auto(config: CclConfig, machine: str | None, collective: str, sips: int, nbytes: int) -> tuple[str, int]:
    """The algorithm that `auto` takes, and its chunks: 0 for the algorithm's own."""
    taken = choose(config, collective, nbytes, algorithm=AUTO, ranks=sips, machine=machine)  # type: ignore[arg-type]
    own = config.algorithms[taken.algorithm].get("chunk_bytes", config.settings["chunk_bytes"])
    return taken.algorithm, 0 if taken.chunk_bytes == own else taken.chunk_bytes


def auto_ns(rows: Rows, config: CclConfig, machine: str | None, collective: str, sips: int, nbytes: int) -> float:
    """The time of what `auto` takes; raises UsageError where that was not measured."""
    algorithm, chunk = taken_by_auto(config, machine, collective, sips, nbytes)
    same = where(rows, collective=collective, sips=sips, size_bytes=nbytes)
    found = where(same, algorithm=algorithm, chunk_bytes=chunk)
    if not found:
        what = f"auto takes {algorithm}, chunks of {chunk} bytes, for a {collective} of {nbytes} bytes on {sips} SIPs"
        raise UsageError(
            f"{what}, which was not measured", hint="make the package's tables of the rows: scripts/ccl-table"
        )
    return number(found[0], "time_ns")


def ratios(rows: Rows, mesh: int = SMALL) -> dict[tuple[str, int, int], float]:
    """The time of `auto` over that of the fastest algorithm, by collective, number of SIPs and size."""
    config, machine, rows = present(), machine_of(mesh), on_mesh(rows, mesh)
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
    small = on_mesh(rows, SMALL)
    counts = [int(str(each)) for each in values_of(small, "sips")]
    shown = 8 if 8 in counts else max(counts)
    names = [name for name in COLLECTIVES if where(small, collective=name, sips=shown)]
    panels = tuple(_times(where(small, collective=name, sips=shown), name) for name in names)
    caption = f"Device time of every algorithm with its own chunks, on {shown} SIPs of 2 x 2 cubes, {DTYPE}."
    return [_worst(rows, counts), Chart("times", f"Time by size and algorithm, {shown} SIPs", caption, panels)]


def _worst(rows: Rows, counts: list[int]) -> Chart:
    """A panel for each number of SIPs, and one for the shipped machine if it has rows."""
    small, shipped_machine = ratios(rows), ratios(rows, SHIPPED)

    def panel(found: Mapping[tuple[str, int, int], float], n: int, cubes: int) -> BarPanel:
        names = tuple(name for name in COLLECTIVES if any(key[:2] == (name, n) for key in found))
        values = [max(found[key] for key in found if key[:2] == (name, n)) for name in names]
        largest = format_bytes(max(key[2] for key in found if key[1] == n))
        title = f"{n} SIPs of {cubes} x {cubes} cubes, up to {largest}"
        return BarPanel("time of auto / least time", names, (Bars("largest of all sizes", tuple(values)),), title=title)

    panels = [panel(small, n, SMALL) for n in counts]
    if shipped_machine:
        panels.append(panel(shipped_machine, 2, SHIPPED))
    least = format_bytes(min(key[2] for key in small))
    caption = (
        f"The algorithm that auto takes, against the fastest of the package, from {least} on; of all sizes the largest "
        f"ratio. The bar is {BAR:g}."
    )
    return Chart("auto", "auto takes an algorithm that is near the fastest", caption, tuple(panels))


def _times(rows: Rows, name: str) -> LinePanel:
    lines = [
        (algorithm, where(rows, algorithm=algorithm, chunk_bytes=LONG_CHUNK if algorithm == "chain" else 0))
        for algorithm in map(str, values_of(rows, "algorithm"))
    ]
    drawn = tuple(Line(label, curve(found, "size_bytes", "time_ns", 1e-3)) for label, found in lines if found)
    return LinePanel("size", "us", drawn, title=name, log="xy", x_unit="bytes")


EVALUATION = evaluation_bench(
    name="ccl-auto",
    description="Evaluation: every collective by every algorithm, size and number of SIPs, and what auto takes.",
    evaluation=Evaluation(points, point, figures, seconds, FACTS, further),
)
