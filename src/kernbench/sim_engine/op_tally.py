"""Sums over the op log: how long every engine was busy, how many ops it served, how many flops they were.

Sums are made from records as they come, so a log that streams to a file has them too. A multiply-accumulate is two
flops, a math op one for each element. A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.components.base import OpHead
from kernbench.sim_engine.op_log import OpLog, Row
from kernbench.sim_engine.op_stream import StreamingOpLog


class Work(NamedTuple):
    """What one engine did."""

    ops: int = 0
    busy_ns: float = 0.0
    flops: int = 0

    def less(self, earlier: Work) -> Work:
        return Work(self.ops - earlier.ops, self.busy_ns - earlier.busy_ns, self.flops - earlier.flops)


class OpTally:
    """Sums for each engine of a log."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._next = 0  # id of the first record not yet in the sums
        self._sums: dict[int, _Sum] = {}  # by identity of the head
        if isinstance(log, StreamingOpLog):
            log.before_write = self._update

    def work(self) -> dict[str, Work]:
        """What every engine has done so far, by component id."""
        self._update()
        found: dict[str, Work] = {}
        for done in self._sums.values():
            component, _, name, _ = done.head
            if not name.startswith("composite"):
                ops, busy_ns, flops = found.get(component, _NOTHING)
                found[component] = Work(ops + done.ops, busy_ns + done.busy_ns, flops + done.flops)
        return found

    def _update(self) -> None:
        sums = self._sums
        for row in self._log.rows_since(self._next):
            head = row[2]
            done = sums.get(id(head))
            if done is None:
                done = sums[id(head)] = _Sum(head)
            done.ops += 1
            done.busy_ns += row[1] - row[0]
            if done.counts:
                done.flops += done.flops_of(row)
        self._next = len(self._log)


class _Sum:
    """Of all records with one head."""

    __slots__ = ("_at", "busy_ns", "counts", "flops", "head", "ops")

    def __init__(self, head: OpHead) -> None:
        self.ops = self.flops = 0
        self.busy_ns = 0.0
        self.head = head
        _, kind, _, names = head
        factors = ("m", "k", "n", "batch") if "m" in names else ("elements",)
        self._at = [names.index(name) - len(names) for name in factors if name in names]  # counted from a row's end
        self.counts = kind != "memory" and bool(self._at)  # whether its records have flops

    def flops_of(self, row: Row) -> int:
        """Of one record, from what it says of its shape."""
        flops = 1 if len(self._at) == 1 else 2
        for at in self._at:
            factor = row[at]
            assert isinstance(factor, int)
            flops *= factor
        return flops


_NOTHING = Work()
