"""Events of the fabric's agenda: a flit that is ready for a link, or one of the rarer kinds."""

from __future__ import annotations

from functools import cache

from kernbench.sim_engine.fabric.routes import LinkTraversal
from kernbench.sim_engine.fabric.transfers import Transfer

# What an event is about, where it is not simply a flit ready for a link: the traversal's link is -(8 * hop + kind).
INJECT, DONE, COMMIT, WATCHED, ENTER, REFILL = 1, 2, 3, 4, 5, 6

Event = tuple[float, float, int, Transfer, LinkTraversal]  # time, order within it, flit or epoch, whose, and what


@cache
def other(kind: int, hop: int = 0) -> LinkTraversal:
    return LinkTraversal(-(8 * hop + kind), 0.0, 0.0, None, 0)


AT_INJECT, AT_DONE, AT_COMMIT = other(INJECT), other(DONE), other(COMMIT)
