"""Reading files of a folder that others may have written: regular files of that folder, and nothing they lead to.

A symlink can lead to any file of the machine, and a FIFO never ends. Neither is opened. The folder itself may be
reached by a symlink: the user named it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from kernbench.common.errors import UsageError

MOST_BYTES: Final = 256 << 20  # of a file that is read as a whole
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def check_regular(path: Path) -> None:
    """Raise UsageError for a symlink, a FIFO, a device or a folder; what is not there is no fault."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _refused(path, _kind(mode))


def is_regular(path: Path) -> bool:
    """Whether a regular file is there, itself and not by a symlink."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading. Raises UsageError for what is no regular file, OSError for what cannot be opened."""
    check_regular(path)
    try:
        number = os.open(path, _FLAGS)
    except OSError:
        check_regular(path)  # a symlink has taken its place since
        raise
    with os.fdopen(number, "rb") as file:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise _refused(path, _kind(mode))
        yield file


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """What a file holds. Raises as `open_regular` does, and UsageError for one too large to be ours."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UsageError(
            f"{path.name} has more than {most_bytes:,} bytes",
            where=str(path),
            hint="name a folder that kernbench wrote",
        )
    return data


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symlink", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _refused(path: Path, kind: str) -> UsageError:
    return UsageError(
        f"{path.name} is {kind}: only regular files of a folder are read",
        where=str(path),
        hint="put the file itself there",
    )
