"""A simple command under way: a token of one stage, or one for each of its DMA requests, and a record for all of them.

There are as many of these as commands, so one holds no closure and no reference cycle: it is freed when it is over,
without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernbench.common.commands import SimpleCmd
from kernbench.common.messages import Request
from kernbench.components.builtin.command_log import SimpleRecords
from kernbench.components.builtin.pipeline import CommandContext, StageServer, TileToken
from kernbench.components.builtin.tile_plan import TilePlan
from kernbench.components.recording import Causes
from kernbench.triton_emu.kernel_runner import RecordsCallback


class SimpleCommand(CommandContext):
    """Ends with its last token. `ended` notifies the scheduler, `done` the kernel."""

    __slots__ = ("_causes", "_cmd", "_done", "_ended", "_plans", "_records", "_start_ns")

    def __init__(
        self,
        engines: Mapping[str, StageServer],
        plans: Sequence[TilePlan],
        request: Request,
        cmd: SimpleCmd,
        records: SimpleRecords | None,
        ended: Callable[[], None],
        done: RecordsCallback,
    ) -> None:
        super().__init__(engines, len(plans), request)
        self._cmd = cmd
        self._plans = plans
        self._records = records
        self._ended = ended
        self._done = done
        self._start_ns = float("inf")  # of the token that started first
        self._causes: Causes = ()  # of that token's start

    def complete_tile(self, token: TileToken) -> None:
        super().complete_tile(token)
        if token.times[0] < self._start_ns:
            self._start_ns, self._causes = token.times[0], token.causes
        if self.completed_tiles < self.total_tiles:
            return
        self._ended()
        self._done(() if self._records is None else (self._recorded(self._records, token),))

    def _recorded(self, records: SimpleRecords, last: TileToken) -> int:
        """From the start of the first request to the end of the last."""
        stages = [plan.stages[0] for plan in self._plans]
        times = (self._start_ns, last.times[1])
        amount = sum([stage.amount for stage in stages])
        return records.record(self._cmd, stages[0], amount, times, last.number, self._causes, self.stream)
