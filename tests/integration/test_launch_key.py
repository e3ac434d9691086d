"""What a recording of a launch depends on: two launches of one kernel that differ in one such thing, and in nothing
else, are each what they are with `fast=False`.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_collectives import ranks
from tests.integration.test_replayed_launches import (
    COPY_PER_CUBE,
    CUBES,
    PENALTY,
    PES,
    ROUND,
    SPLIT,
    Run,
    machine,
    products,
    same,
)
from tests.integration.test_replayed_messages import swap

from kernbench import repeatable
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.memo.launch_recordings import LaunchRecordings


@pytest.mark.parametrize(
    "rings", [{"slot_size": 256, "n_slots": 1}, {"n_slots": 1}, {"slot_size": 256, "backpressure": "poll"}]
)
def test_rings_of_another_configuration(rings: dict[str, Any]) -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        for wanted in ({}, rings, {}):
            run.torch.install_ipcq(**wanted)
            run.launch(swap, x, y, 6)

    assert same(program) == 3 * CUBES


@repeatable
def loads_own(x: Any, y: Any, at: int, tl: Any) -> None:
    tl.store(y.local, tl.load(x.local + int(at), (8, 64)))


@repeatable
def loads_shared(x: Any, y: Any, at: int, tl: Any) -> None:
    tl.store(y.local, tl.load(x + int(at), (8, 64)))


def operands(run: Run, kernel: Any) -> tuple[Tensor, Tensor]:
    """What it loads from: a part of 17 rows of 512 bytes for each PE, or one such part for each cube."""
    rows, dp = (17 * CUBES * PES, SPLIT) if kernel is loads_own else (17, COPY_PER_CUBE)
    return run.tensors(count=1, shape=(rows, 256), dp=dp)[0], run.tensors(count=1)[0]


@pytest.mark.parametrize("kernel", [loads_own, loads_shared])
def test_a_place_that_is_out_of_bounds(kernel: Any) -> None:
    """A part has 17 x 512 = 8704 bytes; a load of 1024 that begins at 8192, whole rounds of channels behind the start
    as another one was, ends at 9216.
    """

    def program(run: Run) -> None:
        x, y = operands(run, kernel)
        for at in (0, 2 * ROUND, 4 * ROUND):
            run.launch(kernel, x, y, at)
        assert len(run.notes) == 1
        assert "run past" in str(run.notes[0]) or "outside" in str(run.notes[0])

    assert same(program) == 2 * CUBES


@pytest.mark.parametrize("at", [256, 3 * 256, ROUND + 256])
@pytest.mark.parametrize("kernel", [loads_own, loads_shared])
def test_another_place_among_channels(kernel: Any, at: int) -> None:
    def program(run: Run) -> None:
        x, y = operands(run, kernel)
        for place in (0, at, 0, at):
            run.launch(kernel, x, y, place)

    assert same(program) == 4 * CUBES


def test_parts_at_another_place_among_channels() -> None:
    """With physical addresses tensors follow each other in memory: one of 256 bytes moves the next by a channel."""

    def program(run: Run) -> None:
        for spacer in (0, 1, 0):
            if spacer:
                run.kept += run.tensors(count=1, shape=(CUBES * PES, 128))
            x, y = run.tensors()
            run.kept += [x, y]
            run.launch(products, x, y)

    assert same(program, machine(**{"system.address_model": "pa"})) == 3 * CUBES


@repeatable
def reads(x: Any, tl: Any) -> None:
    tl.load(x.local, (8, 64))


@repeatable
def writes(x: Any, tl: Any) -> None:
    tl.store(x.local, tl.zeros((8, 64)))


def test_channels_that_were_written_last() -> None:
    def program(run: Run) -> None:
        (x,) = run.tensors(count=1)
        for kernel in (reads, writes, reads, reads, writes):
            run.launch(kernel, x)

    assert same(program, machine(**{PENALTY: 50.0})) == 5 * CUBES


@repeatable
def late_credit(rank: int, waits: int, tl: Any) -> None:
    """The far cube of rank 0 returns a credit while its near cube fills the link between the SIPs: the credit waits
    there behind 128 KiB. The far cubes go on for a while, so that it is under way when the last kernel ends.
    """
    other, near, shape = f"rank_{1 - int(rank)}", tl.program_id(1) == 0, (512, 128)
    if tl.program_id(0) == 0:
        if (int(rank) == 0) == near:
            tl.send(other, tl.zeros(shape if near else (8,)))
        else:
            tl.recv(other, shape if near else (8,))
        if not near:
            tl.cycles(int(waits))


def test_a_credit_that_waits_behind_messages_is_not_replayed_as_if_it_were_uncontended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LaunchRecordings, "_is_new", lambda self, launch: False)

    def body(run: Run, number: int) -> None:
        run.launch(late_credit, number, (2200, 4000)[number], sips=(number,), stream="communication")

    far = machine(**{"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 2, "cube.components.ucie.attrs.overhead_ns": 300.0})
    same(ranks(body, n_slots=2, slot_size=32768), far)
