"""The op log as a file: records go to Parquet chunk by chunk, so that a run of any length needs the same memory.

Columns are the fields of `OpRecord` and the record's `id`; `params` is JSON text. Rows are in order of id, which is the
order in which commands and tiles ended; `read_op_stream` gives them back in order of start. Needs pyarrow
(`pip install kernbench[log]`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.components.recording import Causes, FieldValue, OpDescriber
from kernbench.sim_engine.op_copies import RowsCopy
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.op_rows import CompositeRows

CHUNK_RECORDS = 1 << 16


def _arrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "writing or reading an op log file needs pyarrow, which is not installed",
            hint="pip install 'kernbench[log]', or keep the log in memory",
        ) from None
    return pyarrow, pyarrow.parquet


def _schema(arrow: ModuleType) -> Any:  # pyarrow has no types
    return arrow.schema(
        [
            ("id", arrow.int64()),
            ("t_start", arrow.float64()),
            ("t_end", arrow.float64()),
            ("component_id", arrow.string()),
            ("op_kind", arrow.string()),
            ("op_name", arrow.string()),
            ("params", arrow.string()),
            ("dependency_ids", arrow.list_(arrow.int64())),
            ("t_asked", arrow.float64()),
            ("t_ready", arrow.float64()),
            ("release", arrow.string()),
            ("released_by", arrow.int64()),
        ]
    )


class StreamingOpLog(OpLog):
    """An op log that keeps some `chunk_records` records at most and writes the others to `path`.

    Reading it gives the records of the open chunk only. Close it, or use it in a `with` block: a Parquet file without
    its end cannot be read.
    """

    def __init__(self, path: str | Path, *, chunk_records: int = CHUNK_RECORDS, lines: bool = False) -> None:
        super().__init__(lines=lines)
        self.path = Path(path)
        self._chunk_records = chunk_records
        self._write_at = chunk_records  # records here at which some are written
        self._arrow, parquet = _arrow()
        self._schema = self.schema(self._arrow)
        try:
            self._file = self._arrow.OSFile(os.fsencode(self.path), "wb")  # names need not be UTF-8
            self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        except OSError as error:
            raise UsageError(
                f"the op log file cannot be written: {error}",
                where=str(path),
                hint="name a file in a folder that exists",
            ) from error

    def schema(self, arrow: ModuleType) -> Any:
        """Names and types of the columns."""
        return _schema(arrow)

    def columns(self, rows: int) -> list[list[object]]:
        """The columns of the first rows."""
        records = [record for row in range(rows) for record in self._row(row)]
        ids = list(range(self._first, self._first + len(records)))
        start, end, component, kind, name, params, dependencies, *causes = (list(c) for c in zip(*records, strict=True))
        return [ids, start, end, component, kind, name, [json.dumps(p) for p in params], dependencies, *causes]

    def __enter__(self) -> StreamingOpLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record_chain(
        self,
        describer: OpDescriber,
        subject: object,
        times: Sequence[float],
        dependency_ids: tuple[int, ...],
        token: int,
        causes: Causes,
    ) -> int:
        last = super().record_chain(describer, subject, times, dependency_ids, token, causes)
        if len(self._times) // 2 >= self._write_at:
            self._put_in_order(min([times[-1], *[earliest_ns() for earliest_ns in self.not_before]]))
            self._write(self._resolved_rows())
            self._write_at = len(self._times) // 2 + self._chunk_records
        return last

    def record_composite(
        self, describer: OpDescriber, dependency_ids: tuple[int, ...], composite: CompositeRows
    ) -> int:
        last = -1
        for subject, times, causes, token in composite:
            last = self.record_chain(describer, subject, times, dependency_ids, token, causes)
        return last

    def record_copy(self, copy: RowsCopy) -> int:
        """As in memory, but its rows are made at once: a chunk is written when all that it names is there."""
        first = super().record_copy(copy)
        self._unfold()
        return first

    def close(self) -> None:
        """Write what is left and end the file. Closing twice is harmless."""
        if self._writer is not None:
            self._prepare_to_read()
            self._write(len(self._firsts))
            self._writer.close()
            self._file.close()
            self._writer = None

    def _resolved_rows(self) -> int:
        """How many of the first rows name only what is recorded: those behind wait for tokens that are under way."""
        start, causes = 0, self._causes
        for row, end in enumerate(self._cause_ends[: self._ordered]):
            for at in range(start + 3, end, 4):
                reference = int(causes[at])
                if reference >= 0 and self._id_of(reference) is None:
                    return row
            start = end
        return self._ordered

    def _write(self, rows: int) -> None:
        if not rows:
            return
        columns = zip(self.columns(rows), self._schema, strict=True)
        arrays = [self._arrow.array(column, field.type) for column, field in columns]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._drop(rows)


def read_op_stream(path: str | Path) -> Iterator[tuple[int, OpRecord]]:
    """(id, record) of an op log file, in order of start; raises UsageError when there is no such file."""
    _, parquet = _arrow()
    try:
        table = parquet.read_table(str(path)).sort_by([("t_start", "ascending"), ("id", "ascending")])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the op log file cannot be read: {error}", where=str(path), hint="name a closed op log"
        ) from error
    for row in table.to_pylist():
        params = {name: _as_param(value) for name, value in json.loads(row["params"]).items()}
        yield (
            row["id"],
            OpRecord(
                row["t_start"],
                row["t_end"],
                row["component_id"],
                row["op_kind"],
                row["op_name"],
                params,
                tuple(row["dependency_ids"]),
                row["t_asked"],
                row["t_ready"],
                row["release"],
                row["released_by"],
            ),
        )


def _as_param(value: object) -> FieldValue:
    """JSON has lists where params have tuples."""
    if isinstance(value, list):
        return tuple(_as_param(item) for item in value)
    assert value is None or isinstance(value, int | float | str | bool)
    return value
