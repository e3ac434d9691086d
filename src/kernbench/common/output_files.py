"""Files that a command writes: an existing file is replaced only if it is an output of the same kind, or empty.

A kind is recognised by how its files begin. What is no regular file, such as a pipe or `/dev/null`, holds nothing that
could be lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen


@frozen
class OutputKind:
    """What a command writes: its name in messages, and the bytes that every such file begins with."""

    name: str
    beginning: bytes


MAPPING: Final = OutputKind("mapping", b"sip:\n  mesh_w: ")
PARQUET: Final = OutputKind("Parquet file", b"PAR1")
PAGE: Final = OutputKind("report", b'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')


def check_output(name: str, kind: OutputKind, where: str | None = None) -> None:
    """Raise UsageError for a file that cannot be written, or holds something else than an output of this kind."""
    path = Path(name)
    hint = "name a file in a folder that exists"
    try:
        if not name.strip() or path.is_dir():
            why = "it is a folder" if name.strip() else "it has no name"
        elif not path.parent.is_dir():
            why = f"there is no folder {path.parent}"
        elif path.is_file() and _is_foreign(path, kind.beginning):
            why, hint = f"the file is there and is no {kind.name}", "name a new file, or delete this one"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = "permission denied"
        else:
            return
    except (OSError, ValueError) as error:  # ValueError: a name no file system takes
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    raise UsageError(f"'{name}' cannot be written: {why}", where=where, hint=hint)


def _is_foreign(path: Path, beginning: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(beginning)) not in (b"", beginning)
