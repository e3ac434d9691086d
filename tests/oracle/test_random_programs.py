"""Random kernels against a plain numpy interpreter of the same program: the same bytes everywhere, at the end and on
the way.

A program loads and stores at any byte offset of tensors that it may use as other pointers too, overwrites what it
stored, looks at parts of what it holds, computes with it, copies tensors with composites that are still under way when
the next step runs, never waits for one, and branches on numbers. The interpreter knows no values and no graph: memory
is a byte array, a load is a copy, and everything is computed at once. Whole numbers keep arithmetic exact, so bytes
can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.policy.placement.dp import DPPolicy
from kernbench.testing import run_kernel, tiny_machine
from kernbench.topology import load_topology

ROWS, COLS = 6, 8
TENSORS = 3


@dataclass(frozen=True)
class Load:
    """Hold a block of i32 from any whole element on; it may run over several rows."""

    tensor: int
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Store:
    """Write what is held, as far as it fits."""

    tensor: int
    first: int
    held: int


@dataclass(frozen=True)
class Part:
    """Hold a part of what is held: an alias of the same bytes of TCM."""

    held: int
    start: int
    step: int


@dataclass(frozen=True)
class Add:
    """Hold the sum of all of one and a number of another."""

    held: int
    other: int


@dataclass(frozen=True)
class Copy:
    """Copy a whole tensor to another with a composite, and do not wait for it."""

    source: int
    target: int


@dataclass(frozen=True)
class Branch:
    """Drop the oldest thing held if its first number is even, hold it negated if not."""

    held: int


Step = Load | Store | Part | Add | Copy | Branch
held = st.integers(0, 7)
tensor = st.integers(0, TENSORS - 1)
first = st.integers(0, ROWS * COLS - 1)
shapes = st.sampled_from([(1,), (3,), (COLS,), (2, 4), (4, 2), (2, COLS), (1, 5)])
steps = st.one_of(
    st.builds(Load, tensor, first, shapes),
    st.builds(Store, tensor, first, held),
    st.builds(Part, held, st.integers(0, 3), st.integers(1, 3)),
    st.builds(Add, held, held),
    st.builds(Copy, tensor, tensor),
    st.builds(Branch, held),
)
programs = st.lists(steps, min_size=4, max_size=25)


def size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def interpret(program: list[Step], memory: list[np.ndarray]) -> list[np.ndarray]:
    """What is held at the end; `memory` is changed. Every value is a copy."""
    have: list[np.ndarray] = []
    for step in program:
        match step:
            case Load(tensor, first, shape):
                first = min(first, ROWS * COLS - size(shape))
                have.append(memory[tensor].reshape(-1)[first : first + size(shape)].reshape(shape).copy())
            case Copy(source, target) if source != target:
                memory[target][:] = memory[source] + memory[source]
            case Store(tensor, first, number) if have:
                block = have[number % len(have)].reshape(-1)
                first = min(first, ROWS * COLS - len(block))
                memory[tensor].reshape(-1)[first : first + len(block)] = block
            case Part(number, start, stride) if have:
                block = have[number % len(have)]
                have.append(block[min(start, len(block) - 1) :: stride].copy())
            case Add(number, other) if have:
                have.append(have[number % len(have)] + have[other % len(have)].reshape(-1)[0])
            case Branch(number) if have:
                block = have[number % len(have)]
                have = have[1:] if block.reshape(-1)[0] % 2 == 0 else [*have, -block]
    return have


def kernel_of(program: list[Step], seen: list[np.ndarray]):
    """The same program against `tl`."""

    def kernel(a, b, c, tl):
        pointers = (a, b, c)
        have = []
        for step in program:
            match step:
                case Load(tensor, first, shape):
                    first = min(first, ROWS * COLS - size(shape))
                    have.append(tl.load(pointers[tensor] + 4 * first, shape))
                case Copy(source, target) if source != target:
                    out = pointers[target]
                    left, right = tl.ref(pointers[source], (ROWS, COLS)), tl.ref(pointers[source], (ROWS, COLS))
                    tl.composite("math", left, right, out_ptr=out, math_op="add", tile_shape=(4, 4))
                case Store(tensor, first, number) if have:
                    block = have[number % len(have)]
                    tl.store(pointers[tensor] + 4 * min(first, ROWS * COLS - block.size), block)
                case Part(number, start, stride) if have:
                    block = have[number % len(have)]
                    have.append(block[min(start, len(block) - 1) :: stride])
                case Add(number, other) if have:
                    block, one = have[number % len(have)], tl.reshape(have[other % len(have)], -1)
                    have.append(block + one[:1])
                case Branch(number) if have:
                    block = have[number % len(have)]
                    even = int(tl.reshape(block, -1)[0]) % 2 == 0
                    have = have[1:] if even else [*have, -block]
        seen.extend(x.numpy() for x in have)

    return kernel


MACHINES = {
    "one PE": (tiny_machine(), None),
    "rows over the PEs of a cube": (  # a block spans parts
        load_topology(tiny_machine(4).spec, {"system.address_model": "va"}),
        DPPolicy(pe="row_wise", num_cubes=1, num_pes=3),
    ),
    "physical addresses": (
        load_topology(
            None,
            {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.address_model": "pa"},
        ),
        None,
    ),
}


@pytest.mark.parametrize("where", MACHINES)
@settings(max_examples=20, deadline=None)
@given(programs, st.integers(0, 2**32 - 1))
def test_a_kernel_leaves_the_bytes_that_numpy_leaves(where, program, seed):
    graph, dp = MACHINES[where]
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-50, 50, (ROWS, COLS)).astype(np.int32) for _ in range(TENSORS)]
    memory = [array.copy() for array in arrays]
    expected, seen = interpret(program, memory), []
    left = run_kernel(kernel_of(program, seen), *arrays, topology=graph, dp=dp).arrays
    assert [x.tolist() for x in seen] == [x.tolist() for x in expected]
    assert [x.tobytes() for x in left] == [x.tobytes() for x in memory]


def test_a_value_taken_before_an_overwrite_is_stored_after_it():
    """The shortest program that a log replayed by address gets wrong."""
    program = [Load(0, 0, (4,)), Load(1, 0, (4,)), Store(0, 0, 1), Store(1, 0, 0)]
    arrays = [np.full((ROWS, COLS), number, np.int32) for number in range(TENSORS)]
    left = run_kernel(kernel_of(program, []), *arrays).arrays
    assert left[0].reshape(-1)[:5].tolist() == [1, 1, 1, 1, 0]
    assert left[1].reshape(-1)[:5].tolist() == [0, 0, 0, 0, 1]
