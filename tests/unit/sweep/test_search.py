"""Searches: the same points for the same seed, on any number of workers and however often they are stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.sweep import sweep
from kernbench.sweep.objectives import Objective, ranked
from kernbench.sweep.points import grid
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.search import Search, random_points

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
AXES = {"n": list(range(64)), "kind": ["slow", "fast"]}
OPTUNA = {"search": "optuna", "trials": 16, "seed": 3, "overrides": SMALL}

runs: list[tuple[int, str]] = []


def spin(n, tl) -> None:
    tl.cycles(n)


def bench(torch, *, n: int, kind: str) -> None:
    """Best at n = 20, fast."""
    runs.append((n, kind))
    if n == 63:
        raise ValueError("no")
    torch.launch("spin", spin, 1 + abs(n - 20) + (100 if kind == "slow" else 0), target_cubes=0, target_pes=0)


class Stop(Exception):
    """Instead of Ctrl-C."""


def stop_after(count: int):
    def progress(now) -> None:
        if now.done >= count:
            raise Stop

    return progress


def test_a_random_search_takes_points_of_the_grid_once() -> None:
    points = random_points(AXES, {}, Search("random", 20, seed=1))
    keys = [point.key for point in points]
    assert len(dict.fromkeys(keys)) == 20
    assert set(keys) <= {point.key for point in grid(AXES, {})}
    assert points == random_points(AXES, {}, Search("random", 20, seed=1))
    assert points != random_points(AXES, {}, Search("random", 20, seed=2))


def test_a_random_search_of_more_trials_than_points_takes_all() -> None:
    assert len(random_points(AXES, {}, Search("random", 1000))) == 128


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"batch": 0}, {"seed": -1}, {"method": "hope"}, {"storage": "x"}])
def test_a_search_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Search(**{"method": "random", **wrong})  # type: ignore[arg-type]  # the mistake


@pytest.fixture(scope="module")
def whole() -> list[SweepRow]:
    """A search that was not stopped."""
    return sweep(bench, AXES, workers=0, **OPTUNA)


def test_a_search_finds_good_points_sooner_than_drawing_blindly(whole: list[SweepRow]) -> None:
    best = ranked(whole, [Objective("total_ns")])[0]
    assert best.params["kind"] == "fast"
    assert abs(best.params["n"] - 20) <= 4  # of 16 trials over 128 points
    assert [row.point for row in whole] == list(range(len(whole)))


def test_a_point_that_is_proposed_again_is_not_run_again(whole: list[SweepRow]) -> None:
    points = [tuple(row.params.values()) for row in whole]
    assert len(dict.fromkeys(points)) == len(points) <= 16


def test_a_search_that_was_stopped_takes_the_same_way(whole: list[SweepRow], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for count in (3, 11):  # within the first batch of eight, and within the second
        with pytest.raises(Stop):
            sweep(bench, AXES, workers=0, out=out, progress=stop_after(count), **OPTUNA)
    del runs[:]
    assert sweep(bench, AXES, workers=0, out=out, **OPTUNA) == whole
    assert len(runs) == len(whole) - 11
    del runs[:]
    assert sweep(bench, AXES, workers=0, out=out, **OPTUNA) == whole
    assert runs == []


def test_without_its_study_a_search_takes_the_same_way_and_rows_are_not_run_again(
    whole: list[SweepRow], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sweep(bench, AXES, workers=0, out=out, **OPTUNA)
    del runs[:]
    (out / "optuna.db").write_bytes(b"not a database" * 100)
    with pytest.raises(UsageError, match="study cannot be used"):
        sweep(bench, AXES, workers=0, out=out, **OPTUNA)
    (out / "optuna.db").unlink()
    assert sweep(bench, AXES, workers=0, out=out, **OPTUNA) == whole
    assert runs == []


def test_a_study_in_a_storage_of_ones_own(tmp_path: Path) -> None:
    import optuna

    storage = f"sqlite:///{tmp_path / 'study.db'}"
    settings = {**OPTUNA, "trials": 5, "storage": storage, "objectives": "total_ns:min,n:max"}
    rows = sweep(bench, AXES, workers=0, **settings)
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    ok = [row for row in rows if row.ok]
    assert [trial.values for trial in study.trials if trial.values] == [[r.total_ns, -r.params["n"]] for r in ok]
