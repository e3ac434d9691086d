"""A sweep on disk: every finished point is appended to `rows.jsonl` at once, so that an interruption loses nothing.

Each line has a checksum and the digest of its sweep; incomplete lines are ignored. Damaged lines are moved to another
file and their points run again. Rows of another bench or machine, or made with another source, are an error.
`resume_anyway` keeps rows that were made with another source; each has the digest of its identity, and `sweep.json` has
the identities. The set of points may change between calls: a row is found by its point. One process at a time writes;
the lock is released when it ends.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import check_regular, open_regular, read_regular
from kernbench.sweep.context import MADE_WITH, digest_of
from kernbench.sweep.points import Point
from kernbench.sweep.provenance import differing_modules
from kernbench.sweep.rows import SweepRow, row_of_json

SCHEMA = 1
ABOUT, ROWS, LOCK, DAMAGED = "sweep.json", "rows.jsonl", ".lock", "rows.damaged"
OURS = (ABOUT, ROWS, LOCK)


class SweepFolder:
    """The rows of a sweep in a folder, which is made if it is not there. `notes` list problems found in it.

    Raises UsageError if the folder holds other files, another sweep, or a sweep that is running.
    """

    def __init__(self, path: Path, identity: Mapping[str, str], *, resume_anyway: bool = False) -> None:
        self.path = path
        self.notes: list[str] = []
        self._identity = dict(identity)
        self._digest = digest_of(identity)
        self._resume_anyway = resume_anyway
        self._made_with = {self._digest: self._identity}  # identities of the rows that are kept, by their digests
        self._rows: dict[str, SweepRow] = {}
        _check_place(path)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        try:
            self._read()
            about = {"schema": SCHEMA, "command": "sweep", "identity": self._identity, "made_with": self._made_with}
            write_atomically(path / ABOUT, _pretty(about))
            self._file: IO[bytes] = (path / ROWS).open("ab", buffering=0)
        except BaseException:
            self._lock.close()
            raise

    @property
    def made_with(self) -> Mapping[str, Mapping[str, str]]:
        """The identities that rows of this folder were made with, by the digests that rows have."""
        return self._made_with

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def get(self, point: Point) -> SweepRow | None:
        return self._rows.get(point.key)

    def add(self, point: Point, row: SweepRow, run_s: float) -> None:
        """Append a row, with a single write."""
        self._rows[point.key] = row
        line = _sealed({"sweep": self._digest, "key": point.key, "row": row.as_json(), "run_s": round(run_s, 6)})
        self._file.write(line)

    def forget_failed(self) -> None:
        """Discard the rows of failed points, so that they run again."""
        self._rows = {key: row for key, row in self._rows.items() if not row.has_failed}

    def _read(self) -> None:
        file = self.path / ROWS
        data = b""
        with suppress(FileNotFoundError), open_regular(file) as rows:
            data = rows.read()
        lines = data.split(b"\n")
        torn = lines.pop()  # empty, unless the last write was cut off
        good: list[bytes] = []
        others: Counter[str] = Counter()
        for line in lines:
            found = _opened(line)
            if found is None:
                continue
            if found["sweep"] != self._digest:
                others[found["sweep"]] += 1
            self._rows[found["key"]] = replace(row_of_json(found["row"]), made_with=found["sweep"])
            good.append(line)
        if others:
            self._admit(others)
        damaged = len(lines) - len(good) + bool(torn)
        if damaged:
            aside = _free_name(self.path / DAMAGED)
            write_atomically(aside, data)
            write_atomically(file, b"".join(line + b"\n" for line in good))
            self.notes.append(f"{damaged} damaged of {len(good) + damaged} rows: their points run again ({aside.name})")

    def _admit(self, others: Mapping[str, int]) -> None:
        """Keep rows of other identities if that is requested and valid; otherwise raises UsageError."""
        known = _identities(self.path / ABOUT)
        differs = [self._differences(known.get(digest, {})) for digest in others]
        if not self._resume_anyway or any(not parts or not set(parts) <= set(MADE_WITH) for parts in differs):
            raise _another(self.path, differs[0])
        self._made_with |= {digest: known[digest] for digest in others}
        parts = ", ".join(dict.fromkeys(name for each in differs for name in each))
        self.notes.append(f"{sum(others.values())} rows kept that were made with another source ({parts})")

    def _differences(self, theirs: Mapping[str, str]) -> dict[str, str]:
        """The differences between an identity and the current one; empty if the other one is missing."""
        return {
            name: _difference(name, theirs.get(name, "?"), now)
            for name, now in self._identity.items()
            if theirs and theirs.get(name) != now
        }


def _difference(name: str, there: str, now: str) -> str:
    if name == "modules":
        return f"modules {', '.join(differing_modules(there, now)) or 'unknown there'}"
    return f"{name} {there} there, {now} now"


def _another(path: Path, differs: Mapping[str, str]) -> UsageError:
    hint = "give another folder (--out), or delete this one"
    if differs and set(differs) <= set(MADE_WITH):
        hint += "; --resume-anyway keeps its rows as they are"
    return UsageError(
        f"the folder has rows of another sweep{': ' if differs else ''}{'; '.join(differs.values())}",
        where=str(path),
        hint=hint,
    )


def _identities(about: Path) -> dict[str, dict[str, str]]:
    """Identities of a folder's rows, by their digests, as far as the file is intact."""
    try:
        data = parse_json(read_regular(about))
    except (UsageError, OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    made_with = data.get("made_with")
    found = [data.get("identity"), *(made_with.values() if isinstance(made_with, dict) else [])]
    whole = [each for each in found if isinstance(each, dict) and all(isinstance(part, str) for part in each.values())]
    return {digest_of(each): each for each in whole}


def _sealed(data: Mapping[str, object]) -> bytes:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return b'{"crc":"%08x","data":%s}\n' % (crc32(text), text)


def _opened(line: bytes) -> dict[str, Any] | None:
    """The data of a line written by `_sealed`, or None if it is damaged."""
    head, colon, text = line.partition(b',"data":')
    text = text[:-1]
    if not colon or not line.endswith(b"}") or head != b'{"crc":"%08x"' % crc32(text):
        return None
    try:
        data: dict[str, Any] = parse_json(text)
        row_of_json(data["row"])
        return data if isinstance(data["sweep"], str) and isinstance(data["key"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError("the folder of a sweep is a file", where=str(path), hint="give another folder (--out)")
    if path.is_dir() and any(path.iterdir()) and not any((path / name).exists() for name in OURS):
        raise UsageError(
            "the folder is not empty and holds no sweep", where=str(path), hint="give an empty or new folder (--out)"
        )


def _lock(path: Path) -> IO[bytes]:
    check_regular(path / LOCK)
    file = (path / LOCK).open("ab")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # no such locks on this system
    except OSError as error:
        file.close()
        if not isinstance(error, BlockingIOError):
            return (path / LOCK).open("ab")  # a file system without locks
        raise UsageError("a sweep is running in this folder", where=str(path), hint="wait for it, or stop it") from None
    return file


def _free_name(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}-{number}.jsonl").exists():
        number += 1
    return path.with_name(f"{path.name}-{number}.jsonl")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: it is complete, or as it was before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _pretty(data: object) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
