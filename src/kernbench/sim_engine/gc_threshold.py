"""Python's garbage collector while time passes, and while modules are imported.

A simulation makes and drops many small objects in step, hundreds at one instant, and hardly a cycle among them. At its
usual threshold the collector would look through them again and again for nothing: 5 % of a run on 128 PEs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000


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


@contextmanager
def paused_gc() -> Iterator[None]:
    """No collections for a while in which much is made and nothing dropped: imports, of which they are a tenth."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
