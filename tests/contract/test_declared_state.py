"""Every mutable attribute of a block, of the clock, of the fabric, and of the objects that they own, is declared.

`timing_state` is built from these declarations (`common.declared_state`). A forgotten one would make two different
states look equal, and repeated stretches of a composite would then be skipped with wrong times. So is what a rewind
sets aside: a forgotten attribute of the clock would be of the past when the rewind has caught up.
"""

from __future__ import annotations

import ast
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any

import pytest

import kernbench
from kernbench.common.declared_state import aside, declared, quantity, set_aside, timing_state
from kernbench.components.base import Component
from kernbench.components.builtin.core_group import CoreGroupComponent
from kernbench.components.builtin.forwarding import ForwardingComponent
from kernbench.components.builtin.pe_state import RelativeView
from kernbench.components.builtin.pipeline import ServerQueue
from kernbench.components.builtin.systolic import SystolicComponent
from kernbench.components.builtin.unit_group import UnitGroupComponent
from kernbench.components.recording import NO_REF
from kernbench.components.table import BUILTIN
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine import machine
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.corners": ["NW"]}
VIRTUAL = {"system.address_model": "va"}  # all blocks: other models have no MMU
TWO_READS = {"cube.pe_template.components.pe_dma.attrs.outstanding": 2}
NUMBERS = (bool, int, float, str, bytes, type(None), Enum, type, FunctionType)
SIMULATED = ("components", "sim_engine", "policy/address")
HARDWARE = ("kernbench.components.", "kernbench.sim_engine.", "kernbench.policy.")
MET = {  # owned objects of which a run below has some, at one instant or another
    "Agenda", "Barriers", "ChannelGroup", "DmaChannel", "FabricEnvironment", "FlitEngine", "LaunchJob", "Links",
    "OperandRead", "OperandReads", "PageTable", "RecvOp", "Reservations", "RingTable", "RxRing", "SendOp",
    "ServerQueue", "TileFeed", "TileToken", "Transfer", "TxRing", "User",
}  # fmt: skip
# Compared event by event (`FabricView.events`), whatever its buckets are; and record by record (`relative_state_of`).
LOOKED_INTO = {"Agenda", "BufferMemory"}


def is_fixed(value: object) -> bool:
    """Whether a value can never change."""
    if isinstance(value, tuple | frozenset):
        return all(map(is_fixed, value))
    if isinstance(value, NUMBERS):
        return True
    return is_dataclass(value) and type(value).__setattr__ is not object.__setattr__  # frozen


def stores(tree: ast.AST, *, by_self: bool) -> Iterator[str]:
    """Names of attributes that code assigns or deletes: of `self`, or of other objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_own is by_self:
                yield node.attr


@cache
def assigned_from_outside() -> frozenset[str]:
    """Names of attributes that some code of the simulator assigns to an object other than `self`."""
    root = Path(kernbench.__file__).parent
    files = [file for folder in SIMULATED for file in sorted((root / folder).rglob("*.py"))]
    return frozenset(name for file in files for name in stores(ast.parse(file.read_text()), by_self=False))


@cache
def assigned_later(cls: type[Any]) -> frozenset[str]:
    """Names of attributes that a method other than `__init__` assigns."""
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        if not base.__module__.startswith("simpy"):
            (tree,) = ast.parse(dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for method in tree.body:
                if getattr(method, "name", "") != "__init__":
                    found.update(stores(method, by_self=True))
    return frozenset(found)


def attributes(owner: object) -> list[str]:
    slots = [name for base in type(owner).__mro__ for name in vars(base).get("__slots__", ())]
    return sorted({*slots, *getattr(owner, "__dict__", ())})


def undeclared(owner: object, *, outside: frozenset[str]) -> list[str]:
    """The attributes of an object that may change and are neither state nor derived."""
    tables = declared(type(owner))
    return [
        f"{type(owner).__name__}.{name}"
        for name in attributes(owner)
        if name not in tables
        and (
            name in assigned_later(type(owner)) or name in outside or not is_fixed(getattr(owner, name, None))
        )
    ]  # fmt: skip


def owned(owner: object) -> Iterator[object]:
    """An object and all that its state is made of."""
    yield owner
    if type(owner).__name__ in LOOKED_INTO:
        return
    for name, seen in declared(type(owner)).items():
        if seen is not None:
            yield from within(getattr(owner, name, None))


def within(value: object) -> Iterator[object]:
    """The objects of the simulator in a value, and all that their state is made of."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        for each in value:
            yield from within(each)
    elif type(value).__module__.startswith(HARDWARE) and not is_fixed(value):
        yield from owned(value)


class Watch:
    """Looks at all blocks of a machine whenever a kernel asks, and keeps what was not declared."""

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        components = [engine.component(node) for node in engine.graph.nodes]
        self._blocks = list({(type(block), block.node.place.pe): block for block in components}.values())
        self.met: set[str] = set()
        self.wrong: set[str] = set()

    def look(self) -> None:
        engine = self._engine
        fabric = engine.fabric.engine
        transfers = {event[3].seq: event[3] for event in fabric.agenda}
        moved_by = (fabric.planner, fabric.reservations, *filter(None, (fabric.loop, fabric.reads)))
        for root in (*self._blocks, engine.env, fabric, *moved_by, *transfers.values()):
            for part in owned(root):
                name = type(part).__name__
                if name not in self.met and name not in LOOKED_INTO:
                    self.wrong.update(undeclared(part, outside=assigned_from_outside()))
                self.met.add(name)


def kernel_of(look: Callable[[], None]) -> Callable[..., None]:
    """A composite, a message of several chunks and a barrier; `look` is called while they are under way."""

    def kernel(x: Any, y: Any, tl: Any) -> None:
        pending = tl.composite("gemm", tl.ref(x, (64, 64)), tl.ref(x, (64, 64)), y, tile_shape=(16, 16, 16))
        for _ in range(8):
            tl.cycles(15)
            look()
        tl.wait(pending)
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.load(x, (64, 64)))
        else:
            tl.cycles(60)
            look()
            tl.recv("intra_W", (64, 64), "f16")
        look()
        tl.barrier()

    return kernel


@pytest.mark.parametrize(
    ("settings", "is_compiled", "moved_by"),
    [
        ({}, False, {"TrainPlanner"}),
        ({}, True, {"FlitQueues", "LoopReads", "TrainPlanner"}),
        ({"fabric.buffers.slots": 2}, False, {"BufferedFlits", "BufferedTrains", "BufferMemory"}),
    ],
    ids=["no limit", "a compiled loop", "finite buffers"],
)
def test_all_blocks_and_what_they_own_declare_their_state(
    settings: dict[str, object], is_compiled: bool, moved_by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled:
        pytest.importorskip("numba")
        monkeypatch.setattr(machine, "MANY_EVENTS", 0)
    engine = GraphEngine(load_topology(None, {**SMALL, **VIRTUAL, **TWO_READS, **settings}), fast=False)
    watch = Watch(engine)
    with RuntimeContext(engine) as torch:
        torch.install_ipcq(slot_size=1024)
        dp = DPPolicy(num_cubes=1, num_pes=1)
        x, y = (torch.zeros(64, 64, dtype="f16", dp=dp) for _ in range(2))
        torch.launch("k", kernel_of(watch.look), x, y, target_cubes=0, target_pes=range(2))
    assert sorted(watch.wrong) == []
    assert sorted((MET | moved_by) - watch.met) == []


def test_every_registered_implementation_was_looked_at() -> None:
    joined = {"system.sips.count": 2, "system.sips.links": {"bw_gbs": 12.5, "distance_mm": 0.0}}
    engine = GraphEngine(load_topology(None, {**SMALL, **VIRTUAL, **joined}))
    looked_at = {type(engine.component(node)).__name__ for node in engine.graph.nodes}
    # PE_GEMM with another cost of a product, and no own state
    for other in (SystolicComponent, UnitGroupComponent, CoreGroupComponent):
        looked_at |= {other.__name__}
        assert other.__slots__ == ()
    assert looked_at == {target.partition(":")[2] for target in BUILTIN.values()}


class Counts(ForwardingComponent):
    """A block with an attribute of each kind."""

    STATE = (quantity("packets"),)
    DERIVED = ("seen",)

    def __init__(self, node: Any, ctx: Any) -> None:
        super().__init__(node, ctx)
        self.packets = 0
        self.seen: list[int] = []
        self.limit = 4

    def flit_delay_ns(self, flit: Any) -> float:
        self.packets += 1
        self.seen.append(self.packets)
        return 0.0


class Forgets(Counts):
    """The same, with attributes that are forgotten: a counter, a list, an object, and one that another block sets."""

    def __init__(self, node: Any, ctx: Any) -> None:
        super().__init__(node, ctx)
        self.last_ns = 0.0
        self.queue: list[int] = []
        self.server = ServerQueue()
        self.replayed = None

    def flit_delay_ns(self, flit: Any) -> float:
        self.last_ns += 1.0
        return super().flit_delay_ns(flit)


def block_of(cls: type[Component]) -> Component:
    engine = GraphEngine(load_topology(None, SMALL))
    return cls(engine.graph.node("sip0.cube0.noc.r0c0"), engine)


def test_an_attribute_that_is_fixed_needs_no_declaration() -> None:
    assert undeclared(block_of(Counts), outside=assigned_from_outside()) == []


def test_a_forgotten_attribute_is_found() -> None:
    found = undeclared(block_of(Forgets), outside=assigned_from_outside())
    assert found == ["Forgets.last_ns", "Forgets.queue", "Forgets.replayed", "Forgets.server"]


def test_states_differ_when_a_declared_attribute_does() -> None:
    @dataclass
    class Instant:
        now: float

    block = block_of(Counts)
    before = block.timing_state(Instant(1.0))
    assert block.timing_state(Instant(2.0)) == before
    block.flit_delay_ns(None)
    assert block.timing_state(Instant(2.0)) != before


class Clock:
    """Something that a rewind sets aside: its time, its calls and a counter that begins anew; steps only grow."""

    SET_ASIDE = (
        aside("now"),
        aside("calls", lambda clock: [], lambda clock, left: clock.calls.extend(left)),
        aside("seen", lambda clock: 0),
    )
    DERIVED = ("steps",)

    def __init__(self) -> None:
        self.now, self.calls, self.seen, self.steps = 7.0, ["a"], 3, 1

    def step(self) -> None:
        self.now, self.seen, self.steps = self.now - 5.0, self.seen + 1, self.steps + 1


def test_what_is_set_aside_is_given_back_with_what_was_left_behind() -> None:
    clock = Clock()
    with set_aside(clock):
        assert (clock.now, clock.calls, clock.seen) == (7.0, [], 0)
        clock.step()
        clock.calls.append("b")
    assert (clock.now, clock.calls, clock.seen, clock.steps) == (7.0, ["a", "b"], 3, 2)
    assert undeclared(clock, outside=frozenset()) == []


def test_a_busy_server_looks_the_same_from_instants_with_the_same_time_left() -> None:
    view, queue = RelativeView(100.0, fed=0, placements={}), ServerQueue()
    assert timing_state(queue, view) == (0.0, ())
    queue.free_ns, queue.holder = 112.0, NO_REF
    assert timing_state(queue, view) == (12.0, NO_REF)
    queue.free_ns = 117.0
    assert timing_state(queue, RelativeView(105.0, fed=0, placements={})) == (12.0, NO_REF)
