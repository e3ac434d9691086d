"""Requests, acknowledgements and credits as packets: random accesses of several PEs against the naive SimPy model, in
which each is a transfer of its own that follows, or is followed by, that of the data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import simpy

from kernbench.components.memory_port import MemoryAccess, Notice
from kernbench.sim_engine.fast_paths import ALL, FastPaths
from kernbench.sim_engine.machine import Machine
from kernbench.topology import load_topology

CONTROL = 32
SMALL = {
    "system.sips.count": 1,
    "sip.cube_mesh.w": 2,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout": {"corners": ["NW", "SE"], "pe_per_corner": 1},
}
GRAPH = load_topology(None, {**SMALL, "fabric.control_bytes": CONTROL})
WORK: Any = SimpleNamespace(request=None)


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


def accesses(machine: Machine, count: int, random: Random) -> list[tuple[str, tuple[str, ...], int, int, float]]:
    """What, on which path, address, bytes, when: to few memories, so that packets meet."""
    pes = [node.id.removesuffix(".pe_dma") for node in GRAPH.nodes.values() if node.kind == "pe_dma"]
    memories = [node.id for node in GRAPH.nodes.values() if node.kind in ("hbm_ctrl", "sram")][:4]
    found = []
    for _ in range(count):
        path = tuple(machine.router.find_path(random.choice(pes), random.choice(memories)))
        what = random.choice(["read", "read", "write", "notify"])
        at_ns = random.randrange(0, 300 << 10) / 1024
        found.append((what, path, 256 * random.randrange(64), random.randint(1, 2000), at_ns))
    return sorted(found, key=lambda access: access[-1])


def ends(machine: Machine, sent: list[Any]) -> list[float]:
    done = [0.0] * len(sent)

    def noted(number: int) -> Any:
        def note(*_: object) -> None:
            done[number] = machine.env.now

        return note

    for number, (what, path, address, nbytes, at_ns) in enumerate(sent):
        port, note = machine.memory_port(path), noted(number)
        if what == "notify":
            port.notify(Notice(address, nbytes, at_ns, WORK, None, note))
        else:
            getattr(port, what)(MemoryAccess(nbytes, address, at_ns, note, WORK))
    machine.env.run()
    return done


def naive_ends(machine: Machine, sent: list[Any]) -> list[float]:
    env = simpy.Environment()
    naive = load("naive_fabric").NaiveFabric(env, machine.fabric.network)
    done = [0.0] * len(sent)

    def access(number: int, what: str, path: tuple[str, ...], address: int, nbytes: int, at_ns: float) -> Any:
        where = address if "hbm" in path[-1] else None
        yield env.timeout(at_ns)
        if what == "write":
            yield naive.inject(path, nbytes, env.now, write_to=where).done
            yield naive.inject(path[::-1], CONTROL, env.now).done
        else:
            yield naive.inject(path, CONTROL, env.now).done
            if what == "read":
                yield naive.inject(path[::-1], nbytes, env.now, read_from=where).done
        done[number] = env.now

    for number, each in enumerate(sent):
        env.process(access(number, *each))
    env.run()
    return done


@pytest.mark.needs("n_to_one", reason="the naive model has one link to a slice")
@pytest.mark.parametrize("fast", [ALL, ALL.without("trains")], ids=["trains", "flits"])
def test_accesses_end_when_the_naive_model_says(fast: FastPaths) -> None:
    for seed in range(5):
        machine = Machine(GRAPH, None, data=False, fast=fast)
        sent = accesses(machine, 60, Random(seed))
        assert ends(machine, sent) == naive_ends(machine, sent), f"seed {seed}"
