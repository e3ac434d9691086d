"""How a run was simulated, as text: what was replayed, what was simulated and why, and the time of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernbench.sim_engine.simulation_stats import LaunchStats, SimulationStats


def simulation_as_text(stats: SimulationStats) -> str:
    """A line for each fast path, its reasons below it."""
    lines = [*_launches("launches", stats.launches), *_launches("collectives", stats.collectives)]
    composites = stats.composites
    by_tiles = composites.why_not or f"{composites.given_up.total():,} tile by tile"
    lines += [f"composites   {composites.one_event:,} as one event, {by_tiles}", *_reasons(composites.given_up)]
    lines.append(f"compiled     {'used' if stats.is_compiled else f'not used: {stats.not_compiled}'}")
    lines.append(f"workers      {stats.workers or f'none: {stats.no_workers}'}")
    lines += [f"{name:12} {each.wall_s:.2f} s, CPU {each.cpu_s:.2f} s" for name, each in stats.phases.items()]
    return "\n".join(lines)


def _launches(name: str, stats: LaunchStats) -> Iterator[str]:
    yield f"{name:12} {stats.reused:,} replayed, {stats.simulated:,} simulated ({stats.recorded:,} recorded)"
    yield from _reasons(stats.given_up)


def _reasons(given_up: Mapping[str, int]) -> Iterator[str]:
    for why, times in given_up.items():
        yield f"  {times:,} x {why}"
