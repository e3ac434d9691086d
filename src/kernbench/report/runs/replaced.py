"""Atomic replacement of a folder: the new one is written under a temporary name and exchanged with the old at the end.

If the system can exchange two names atomically (Linux `renameat2`, macOS `renamex_np`), one of the two folders exists
at every moment. Otherwise the old one is renamed first; a process killed between the two renames leaves it under the
other name, and the next save there restores it. A folder being written is locked by its process, so that leftovers of
killed processes are recognised and removed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOENT, ENOTEMPTY
from itertools import count
from pathlib import Path
from typing import Final

_TRIES: Final = 100  # other processes may create or remove the folder between two steps
_HERE: Final = -100 if sys.platform == "linux" else -2  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_NUMBERS = count()  # no two folders of this process have the same name


@contextmanager
def replaced(target: Path, check: Callable[[], None], is_whole: Callable[[Path], bool]) -> Iterator[Path]:
    """A new folder that replaces `target` if the block succeeds and the folder is complete; the old one is removed.

    `check` raises if `target` may not be replaced. Missing parent folders are created, and removed again if they stay
    empty.
    """
    made = [folder for folder in target.parents if not folder.exists()]  # innermost first
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    part, lock = _new_part(target)
    try:
        yield part
        if is_whole(part):
            _take_place(part, target, check)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        for empty in made:
            with suppress(OSError):  # it holds the folder
                empty.rmdir()


def _new_part(target: Path) -> tuple[Path, int | None]:
    """A new folder beside the target, and the lock that shows that this process is alive."""
    while True:
        part = _beside(target, "part")
        try:
            part.mkdir(parents=True)
        except FileExistsError:
            continue
        lock = _locked(part)
        if lock is not None or not _has_locks(part):
            return part, lock
        # Another process removes it as a leftover, since it was not yet locked.


def _take_place(part: Path, target: Path, check: Callable[[], None]) -> None:
    """Rename `part` to `target`, or exchange the two; `part` is then the old folder, or gone."""
    for _ in range(_TRIES):
        try:
            part.rename(target)
            return
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY):
                raise
        check()
        try:
            if exchange(part, target):
                return
            old = _beside(target, "old")
            target.rename(old)
        except OSError as error:
            if error.errno != ENOENT:
                raise
            continue  # another process has removed it
        try:
            part.rename(target)
        except OSError:
            with suppress(OSError):  # unless another process has created one
                old.rename(target)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
        return
    raise OSError(EEXIST, "other processes replace it all the time", str(target))


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False if the system or file system cannot.

    Raises OSError if one of them does not exist.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _EXCHANGE)
    else:
        return False
    if failed and ctypes.get_errno() == ENOENT:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(other))
    return not failed


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{next(_NUMBERS)}.{kind}")


def _remove_leftovers(target: Path) -> None:
    """Remove folders that killed processes left beside the target; an old folder without a target is restored."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.\d+-\d+\.(part|old)")
    for folder in sorted(target.parent.iterdir()):
        found = pattern.fullmatch(folder.name)
        lock = _locked(folder) if found else None
        if found is None or lock is None:
            continue
        try:
            if found[1] == "old" and not target.exists():
                with suppress(OSError):
                    folder.rename(target)
                    continue
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _has_locks(folder: Path) -> bool:
    """Whether the file system supports locks: not on Windows, nor on some network file systems."""
    with suppress(OSError, ImportError):
        import fcntl

        probe = os.open(folder.parent, os.O_RDONLY)
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return True
        finally:
            os.close(probe)
    return False


def _locked(folder: Path) -> int | None:
    """The folder, open and locked until it is closed; None if another process holds it, or locks are not supported."""
    try:
        import fcntl

        opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except (OSError, ImportError):
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(opened).st_ino == folder.stat(follow_symlinks=False).st_ino:
            return opened
    except OSError:
        pass
    os.close(opened)
    return None
