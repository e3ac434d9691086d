"""Sums over the op log: how long every engine was busy, how many ops it served, how many flops they were.

Sums are made from records as they come, so a log that streams to a file has them too. A multiply-accumulate is two
flops, a math op one for each element. A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.components.base import OpHead, Param
from kernbench.sim_engine.op_log import OpLog
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
        self._sums: dict[OpHead, _Sum] = {}
        if isinstance(log, StreamingOpLog):
            log.before_write = self._update

    def work(self) -> dict[str, Work]:
        """What every engine has done so far, by component id."""
        self._update()
        found: dict[str, Work] = {}
        for head, done in self._sums.items():
            if not head.op_name.startswith("composite"):
                ops, busy_ns, flops = found.get(head.component_id, _NOTHING)
                found[head.component_id] = Work(ops + done.ops, busy_ns + done.busy_ns, flops + done.flops)
        return found

    def _update(self) -> None:
        sums = self._sums
        for t_start, t_end, head, values, _ in self._log.rows_since(self._next):
            done = sums.get(head)
            if done is None:
                done = sums[head] = _Sum(head)
            done.ops += 1
            done.busy_ns += t_end - t_start
            if done.counts:
                done.flops += done.flops_of(values)
        self._next = len(self._log)


class _Sum:
    """Of all records with one head."""

    __slots__ = ("_at", "busy_ns", "counts", "flops", "ops")

    def __init__(self, head: OpHead) -> None:
        self.ops = self.flops = 0
        self.busy_ns = 0.0
        names = head.names
        factors = ("m", "k", "n", "batch") if "m" in names else ("elements",)
        self._at = [names.index(name) for name in factors if name in names]
        self.counts = head.op_kind != "memory" and bool(self._at)  # whether its records have flops

    def flops_of(self, values: tuple[Param, ...]) -> int:
        """Of one record, from what it says of its shape."""
        flops = 1 if len(self._at) == 1 else 2
        for at in self._at:
            factor = values[at]
            assert isinstance(factor, int)
            flops *= factor
        return flops


_NOTHING = Work()
