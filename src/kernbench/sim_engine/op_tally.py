"""Sums over the op log: how long every engine was busy, how many ops it served, how many flops they were.

Sums are made from records as they come, so a log that streams to a file has them too. A multiply-accumulate is two
flops, a math op one for each element. A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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
        heads, t_start, t_end, values = self._log.columns_since(self._next)
        self._next = len(self._log)
        if not heads:
            return
        # By identity of the head: there may be millions of records, and few heads.
        _, first, which, ops = np.unique(
            np.fromiter(map(id, heads), np.int64, len(heads)),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        busy_ns = np.bincount(which, np.subtract(t_end, t_start))  # exact in any order: times are on the grid
        kinds = [heads[at] for at in first.tolist()]
        widths = np.array([len(names) for _, _, _, names in kinds])[which]
        offsets = (np.cumsum(widths) - widths)[np.argsort(which, kind="stable")]
        stops = np.cumsum(ops)
        for number, head in enumerate(kinds):
            done = self._sums.get(id(head))
            if done is None:
                done = self._sums[id(head)] = _Sum(head)
            done.ops += int(ops[number])
            done.busy_ns += float(busy_ns[number])
            if done.factors:
                done.add_flops(values, offsets[stops[number] - ops[number] : stops[number]].tolist())


class _Sum:
    """Of all records with one head."""

    __slots__ = ("busy_ns", "factors", "flops", "head", "ops")

    def __init__(self, head: OpHead) -> None:
        self.head = head  # kept, so that no other head gets its identity
        self.ops = self.flops = 0
        self.busy_ns = 0.0
        _, kind, _, names = head
        said = () if kind == "memory" else ("m", "k", "n", "batch") if "m" in names else ("elements",)
        self.factors = [names.index(name) for name in said if name in names]  # of flops, among a record's values

    def add_flops(self, values: Sequence[Param], offsets: Sequence[int]) -> None:
        """Of records whose values begin at `offsets`."""
        twice = 2 if len(self.factors) > 1 else 1
        for offset in offsets:
            flops = twice
            for factor in self.factors:
                said = values[offset + factor]
                assert isinstance(said, int)
                flops *= said
            self.flops += flops


_NOTHING = Work()
