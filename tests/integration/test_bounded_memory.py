"""What is kept of launches and composites is bounded by bytes, and nothing that can be seen depends on it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_launches import CUBES, Run, machine, outcome, products, same, uneven

from kernbench import repeatable
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine import launch_order
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.memo import composite_memo, launch_recordings
from kernbench.testing import tiny_machine


@repeatable
def sums(x: Any, y: Any, tl: Any) -> None:
    tl.store(y.local, tl.sum(tl.load(x.local, (8, 64)), axis=1))


def recordings(run: Run) -> list[int]:
    """How many recordings there were after each launch of three kernels, the last two again from the newest on."""
    x, y = run.tensors()
    found = []
    for kernel in (products, uneven, sums, sums, uneven, products):
        run.launch(kernel, x, y)
        known = run.engine.launch_replayer
        found.append(0 if known is None else known._recordings.recorded)
    return found


def test_recorded_launches_are_dropped_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two of three recordings, the third drops the first, which is then made again."""
    counts: list[int] = []
    outcome(lambda run: counts.extend(recordings(run)), machine())
    assert counts == [1, 2, 3, 3, 3, 3]
    sizes: list[int] = []

    def all_three(run: Run) -> None:
        recordings(run)
        known = run.engine.launch_replayer
        assert known is not None
        sizes.extend(recording.nbytes for _, recording in known._recordings._kept.values())

    outcome(all_three, machine())
    monkeypatch.setattr(launch_recordings, "MOST_BYTES", sum(sizes) - 1)
    counts.clear()
    assert same(lambda run: counts.extend(recordings(run))) == 6 * CUBES
    assert counts[:6] == [1, 2, 3, 3, 3, 4]


@pytest.mark.needs("n_to_one", reason="composites over channel routers are simulated tile by tile")
def test_recorded_composites_are_dropped_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(x: Any, y: Any, tl: Any) -> None:
        for rows in (128, 192, 256):
            tl.wait(tl.composite("gemm", tl.ref(x.local, (rows, 256)), tl.ref(x.local, (256, 128)), y.local))

    def kept(most_bytes: int) -> list[int]:
        monkeypatch.setattr(composite_memo, "MOST_KEPT_BYTES", most_bytes)
        composite_memo.composite_recordings.cache_clear()
        engine = GraphEngine(machine(), data=False)
        with RuntimeContext(engine) as torch:
            x, y = (torch.empty(512, 256, dp=DPPolicy(num_cubes=1, num_pes=1)) for _ in range(2))
            torch.launch("large", large, x, y, target_cubes=0, target_pes=0)
        return [
            recording.plan.total_tiles
            for recording in composite_memo.composite_recordings(machine()).recordings.values()
        ]

    tiles = kept(1 << 28)
    assert len(tiles) == 3
    assert kept(1) == tiles[-1:]
    composite_memo.composite_recordings.cache_clear()


def waves(launches: int) -> tuple[int, int]:
    """Launches that write the same bytes, each waited for; returns how many clocks are kept, and races found."""
    engine = GraphEngine(tiny_machine(), check_races=True)

    def writes(x: Any, tl: Any) -> None:
        tl.store(x.local, tl.zeros((8,), "f16"))

    with RuntimeContext(engine) as torch:
        x = torch.zeros(64, dp=DPPolicy(num_cubes=1, num_pes=1))
        made = [torch.launch("writes", writes, x, target_cubes=0, target_pes=0) for _ in range(launches)]
        for launch in made:  # what was dropped meanwhile is asked for, too
            torch.wait(launch)
    order = engine.races
    assert order is not None
    kept = sum(len(clocks._kept) for clocks in (order._starts, order._ends, order._answered))
    return kept, len(engine.found_races())


def test_clocks_of_launches_that_are_over_are_dropped_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waves(8) == (3 * 8, 0)
    monkeypatch.setattr(launch_order, "MOST_BYTES", 2_000)
    few, races = waves(8)
    assert few < 3 * 8
    assert races == 0
