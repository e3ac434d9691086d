"""Reads saved runs; `parts.py` defines their parts.

`open_run` reads the manifest and the sizes of files only; each file is read on first use, and checked against the
digests of the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.report.runs.digests import digest_of_manifest
from kernbench.report.runs.files import SAVE_AGAIN, RunFiles
from kernbench.report.runs.layout import (
    ACTIVITY,
    ACTIVITY_COLUMNS,
    LANE_COLUMNS,
    LANES,
    LARGEST_BINS,
    LAUNCHES,
    MACHINE,
    MANIFEST,
    OPS,
    PLACE_COLUMNS,
    PLACES,
    SOURCES,
)
from kernbench.report.runs.parts import (
    PeRun,
    SavedActivity,
    SavedLane,
    SavedLaunch,
    SavedPlace,
    SourceFile,
    SourceLine,
)
from kernbench.report.runs.stored_ops import StoredOps
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True)
class Manifest:
    """The manifest of a run: see docs/adr/0031."""

    version: str
    hash: str
    command: tuple[str, ...]
    created: str
    identifier: str
    bench: str
    title: str
    params: Mapping[str, Any]
    device: str
    devices: tuple[int, ...]
    machine: str
    machine_hash: str
    total_ns: float
    kernels_ns: float
    verified: str  # verified, not compared, or wrong
    ok: bool
    launches: int
    ops: int
    bin_ns: float
    bins: int
    files: Mapping[str, int]
    raw: Mapping[str, Any]


_TEXTS = ("version", "hash", "created", "identifier", "bench", "title", "device", "machine", "machine_hash", "verified")
_NUMBERS = {"total_ns": 0.0, "kernels_ns": 0.0, "launches": 0, "ops": 0, "bins": 1, "bin_ns": 2.0**-20}  # at least


def _check(manifest: Manifest, path: Path) -> None:
    """Raise UsageError if a value has the wrong type: listings of runs rely on it."""
    wrong = [name for name in _TEXTS if not isinstance(getattr(manifest, name), str)]
    for name, least in _NUMBERS.items():
        value = getattr(manifest, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < inf:
            wrong.append(name)
    wrong += [name for name in ("launches", "ops", "bins") if not isinstance(getattr(manifest, name), int)]
    if not wrong and manifest.bins > LARGEST_BINS:
        wrong.append("bins")
    if not isinstance(manifest.params, Mapping):
        wrong.append("params")
    if wrong:
        raise UsageError(
            f"the saved run is damaged: its manifest has a wrong {wrong[0]}", where=str(path), hint=SAVE_AGAIN
        )


class SavedRun:
    """A run folder. Reading a damaged file raises UsageError."""

    def __init__(self, path: str | Path) -> None:
        self.path = _as_path(path)
        self._files = RunFiles(self.path)
        raw = self._files.manifest
        try:
            named = {name: raw[name] for name in Manifest.__dataclass_fields__ if name != "raw"}
            named["command"], named["devices"] = tuple(raw["command"]), tuple(raw["devices"])
            self.manifest = Manifest(raw=raw, **named)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"the saved run is damaged: its manifest lacks {error}", where=str(self.path), hint=SAVE_AGAIN
            ) from error
        _check(self.manifest, self.path)
        if "digest" in raw and raw["digest"] != digest_of_manifest(raw):
            raise UsageError(
                f"the saved run is damaged: {MANIFEST} is not what was saved", where=str(self.path), hint=SAVE_AGAIN
            )

    def __repr__(self) -> str:
        return f"<SavedRun {self.id}: {self.name}, {self.total_ns} ns>"

    @property
    def is_triton(self) -> bool:
        """Whether a program with Triton kernels made it."""
        return "program" in self.manifest.raw

    @property
    def id(self) -> str:
        """The first 12 hex digits of the content's hash."""
        return self.manifest.hash[:12]

    @property
    def name(self) -> str:
        return self.manifest.title

    @property
    def total_ns(self) -> float:
        return self.manifest.total_ns

    @cached_property
    def ops(self) -> StoredOps:
        found = StoredOps(self._files)
        if len(found) != self.manifest.ops:
            raise self._files.damaged(f"{OPS} has {len(found):,} rows instead of {self.manifest.ops:,}")
        return found

    @cached_property
    def lanes(self) -> tuple[SavedLane, ...]:
        rows = self._rows(LANES, LANE_COLUMNS)
        firsts = np.searchsorted(self.ops.lane, np.arange(len(rows) + 1))
        return tuple(
            SavedLane(index=i, first=int(firsts[i]), stop=int(firsts[i + 1]), **row) for i, row in enumerate(rows)
        )

    @cached_property
    def launches(self) -> tuple[SavedLaunch, ...]:
        rows = self._files.json(LAUNCHES)
        with self._files.damage(LAUNCHES):
            return tuple(launch_of_row(i, row) for i, row in enumerate(rows))

    @cached_property
    def places(self) -> tuple[SavedPlace, ...]:
        return tuple(SavedPlace(index=i, **row) for i, row in enumerate(self._rows(PLACES, PLACE_COLUMNS)))

    @cached_property
    def activity(self) -> SavedActivity:
        table = self._files.table(ACTIVITY, ACTIVITY_COLUMNS)
        columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in ACTIVITY_COLUMNS}
        return SavedActivity(self.manifest.bin_ns, self.manifest.bins, **columns)

    @cached_property
    def _source_data(self) -> tuple[tuple[SourceFile, ...], tuple[SourceLine, ...]]:
        data = self._files.json(SOURCES)
        with self._files.damage(SOURCES):
            files = tuple(SourceFile(i, str(row["name"]), row["text"]) for i, row in enumerate(data["files"]))
            lines = tuple(SourceLine(i, files[file], int(number)) for i, (file, number) in enumerate(data["lines"]))
            return files, lines

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Files of the kernels."""
        return self._source_data[0]

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """Lines that issued ops; `Ops.line` is an index into it."""
        return self._source_data[1]

    @cached_property
    def machine_values(self) -> dict[str, object]:
        """Every value of the machine's description, by dotted key."""
        return dict(_values(self._files.json(MACHINE)))

    @cached_property
    def graph(self) -> TopologyGraph:
        """The machine, compiled."""
        data = self._files.json(MACHINE)
        try:
            return load_topology(data)  # keys that are newer than the run have their shipped values
        except (KernBenchError, ValueError) as error:
            raise UsageError(
                f"the machine of the saved run cannot be built: {str(error).splitlines()[0]}",
                where=str(self.path / MACHINE),
                hint=SAVE_AGAIN,
            ) from error

    def _rows(self, name: str, columns: Mapping[str, str]) -> list[dict[str, Any]]:
        table = self._files.table(name, columns)
        values = [table.column(column).to_pylist() for column in columns]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def launch_of_row(index: int, row: Mapping[str, Any]) -> SavedLaunch:
    """A launch from its entry in `launches.json`."""
    pes = tuple(PeRun(**_known(PeRun, pe)) for pe in row["pes"])
    return SavedLaunch(**{**_known(SavedLaunch, row), "index": index, "sips": tuple(row["sips"]), "pes": pes})


def _known(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What this release reads; a later one may have added to it."""
    return {field.name: row[field.name] for field in fields(kind) if field.name in row}


def _as_path(path: object) -> Path:
    """A path; raises UsageError for anything else."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise UsageError(f"a saved run is named by its path, not by {path!r:.60}", hint="open_run('out/qkv')")
    return Path(path)


def open_run(path: str | Path) -> SavedRun:
    """A run written by `kernbench run --save`; raises UsageError for a folder that is no run, damaged or newer."""
    return SavedRun(path)


def find_runs(folder: str | Path) -> Iterator[Path]:
    """The run folders at and below a folder, in order of name; run folders are not searched."""
    root = _as_path(folder)
    if not root.is_dir():
        raise UsageError("there is no such folder", where=str(folder), hint="name a folder with saved runs in it")
    pending = [root]
    while pending:
        at = pending.pop()
        if (at / "manifest.json").is_file():
            yield at
            continue
        pending += reversed(folders_in(at))


def folders_in(folder: Path) -> list[Path]:
    """The subfolders of a folder, by name, without hidden ones and links to a parent; none if it is not readable."""
    try:
        found = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
        return [
            child for child in found if not (child.is_symlink() and folder.resolve().is_relative_to(child.resolve()))
        ]
    except OSError:
        return []


def _values(data: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(data, dict):
        for name, inner in data.items():
            yield from _values(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, data
