"""What a recording of a launch depends on: two launches of one kernel that differ in one such thing, and in nothing
else, are each what they are with `fast=False`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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

import kernbench
from kernbench import repeatable
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.memo.launch_recordings import LaunchRecordings
from kernbench.topology import load_topology


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


@pytest.mark.needs("addresses", reason="one pointer is for all PEs")
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


@pytest.mark.needs("addresses", reason="one pointer is for all PEs")
@pytest.mark.parametrize("at", [256, 3 * 256, ROUND + 256])
@pytest.mark.parametrize("kernel", [loads_own, loads_shared])
def test_another_place_among_channels(kernel: Any, at: int) -> None:
    def program(run: Run) -> None:
        x, y = operands(run, kernel)
        for place in (0, at, 0, at):
            run.launch(kernel, x, y, place)

    assert same(program) == 4 * CUBES


@repeatable
def loads_over_two_parts(x: Any, y: Any, first: int, apart: int, other: int, tl: Any) -> None:
    """Two rows of two parts as one block, `apart` rows apart, and a row of the second part."""
    row = ROUND // 2
    tl.store(y, tl.load(x + int(first) * ROUND, (2, row), strides=(int(apart) * row, 1)))
    tl.store(y + 2 * ROUND, tl.load(x + int(other) * ROUND, (1, row)))


@pytest.mark.needs("va", reason="a dense block over two parts")
@pytest.mark.parametrize(
    "places",
    [
        [(3, 1, 4), (3, 1, 5), (3, 1, 7)],  # the last row of a part and the first of the next; then another row of it
        [(3, 1, 7), (3, 1, 5), (3, 1, 4)],
        [(2, 3, 4), (2, 3, 6), (2, 3, 7)],  # rows 2 and 5: none at the border of the parts
        [(3, 1, 5), (2, 1, 4)],  # both a row before: the block has left the second part
        [(2, 3, 5), (1, 3, 4)],
    ],
)
def test_a_block_over_two_parts_is_where_its_own_pointer_is(places: list[tuple[int, int, int]]) -> None:
    """Four rows per PE, and its number in each row."""

    def bench(torch: Any) -> None:
        split, numbers = DPPolicy(pe="row_wise", num_cubes=1), np.arange(4 * PES, dtype=np.float16)[:, np.newaxis]
        in_front = torch.zeros(4 * PES, ROUND // 2, dp=split)  # in front of each part there are other bytes
        x = torch.from_numpy(np.tile(numbers, ROUND // 2), dp=split)
        made = [torch.zeros(3, ROUND // 2, dp=DPPolicy(num_cubes=1, num_pes=1)) for _ in places]
        for (first, apart, other), y in zip(places, made, strict=True):
            torch.launch("k", loads_over_two_parts, x, y, first, apart, other, target_cubes=0, target_pes=0)
        expected = [[first, first + apart, other] for first, apart, other in places]
        assert [y.numpy()[:, 0].tolist() for y in made] == expected
        del in_front

    check = kernbench.run(bench, machine(), device=0, check_fast=True).fast_check
    assert check is not None
    assert check.ok, check.as_text()


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
    """The far cube of rank 0 returns a credit while its near cube fills the link between the SIPs with 128 KiB. The far
    cubes go on for a while, so that the credit is under way when the last kernel ends.
    """
    other, near, shape = f"rank_{1 - int(rank)}", tl.program_id(1) == 0, (512, 128)
    if tl.program_id(0) == 0:
        if (int(rank) == 0) == near:
            tl.send(other, tl.zeros(shape if near else (8,)))
        else:
            tl.recv(other, shape if near else (8,))
        if not near:
            tl.cycles(int(waits))


def test_a_credit_beside_messages_is_not_delayed_by_them_whether_replayed_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LaunchRecordings, "_is_new", lambda self, launch: False)

    def body(run: Run, number: int) -> None:
        run.launch(late_credit, number, (2200, 4000)[number], sips=(number,), stream="communication")

    far = machine(**{"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 2, "cube.components.ucie.attrs.overhead_ns": 300.0})
    same(ranks(body, n_slots=2, slot_size=32768), far)


@repeatable
def swaps_with_the_other_sip(rank: int, tl: Any) -> None:
    tl.send(f"rank_{1 - int(rank)}", tl.zeros((8,)))
    tl.recv(f"rank_{1 - int(rank)}", (8,))


def test_a_send_waits_for_a_credit_that_an_earlier_replay_left_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels end as they receive. A credit then crosses two ports of 1,000 ns, and the next launch is there
    before it: with one slot its send waits. The first launch is replayed, and the one that finds a credit under way
    is not.
    """
    monkeypatch.setattr(LaunchRecordings, "_is_new", lambda self, launch: False)

    def body(run: Run, number: int) -> None:
        one_pe = {"target_cubes": 0, "target_pes": 0, "sips": (number,), "stream": "communication"}
        for _ in range(2):
            run.launch(swaps_with_the_other_sip, number, **one_pe)

    port = {"kind": "sip_port", "impl": "builtin.sip_port", "attrs": {"overhead_ns": 1000.0}}
    one_cube = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    links = {"bw_gbs": 128.0, "distance_mm": 0.0, "port": port}
    joined = load_topology(None, {**one_cube, "system.sips.links": links})
    assert same(ranks(body, n_slots=1), joined) == 1
