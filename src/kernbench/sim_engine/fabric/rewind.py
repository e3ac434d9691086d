"""The fabric during a rewind: transfers that were forecast and not simulated are simulated late, as of their times.

The links and channels that they need were reserved, so nothing else has used them since, and an agenda of their own
keeps the right order. The blocks that send them are rewound with the clock (`FabricEnvironment.rewind`). What else is
under way is set aside: its events, its flits in the loop that moves them, and the transfers that wait to be planned
again. What is still under way when the rewind has caught up is added to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from kernbench.common.declared_state import set_aside
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.flit_events import AT_DONE, Event

BEHIND_ALL = 1 << 62  # place within an instant, behind every flit and every injection


class RewoundFabric:
    """The engine of a fabric during a rewind."""

    __slots__ = ("_ends", "_engine")

    def __init__(self, engine: FlitEngine) -> None:
        self._engine = engine
        self._ends: list[Event] = []  # ends of transfers at the present instant, to be reported with those of others

    def catch_up(self, now: float, order: float) -> None:
        """Simulate what comes at `now` before injection `order`; everything before `now` has been simulated."""
        engine, agenda = self._engine, self._engine.agenda
        while True:
            if engine.loop is not None and engine.loop.next_ns <= now:  # flits come before ends and injections
                engine.move_loop(engine.loop, now)
                continue
            if agenda.next_time() > now:
                break
            event = agenda.current[0]
            if event[1] >= order:
                break
            agenda.drop(1)
            if event[4] is AT_DONE:
                self._ends.append(event)
            else:
                engine.happen(event)

    @property
    def ends(self) -> list[Event]:
        return [(time, BEHIND_ALL | end.seq, epoch, end, traversal) for time, _, epoch, end, traversal in self._ends]


@contextmanager
def rewound(engine: FlitEngine) -> Iterator[RewoundFabric]:
    """Within the block the engine has only the events of the rewind; those that are left at its end are added to the
    engine's own.
    """
    fabric = RewoundFabric(engine)
    loop = nullcontext() if engine.loop is None else engine.loop.without_events()
    try:
        with set_aside(engine, engine.planner, engine.reservations), loop:
            yield fabric
    finally:
        for event in fabric.ends:
            engine.agenda.push(event)
