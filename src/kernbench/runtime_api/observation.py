"""Everything observable of a run, and the first difference between two runs of one program.

Two simulations of one program on one machine must agree in everything that is here, whichever fast paths they use
(`sim_engine/fast_paths.py`): times, records of the op log, results of PEs, counters of links and channels, contents of
tensors when they are freed, and what the program returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.common.messages import PeResult, TensorShard
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value

Counts = Mapping[Any, object]


@frozen
class RunDifference:
    """The first difference between a run and the reference run."""

    what: str  # "op log", "launch 3", "link counters", ...
    where: str  # which op, PE, link, tensor
    expected: str
    found: str
    op: int | None = None  # of the op log: which record, in order of start
    line: str | None = None  # of the kernel, where it is an op's

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.where}"] + ([f"  line:     {self.line}"] if self.line else [])
        return "\n".join([*lines, f"  expected: {self.expected}", f"  found:    {self.found}"])

    def as_json(self) -> dict[str, object]:
        names = ("what", "where", "line", "expected", "found")
        return {name: getattr(self, name) for name in names}


@dataclass(eq=False)
class Observation:
    """What was observed of one run. `error` is what it raised, if anything: the other fields may then be empty."""

    error: str | None = None
    total_ns: float = 0.0
    launches: Sequence[Launch] = ()
    log: OpLog | None = field(default=None, repr=False)
    counters: dict[str, Counts] = field(default_factory=dict, repr=False)  # by kind of counter
    contents: list[tuple[str, str]] = field(default_factory=list, repr=False)  # of tensors, when they were freed
    notes: list[object] = field(default_factory=list, repr=False)  # what the program returned


class Observer:
    """Records the tensors of a context as they are freed, and the rest of the observation at the end."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._seen = Observation()
        if context.engine.data:
            context.watch_contents(self._note_contents)

    def _note_contents(self, name: str, shard: TensorShard, value: Value) -> None:
        graph = self._context.engine.values
        [array] = evaluate([value], backend=graph.backend, keep_inputs=graph.sites is not None)
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
        self._seen.contents.append((f"{name} on {PeId(*shard.key)}", digest))

    def take(self, notes: Sequence[object] = ()) -> Observation:
        """The observation so far. Contents of tensors that are freed later are added then."""
        engine, seen = self._context.engine, self._seen
        seen.total_ns, seen.launches, seen.log = engine.now_ns, list(self._context.launches), engine.log
        seen.counters = counters_of(engine)
        seen.notes = list(notes)
        return seen


def counters_of(engine: GraphEngine) -> dict[str, Counts]:
    """The counters of a machine's links, channels and DMA engines."""
    graph, network = engine.graph, engine.fabric.network
    memories = [str(network.names[node]) for node in engine.fabric.engine.groups]
    return {
        "link counters": dict(engine.link_counters()),
        "channel counters": {
            (node, number): used for node in memories for number, used in enumerate(engine.channel_counters(node))
        },
        "memory traffic": {
            (node, memory): used
            for node in graph.nodes
            if node.endswith(".pe_dma")
            for memory, used in engine.memory_traffic_by(node).items()
        },
    }


def first_difference(expected: Observation, found: Observation) -> RunDifference | None:
    """The first difference between a run and the reference run; None if they are equal."""
    return next(_differences(expected, found), None)


def _differences(expected: Observation, found: Observation) -> Iterator[RunDifference]:
    if expected.error != found.error:
        yield RunDifference(
            "outcome", "of the program", expected.error or "it ends well", found.error or "it ends well"
        )
    if expected.error is not None:
        return
    yield from _in_logs(expected.log, found.log)
    for number, (one, other) in enumerate(zip_longest(expected.launches, found.launches)):
        yield from _in_launches(f"launch {number}", one, other)
    for what in expected.counters:
        yield from _in_mappings(what, expected.counters[what], found.counters[what])
    for at, (ours, theirs) in enumerate(zip_longest(expected.contents, found.contents)):
        if ours != theirs:
            yield RunDifference("contents", (ours or theirs or (f"tensor {at}",))[0], repr(ours), repr(theirs))
    if expected.total_ns != found.total_ns:
        yield RunDifference("total time", "of the run", f"{expected.total_ns} ns", f"{found.total_ns} ns")
    for at, (ours, theirs) in enumerate(zip_longest(expected.notes, found.notes)):
        if not _equal(ours, theirs):
            yield RunDifference("returned value", f"number {at}", repr(ours), repr(theirs))


def _in_logs(expected: OpLog | None, found: OpLog | None) -> Iterator[RunDifference]:
    if expected is None or found is None:
        return
    for at, (ours, theirs) in enumerate(zip_longest(expected.items(), found.items())):
        if ours == theirs:
            continue
        number, record = ours or theirs
        fields = [] if ours is None or theirs is None else _fields(ours[1], theirs[1])
        where = f"op {number}, {record.op_name} on {record.component_id} at {record.t_start} ns"
        yield RunDifference("op log", where, _described(ours, fields), _described(theirs, fields), at)
        return


def _fields(ours: OpRecord, theirs: OpRecord) -> list[str]:
    return [name for name, a, b in zip(OpRecord._fields, ours, theirs, strict=True) if a != b]


def _described(item: tuple[int, OpRecord] | None, fields: Sequence[str]) -> str:
    if item is None:
        return "no such op"
    return ", ".join(f"{name} {getattr(item[1], name)}" for name in fields) or f"id {item[0]}"


def _in_launches(what: str, expected: Launch | None, found: Launch | None) -> Iterator[RunDifference]:
    if expected is None or found is None:
        yield RunDifference(what, "is in one run only", str(expected), str(found))
        return
    what = f"{what} ('{expected.name}')"
    ours, theirs = (expected.start_ns, expected.end_ns), (found.start_ns, found.end_ns)
    if ours != theirs:
        yield RunDifference(what, "start and end", f"{ours} ns", f"{theirs} ns")
    yield from _in_mappings(what, _by_pe(expected.pes), _by_pe(found.pes))
    yield from _in_mappings(what, expected.engines, found.engines)
    yield from _in_mappings(what, expected.links, found.links)


def _by_pe(results: Sequence[PeResult]) -> dict[object, PeResult]:
    return {str(PeId(result.sip, result.cube, result.pe)): result for result in results}


def _in_mappings(what: str, expected: Counts, found: Counts) -> Iterator[RunDifference]:
    for key in {**expected, **found}:
        ours, theirs = expected.get(key), found.get(key)
        if ours != theirs:
            where = " -> ".join(map(str, key)) if isinstance(key, tuple) else str(key)
            yield RunDifference(what, where, *_only_what_differs(ours, theirs))
            return
    if list(expected) != list(found):
        yield RunDifference(what, "order", str(list(expected)), str(list(found)))


def _only_what_differs(ours: object, theirs: object) -> tuple[str, str]:
    names = getattr(ours, "__dataclass_fields__", None) or getattr(ours, "_fields", None)
    if names is None or type(ours) is not type(theirs):
        return repr(ours), repr(theirs)
    unlike = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    return (
        ", ".join(f"{name} {getattr(ours, name)}" for name in unlike),
        ", ".join(f"{name} {getattr(theirs, name)}" for name in unlike),
    )


def is_plain(note: object) -> bool:
    """Whether a value can be compared between runs: numbers, text, arrays, and lists and mappings of them."""
    if isinstance(note, Mapping):
        return all(is_plain(each) for each in note.values())
    if isinstance(note, list | tuple):
        return all(is_plain(each) for each in note)
    return note is None or isinstance(note, bool | int | float | str | bytes | np.ndarray | np.generic)


def _equal(ours: object, theirs: object) -> bool:
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return list(ours) == list(theirs) and all(_equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    return type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))
