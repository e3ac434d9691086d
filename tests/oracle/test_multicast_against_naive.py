"""Multicasts among other traffic, in every mode of the fabric, against the naive SimPy model: the same times, bit for
bit, at every destination, and the same counters."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import simpy

from kernbench.sim_engine.fabric import FabricEnvironment, Network
from kernbench.sim_engine.fabric.multicast import segments_of


def load(name: str) -> ModuleType:
    """A module beside this one: the test folders are not packages."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = load("naive_fabric").NaiveFabric
traffic = load("random_traffic")


class MulticastCase(traffic.Case):  # type: ignore[name-defined, misc]
    """Random traffic of which half are multicasts to some of the ends of a random tree."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        super().__init__(seed, sizes=sizes)
        self.ruled = False

    def _leg(self, src: int, sizes: list[int]) -> Any:
        rng = self.rng
        if rng.random() < 0.5:
            return super()._leg(src, sizes)
        came_from: dict[int, int] = {src: src}
        todo = [src]
        for node in todo:
            onward = [b for a, b in self.ends if a == node and b not in came_from]
            rng.shuffle(onward)
            came_from.update((b, node) for b in onward)
            todo += onward
        inner = dict.fromkeys(came_from.values())
        ends = [node for node in came_from if node not in inner and node != src]
        rng.shuffle(ends)
        paths = []
        for end in ends[: rng.randint(1, 5)]:
            path = [end]
            while path[-1] != src:
                path.append(came_from[path[-1]])
            paths.append(tuple(reversed(path)))
        address = rng.randrange(0, 1 << 14, self.flit_bytes)
        writes = [address if path[-1] in self.memories and rng.random() < 0.7 else None for path in paths]
        return traffic.Leg(paths[0], max(rng.choice(sizes), 1), {"paths": paths, "write_to": writes})

    def _add_series(self, network: Network) -> None:
        """As the other cases do, but for links at which a segment of a multicast begins: those are refused."""
        if int(self.network_seed * 1000) % 4 == 0:
            return
        feeders: dict[tuple[int, int], dict[int | None, None]] = {}
        for stream in self.streams:
            for leg in stream.legs:
                paths = leg.options.get("paths", [leg.path] if leg.nbytes else [])
                for path in paths:
                    for before, src, dst in zip((None, *path), path, path[1:], strict=False):
                        feeders.setdefault((src, dst), {})[before] = None
                for segment in segments_of(leg.options["paths"]) if "paths" in leg.options else ():
                    feeders[segment.path[:2]][None] = None
        for (via, dst), sources in feeders.items():
            src = next(iter(sources))
            if len(sources) == 1 and src is not None:
                network.add_series(src, via, dst)


def ends_of_naive(case: MulticastCase) -> tuple[Any, list[list[float]]]:
    env = simpy.Environment()
    fabric = oracle(env, case.network())
    sent: list[Any] = []

    def send(leg: Any, now: float) -> Any:
        if "paths" not in leg.options:
            return fabric.inject(leg.path, leg.nbytes, now, **leg.options).done
        leaves = fabric.multicast(leg.options["paths"], leg.nbytes, now, write_to=leg.options["write_to"])
        sent.append(leaves)
        return env.all_of([leaf.done for leaf in leaves])

    done = traffic.drive(env, send, case.streams)
    return done, [[leaf.done_ns for leaf in leaves] for leaves in sent]


def ends_of(case: MulticastCase, mode: str) -> tuple[Any, list[list[float]], Any, Any]:
    fabric = traffic.fabric_in(case.network(), mode)
    env = FabricEnvironment(fabric)
    sent: list[Any] = []
    inner = fabric.multicast
    fabric.multicast = lambda *args, **options: sent.append(inner(*args, **options)) or sent[-1]

    def send(leg: Any, _: float) -> Any:
        if "paths" not in leg.options:
            return env.transfer(leg.path, leg.nbytes, **leg.options)
        return env.multicast(leg.options["paths"], leg.nbytes, write_to=leg.options["write_to"])

    done = traffic.drive(env, send, case.streams)
    ends = [[transfer.done_ns for transfer in transfers] for transfers in sent]
    return done, ends, fabric.all_link_counters(), [fabric.channel_counters(node) for node in sorted(case.memories)]


def check(seed: int, sizes: list[int]) -> None:
    case = MulticastCase(seed, sizes)
    expected = ends_of_naive(case)
    flits = ends_of(case, "flits")
    assert flits[:2] == expected, f"flits, seed {seed}"
    for mode in ("adaptive", "compiled", "compiled later"):
        assert ends_of(case, mode) == flits, f"{mode}, seed {seed}"


@pytest.mark.parametrize("chunk", range(2))
def test_multicasts_among_other_traffic_end_when_the_naive_model_says(chunk: int) -> None:
    for seed in range(70_000 + 24 * chunk, 70_000 + 24 * chunk + 24):
        check(seed, [1, 16, 17, 64, 100, 256, 700, 1500])


def test_large_multicasts_among_other_traffic_end_when_the_naive_model_says() -> None:
    for seed in range(80_000, 80_002):
        check(seed, [1, 4096, 12345])
