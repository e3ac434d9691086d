"""The fabric, in every mode, against the naive SimPy model: the same completion times, to the last bit.

Networks and traffic are random: sizes from one byte up, ties, hotspots, dependent streams, store-and-forward chains,
control messages, delay rules with and without a state, memories with reads, writes and penalties, paths that come back.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load(name: str) -> ModuleType:
    """A module beside this one: the test folders are not packages."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = load("naive_fabric").NaiveFabric
traffic = load("random_traffic")

SMALL = [0, 1, 15, 16, 17, 64, 100, 256, 257, 700, 1500]
MEDIUM = [*SMALL, 4096, 5000, 12345]
LARGE = [1, 4096, 1 << 16]


def check_same(seed: int, expected: dict[tuple[int, int], float], run: Callable[[str], Any]) -> None:
    """All modes of the fabric end every transfer when the naive model says, and count the same."""
    flits = run("flits")
    assert flits.done == expected, f"flits, seed {seed}"
    for mode in ("adaptive", "compiled", "compiled later"):
        found = run(mode)
        assert found.done == expected, f"{mode}, seed {seed}"
        assert found.links == flits.links, f"link counters, {mode}, seed {seed}"
        assert found.channels == flits.channels, f"channel counters, {mode}, seed {seed}"


def check_streams(seed: int, sizes: list[int], messages: int = 14, flit_bytes: int | None = None) -> None:
    case = traffic.Case(seed, sizes=sizes, messages=messages, flit_bytes=flit_bytes)
    check_same(seed, traffic.run_naive(case, oracle), partial(traffic.run_fabric, case))


def check_ahead(seed: int, sizes: list[int], messages: int = 14, flit_bytes: int | None = None) -> None:
    case = traffic.Case(seed, sizes=sizes, messages=messages, flit_bytes=flit_bytes)
    check_same(seed, traffic.run_naive_ahead(case, oracle), partial(traffic.run_fabric_ahead, case))


@pytest.mark.parametrize("chunk", range(2))
def test_streams_driven_by_processes_end_when_the_naive_model_says(chunk: int) -> None:
    for seed in range(30 * chunk, 30 * chunk + 30):
        check_streams(seed, SMALL)


@pytest.mark.parametrize("chunk", range(2))
def test_transfers_injected_ahead_of_time_end_when_the_naive_model_says(chunk: int) -> None:
    for seed in range(10_000 + 30 * chunk, 10_000 + 30 * chunk + 30):
        check_ahead(seed, SMALL)


@pytest.mark.parametrize("chunk", range(2))
def test_readers_that_stream_are_done_when_the_naive_model_says(chunk: int) -> None:
    for seed in range(40_000 + 20 * chunk, 40_000 + 20 * chunk + 20):
        case = traffic.ReaderCase(seed)
        check_same(seed, traffic.run_naive_readers(case, oracle), partial(traffic.run_readers, case))


@pytest.mark.parametrize("chunk", range(2))
def test_larger_transfers_end_when_the_naive_model_says(chunk: int) -> None:
    for seed in range(20_000 + 4 * chunk, 20_000 + 4 * chunk + 4):
        check_streams(seed, MEDIUM, messages=8, flit_bytes=256)
        check_ahead(seed, LARGE, messages=4, flit_bytes=256)


def test_a_mebibyte_across_a_byte_ends_when_the_naive_model_says() -> None:
    for seed in range(30_000, 30_004):
        check_ahead(seed, [1, 1 << 20], messages=3, flit_bytes=256)


@pytest.mark.parametrize("chunk", range(2))
def test_watching_a_transfer_does_not_change_its_time(chunk: int) -> None:
    for seed in range(25 * chunk, 25 * chunk + 25):
        case = traffic.Case(seed, sizes=SMALL)
        assert traffic.run_fabric(case, "adaptive", trace=True).done == traffic.run_fabric(case, "flits").done, seed


@pytest.mark.parametrize("room", ["as it is", "little"])
@pytest.mark.parametrize("mode", ["compiled", "compiled later"])
def test_the_compiled_loop_goes_on_wherever_it_takes_over(
    monkeypatch: pytest.MonkeyPatch, mode: str, room: str
) -> None:
    """Seeds with ties among flits of one transfer in several queues (the first three), and with writes that arrive
    after an end that schedules a read (the others). With little room, flits come a few at a time and all arrays grow.
    """
    if room == "little":
        monkeypatch.setattr("kernbench.sim_engine.fabric.flit_steps.MOST_QUEUED", 4)
        for name, rows in (("NODES", 3), ("QUEUES", 1), ("TRANSFERS", 1), ("TRAVERSALS", 2)):
            monkeypatch.setattr(f"kernbench.sim_engine.fabric.flit_queues.{name}", rows)
    cases = [(traffic.Case(seed, sizes=MEDIUM, messages=14), traffic.run_fabric) for seed in (2577, 2582, 2759)]
    cases += [(traffic.ReaderCase(seed), traffic.run_readers) for seed in (567, 739, 1368)]
    if room == "little":
        cases += [(traffic.Case(seed, sizes=SMALL, messages=14), traffic.run_fabric) for seed in range(50_000, 50_020)]
    for case, run in cases:
        flits, compiled = run(case, "flits"), run(case, mode)
        assert (compiled.done, compiled.links, compiled.channels) == (flits.done, flits.links, flits.channels)


@pytest.mark.parametrize("chunk", range(2))
def test_packets_with_headers_end_when_the_naive_model_says(chunk: int) -> None:
    """On half of the links: the last flit of a transfer may then take longer than those before it."""
    for seed in range(60_000 + 15 * chunk, 60_000 + 15 * chunk + 15):
        case = traffic.Case(seed, sizes=SMALL, framed=True)
        check_same(seed, traffic.run_naive(case, oracle), partial(traffic.run_fabric, case))
        case = traffic.Case(seed, sizes=SMALL, framed=True)
        check_same(seed, traffic.run_naive_ahead(case, oracle), partial(traffic.run_fabric_ahead, case))
    for seed in range(61_000 + 2 * chunk, 61_000 + 2 * chunk + 2):
        case = traffic.Case(seed, sizes=MEDIUM, messages=8, flit_bytes=256, framed=True)
        check_same(seed, traffic.run_naive_ahead(case, oracle), partial(traffic.run_fabric_ahead, case))
