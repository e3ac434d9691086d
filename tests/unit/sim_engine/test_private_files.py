"""A process that is a copy of another gets open files of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are made by fork, on Linux only")

PROGRAM = """
import errno, json, os, socket, sys
from kernbench.sim_engine.memo.private_files import make_files_private

folder = sys.argv[1]
path = os.path.join(folder, "data")
with open(path, "w") as file:
    file.write("0123456789")
reading, writing, both = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_APPEND), os.open(path, os.O_RDWR)
listing, chance = os.open(folder, os.O_RDONLY), os.open("/dev/urandom", os.O_RDONLY)
from_pipe, into_pipe = os.pipe()
connection, _ = socket.socketpair()
os.read(reading, 3)

def use(what, *args):
    try:
        return repr(what(*args))
    except OSError as error:
        return errno.errorcode[error.errno]

child = os.fork()
if not child:
    make_files_private()
    found = {
        "read on": use(os.read, reading, 4),
        "written": use(os.write, writing, b"more"),
        "read from both": use(os.read, both, 2),
        "written to both": use(os.write, both, b"more"),
        "listed": use(os.listdir, listing),
        "chance": len(os.read(chance, 8)),
        "pipe": [use(os.read, from_pipe, 1), use(os.write, into_pipe, b"x")],
        "socket": [use(connection.recv, 1), use(connection.send, b"x")],
        "standard input": use(os.read, 0, 1),
        "a new file has a new number": os.open(path, os.O_RDONLY) > connection.fileno(),
    }
    print("not seen", flush=True)
    with open(os.path.join(folder, "found"), "w") as file:
        json.dump(found, file)
    os._exit(0)
os.waitpid(child, 0)
print(os.read(reading, 3).decode(), os.path.getsize(path), os.read(both, 1).decode())
"""


def test_what_a_copy_reads_and_writes_is_not_missed_or_seen(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], input="typed", capture_output=True, text=True, check=True
    )
    assert done.stdout == "345 10 0\n"  # three of ten bytes were read before, and none is missed or added
    assert json.loads((tmp_path / "found").read_text()) == {
        "read on": "b'3456'",
        "written": "4",  # to nowhere
        "read from both": "b'01'",
        "written to both": "EBADF",
        "listed": "['data']",
        "chance": 8,
        "pipe": ["EBADF", "EBADF"],
        "socket": ["EBADF", "EBADF"],
        "standard input": "EBADF",
        "a new file has a new number": True,
    }
