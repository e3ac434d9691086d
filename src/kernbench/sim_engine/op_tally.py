"""Sums over the op log: how long every engine was busy, how many ops it served, how many flops they were.

Sums are made from records as they come, so a log that streams to a file has them too. A multiply-accumulate is two
flops, a math op one for each element. A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kernbench.components.base import Param
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
        self._sums: dict[str, Work] = {}
        if isinstance(log, StreamingOpLog):
            log.before_write = self._update

    def work(self) -> dict[str, Work]:
        """What every engine has done so far, by component id."""
        self._update()
        return dict(self._sums)

    def _update(self) -> None:
        sums = self._sums
        for row in self._log.rows_since(self._next):
            if row[4].startswith("composite"):
                continue
            ops, busy_ns, flops = sums.get(row[2], _NOTHING)
            if row[3] != "memory":
                flops += flops_of(dict(zip(row[5], row[6], strict=True)))
            sums[row[2]] = Work(ops + 1, busy_ns + row[1] - row[0], flops)
        self._next = len(self._log)


_NOTHING = Work()


def flops_of(params: Mapping[str, Param]) -> int:
    """The flops of a record, from what it says of its shape."""
    m, k, n = params.get("m"), params.get("k"), params.get("n")
    if isinstance(m, int) and isinstance(k, int) and isinstance(n, int):
        batch = params.get("batch", 1)
        return 2 * m * k * n * (batch if isinstance(batch, int) else 1)
    elements = params.get("elements", 0)
    return elements if isinstance(elements, int) else 0
