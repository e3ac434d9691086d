"""What the clock uses of SimPy beyond its public names, held against the SimPy that is installed.

SimPy promises none of these. pyproject.toml allows the versions that have them; where this fails, an upper bound was
raised too far, or `kernbench.sim_engine.fabric.clock` needs another way.
"""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import simpy
from simpy import core, events

import kernbench
from kernbench.common.declared_state import declared
from kernbench.sim_engine.fabric.clock import FabricEnvironment

ROOT = Path(__file__).parents[3]
SOURCE = Path(kernbench.__file__).parent
CLOCK = "sim_engine/fabric/clock.py"
USED = {  # private attribute -> an object that must have it
    "_now": simpy.Environment(),
    "_queue": simpy.Environment(),
    "_eid": simpy.Environment(),
    "_active_proc": simpy.Environment(),
    "_ok": simpy.Event(simpy.Environment()).succeed(),
    "_value": simpy.Event(simpy.Environment()).succeed(),
}


@pytest.mark.parametrize("name", USED)
def test_simpy_has_the_private_attribute(name: str) -> None:
    assert hasattr(USED[name], name), f"SimPy {version('simpy')} has no {name}: lower the bound in pyproject.toml"


def test_the_names_that_are_imported_from_within_simpy_are_there() -> None:
    assert [name for name in ("NORMAL", "Event", "EventPriority", "Timeout") if not hasattr(events, name)] == []
    assert hasattr(core, "EmptySchedule")


def test_the_queue_is_a_heap_of_time_priority_number_and_event() -> None:
    env = simpy.Environment()
    late, soon = env.timeout(2.0), env.timeout(1.0)
    assert [(at, priority, event) for at, priority, _, event in sorted(env._queue)] == [
        (1.0, events.NORMAL, soon), (2.0, events.NORMAL, late),
    ]  # fmt: skip
    first, second = (number for *_, number, _ in sorted(env._queue, key=lambda entry: entry[2]))
    assert second == first + 1 == next(env._eid) - 1


def test_an_event_is_made_to_happen_by_its_result_and_a_place_in_the_queue() -> None:
    """As the clock does it, without `succeed`."""
    env, seen = simpy.Environment(), list[object]()
    event = simpy.Event(env)
    event._ok, event._value, event.callbacks = True, "done", [lambda happened: seen.append(happened.value)]
    env._queue.append((3.0, events.NORMAL, next(env._eid), event))
    env.run()
    assert (env.now, seen) == (3.0, ["done"])


def test_this_list_is_all_that_is_used() -> None:
    env, event = simpy.Environment(), simpy.Event(simpy.Environment())
    theirs = {name for thing in (env, event, env.timeout(1)) for name in dir(thing) if re.match("_[a-z]", name)}
    tree = ast.parse((SOURCE / CLOCK).read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert sorted((used | set(declared(FabricEnvironment))) & theirs) == sorted(USED)


def test_no_other_module_reaches_into_simpy() -> None:
    inside = re.compile(
        r"\b(?:env|clock|event|process|done|timeout)\._(?:now|queue|eid|active_proc|ok|value|defused|target)\b"
    )
    found = [
        f"{file.relative_to(SOURCE)}:{number}"
        for file in sorted(SOURCE.rglob("*.py"))
        if file != SOURCE / CLOCK
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if inside.search(line)
    ]
    assert found == []


def test_the_installed_simpy_is_one_that_is_allowed() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (bounds,) = [each for each in named if each.startswith("simpy")]
    assert bounds == "simpy>=4.1,<4.2"
    assert (4, 1) <= tuple(int(part) for part in version("simpy").split(".")[:2]) < (4, 2)
