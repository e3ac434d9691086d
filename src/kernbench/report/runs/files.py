"""Reads the files of a run folder; a missing, damaged or newer file is an error with a hint."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import check_regular, open_regular, read_regular
from kernbench.report.runs.digests import column_digests, digest, footer
from kernbench.report.runs.layout import (
    FEWEST_ROWS,
    FEWEST_VALUES,
    FILES,
    KIND,
    MANIFEST,
    ROWS_PER_BYTE,
    SCHEMA,
    VALUES_PER_BYTE,
)

GROUP_ROWS = 1 << 16  # reading one row reads one group
_OPENINGS = 100  # attempts to open a run that is replaced meanwhile
SAVE_AGAIN = "save the run again: kernbench run ... --save DIR"


def arrow() -> Any:  # pyarrow has no types
    """pyarrow with its Parquet module; raises UsageError where it is not installed."""
    try:
        pyarrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "saved runs need pyarrow, which is not installed", hint="pip install 'kernbench[log]'"
        ) from None
    return pyarrow


class ReplacedRunError(UsageError):
    """A run was replaced while it was open: what was not read before is gone."""


class RunFiles:
    """The files of a run folder. Raises UsageError for a folder that is not a run, is incomplete, or is newer.

    A file is opened only while it is read, and never mapped into memory: another process may truncate it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        for _ in range(_OPENINGS):
            self._identity = _identity(path)
            try:
                self.manifest = _read_manifest(path)
                break
            except UsageError:
                if _identity(path) == self._identity:
                    raise  # else another process has replaced the run meanwhile
        else:
            raise UsageError("the run is being replaced all the time", where=str(path), hint="try again")
        digests = self.manifest.get("digests")
        self._digests: dict[str, Any] = digests if isinstance(digests, dict) else {}

    def json(self, name: str) -> Any:
        """A JSON file of the folder."""
        with self.damage(name):
            data = read_regular(self.path / name)
            if digest(data) != self._digests.get(name):  # while the run is replaced, a file of another run may be there
                data = read_regular(self.path / name)
            self._check(name, digest(data), self._digests.get(name))
            return parse_json(data)

    def table(self, name: str, columns: Mapping[str, str], words: Sequence[str] = ()) -> StoredTable:
        """A Parquet file that has these columns, of these types; `words` are the columns with few distinct strings."""
        own = self._digests.get(name, {})
        with self.damage(name), open_regular(self.path / name) as file:
            if own:
                self._check(name, digest(footer(file)), own.get("footer"))
            size = file.seek(0, 2)
            metadata = arrow().parquet.read_metadata(file)
        self._check_rows(name, metadata, size)
        types = {field.name: _type_name(field.type) for field in metadata.schema.to_arrow_schema()}
        for column, kind in columns.items():
            if types.get(column) != kind:
                was = (
                    f"column {column} is {types[column]}, not {kind}" if column in types else f"has no column {column}"
                )
                raise self.damaged(f"{name}: {was}")
        return StoredTable(self, name, metadata, words, own.get("columns", {}))

    def _check_rows(self, name: str, metadata: Any, size: int) -> None:
        """Raise UsageError for a table that states far more rows or values than its bytes can encode."""
        most_rows = max(FEWEST_ROWS, ROWS_PER_BYTE[name] * size)
        if metadata.num_rows > most_rows:
            raise self.damaged(
                f"{name} has {metadata.num_rows:,} rows in {size:,} bytes; a file of that size may have {most_rows:,}"
            )
        most_values = max(FEWEST_VALUES, VALUES_PER_BYTE * size)
        for number in range(metadata.num_columns):
            groups = range(metadata.num_row_groups)
            values = sum(metadata.row_group(group).column(number).num_values for group in groups)
            if values > most_values:
                column = metadata.schema.column(number).path
                raise self.damaged(
                    f"{name}: {column} has {values:,} values in {size:,} bytes; a file of that size may have "
                    f"{most_values:,}"
                )

    def check_columns(self, name: str, column: str, found: Sequence[str], expected: str, first: int) -> None:
        """Raise UsageError unless a column has the digests of the manifest, from a row group on."""
        wanted = expected.split()[first : first + len(found)]
        self._check(f"{name}: column {column}", " ".join(found), " ".join(wanted))

    def _check(self, name: str, found: str, expected: object) -> None:
        if self._digests and found != expected:
            raise self.damaged(f"{name} is not what was saved: its digest differs from that of {MANIFEST}")

    def damaged(self, what: str) -> UsageError:
        """The error for a damaged file, or for a run that was replaced while it was open."""
        if _identity(self.path) != self._identity:
            return ReplacedRunError(
                "the run was replaced while it was open", where=str(self.path), hint="open it again: load the page anew"
            )
        return UsageError(f"the saved run is damaged: {what}", where=str(self.path), hint=SAVE_AGAIN)

    @contextmanager
    def damage(self, name: str) -> Iterator[None]:
        """Turns exceptions of reading a damaged file into a UsageError."""
        try:
            yield
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise self.damaged(f"{name} cannot be read: {error}") from error


def _identity(path: Path) -> tuple[int, int, int, str] | None:
    """Identifies the run at a path; it changes when the run is replaced."""
    try:
        folder, manifest = path.stat(), read_regular(path / MANIFEST)
    except (OSError, ValueError, UsageError):
        return None
    return folder.st_dev, folder.st_ino, folder.st_ctime_ns, digest(manifest)  # an inode number may be used again


def _read_manifest(path: Path) -> dict[str, Any]:
    """The checked manifest of a run folder: every file exists and has the stated size."""
    where = str(path)
    if not path.is_dir():
        what = "a run is a folder, and this is a file" if path.exists() else "there is no such folder"
        raise UsageError(what, where=where, hint="name a folder that `kernbench run --save DIR` wrote")
    if not os.path.lexists(path / MANIFEST):
        raise UsageError(
            f"the folder holds no saved run: it has no {MANIFEST}",
            where=where,
            hint="name a folder that `kernbench run --save DIR` wrote; `kernbench runs DIR` lists those in DIR",
        )
    try:
        manifest = parse_json(read_regular(path / MANIFEST))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the saved run is damaged: {MANIFEST} cannot be read: {error}", where=where, hint=SAVE_AGAIN
        ) from error
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise UsageError(f"{MANIFEST} is not that of a saved run", where=where, hint=SAVE_AGAIN)
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        by = manifest.get("version", "a newer version")
        raise UsageError(
            f"the run was saved by KernBench {by} in a newer format ({schema}; this one reads {SCHEMA})",
            where=where,
            hint="pip install --upgrade kernbench",
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or any(not isinstance(files.get(name), int) for name in FILES):
        raise UsageError(f"{MANIFEST} does not name all files of a run", where=where, hint=SAVE_AGAIN)
    for name in FILES:
        file = path / name
        check_regular(file)
        try:
            size = file.lstat().st_size
        except OSError:
            raise UsageError(f"the saved run is damaged: {name} is missing", where=where, hint=SAVE_AGAIN) from None
        if size != files[name]:
            raise UsageError(
                f"the saved run is damaged: {name} has {size:,} bytes instead of {files[name]:,}",
                where=where,
                hint=SAVE_AGAIN,
            )
    return manifest


class StoredTable:
    """A Parquet file of a run folder, read column by column."""

    def __init__(
        self, files: RunFiles, name: str, metadata: Any, words: Sequence[str], digests: Mapping[str, str]
    ) -> None:
        self._files, self._name, self._metadata = files, name, metadata
        self._words, self._digests = list(words), digests
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self._ends = list(accumulate(sizes))
        self.rows = int(metadata.num_rows)

    def column(self, name: str) -> Any:
        """A whole column, as one array."""
        found = _joined(self._read(name, range(len(self._ends))))
        if found.null_count:
            raise self._files.damaged(f"{self._name}: column {name} has gaps")
        return found

    def cell(self, name: str, row: int) -> Any:
        """One value; only its row group is read."""
        group = bisect_right(self._ends, row)
        before = self._ends[group - 1] if group else 0
        return self._read(name, range(group, group + 1))[row - before].as_py()

    def _read(self, name: str, groups: range) -> Any:
        """A column of some row groups, checked."""
        pyarrow = arrow()
        with self._files.damage(self._name), open_regular(self._files.path / self._name) as file:
            if self._digests:
                found = list(column_digests(file, self._metadata, name, groups))
                self._files.check_columns(self._name, name, found, self._digests.get(name, ""), groups.start)
            opened = pyarrow.parquet.ParquetFile(
                pyarrow.PythonFile(file, mode="r"),
                metadata=self._metadata,
                read_dictionary=self._words,
                page_checksum_verification=True,
            )
            return opened.read_row_groups(list(groups), columns=[name], use_threads=False).column(name)


def _type_name(kind: Any) -> str:
    """A type of Arrow as `layout` writes it: `list<int32>`."""
    if hasattr(kind, "value_type") and str(kind).startswith("dictionary"):
        return _type_name(kind.value_type)
    if hasattr(kind, "value_type"):
        return f"list<{_type_name(kind.value_type)}>"
    return {"double": "float64"}.get(str(kind), str(kind))


def _joined(column: Any) -> Any:
    """A chunked column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return arrow().array([], column.type) if column.num_chunks == 0 else column.combine_chunks()


def write_table(path: Path, columns: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Write columns as Parquet, with page checksums."""
    pyarrow = arrow()
    kinds = {
        "list<int32>": pyarrow.list_(pyarrow.int32()),
        "list<int64>": pyarrow.list_(pyarrow.int64()),
        "list<float64>": pyarrow.list_(pyarrow.float64()),
        "list<string>": pyarrow.list_(pyarrow.string()),
    }
    schema = pyarrow.schema([(name, kinds.get(kind) or getattr(pyarrow, kind)()) for name, kind in types.items()])
    arrays = [pyarrow.array(columns[field.name], field.type) for field in schema]
    table = pyarrow.Table.from_arrays(arrays, schema=schema)
    with pyarrow.OSFile(os.fsencode(path), "wb") as file:
        pyarrow.parquet.write_table(
            table, file, compression="zstd", row_group_size=GROUP_ROWS, write_page_checksum=True
        )
