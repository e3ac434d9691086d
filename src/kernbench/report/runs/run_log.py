"""The op log of a run that is saved: the streaming log, with what a run folder needs besides."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.common.work_units import flops_of
from kernbench.sim_engine.op_stream import StreamingOpLog


class RunLog(StreamingOpLog):
    """Also says on which stream an op was done, its flops, and which line of the kernel asked for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lines=True)

    def schema(self, arrow: ModuleType) -> Any:
        return (
            super()
            .schema(arrow)
            .append(arrow.field("stream", arrow.string()))
            .append(arrow.field("flops", arrow.int64()))
        )

    def columns(self, rows: int) -> list[list[object]]:
        streams: list[object] = []
        flops: list[object] = []
        for row in range(rows):
            describer, subject = self._describers[row], self._subjects[row]
            own = describer.amounts([subject])
            flops += [flops_of(unit, amount) for unit, amount in own]
            streams += [describer.stream] * len(own)
        return [*super().columns(rows), streams, flops]
