"""Reading the files of a run folder: what is missing, damaged or newer is said in one sentence, with what to do."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.report.runs.layout import FILES, KIND, MANIFEST, SCHEMA

GROUP_ROWS = 1 << 16  # a reader that wants one row reads so many
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


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run folder, looked at: every file it names is there, and as long as it says."""
    where = str(path)
    if not path.is_dir():
        what = "a run is a folder, and this is a file" if path.exists() else "there is no such folder"
        raise UsageError(what, where=where, hint="name a folder that `kernbench run --save DIR` wrote")
    if not (path / MANIFEST).is_file():
        raise UsageError(
            f"the folder holds no saved run: it has no {MANIFEST}",
            where=where,
            hint="name a folder that `kernbench run --save DIR` wrote; `kernbench runs DIR` lists those in DIR",
        )
    manifest = read_json(path, MANIFEST)
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
    if not isinstance(files, dict) or any(name not in files for name in FILES):
        raise UsageError(f"{MANIFEST} does not name all files of a run", where=where, hint=SAVE_AGAIN)
    for name in FILES:
        file = path / name
        if not file.is_file():
            raise UsageError(f"the saved run is damaged: {name} is missing", where=where, hint=SAVE_AGAIN)
        size = file.stat().st_size
        if size != files[name]:
            raise UsageError(
                f"the saved run is damaged: {name} has {size:,} bytes instead of {files[name]:,}",
                where=where,
                hint=SAVE_AGAIN,
            )
    return manifest


def read_json(path: Path, name: str) -> Any:
    """A JSON file of the folder."""
    with _damage(path, name):
        return json.loads((path / name).read_text(encoding="utf-8"))


class Table:
    """A Parquet file of a run folder, of which columns are read one by one."""

    def __init__(self, path: Path, name: str, file: Any) -> None:
        self._path, self._name, self._file = path, name, file
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        self._ends = list(accumulate(sizes))
        self.rows = int(file.metadata.num_rows)

    def column(self, name: str) -> Any:
        """A whole column, as one array."""
        with _damage(self._path, self._name):
            found = _joined(self._file.read(columns=[name]).column(name))
        if found.null_count:
            raise UsageError(
                f"the saved run is damaged: {self._name}: column {name} has gaps",
                where=str(self._path),
                hint=SAVE_AGAIN,
            )
        return found

    def cell(self, name: str, row: int) -> Any:
        """One value; only its row group is read."""
        group = bisect_right(self._ends, row)
        before = self._ends[group - 1] if group else 0
        with _damage(self._path, self._name):
            return self._file.read_row_group(group, columns=[name]).column(name)[row - before].as_py()


def open_table(path: Path, name: str, columns: Mapping[str, str], words: Sequence[str] = ()) -> Table:
    """A Parquet file that has these columns, of these types; `words` are those of few different strings."""
    pyarrow = arrow()
    with _damage(path, name):
        file = pyarrow.parquet.ParquetFile(
            str(path / name), memory_map=True, read_dictionary=list(words), page_checksum_verification=True
        )
    types = {field.name: _type_name(field.type) for field in file.schema_arrow}
    for column, kind in columns.items():
        if types.get(column) != kind:
            what = f"column {column} is {types[column]}, not {kind}" if column in types else f"has no column {column}"
            raise UsageError(f"the saved run is damaged: {name}: {what}", where=str(path), hint=SAVE_AGAIN)
    return Table(path, name, file)


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


@contextmanager
def _damage(path: Path, name: str) -> Iterator[None]:
    """Turns what reading a damaged file raises into an error that says so."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"the saved run is damaged: {name} cannot be read: {error}", where=str(path), hint=SAVE_AGAIN
        ) from error


def write_table(path: Path, columns: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Write columns as Parquet; changed bytes are noticed when they are read."""
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
    pyarrow.parquet.write_table(
        table, str(path), compression="zstd", row_group_size=GROUP_ROWS, write_page_checksum=True
    )
