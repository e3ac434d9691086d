"""A backend that moves values on the host: it implements `ccl_backend.Backend` without algorithms.

Each rank's part is a launch of an empty kernel on one PE, and is done `PART_NS` after the last rank's part has
started: results appear in memory at that instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import simpy

from kernbench.ccl.calls import CallGroup, CollectiveCall, ReduceOp
from kernbench.common.errors import UsageError
from kernbench.common.ipcq import Unreceived
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.handles import Handle
from kernbench.values.evaluate import evaluate

PART_NS = 1000.0
UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVG: np.add,
}


def nothing(*args: object) -> None:
    """A kernel that does nothing."""


@dataclass(eq=False)
class Part:
    call: CollectiveCall
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    done: simpy.Event


class HostBackend:
    """Made for one context. `opened`, `closed` and `started` are what it was asked for, in order."""

    def __init__(self, torch: RuntimeContext) -> None:
        self.torch = torch
        self.opened: list[CallGroup] = []
        self.closed: list[CallGroup] = []
        self.started: list[CollectiveCall] = []
        self.agrees: dict[str, object] = {}  # what it says must be the same on all ranks
        self.refuses: str | None = None  # a collective that it cannot carry out
        self._numbers: dict[object, int] = {}
        self._met: dict[tuple[object, ...], dict[int, Part]] = {}

    def open(self, group: CallGroup) -> None:
        self.opened.append(group)

    def close(self, group: CallGroup) -> None:
        self.closed.append(group)
        for key in [key for key in self._met if key[0] == group.name]:
            for part in self._met.pop(key).values():
                part.done.succeed()

    def unreceived(self, group: CallGroup) -> list[Unreceived]:
        return []

    def plan(self, call: CollectiveCall, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> HostPlan:
        if call.name == self.refuses:
            raise UsageError("columns are split")
        return HostPlan(self, call, tuple(inputs), tuple(outputs), dict(self.agrees))

    def start(self, call: CollectiveCall, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Launch:
        self.started.append(call)
        part = Part(call, inputs, outputs, simpy.Event(self.torch.engine.env))
        launch = self.torch.launch(
            call.name, nothing, *inputs, *outputs, sips=call.sip, target_cubes=0, target_pes=1, wait=False
        )
        first = launch.handles[0]
        waits = Handle(first.number, first.request, first.entry, done=part.done, start_ns=first.start_ns)  # type: ignore[arg-type]  # an event of the test in place of a process
        launch.handles.append(waits)
        self.torch._queue._noted(waits)
        self._meet(part)
        return launch

    def _meet(self, part: Part) -> None:
        """When the last one is there, all are done a while later."""
        call = part.call
        pair = None
        needed = call.group.size
        if call.peer is not None:
            pair = (call.rank, call.peer) if call.name == "send" else (call.peer, call.rank)
            needed = 2
        counted = (call.group.name, pair, call.rank)
        number = self._numbers[counted] = self._numbers.get(counted, -1) + 1
        key = (call.group.name, pair, number)
        met = self._met.setdefault(key, {})
        met[call.rank] = part
        if len(met) == needed:
            del self._met[key]
            later = self.torch.engine.env.timeout(PART_NS)
            later.callbacks.append(lambda _: self._carry_out([met[rank] for rank in sorted(met)]))

    def _carry_out(self, parts: list[Part]) -> None:
        given = [[self._contents(tensor) for tensor in part.inputs] for part in parts]
        for part, results in zip(parts, results_of([part.call for part in parts], given), strict=True):
            for tensor, result in zip(part.outputs, results, strict=True):
                self._leave(tensor, result)
            part.done.succeed()

    def _contents(self, tensor: Tensor) -> Any:
        out = np.zeros(tensor.shape, tensor.element.numpy)
        for at in tensor.first_holders():
            (out[tensor.placement[at].index],) = evaluate([self.torch._store.value_of(tensor, at)])
        return out.reshape(-1)

    def _leave(self, tensor: Tensor, contents: Any) -> None:
        engine = self.torch.engine
        shaped = contents.reshape(tensor.shape).astype(tensor.element.numpy)
        for part, shard in zip(tensor.placement, tensor.shards, strict=True):
            engine.memory.write(shard.pa, engine.values.constant(shaped[part.index], tensor.element))


@dataclass(frozen=True)
class HostPlan:
    backend: HostBackend
    call: CollectiveCall
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    signature: Mapping[str, object]

    def start(self, number: int) -> Launch:
        return self.backend.start(self.call, self.inputs, self.outputs)


def results_of(calls: Sequence[CollectiveCall], given: list[list[Any]]) -> list[list[Any]]:
    """What each rank's outputs hold then, flat. `given` are the inputs of each rank, flat."""
    name, size, root = calls[0].name, calls[0].group.size, calls[0].root
    if name in ("send", "recv"):
        sent = next(inputs for call, inputs in zip(calls, given, strict=True) if call.name == "send")
        return [[] if call.name == "send" else sent for call in calls]
    if name in ("all_reduce", "reduce"):
        total = reduced(calls[0].op, [inputs[0] for inputs in given])
        return [[total] * len(call.outputs) for call in calls]
    if name == "broadcast":
        assert root is not None
        return [given[root] for _ in calls]
    if name in ("all_gather", "gather"):
        parts = [inputs[0] for inputs in given]
        return [[np.concatenate(parts)] if len(call.outputs) == 1 else parts[: len(call.outputs)] for call in calls]
    if name == "scatter":
        assert root is not None
        return [[given[root][rank]] for rank in range(size)]
    if name == "reduce_scatter":
        whole = reduced(calls[0].op, [np.concatenate(inputs) for inputs in given])
        return [[part] for part in np.split(whole, size)]
    if name == "all_to_all":
        cuts = []
        for call, inputs in zip(calls, given, strict=True):
            cuts.append(np.split(inputs[0].reshape(call.inputs[0].shape), np.cumsum(call.input_splits)[:-1]))
        return [[np.concatenate([cut[rank] for cut in cuts])] for rank in range(size)]
    assert name == "barrier"
    return [[] for _ in calls]


def reduced(op: ReduceOp | None, parts: list[Any]) -> Any:
    assert op is not None
    total = reduce(UFUNCS[op], parts)
    return total / len(parts) if op is ReduceOp.AVG else total
