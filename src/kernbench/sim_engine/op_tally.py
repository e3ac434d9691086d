"""Sums over the op log: how long every engine was busy, how many ops it served, how many flops they were.

Sums are made from records as they come, so a log that streams to a file has them too. A multiply-accumulate is two
flops, a math op one for each element. A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter, mul, sub
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
        by_head: dict[int, list[Row]] = {}
        for row in self._log.rows_since(self._next):
            rows = by_head.get(id(row[2]))
            if rows is None:
                by_head[id(row[2])] = [row]
            else:
                rows.append(row)
        for number, rows in by_head.items():
            done = self._sums.get(number)
            if done is None:
                done = self._sums[number] = _Sum(rows[0][2])
            done.add(rows)
        self._next = len(self._log)


class _Sum:
    """Of all records with one head. Adds up in C: there may be millions."""

    __slots__ = ("_factors", "busy_ns", "flops", "head", "ops")

    def __init__(self, head: OpHead) -> None:
        self.head = head  # kept, so that no other head gets its identity
        self.ops = self.flops = 0
        self.busy_ns = 0.0
        _, kind, _, names = head
        said = () if kind == "memory" else ("m", "k", "n", "batch") if "m" in names else ("elements",)
        # Where a record says of what its flops are the product; counted from the end of its row.
        self._factors = [itemgetter(names.index(name) - len(names)) for name in said if name in names]

    def add(self, rows: Sequence[Row]) -> None:
        self.ops += len(rows)
        self.busy_ns += sum(map(sub, map(_END, rows), map(_START, rows)))
        if self._factors:
            products = map(self._factors[0], rows)
            for factor in self._factors[1:]:
                products = map(mul, products, map(factor, rows))
            self.flops += sum(products) * (2 if len(self._factors) > 1 else 1)


_START, _END = itemgetter(0), itemgetter(1)
_NOTHING = Work()
