"""Every fast path has one switch, and every spelling of "do without" maps onto them."""

from __future__ import annotations

from functools import cache

import pytest

from kernbench import repeatable
from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fast_paths import ALL, EXACT, NAMES, NONE, TILES, FastPaths, from_environment
from kernbench.sim_engine.memo.launch_memo import LaunchMemo
from kernbench.testing import tiny_machine
from kernbench.topology import TopologyGraph


@cache
def machine() -> TopologyGraph:
    return tiny_machine(pes=2)


def engine(fast: bool | FastPaths | None = None, **options) -> GraphEngine:
    return GraphEngine(machine(), data=False, fast=fast, **options)


def test_the_set_is_declared_once() -> None:
    assert NAMES == ("launches", "collectives", "composites", "trains", "compiled", "workers", "programs")
    assert FastPaths() == ALL
    assert not any(getattr(NONE, name) for name in NAMES)


def test_what_reserves_links_needs_trains() -> None:
    assert ALL.without("trains") == FastPaths(trains=False, launches=False, collectives=False, composites=False)
    assert ALL.without("launches") == FastPaths(launches=False)
    with pytest.raises(UsageError, match="no fast path 'speed'"):
        ALL.without("speed")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ALL),
        ("check", ALL),
        ("tiles", TILES),
        ("all", NONE),
        ("compiled", FastPaths(compiled=False)),
        ("launches,workers", FastPaths(launches=False, workers=False)),
    ],
)
def test_the_environment_names_what_is_off(text: str, paths: FastPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXACT, text)
    assert from_environment() == engine().fast_paths == paths


def test_the_environment_is_refused_where_it_names_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXACT, "launches,speed")
    with pytest.raises(UsageError, match="KERNBENCH_EXACT is 'launches,speed'"):
        engine()


def test_older_spellings_map_onto_the_set() -> None:
    assert engine(fast=False).fast_paths == TILES
    assert engine(fast=True).fast_paths == ALL
    assert engine(mode="flits").fast_paths == ALL.without("trains")
    assert engine(fast=False, mode="flits").fast_paths == ALL.without("trains")


def test_each_switch_switches_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_WORKERS", "2")

    def parts(paths: FastPaths) -> dict[str, bool]:
        made = engine(paths)
        return {
            "launches": isinstance(made.launch_replayer, LaunchMemo),
            "composites": made.composite_replayer is not None,
            "trains": made.fabric.mode == "adaptive",
            "compiled": made.fabric.engine.compile_after < float("inf"),
            "workers": made.host_ahead.workers > 0,
        }

    every = parts(ALL)
    assert all(every.values())
    for name in ("composites", "compiled", "workers"):
        assert parts(ALL.without(name)) == every | {name: False}
    assert parts(ALL.without("launches", "collectives")) == every | {"launches": False}
    assert not any(parts(NONE).values())


@repeatable
def add_one(x, tl):
    tl.store(x.local, tl.load(x.local, (8, 64)) + 1.0)


def stats_of(fast: bool | FastPaths, kernel=add_one, launches: int = 3) -> dict[str, object]:
    with RuntimeContext(engine(fast)) as torch:
        x = torch.empty(8, 64)
        for _ in range(launches):
            torch.launch("k", kernel, x, target_pes=(0,), target_cubes=(0,))
        return torch.engine.simulation_stats().as_json()


def test_of_three_equal_launches_one_is_recorded_and_two_are_replayed() -> None:
    assert stats_of(True)["launches"] == {"simulated": 1, "recorded": 1, "reused": 2, "given_up": {}}


def test_a_launch_that_is_not_replayed_says_why() -> None:
    off = stats_of(ALL.without("launches"))["launches"]
    assert off == {"simulated": 3, "recorded": 0, "reused": 0, "given_up": {"this fast path is off": 3}}
    plain = stats_of(True, lambda x, tl: tl.cycles(5))
    assert plain["launches"]["given_up"] == {"the kernel is not @repeatable": 3}


def products(x, y, z, tl):
    tl.wait(tl.composite("gemm", tl.ref(x.local, (64, 64)), tl.ref(y.local, (64, 64)), z.local))


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_composites_are_counted_as_one_event_or_with_a_reason() -> None:
    def composites(fast: FastPaths) -> object:
        with RuntimeContext(engine(fast)) as torch:
            tensors = [torch.empty(64, 64) for _ in range(3)]
            torch.launch("k", products, *tensors, target_pes=(0,), target_cubes=(0,))
            return torch.engine.simulation_stats().as_json()["composites"]

    assert composites(ALL) == {"one_event": 1, "given_up": {}, "why_not": None}
    assert composites(NONE) == {"one_event": 0, "given_up": {}, "why_not": "fast paths are off"}


def test_why_flits_were_not_moved_by_a_compiled_loop() -> None:
    assert stats_of(True)["compiled"]["why_not"].endswith("flit events are few; from 150,000 on it pays")
    assert stats_of(NONE)["compiled"] == {"used": False, "why_not": "this fast path is off"}
    assert stats_of(True)["workers"] == {"started": 0, "why_not": "no launch took long enough"}
