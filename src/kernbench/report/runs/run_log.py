"""The op log of a saved run: the streaming log with the additional columns of a run folder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.common.work_units import flops_of
from kernbench.sim_engine.op_stream import StreamingOpLog


class RunLog(StreamingOpLog):
    """Also records the stream of an op, its flops, and the kernel line that issued it."""

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
