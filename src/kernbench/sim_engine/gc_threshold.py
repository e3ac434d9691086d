"""Python's garbage collector while time passes, while modules are imported or loops are compiled, and at the end.

A simulation makes and drops many small objects in step, hundreds at one instant, and hardly a cycle among them. At its
usual threshold the collector would look through them again and again for nothing: 5 % of a run on 128 PEs.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

YOUNG_OBJECTS = 150_000  # a small run makes fewer
ONE_RUNS_OBJECTS = 3_000_000
PES_OBJECTS = 4_000  # at least so many for each PE of its machine: an all-reduce of 1 MiB keeps 1,500 to 2,200
_machines = count()  # so far, of a process that collects seldom
_thresholds = {ONE_RUNS_OBJECTS}  # of such a process


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Raise the number of young objects that sets the collector off; as it was afterwards. May be nested."""
    young, *older = gc.get_threshold()
    if not 0 < young < YOUNG_OBJECTS:  # off, or raised already
        yield
        return
    gc.set_threshold(YOUNG_OBJECTS, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def collect_seldom() -> None:
    """For a process that was started for one run, as long as it has one machine: what that makes and does not drop by
    itself it mostly keeps, so that collections look through all of it and find nothing, 4 % of a run on 128 PEs.
    """
    gc.set_threshold(ONE_RUNS_OBJECTS)


def another_machine(pes: int) -> None:
    """A machine of so many PEs is built. The first one of a process that collects seldom may keep more, if it is
    large; when there is another one, that before it may be garbage, and a large piece of it.
    """
    if gc.get_threshold()[0] not in _thresholds:
        return
    if next(_machines):
        gc.set_threshold(YOUNG_OBJECTS)
    else:
        most = max(ONE_RUNS_OBJECTS, pes * PES_OBJECTS)
        _thresholds.add(most)
        gc.set_threshold(most)


@contextmanager
def paused_gc() -> Iterator[None]:
    """No collections while modules are imported: they make much and drop nothing, and collections are a tenth of it.

    What there is counts as old afterwards, so that only a full collection looks through it; where the process has
    frozen objects they stay frozen, and the modules stay young. For imports only: doing this again and again puts
    full collections off for ever.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()  # all objects out of the young generations, and with them the count that sets a collection off
            gc.unfreeze()
        gc.enable()


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Collections look through nothing that is there already. May be nested, and used where objects are frozen."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def collect_after_compiling(name: str) -> None:
    """Once for each function that numba compiles, after its first call. Exceptions inside the compiler leave cycles
    that hold the frames of all callers, and with them tensors that a program has dropped: when these are freed, which
    takes simulated time, would depend on whether the function was compiled in this run.
    """
    gc.collect()


def end_without_gc() -> None:
    """Let the process end without a last search for cycles in all that it still holds: a tenth of a small run."""
    atexit.unregister(_freeze)  # once, however many commands it ran
    atexit.register(_freeze)


def _freeze() -> None:
    if "duckdb" not in sys.modules:  # it reports every object that is alive when the process ends
        gc.freeze()
