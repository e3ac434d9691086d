"""Kernels that exchange messages within their cube or their SIP are replayed, too."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_launches import (
    CUBES,
    PES,
    Run,
    look_at_counters,
    machine,
    outcome,
    read_of_host,
    same,
    write_of_host,
)

from kernbench import repeatable


@repeatable
def swap(x: Any, y: Any, rounds: int, tl: Any) -> None:
    """Halves go to the PE of the other number, several times; then something is stored."""
    other = f"intra_{tl.program_id(0) ^ 1}"
    own = tl.load(x.local, (8, 64))
    for number in range(int(rounds)):
        sent = tl.send_async(other, own[: 4 + number % 2])
        own = own + tl.sum(tl.recv(other, (4 + number % 2, 64)))
        tl.wait(sent)
    tl.store(y.local, own)


@repeatable
def pass_round(x: Any, y: Any, tl: Any) -> None:
    """From cube to cube, by whatever direction there is."""
    own = tl.load(x.local, (8, 64))
    others = [name for name in tl.directions() if not name.startswith("intra") and tl.peer(name)[0] == 0]
    for name in others:
        tl.send_async(name, own)
    for name in others:
        own = own + tl.recv(name, (8, 64))
    tl.wait()
    tl.store(y.local, own)


@repeatable
def talk_last(x: Any, y: Any, tl: Any) -> None:
    """Its messages, and credits for them, are under way when kernels end."""
    other = f"intra_{(tl.program_id(0) + 1) % PES}", f"intra_{(tl.program_id(0) - 1) % PES}"
    tl.send(other[0], tl.load(x.local, (8, 64)))
    tl.recv(other[1], (8, 64))


def exchanges(kernel: Any, *args: object, sips: tuple[int, ...] = (0, 1, 0), **rings: Any) -> Any:
    def program(run: Run) -> None:
        run.torch.install_ipcq(**rings)
        for sip in sips:
            run.launch(kernel, *run.tensors(sip), *args, sips=(sip,))
        run.torch.install_ipcq(**rings)
        run.launch(kernel, *run.tensors(), *args)

    return program


@pytest.mark.parametrize(
    "rings", [{}, {"slot_size": 256, "n_slots": 2}, {"slot_size": 256, "n_slots": 1, "backpressure": "poll"}]
)
def test_messages_within_cubes(rings: dict[str, Any]) -> None:
    assert same(exchanges(swap, 3, **rings)) == 4 * CUBES


@pytest.mark.parametrize("kind", ["sram", "hbm"])
def test_rings_in_other_memories_are_not_known(kind: str) -> None:
    assert same(exchanges(swap, 2, buffer_kind=kind)) == 0


def test_messages_between_cubes() -> None:
    assert same(exchanges(pass_round, sips=(0, 0))) == 3


def test_a_kernel_that_is_not_known_uses_the_same_rings() -> None:
    def plain(x: Any, y: Any, rounds: int, tl: Any) -> None:
        swap(x, y, rounds, tl)

    def program(run: Run) -> None:
        x, y = run.tensors()
        for kernel in (swap, plain, swap, plain):
            run.launch(kernel, x, y, 3)

    assert same(program) == 2 * CUBES


def test_messages_that_are_under_way_longer_than_their_launch() -> None:
    """Credits depart so late that the host has its answer before."""
    slow = machine(**{"cube.pe_template.components.pe_dma.attrs.overhead_ns": 2000.0})
    same(exchanges(talk_last), slow)


def test_a_message_that_lies_in_a_ring() -> None:
    """The next receive takes it."""

    def only_send(x: Any, y: Any, tl: Any) -> None:
        tl.send("intra_1", tl.load(x.local, (8, 64)))

    def program(run: Run) -> None:
        x, y = run.tensors()
        for kernel, pes in ((only_send, (0,)), (swap, range(PES))):
            args = (x, y, 1) if kernel is swap else (x, y)
            try:
                run.launch(kernel, *args, target_cubes=0, target_pes=pes)
            except Exception as wrong:
                run.notes.append(str(wrong))

    assert same(program) == 0


def test_a_message_that_is_not_received() -> None:
    @repeatable
    def forgets(x: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.send("intra_1", tl.load(x.local, (8, 64)))

    def program(run: Run) -> None:
        (x,) = run.tensors(count=1)
        try:
            run.launch(forgets, x)
        except Exception as wrong:
            run.notes.append(str(wrong))

    assert same(program) == 0
    assert "was never received" in str(outcome(program, machine()).notes)


def ends() -> list[float]:
    """From the launch on: around the ends of kernels, and until their last credit is there."""
    begun: list[float] = []

    def program(run: Run) -> None:
        x, y = run.tensors(sip=1)
        run.torch.install_ipcq()
        begun.append(run.engine.now_ns)
        run.launch(talk_last, x, y, sips=(1,))

    pes = outcome(program, machine(), fast=False).launches[0].pes
    first, last = min(pe.end_ns for pe in pes) - begun[0], max(pe.end_ns for pe in pes) - begun[0]
    return [first / 2, first, last - 1.0, last, *(last + 4.0 * step for step in (1, 2, 4, 6, 8))]


@pytest.mark.parametrize("access", [write_of_host, read_of_host, look_at_counters])
def test_an_interfering_access_while_messages_are_under_way(access: Any) -> None:
    for after_ns in ends():

        def program(run: Run, after_ns: float = after_ns) -> None:
            x, y = run.tensors(sip=1)
            run.torch.install_ipcq()
            run.happens(after_ns, lambda: access(run))
            run.launch(talk_last, x, y, sips=(1,), wait=False)
            run.torch.wait_all()
            run.launch(talk_last, x, y, sips=(1,))

        assert same(program) >= CUBES


def test_rings_that_there_is_no_room_for() -> None:
    """TCM for rings that the host has taken by hand is missed by messages, replayed or not."""

    def program(run: Run) -> None:
        run.torch.install_ipcq()
        x, y = run.tensors()
        run.launch(swap, x, y, 2, target_cubes=0)
        rings = run.engine.communication_rings(0, 1, 2)
        taken = rings.alloc(rings.tcm.capacity_bytes)
        try:
            run.launch(swap, x, y, 2)
        finally:
            rings.free(taken, rings.tcm.capacity_bytes)

    same(program)
    assert "TCM for rings" in str(outcome(program, machine()).notes)


def test_replayed_messages_leave_their_rings() -> None:
    """What they take of TCM is not free afterwards."""

    def program(run: Run) -> None:
        run.torch.install_ipcq()
        x, y = run.tensors()
        for _ in range(2):
            run.launch(swap, x, y, 2)
            run.notes.append([run.engine.communication_rings(0, 1, pe).tcm.used_bytes for pe in range(PES)])
        assert 0 not in run.notes[0]

    assert same(program) == 2 * CUBES
