"""Writes a run folder: what was recorded during the run, converted to columns at its end.

The folder is written under a temporary name and renamed at the end, so that it is complete or does not exist
(`replaced.py`). A saved run disables most fast paths, so that the activity of links and channels is recorded
(docs/adr/0031).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.common.errors import UsageError
from kernbench.common.ipcq import Message
from kernbench.common.plain_json import printable
from kernbench.common.units import on_grid
from kernbench.common.version import __version__
from kernbench.report.run_figures import kernels_ns_of
from kernbench.report.runs.digests import sealed
from kernbench.report.runs.files import arrow, write_table
from kernbench.report.runs.launch_table import launch_row, launches_of
from kernbench.report.runs.layout import (
    ACTIVITY,
    ACTIVITY_COLUMNS,
    KIND,
    LANE_COLUMNS,
    LANES,
    LAUNCHES,
    MACHINE,
    MANIFEST,
    OP_COLUMNS,
    OPS,
    PLACE_COLUMNS,
    PLACES,
    SCHEMA,
    SOURCES,
)
from kernbench.report.runs.op_table import KernelLines, ServiceSplit, op_columns, received
from kernbench.report.runs.place_table import activity_columns, place_columns
from kernbench.report.runs.replaced import replaced
from kernbench.report.runs.run_log import RunLog
from kernbench.report.runs.source_files import read_sources
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.sim_engine.fabric.activity import MOST_BINS, Activity, TransferGroup
from kernbench.sim_engine.purposes import purpose_of
from kernbench.sim_engine.uncontended import Uncontended
from kernbench.topology.machine_hash import machine_hash

RAW = "records.parquet"  # raw records; removed when the folder is complete
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class About:
    """Metadata of a run besides its result."""

    command: Sequence[str]
    identifier: str  # the name by which `kernbench run --bench` finds the bench
    bench: str
    params: Mapping[str, object]
    device: str
    chosen: Sequence[str] = ()  # params that the user set: the others are defaults
    title: str = ""  # `softmax rows=64` if left out
    directory: str = "."  # where `identifier` is valid, relative to the run's folder
    program: Mapping[str, object] | None = None  # of a program with Triton kernels: how it was started


class RunFolder:
    """A folder that is being written. Pass `log` and `activity` to the run, then `write` its result."""

    def __init__(self, path: Path, most_bins: int) -> None:
        self._path = path
        self.log = RunLog(path / RAW)
        self.activity = Activity(purpose_of, most_bins=most_bins)

    def write(self, result: BenchResult, about: About) -> str:
        """Write all files; returns the hash of the content."""
        self.log.close()
        spec = result.engine.graph.spec
        launches = [launch_row(launch) for launch in result.launches]
        binned = self.activity.bins.read()
        used = binned.places
        lines = KernelLines()
        splits = _Splits(result, self.activity, {place: at for at, place in enumerate(used)})
        ops, lanes = op_columns(self._records(), launches_of(result), lines, splits.of)
        (self._path / RAW).unlink()
        bins = max(int(binned.bin.max(initial=0)), int(result.total_ns // binned.bin_ns)) + 1
        tables = {
            OPS: (ops, OP_COLUMNS),
            LANES: (lanes, LANE_COLUMNS),
            PLACES: (place_columns(result.engine, self.activity, binned), PLACE_COLUMNS),
            ACTIVITY: (activity_columns(binned), ACTIVITY_COLUMNS),
        }
        documents = printable(
            {
                LAUNCHES: launches,
                SOURCES: read_sources(lines.files, lines.lines),
                MACHINE: spec.model_dump(mode="json"),
            }
        )
        counts = {"launches": len(launches), "ops": len(ops["id"]), "bin_ns": binned.bin_ns, "bins": bins}
        content = printable({**_facts(result, about), **counts})
        digest = _digest(content, documents, tables)
        for name, (columns, types) in tables.items():
            write_table(self._path / name, columns, types)
        for name, data in documents.items():
            _write_json(self._path / name, data)
        manifest = {
            "schema": SCHEMA,
            "kind": KIND,
            "version": __version__,
            "hash": digest,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": printable(list(about.command)),
            "identifier": printable(about.identifier),
            "directory": printable(about.directory),
            **({} if about.program is None else {"program": printable(about.program)}),
            **content,
        }
        _write_json(self._path / MANIFEST, sealed(manifest, self._path, arrow()))
        return digest

    def _records(self) -> Iterator[dict[str, Any]]:
        """The columns of the records, some rows at a time. Not by Arrow's threads: a command that ended while they did
        was aborted, about one in a hundred on a busy machine.
        """
        opened = arrow().OSFile(os.fsencode(self._path / RAW), "rb")
        with opened, arrow().parquet.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, use_threads=False):
                yield batch.to_pydict()


@contextmanager
def run_folder(name: str | Path, *, most_bins: int = MOST_BINS) -> Iterator[RunFolder]:
    """A folder that becomes `name` if the block succeeds and a run was written; an existing run is replaced.

    Raises UsageError for a path where no folder can be created, or that holds something else.
    """
    target = Path(os.path.realpath(name))

    def check() -> None:
        _check(target, str(name))

    check()
    arrow()
    with replaced(target, check, lambda part: (part / MANIFEST).is_file()) as part:
        folder = RunFolder(part, most_bins)
        try:
            yield folder
        finally:
            folder.log.close()


def _check(target: Path, name: str) -> None:
    why = None
    if not name.strip():
        why = "it has no name"
    elif target.exists() and not target.is_dir():
        why = "it is a file"
    elif target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        why = "it holds other things than a saved run"
    else:
        nearest = next(folder for folder in target.parents if folder.exists())
        if not nearest.is_dir():
            why = f"{nearest} is a file"
        elif not os.access(nearest, os.W_OK):
            why = "permission denied"
    if why is not None:
        hint = "name a new folder, or a saved run"
        raise UsageError(f"the run cannot be saved there: {why}", where=f"--save {name}", hint=hint)


def _title(about: About) -> str:
    """`softmax rows=64`: with the parameters that were set."""
    return " ".join([about.bench, *(f"{name}={about.params[name]}" for name in about.chosen if name in about.params)])


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def _facts(result: BenchResult, about: About) -> dict[str, object]:
    """What was run, on which machine, and what came of it."""
    spec = result.engine.graph.spec
    return {
        "bench": about.bench,
        "title": about.title or _title(about),
        "params": {name: _plain(value) for name, value in about.params.items()},
        "device": about.device,
        "devices": list(result.devices),
        "machine": spec.system.name,
        "machine_hash": machine_hash(spec),
        "total_ns": result.total_ns,
        "kernels_ns": kernels_ns_of(result.launches),
        "verified": _verified(result),
        "ok": result.ok,
    }


def _verified(result: BenchResult) -> str:
    if not result.data:
        return "not compared"
    return "verified" if all(check.ok for check in (*result.data, *result.ops)) else "wrong"


# ---- time of transfers


class _Splits:
    """The time of ops that move bytes, split into parts, by id."""

    def __init__(self, result: BenchResult, activity: Activity, rows: Mapping[int, int]) -> None:
        self._uncontended = Uncontended(result.engine.fabric.network)
        self._rows = rows  # of places
        self._spec = result.engine.graph.spec
        self._transfers: dict[int, TransferGroup] = {}
        log, requests = result.op_log, result.engine.host_records
        assert log is not None
        for purpose, transfers in activity.transfer_groups.items():
            number: int | None = None
            if isinstance(purpose, int):
                number = log.id_of_stage(purpose)
            elif isinstance(purpose, Message):
                number = None if purpose.record is None else log.id_of_number(purpose.record)
            elif isinstance(purpose, tuple):  # a request of the host
                record = requests.get(purpose)
                number = None if record is None else log.id_of_number(record)
            if number is not None:
                self._transfers[number] = transfers

    def of(self, number: int, port: str, lasted_ns: float, nbytes: int) -> ServiceSplit | None:
        if port == "recv":
            return received(self._spec, lasted_ns, nbytes)
        transfers = self._transfers.get(number)
        if transfers is None or not transfers.pieces:
            return None
        queue_ns = on_grid(self._uncontended.queue_ns(transfers)) if transfers.waits else 0.0
        if port == "send":  # ends before its message arrives: queueing of the message is not part of the op
            return ServiceSplit(lasted_ns, 0.0, queue_ns, self._shared(transfers, queue_ns), self._route(transfers))
        queue_ns = min(queue_ns, lasted_ns)
        transfer_ns = min(on_grid(self._uncontended.transfer_ns(transfers)), lasted_ns - queue_ns)
        latency_ns = lasted_ns - queue_ns - transfer_ns
        return ServiceSplit(
            transfer_ns, latency_ns, queue_ns, self._shared(transfers, queue_ns), self._route(transfers)
        )

    def _route(self, transfers: TransferGroup) -> tuple[int, ...]:
        """The links that its pieces passed, in order, each once."""
        links = dict.fromkeys(link for piece in transfers.pieces for link in piece.route.links)
        return tuple(self._rows[link] for link in links)

    def _shared(self, transfers: TransferGroup, queue_ns: float) -> tuple[tuple[int, float], ...]:
        """The queueing by place, in proportion to how long flits waited at each."""
        if not queue_ns:
            return ()
        total = sum(transfers.waits.values())
        found: list[tuple[int, float]] = []
        left = queue_ns
        waits = sorted(transfers.waits.items(), key=lambda item: (item[1], item[0]))
        for place, ns in waits[:-1]:
            part = on_grid(queue_ns * (ns / total))
            found.append((self._rows[place], part))
            left -= part
        found.append((self._rows[waits[-1][0]], left))
        return tuple(sorted((place, ns) for place, ns in found if ns))


# ---- files


def _digest(content: object, documents: object, tables: Mapping[str, tuple[Mapping[str, Any], object]]) -> str:
    hashed = sha256(json.dumps([content, documents], sort_keys=True).encode())
    for name, (columns, _) in tables.items():
        for column, values in columns.items():
            hashed.update(f"{name} {column}\n".encode())
            is_array = isinstance(values, np.ndarray)
            hashed.update(np.ascontiguousarray(values).tobytes() if is_array else json.dumps(values).encode())
    return hashed.hexdigest()


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
