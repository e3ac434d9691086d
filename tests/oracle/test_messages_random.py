"""Random programs of sends and receives against queues that know no time.

Messages of a direction arrive in the order of sending, each takes slots, and no program chooses by time which message
comes next. So whether a program ends, who is left waiting for whom, and every byte that was received follow from the
programs alone, whatever the machine costs. The model here has bounded queues of chunks and moves whatever can move
until nothing can. It has never heard of clocks, credits, fabric or values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernbench.common.errors import DeadlockError, UnreceivedError
from kernbench.common.ipcq import Backpressure, BufferKind
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

SLOT = 256
SIZES = (0, 1, 255, 256, 257, 600, 1024, 3000)


@cache
def machine() -> TopologyGraph:
    """One cube with four PEs."""
    small = {
        "system.sips.count": 1,
        "sip.cube_mesh.w": 1,
        "sip.cube_mesh.h": 1,
        "cube.pe_layout.pe_per_corner": 1,
    }
    return load_topology(None, small)


# ---- programs


@dataclass(frozen=True)
class Send:
    """The next message to a PE, of a number of its own, or what was received last, if that is long enough."""

    peer: int
    is_async: bool
    forwards: bool


@dataclass(frozen=True)
class Recv:
    """The next message of a PE."""

    peer: int
    is_async: bool


@dataclass(frozen=True)
class Wait:
    """For the oldest that was not waited for."""


Step = Send | Recv | Wait


@dataclass(frozen=True)
class Programs:
    """One for each PE, the sizes of the n-th message of each pair, and the rings."""

    steps: tuple[tuple[Step, ...], ...]
    sizes: tuple[int, ...]
    n_slots: int
    backpressure: Backpressure
    kind: BufferKind

    def size(self, source: int, target: int, number: int) -> int:
        return self.sizes[(source * 5 + target * 3 + number * 7) % len(self.sizes)]


@st.composite
def programs(draw: st.DrawFn) -> Programs:
    """Messages in some order; a PE may do its part in that order or in another, and leave some of it out."""
    pes = draw(st.integers(2, 4))
    one = st.tuples(st.integers(0, pes - 1), st.integers(1, pes - 1), st.integers(0, 31))
    steps: list[list[Step]] = [[] for _ in range(pes)]
    for source, by, how in draw(st.lists(one, min_size=1, max_size=12)):
        target = (source + by) % pes
        steps[source].append(Send(target, is_async=how % 4 == 1, forwards=how % 2 == 0))
        steps[target].append(Recv(source, is_async=how % 8 == 2))
        if how >= 28:
            steps[(source, target)[how % 2]].append(Wait())
        if how == 27:
            steps[source].pop()
        elif how in (25, 26):
            steps[target].pop()
    for pe in range(pes):
        order = draw(st.sampled_from(["as listed", "as listed", "sends first", "any"]))
        if order == "sends first":
            steps[pe].sort(key=lambda step: not isinstance(step, Send))
        elif order == "any":
            steps[pe] = list(draw(st.permutations(steps[pe])))
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=6))
    kind: BufferKind = draw(st.sampled_from(["tcm", "tcm", "hbm", "sram"]))
    backpressure: Backpressure = draw(st.sampled_from(["sleep", "poll"]))
    return Programs(tuple(map(tuple, steps)), tuple(sizes), draw(st.integers(1, 4)), backpressure, kind)


def contents(source: int, target: int, number: int, nbytes: int) -> np.ndarray:
    return ((np.arange(nbytes) + 50 * source + 17 * target + 29 * number) % 120).astype(np.int8)


# ---- the model


@dataclass
class Op:
    """A send or a receive that was asked for."""

    name: str
    peer: int
    chunks: int  # that it has left to move
    data: np.ndarray | None


@dataclass
class Ring:
    """From one PE to another."""

    sends: deque[Op] = field(default_factory=deque)  # with chunks to send
    receives: deque[Op] = field(default_factory=deque)  # with chunks to take
    slots: deque[np.ndarray] = field(default_factory=deque)  # what each taken slot is part of
    sent: int = 0
    asked: int = 0
    begun: int = 0  # messages of which a receive has the first part


class Model:
    """Moves what can move until nothing can."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.rings: dict[tuple[int, int], Ring] = {}
        self.at = [0] * len(programs.steps)
        self.waits: list[Op | None] = [None] * len(self.at)  # what a PE is blocked in
        self.handles: list[list[Op]] = [[] for _ in self.at]  # that it has not waited for
        self.seen: list[list[np.ndarray]] = [[] for _ in self.at]
        while any([self.move(*pair) for pair in list(self.rings)] + [self.step(pe) for pe in range(len(self.at))]):
            pass

    def ring(self, source: int, target: int) -> Ring:
        return self.rings.setdefault((source, target), Ring())

    def move(self, source: int, target: int) -> bool:
        ring, moved = self.ring(source, target), False
        while ring.sends and len(ring.slots) < self.programs.n_slots:
            assert ring.sends[0].data is not None
            ring.slots.append(ring.sends[0].data)
            ring.sends[0].chunks -= 1
            moved = True
            if not ring.sends[0].chunks:
                ring.sends.popleft()
        while ring.receives and ring.slots:
            op = ring.receives[0]
            ring.begun += op.data is None
            op.data = ring.slots.popleft()
            op.chunks -= 1
            moved = True
            if not op.chunks:
                ring.receives.popleft()
        return moved

    def step(self, pe: int) -> bool:
        """Go on with a PE, if it can; returns whether it did."""
        blocked = self.waits[pe]
        if blocked is not None:
            if blocked.chunks:
                return False
            self.ended(pe, blocked)
            self.waits[pe] = None
            return True
        if self.at[pe] < len(self.programs.steps[pe]):
            step = self.programs.steps[pe][self.at[pe]]
            self.at[pe] += 1
            if isinstance(step, Wait):
                self.waits[pe] = self.handles[pe].pop(0) if self.handles[pe] else None
                return True
            op = self.ask(pe, step)
            if step.is_async:
                self.handles[pe].append(op)
            else:
                self.waits[pe] = op
            return True
        if self.handles[pe]:
            self.waits[pe] = self.handles[pe].pop(0)
            return True
        return False

    def ask(self, pe: int, step: Send | Recv) -> Op:
        if isinstance(step, Send):
            ring = self.ring(pe, step.peer)
            nbytes = self.programs.size(pe, step.peer, ring.sent)
            data = contents(pe, step.peer, ring.sent, nbytes)
            if step.forwards and self.seen[pe] and len(self.seen[pe][-1]) >= nbytes:
                data = self.seen[pe][-1][:nbytes]
            ring.sent += 1
            ring.sends.append(Op("send", step.peer, -(-nbytes // SLOT) or 1, data))
            return ring.sends[-1]
        ring = self.ring(step.peer, pe)
        nbytes = self.programs.size(step.peer, pe, ring.asked)
        ring.asked += 1
        ring.receives.append(Op("recv", step.peer, -(-nbytes // SLOT) or 1, None))
        return ring.receives[-1]

    def ended(self, pe: int, op: Op) -> None:
        if op.name == "recv":
            assert op.data is not None
            self.seen[pe].append(op.data)

    @property
    def blocked(self) -> dict[int, tuple[str, int]]:
        """By PE: what it waits in, and for whom."""
        return {pe: (op.name, op.peer) for pe, op in enumerate(self.waits) if op is not None}

    @property
    def unreceived(self) -> int:
        return sum(ring.sent - ring.begun for ring in self.rings.values())


# ---- the same on the machine


def kernel_of(programs: Programs, seen: list[list[np.ndarray]]) -> Any:
    def kernel(tl: Any) -> None:
        pe = tl.physical_id(0)
        sent, asked, handles = [0] * 4, [0] * 4, []
        held: list[Any] = []

        def take(tensor: Any) -> None:
            if tensor is not None:
                held.append(tensor)
                seen[pe].append(tensor.numpy())

        for step in programs.steps[pe]:
            if isinstance(step, Wait):
                if handles:
                    take(tl.wait(handles.pop(0)))
            elif isinstance(step, Send):
                nbytes = programs.size(pe, step.peer, sent[step.peer])
                if step.forwards and held and held[-1].size >= nbytes:
                    tensor = held[-1][:nbytes]
                else:
                    tensor = given(tl, contents(pe, step.peer, sent[step.peer], nbytes))
                sent[step.peer] += 1
                if step.is_async:
                    handles.append(tl.send_async(f"intra_{step.peer}", tensor))
                else:
                    tl.send(f"intra_{step.peer}", tensor)
            else:
                nbytes = programs.size(step.peer, pe, asked[step.peer])
                asked[step.peer] += 1
                if step.is_async:
                    handles.append(tl.recv_async(f"intra_{step.peer}", (nbytes,), "i8"))
                else:
                    take(tl.recv(f"intra_{step.peer}", (nbytes,), "i8"))
        while handles:
            take(tl.wait(handles.pop(0)))

    def given(tl: Any, array: np.ndarray) -> Any:
        """The numbers of `contents`, from its first."""
        first = int(array[0]) if len(array) else 0
        return tl.cast((tl.arange(0, len(array)) + first) % 120, "i8") if len(array) else tl.full((0,), 0, "i8")

    return kernel


def judge(programs: Programs) -> str:
    """Run programs and compare; returns how they end."""
    model = Model(programs)
    seen: list[list[np.ndarray]] = [[] for _ in programs.steps]
    torch = RuntimeContext(GraphEngine(machine()))
    torch.install_ipcq(programs.n_slots, SLOT, programs.kind, programs.backpressure)
    pes = range(len(programs.steps))
    if model.blocked:
        ends = "deadlock"
        with pytest.raises(DeadlockError) as stuck:
            torch.launch(kernel_of(programs, seen), target_pes=pes, target_cubes=0)
        found = {kernel.pe: [(ring.op, ring.peer[2]) for ring in kernel.rings] for kernel in stuck.value.blocked}
        assert found == {pe: [wait] for pe, wait in model.blocked.items()}
        torch.close(wait=False)
    else:
        ends = "unreceived" if model.unreceived else "received"
        if model.unreceived:
            with pytest.raises(UnreceivedError) as left:
                torch.launch(kernel_of(programs, seen), target_pes=pes, target_cubes=0)
            assert len(left.value.messages) == model.unreceived
        else:
            torch.launch(kernel_of(programs, seen), target_pes=pes, target_cubes=0)
        torch.close()
    assert [[x.tobytes() for x in each] for each in seen] == [[x.tobytes() for x in each] for each in model.seen]
    return ends


def test_a_program_ends_with_the_right_bytes_or_is_the_deadlock_that_it_is() -> None:
    how_many = {"received": 0, "unreceived": 0, "deadlock": 0}

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(programs())
    def each(programs: Programs) -> None:
        how_many[judge(programs)] += 1

    each()
    assert min(how_many.values()) > 8  # all sorts were among them


# ---- slots that are used again and again

delays = st.lists(st.integers(0, 300), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from(["tcm", "hbm", "sram"]),
    st.sampled_from(["sleep", "poll"]),
    st.sampled_from([64, 256, 300, 900]),
    st.tuples(delays, delays, delays),
)
def test_a_wrapped_ring_never_yields_another_rounds_data(
    n_slots: int, kind: BufferKind, backpressure: Backpressure, elements: int, pauses: tuple[list[int], ...]
) -> None:
    """PE 0 sends rounds out of one place in memory that it overwrites at once, PE 1 forwards what it gets, PE 2 keeps
    it; each pauses as it likes.
    """
    rounds = 24

    def kernel(x: Any, out: Any, tl: Any) -> None:
        pe = tl.physical_id(0)
        under_way: list[Any] = []
        for number in range(rounds):
            tl.cycles(pauses[pe][number % len(pauses[pe])])
            if pe == 0:
                tl.store(x, tl.full((elements,), number, "i16"))
                under_way.append(tl.send_async("intra_1", tl.load(x, (elements,), "i16")))
            elif pe == 1:
                under_way.append(tl.send_async("intra_2", tl.recv("intra_0", (elements,), "i16")))
            else:
                got = tl.recv("intra_1", (elements,), "i16")
                tl.store(out + 2 * number, tl.cast(tl.max(got, axis=0) + tl.min(got, axis=0), "i16"))
        for handle in under_way:
            tl.wait(handle)

    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(n_slots, SLOT, kind, backpressure)
        x, out = torch.zeros(elements, dtype="i16"), torch.zeros(rounds, dtype="i16")
        torch.launch(kernel, x, out, target_pes=range(3), target_cubes=0)
        assert out.numpy().tolist() == [2 * number for number in range(rounds)]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3),
    st.tuples(delays, delays, delays, delays),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.sampled_from([1, 300]),
)
def test_a_receive_from_anywhere_takes_every_message_once_and_each_senders_in_order(
    n_slots: int, pauses: tuple[list[int], ...], counts: tuple[int, ...], nbytes: int
) -> None:
    got: list[tuple[int, int]] = []

    def kernel(tl: Any) -> None:
        pe = tl.physical_id(0)
        if pe:
            for number in range(counts[pe - 1]):
                tl.cycles(pauses[pe][number % len(pauses[pe])])
                tl.send("intra_0", tl.full((nbytes,), 10 * pe + number, "i8"))
        else:
            for number in range(sum(counts)):
                tl.cycles(pauses[0][number % len(pauses[0])])
                array = tl.recv(None, (nbytes,), "i8").numpy()
                assert (array == array[0]).all()
                got.append(divmod(int(array[0]), 10))

    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(n_slots, SLOT)
        torch.launch(kernel, target_pes=range(4), target_cubes=0)
    for pe, count in enumerate(counts, start=1):
        assert [number for sender, number in got if sender == pe] == list(range(count))
