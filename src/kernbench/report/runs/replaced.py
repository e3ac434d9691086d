"""A folder that takes its place as a whole: made under another name beside it, exchanged with what is there at the end.

Where the system can exchange two names at once (Linux `renameat2`, macOS `renamex_np`) one of the two folders is there
at every moment. Elsewhere the old one steps aside first, for as long as it takes to rename the new one; a process that
is killed just then leaves the old one beside its place, and the next one that saves there puts it back. A folder under
way is locked by the process that makes it, so that those left behind by killed processes are known, and removed.
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

_TRIES: Final = 100  # other processes may put a folder there, or take it away, between two steps of this one
_HERE: Final = -100 if sys.platform == "linux" else -2  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_NUMBERS = count()  # no two folders of this process have the same name


@contextmanager
def replaced(target: Path, check: Callable[[], None], is_whole: Callable[[Path], bool]) -> Iterator[Path]:
    """A new folder that is `target` when the block has ended well and left it whole; what was there before is removed.

    `check` raises where `target` may not be replaced. Folders above that are missing are made, and go again if there is
    nothing to put into them.
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
    """A new folder beside the target, and the lock that says that this process lives."""
    while True:
        part = _beside(target, "part")
        try:
            part.mkdir(parents=True)
        except FileExistsError:
            continue
        lock = _locked(part)
        if lock is not None or not _has_locks(part):
            return part, lock
        # Another process took it for a leftover before it was locked, and removes it.


def _take_place(part: Path, target: Path, check: Callable[[], None]) -> None:
    """Rename, or exchange with what is there; `part` is then what was there before, or gone."""
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
            continue  # another process has taken it away
        try:
            part.rename(target)
        except OSError:
            with suppress(OSError):  # unless another process has put one there
                old.rename(target)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
        return
    raise OSError(EEXIST, "other processes replace it all the time", str(target))


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system or its file system cannot.

    Raises OSError when one of them is not there.
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
    """Folders that killed processes left beside the target; the only one that is whole is put back."""
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
    """Whether a lock can be told from none here: not on Windows, nor on some network file systems."""
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
    """The folder, open and locked until it is closed; None where another process has it, or there are no locks."""
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
