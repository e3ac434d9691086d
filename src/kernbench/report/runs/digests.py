"""Digests of the files of a run folder, stored in its manifest: a file that differs from what was saved is an error.

A JSON file has one digest. A table has one of its footer and one of each column in each row group, so that reading a
column of a large log hashes that column and nothing else. They detect damage and files of two runs in one folder; they
are not a signature, since the manifest can be changed too. Runs saved by earlier versions have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from kernbench.report.runs.layout import FILES

DIGITS: Final = 32  # of the 64 hex digits of SHA-256
_TAIL: Final = 8  # bytes at the end of a Parquet file: the length of the footer, and PAR1


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:DIGITS]


def sealed(manifest: Mapping[str, Any], folder: Path, arrow: Any) -> dict[str, Any]:
    """A manifest with the sizes and digests of the files that a folder holds, and its own."""
    sizes = {name: (folder / name).stat().st_size for name in FILES}
    digests = {
        name: _table_digests(folder / name, arrow)
        if name.endswith(".parquet")
        else digest((folder / name).read_bytes())
        for name in FILES
    }
    found = {**manifest, "files": sizes, "digests": digests}
    return {**found, "digest": digest_of_manifest(found)}


def digest_of_manifest(manifest: Mapping[str, Any]) -> str:
    """The digest of the content of a manifest, independent of its formatting."""
    others = {name: value for name, value in manifest.items() if name != "digest"}
    return digest(json.dumps(others, sort_keys=True).encode())


def footer(file: BinaryIO) -> bytes:
    """The footer of a Parquet file, with its tail; raises ValueError if there is none."""
    size = file.seek(0, 2)
    file.seek(max(size - _TAIL, 0))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little") + _TAIL
    if tail[4:] != b"PAR1" or length > size:
        raise ValueError("it has no footer")
    file.seek(size - length)
    return file.read(length)


def column_digests(file: BinaryIO, metadata: Any, column: str, groups: range) -> Iterator[str]:
    """The digest of the bytes of a column, for each of these row groups."""
    numbers = [n for n in range(metadata.num_columns) if _column_of(metadata, n) == column]
    for group in groups:
        hashed = sha256()
        for number in numbers:
            chunk = metadata.row_group(group).column(number)
            file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
            hashed.update(file.read(chunk.total_compressed_size))
        yield hashed.hexdigest()[:DIGITS]


def _table_digests(path: Path, arrow: Any) -> dict[str, Any]:
    with path.open("rb") as file:
        metadata = arrow.parquet.read_metadata(file)
        names = dict.fromkeys(_column_of(metadata, n) for n in range(metadata.num_columns))
        groups = range(metadata.num_row_groups)
        columns = {name: " ".join(column_digests(file, metadata, name, groups)) for name in names}
        return {"footer": digest(footer(file)), "columns": columns}


def _column_of(metadata: Any, number: int) -> str:
    """Which column a leaf belongs to: that of a list is `deps.list.element`."""
    return str(metadata.schema.column(number).path).partition(".")[0]
