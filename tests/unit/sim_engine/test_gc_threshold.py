"""The garbage collector is as it was once time has passed."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kernbench.sim_engine import gc_threshold
from kernbench.sim_engine.gc_threshold import (
    ONE_RUNS_OBJECTS,
    PES_OBJECTS,
    YOUNG_OBJECTS,
    another_machine,
    collect_after_compiling,
    collect_seldom,
    only_new_objects,
    raised_gc_threshold,
)


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_waits_longer_inside_and_not_afterwards() -> None:
    with raised_gc_threshold():
        with raised_gc_threshold():
            assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
        assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@raised_gc_threshold()
def fails() -> None:
    raise ValueError("stop")


def test_an_error_inside_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="stop"):
        fails()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("young", [0, 10 * YOUNG_OBJECTS])
def test_a_collector_that_was_turned_off_or_made_more_patient_is_left_alone(young: int) -> None:
    gc.set_threshold(young, 10, 10)
    with raised_gc_threshold():
        assert gc.get_threshold() == (young, 10, 10)


@pytest.mark.parametrize(("pes", "objects"), [(128, ONE_RUNS_OBJECTS), (4096, 4096 * PES_OBJECTS)])
def test_a_process_of_one_run_collects_seldom_as_long_as_it_has_one_machine(
    monkeypatch: pytest.MonkeyPatch, pes: int, objects: int
) -> None:
    monkeypatch.setattr(gc_threshold, "_machines", count())
    monkeypatch.setattr(gc_threshold, "_thresholds", {ONE_RUNS_OBJECTS})
    another_machine(pes)
    assert gc.get_threshold() == (700, 10, 10)  # as no run has changed it
    collect_seldom()
    another_machine(pes)
    with raised_gc_threshold():
        assert gc.get_threshold() == (objects, 10, 10)
    another_machine(pes)
    assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)


def in_a_process(program: str) -> None:
    """Run a program where nothing is frozen; pytest's process has frozen what collection has made."""
    subprocess.run([sys.executable, "-c", PREAMBLE + program], check=True)


PREAMBLE = """
import gc, weakref
from kernbench.sim_engine.gc_threshold import only_new_objects, paused_gc

class Thing:
    pass
"""
IMPORTS = """
def imports():
    with paused_gc():
        assert not gc.isenabled()
        made = [[] for _ in range(5000)]
        made[0].append(made)  # a circle
    assert gc.isenabled()

gc.collect()
imports()
assert gc.get_count()[0] < 700
assert gc.get_freeze_count() == 0
assert gc.collect() >= 5000
gc.freeze()
frozen = gc.get_freeze_count()
imports()
assert gc.get_freeze_count() == frozen
assert gc.collect() >= 5000
"""
NEW_OBJECTS = """
old = Thing()
old.itself = old  # a circle
is_there = weakref.ref(old)
del old
with only_new_objects(), only_new_objects():
    gc.collect()
    assert is_there() is not None
assert gc.get_freeze_count() == 0
gc.collect()
assert is_there() is None
"""


def test_what_was_imported_counts_as_old_and_can_still_be_collected_and_what_was_frozen_stays_so() -> None:
    in_a_process(IMPORTS)


def test_a_collection_of_new_objects_leaves_older_ones_alone_and_does_not_keep_them() -> None:
    in_a_process(NEW_OBJECTS)


class Thing:
    pass


def compiles() -> None:
    """Leaves a cycle, as a compiler that catches exceptions does: a frame of it, and by that those of all callers."""
    try:
        raise ValueError("no such rule")
    except ValueError as error:
        kept = error
    assert kept.__traceback__ is not None  # it has this frame, and this frame has it


def uses(thing: Thing, name: str | None) -> None:
    with only_new_objects():
        compiles()
        if name is not None:
            collect_after_compiling(name)


@pytest.mark.parametrize("name", [None, "a function of this test"])
def test_what_a_compiler_leaves_holds_nothing_that_its_callers_have_dropped(name: str | None) -> None:
    gc.disable()
    try:
        thing = Thing()
        is_there = weakref.ref(thing)
        uses(thing, name)
        del thing
        assert (is_there() is None) == (name is not None)
    finally:
        gc.enable()


def test_garbage_is_collected_after_the_first_call_of_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from kernbench.sim_engine.fabric import loop_state

    seen: list[str] = []
    monkeypatch.setattr(loop_state, "collect_after_compiling", seen.append)
    monkeypatch.setattr(loop_state, "compiled", lambda function: function)

    def doubled(number: int) -> int:
        return 2 * number

    monkeypatch.setitem(doubled.__globals__, "doubled", None)  # taken away again after the test
    assert loop_state.called_from_python(doubled)(4) == 8
    assert seen == ["doubled"]
    assert doubled.__globals__["doubled"] is doubled


def test_every_compiled_function_that_python_calls_is_one_after_which_is_collected() -> None:
    fabric = Path(gc_threshold.__file__).parent / "fabric"
    called: set[str] = set()
    for file in ("flit_queues.py", "loop_reads.py"):
        called |= set(re.findall(r"\b(?:compiled_loop|loop_queues)\.([a-z]\w*)\(", (fabric / file).read_text()))
    declared: list[str] = []
    for file in ("loop_queues.py", "compiled_loop.py"):
        declared += re.findall(r"@called_from_python\ndef (\w+)\(", (fabric / file).read_text())
    assert called == set(declared)
