"""The ops of a saved run: each column is read from `ops.parquet` on first use.

A run of a million ops has some 300 MB of columns, and few queries need more than a third of them. `params`, which is
needed for single ops only, is read by row group and not cached.
"""

from __future__ import annotations

from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.common.plain_json import parse_json
from kernbench.report.runs.files import RunFiles, arrow
from kernbench.report.runs.layout import OP_COLUMNS, OPS
from kernbench.report.runs.parts import Lists, RunOps, Words, pieces_of

_WORDS = [name for name, kind in OP_COLUMNS.items() if kind == "string"]


class StoredOps(RunOps):
    """Columns of a file. Raises UsageError for a file that is not a table of ops, or for a damaged column."""

    def __init__(self, files: RunFiles) -> None:
        self.__dict__["_files"] = files
        self.__dict__["_file"] = files.table(OPS, OP_COLUMNS, _WORDS)
        self.__dict__["_reading"] = RLock()

    def __len__(self) -> int:
        return int(self.__dict__["_file"].rows)

    def __getattr__(self, name: str) -> Any:
        """A column that has not been read yet."""
        if name not in OP_COLUMNS:
            raise AttributeError(name)
        with self.__dict__["_reading"]:
            if name not in self.__dict__:
                self.__dict__[name] = _as_numpy(self.__dict__["_file"].column(name), OP_COLUMNS[name])
                arrow().default_memory_pool().release_unused()
            return self.__dict__[name]

    def params(self, row: int) -> dict[str, Any]:
        with self.__dict__["_files"].damage(OPS):
            return dict(parse_json(self.__dict__["_file"].cell("params", int(row))))

    def hold_pieces(self) -> None:
        """Read the pieces of all transfers, for use when the file is gone."""
        found = self.all_params()
        self.__dict__["_pieces"] = found.codes, [pieces_of(parse_json(word)) for word in found.words]

    def pieces(self, row: int) -> tuple[int, int]:
        held = self.__dict__.get("_pieces")
        return super().pieces(row) if held is None else held[1][int(held[0][row])]

    def all_params(self) -> Words:
        """The other fields of the op log of every row, as JSON; equal texts are one word."""
        return _words(self.__dict__["_file"].column("params"))


def _as_numpy(column: Any, kind: str) -> Any:
    if kind == "string":
        return _words(column)
    if kind.startswith("list"):
        return _lists(column)
    return column.to_numpy(zero_copy_only=False)


def _words(column: Any) -> Words:
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    return Words(encoded.indices.to_numpy(zero_copy_only=False), tuple(encoded.dictionary.to_pylist()))


def _lists(column: Any) -> Lists:
    values = column.values
    starts = column.offsets.to_numpy(zero_copy_only=False)
    if str(values.type) == "string":  # equal names share one object
        words = _words(values)
        named: NDArray[Any] = np.array([*words.words, ""], object)
        return Lists(starts, named[words.codes])
    return Lists(starts, values.to_numpy(zero_copy_only=False))
