"""A run as text: time, fraction of the peak, bound, utilisation, correctness of the data.

`[v] PASS` and `[x] FAIL` are anchors that scripts may match; the rest of the layout may change. Colour is the
caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.common.ids import PeId, memory_kind
from kernbench.common.units import format_bytes, format_joules, format_ns
from kernbench.report.paint import Paint, plain
from kernbench.report.roofline import LATENCY, Roofline, peak_of
from kernbench.report.run_figures import RunFigures, busiest_links
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.data_executor import DataCheck

MOST_ROWS = 12  # of launches and of wrong ops; the rest is counted
BAR = 20
NAME_WIDTH = 44
BOUND_WORDS = {
    "compute": "compute bound (the PEs' engines)",
    "memory": "memory bound ({memory})",
    "neither": "neither compute nor memory bound",
}


def full_summary(figures: RunFigures, paint: Paint = plain) -> str:
    """The lines below the answer, with all details."""
    lines = [*_params(figures), "", *_time(figures, paint)]
    if figures.launches:
        lines += ["", *_launches(figures, paint)]
        if any(figures.tiles):
            lines += ["", *_tiles(figures, paint)]
        slowest = max(figures.launches, key=lambda pair: pair[0].pe_exec_ns_max)
        lines += ["", *_pes(figures, slowest[0], paint), "", *_roofline(figures, *slowest, paint)]
        lines += ["", *_engines(slowest[0], paint)]
        if slowest[0].links:
            lines += ["", *_launch_links(slowest[0], paint)]
    if figures.links:
        lines += ["", *_links(figures, paint)]
    if figures.energy.run.joules:
        lines += ["", *_energy(figures, paint)]
    lines += ["", *_infeasible(figures, paint), *_verdict(figures, paint)]
    if figures.result.engine.races is not None:
        lines += ["", *_races(figures, paint)]
    return "\n".join(lines)


def short_summary(figures: RunFigures, paint: Paint = plain) -> str:
    """The lines below the answer: the launches, and the results of checks."""
    parts = _params(figures)
    if figures.launches:
        parts += ["", *_launches(figures, paint)]
        tiles = list(_tiles(figures, paint)) if any(figures.tiles) else []
        parts += [line for line in tiles if "would use" in line]
    if figures.feasibility.infeasible:
        parts += ["", *_infeasible(figures, paint)]
    if figures.result.data or figures.result.ops:
        parts += ["", *_verdict(figures, paint)]
    if figures.result.engine.races is not None:
        parts += ["", *_races(figures, paint)]
    return "\n".join(parts)


def _params(figures: RunFigures) -> list[str]:
    named = ", ".join(f"{name}={value}" for name, value in figures.params.items())
    return [f"  with {named}"] if named else []


def _time(figures: RunFigures, paint: Paint) -> Iterator[str]:
    total, kernels = figures.result.total_ns, figures.kernels_ns
    yield paint("Time", "title")
    rows = [
        ("total", total, ""),
        ("kernels", kernels, percent(kernels, total)),
        ("launching, mappings, host writes", total - kernels, percent(total - kernels, total)),
    ]
    yield from table([(name, format_ns(ns), share) for name, ns, share in rows])


def _launches(figures: RunFigures, paint: Paint) -> Iterator[str]:
    yield paint("Launches", "title")
    heads = [
        ("", "device", "PEs", "launch", "slowest PE", "fastest PE", "TFLOP/s", "GB/s", "limited by", "% of roofline"),
    ]
    rows = []
    for launch, roofline in figures.launches[:MOST_ROWS]:
        rows.append(
            (
                _fitted(launch.name),
                "+".join(f"sip:{sip}" for sip in launch.sips),
                str(len(launch.pes)),
                format_ns(launch.total_ns),
                format_ns(launch.pe_exec_ns_max),
                format_ns(launch.pe_exec_ns_min),
                f"{roofline.gflops / 1000:,.3f}",
                f"{roofline.gbs_requested + roofline.gbs_sent:,.1f}",
                roofline.limited_by,
                f"{roofline.share:.1%}"
                if roofline.bound == "neither"
                else f"{roofline.share:.1%} {roofline.bound_name}",
            )
        )
    yield from table([*heads, *rows], left=(0, 1, 8, 9))
    if len(figures.launches) > MOST_ROWS:
        yield f"  and {len(figures.launches) - MOST_ROWS} more"
    if len(figures.launches) > 1:
        totals = figures.totals
        yield (
            f"  total of {len(figures.launches)}: {format_ns(figures.kernels_ns)}, {totals.flops:,} flops, "
            f"{_home_bytes(figures)}{_far_bytes(totals.bytes_far)}{_sent_bytes(totals.bytes_sent)}"
        )


def _tiles(figures: RunFigures, paint: Paint) -> Iterator[str]:
    """The tiles of composites, once for equal launches, and what another tile would gain."""
    yield paint("Tiles of composites", "title")
    each = zip(figures.launches, figures.tiles, strict=True)
    listed = list(dict.fromkeys((launch.name, tiles) for (launch, _), tiles in each if tiles))
    for name, tiles in listed[:MOST_ROWS]:
        yield f"  {name}: " + ", ".join(f"{use.op} {_tile(use.tile)} ({use.tiles:,} tiles)" for use in tiles)
        for use in tiles:
            if use.auto_tile is not None:
                yield (
                    f'    native tile {_tile(use.tile)}; tile_shape="auto" would use {_tile(use.auto_tile)}, '
                    f"about {use.auto_gain:.1f} times faster"
                )
    if len(listed) > MOST_ROWS:
        yield f"  and {len(listed) - MOST_ROWS} more"


def _tile(tile: Sequence[int]) -> str:
    return " x ".join(map(str, tile))


def _memory_bytes(requested: int, moved: int, memory: str = "HBM") -> str:
    return f"{memory}: {format_bytes(requested)} requested, {format_bytes(moved)} moved in whole bursts"


def _home_bytes(figures: RunFigures) -> str:
    """What launches have moved to and from the memory that tensors lie in by default."""
    home, totals = figures.result.engine.graph.spec.cube.home, figures.totals
    if home.space == "hbm":
        return _memory_bytes(totals.bytes_hbm_requested, totals.bytes_hbm)
    uses = (each for launch, _ in figures.launches for each in launch.memories.items())
    return f"{home.name}: {format_bytes(sum(use.burst_bytes for node, use in uses if memory_kind(node) == home.space))}"


def _far_bytes(moved: int) -> str:
    return f"; far memory: {format_bytes(moved)}" if moved else ""


def _sent_bytes(sent: int) -> str:
    return f"; messages: {format_bytes(sent)}" if sent else ""


def _pes(figures: RunFigures, launch: Launch, paint: Paint) -> Iterator[str]:
    """Times of the PEs of a launch: one row if they are equal, else the slowest, the median and the fastest."""
    yield paint(f"PEs of {launch.name}, the slowest launch", "title")
    ordered = sorted(launch.pes, key=lambda result: -result.pe_exec_ns)  # stable: ties stay in order of place
    if len({(result.pe_exec_ns, result.dma_ns, result.compute_ns) for result in ordered}) == 1:
        found = [("each" if len(ordered) > 1 else "", ordered[0])]
    else:
        found = [("slowest", ordered[0]), ("median", ordered[len(ordered) // 2]), ("fastest", ordered[-1])]
    rows = [
        (
            name,
            format_ns(result.pe_exec_ns),
            format_ns(result.dma_ns),
            format_ns(result.compute_ns),
            f"all {len(ordered)}" if name == "each" else str(PeId(result.sip, result.cube, result.pe)),
        )
        for name, result in found
    ]
    yield from table([("", "kernel", "DMA", "compute", "PE"), *rows], left=(0, 4))
    peak = launch.tcm_peak
    if peak is not None and peak.tcm_peak_bytes:
        whole = figures.result.engine.graph.spec.cube_of(peak.sip, peak.cube).tcm_allocatable_bytes
        yield (
            f"  TCM peak {format_bytes(peak.tcm_peak_bytes)} of {format_bytes(whole)} "
            f"on {PeId(peak.sip, peak.cube, peak.pe)}"
        )


def _roofline(figures: RunFigures, launch: Launch, roofline: Roofline, paint: Paint) -> Iterator[str]:
    pes = len(launch.pes)
    yield paint(f"Roofline of {launch.name}, the slowest launch", "title")
    bounds = [("compute", roofline.compute_ns), ("memory", roofline.memory_ns)]
    if roofline.link is not None:
        bounds.append((f"link ({roofline.link.link_class})", roofline.link_ns))
    rows = [(f"  {name} bound", format_ns(ns), bar_of(ns, roofline.exec_ns)) for name, ns in bounds]
    yield from table([("took", format_ns(roofline.exec_ns), ""), *rows], left=(0, 2))
    if roofline.bound != "neither":
        yield f"  {_bound_words(roofline)}; {roofline.share:.1%} of roofline"
    intensity, ridge = _figure(roofline.intensity), _figure(roofline.ridge)
    yield f"  {intensity} flops per byte; f16 products are compute bound from {ridge} on"
    moved = _memory_bytes(roofline.nbytes_requested, roofline.nbytes, roofline.memory)
    yield f"  {moved}{_sent_bytes(roofline.nbytes_sent)}"
    one = "PE" if pes == 1 else "PEs"
    whole = peak_of(figures.result.engine.graph.spec, read_share=roofline.read_share)
    yield from table(
        [
            ("", "reached", f"peak of {pes} {one}", "share", "peak of all", "share"),
            _reached("TFLOP/s (f16)", roofline.gflops / 1000, roofline.peak.gflops / 1000, whole.gflops / 1000),
            _reached(f"{roofline.memory} GB/s requested", roofline.gbs_requested, roofline.peak.gbs, whole.gbs),
            _reached(f"{roofline.memory} GB/s moved", roofline.gbs, roofline.peak.gbs, whole.gbs),
        ]
    )


def _bound_words(roofline: Roofline) -> str:
    if roofline.limited_by == LATENCY:
        return f"latency bound; the largest term of the roofline is {roofline.bound_name}"
    link = roofline.link
    if roofline.bound != "link" or link is None:
        return BOUND_WORDS[roofline.bound].format(memory=roofline.memory)
    return f"link bound ({link.link_class}): {format_bytes(link.nbytes)} of messages over {link.src} -> {link.dst}"


def _reached(name: str, rate: float, peak: float, all_peak: float) -> tuple[str, ...]:
    return (name, f"{rate:,.2f}", f"{peak:,.2f}", percent(rate, peak), f"{all_peak:,.2f}", percent(rate, all_peak))


def _engines(launch: Launch, paint: Paint) -> Iterator[str]:
    """Engines by how long the busiest PE used them."""
    yield paint(f"Engines during {launch.name}, on the PE where each was busiest", "title")
    exec_ns = launch.pe_exec_ns_max
    found = sorted(launch.engines.items(), key=lambda item: (-item[1].busy_ns_max, item[0]))
    rows = [
        (kind, f"{use.ops:,} ops", format_ns(use.busy_ns_max), bar_of(use.busy_ns_max, exec_ns)) for kind, use in found
    ]
    yield from table(rows or [("none", "", "", "")], left=(0, 3))


def _launch_links(launch: Launch, paint: Paint) -> Iterator[str]:
    yield paint(f"Busiest links during {launch.name}", "title")
    found = busiest_links(launch)
    rows = [(f"{src} -> {dst}", format_ns(ns), bar_of(ns, launch.pe_exec_ns_max)) for (src, dst), ns in found]
    yield from table(rows, left=(0, 2))


def _links(figures: RunFigures, paint: Paint) -> Iterator[str]:
    yield paint("Busiest links of the whole run, including host writes", "title")
    total = figures.result.total_ns
    rows = [
        (
            f"{link.src} -> {link.dst}",
            format_bytes(link.nbytes),
            bar_of(link.busy_ns, total),
            _queue(link.longest_queue_ns),
        )
        for link in figures.links
    ]
    yield from table(rows, left=(0, 2, 3))


def _energy(figures: RunFigures, paint: Paint) -> Iterator[str]:
    """Joules by block, largest first, and work without a coefficient."""
    energy = figures.energy.run
    yield paint("Energy", "title")
    yield (
        f"  {format_joules(energy.total_j)}, {_figure(energy.average_w)} W on average, "
        f"{_figure(figures.energy.peak_w)} W at most over a launch or the run"
    )
    found = sorted(energy.joules.items(), key=lambda item: -item[1])
    yield from table([(name, format_joules(j), bar_of(j, energy.total_j)) for name, j in found], left=(0, 2))
    if energy.not_counted:
        yield f"  not counted, no coefficient: {', '.join(key.removeprefix('energy.') for key in energy.not_counted)}"


def _infeasible(figures: RunFigures, paint: Paint) -> Iterator[str]:
    """Limits of the description that this design exceeds."""
    if figures.feasibility.infeasible:
        yield paint("Infeasible", "title")
        yield from (f"  {reason}" for reason in figures.feasibility.infeasible)
        yield ""


def _queue(ns: float) -> str:
    return f"max queueing delay {format_ns(ns)}" if ns else ""


def _verdict(figures: RunFigures, paint: Paint) -> Iterator[str]:
    result = figures.result
    yield paint("Data", "title")
    if result.data:
        checks = [_check_row(check, paint) for check in result.data]
        yield from table(checks, left=(0, 1, 2), mark=True)
        for check in result.data:
            if (why := check.reason or check.mismatch) is not None:
                yield f"    {check.tensor}: {why}"
    elif not result.completion.ok:
        yield f"  {paint('[x] FAIL', 'fail')} {result.completion.error_message}"
    else:
        yield "  not compared; --verify-data compares what the bench states with numpy"
    if result.ops:
        wrong = [check for check in result.ops if not check.ok]
        state = paint("[x] FAIL", "fail") if wrong else paint("[v] PASS", "pass")
        yield f"  {state} {len(result.ops):,} intermediate ops checked, {len(wrong):,} wrong"
        for check in wrong[:MOST_ROWS]:
            first = "" if check.mismatch is None else f"; {check.mismatch}"
            yield f"    {check.tensor} {check.dtype}: off by {check.max_abs_err:.3g}{first}"


def _races(figures: RunFigures, paint: Paint) -> Iterator[str]:
    """Pairs of lines that race, with the first pair of racing accesses."""
    races, detector = figures.result.races, figures.result.engine.races
    assert detector is not None
    yield paint("Races", "title")
    state = paint("[x] FAIL", "fail") if races else paint("[v] PASS", "pass")
    found = "no races" if not races else "1 race" if len(races) == 1 else f"{len(races)} races"
    yield f"  {state} {found} among {detector.compared:,} accesses to memory"
    for race in races[:MOST_ROWS]:
        yield from (f"  {line}" for line in str(race).splitlines())
    if len(races) > MOST_ROWS:
        yield f"  and {len(races) - MOST_ROWS} more"


def _check_row(check: DataCheck, paint: Paint) -> tuple[str, ...]:
    state = paint("[v] PASS", "pass") if check.ok else paint("[x] FAIL", "fail")
    error = f"max error {check.max_abs_err:.3g}" if check.reason is None else "not compared"
    return state, check.tensor, check.dtype, error, f"rtol {check.rtol:g}", f"atol {check.atol:g}"


# ---- layout


def _fitted(name: str) -> str:
    """A name; a long one is cut in the middle, as names often differ at their end."""
    if len(name) <= NAME_WIDTH:
        return name
    tail = (NAME_WIDTH - 3) // 2
    return f"{name[: NAME_WIDTH - 3 - tail]}...{name[-tail:]}"


def _figure(number: float) -> str:
    """Three significant digits, and all those before the point: `0.00781`, `10.7`, `1,365`."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def bar_of(part: float, whole: float, mark: str = "#") -> str:
    """`|#####               |  25.0%`."""
    share = part / whole if whole else 0.0
    filled = mark * min(BAR, round(share * BAR))
    return f"|{filled:<{BAR}}| {share:6.1%}"


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), mark: bool = False) -> Iterator[str]:
    """Aligned columns; those of `left` are text, the others figures. With `mark`, the first column may be coloured and
    is not padded.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell if mark and i == 0 else f"{cell:<{w}}" if i in left else f"{cell:>{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()
