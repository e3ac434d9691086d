"""Record, ahead of the clock: open files of a worker process (`record_ahead.py`), which is a copy of the process that
made it: no byte that it reads or writes is missed, or seen, by another process.

    standard output, standard error     written to /dev/null
    regular files for reading, folders  opened again for reading, at the position where they were
    regular files for writing only      written to /dev/null
    /dev/null, zero, full, (u)random    kept: all processes get the same of them
    anything else                       closed: pipes, sockets, terminals, devices, event queues

To use a closed one raises OSError (EBADF); its number stays taken, so that no file that is opened later gets it. A
program that does not catch the error leaves the block in which it may be run ahead, and there a worker ends. A file
that is open for reading and writing can be read, and to write to it raises the same error. Not covered: shared memory.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

OUTPUT = (1, 2)
OPEN_FILES = "/proc/self/fd"
MEMORY_DEVICES = 1  # major number
STATELESS = (3, 5, 7, 8, 9)  # minor numbers: null, zero, full, random, urandom


def make_files_private() -> None:
    """Give this process, which is a copy of another, open files of its own."""
    nowhere, closed = os.open(os.devnull, os.O_WRONLY), os.open("/", os.O_PATH)
    for fd in [int(name) for name in os.listdir(OPEN_FILES)]:
        with suppress(OSError):  # that of the listing is closed already
            own = nowhere if fd in OUTPUT else _own_file(fd, nowhere, closed)
            if fd not in (own, nowhere, closed):
                os.dup2(own, fd, os.get_inheritable(fd))
            if own not in (fd, nowhere, closed):
                os.close(own)


def _own_file(fd: int, nowhere: int, closed: int) -> int:
    """What takes the place of an open file: itself, `nowhere`, `closed`, or a new one."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        device = os.major(status.st_rdev), os.minor(status.st_rdev)
        return fd if device[0] == MEMORY_DEVICES and device[1] in STATELESS else closed
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return closed
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        return nowhere
    try:
        own = os.open(f"{OPEN_FILES}/{fd}", os.O_RDONLY)
        os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        return closed
    return own
