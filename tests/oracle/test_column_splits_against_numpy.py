"""Blocks of tensors of which columns are split over cubes and PEs: the elements that numpy's indexing names."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.policy.placement.shard_grid import grid_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import TopologyGraph, load_topology

FEW = settings(max_examples=15, deadline=None)
splits = st.sampled_from(["replicate", "row_wise", "column_wise"])
policies = st.builds(DPPolicy, splits, splits, st.sampled_from([1, 3, 4]), st.sampled_from([1, 2, 3]))
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)
COLUMNS = DPPolicy(pe="column_wise", num_cubes=1, num_pes=4)


@cache
def small(model: str = "va") -> TopologyGraph:
    """One SIP of three cubes with four PEs each."""
    shape = {"sip.cube_mesh.w": 3, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return load_topology(None, {"system.sips.count": 1, **shape, "system.address_model": model})


@given(policies, shapes)
def test_the_grid_says_where_every_element_lies_in_the_range(policy, shape):
    shards = resolve_dp_policy(policy, shape=shape, itemsize=1, num_pe=4, num_cubes=3, target_sip=0)
    elements = np.arange(np.prod(shape)).reshape(shape)
    in_range = np.full(elements.size, -1)
    for shard in shards:
        in_range[shard.offset_bytes : shard.offset_bytes + shard.nbytes] = elements[shard.index].reshape(-1)
    cubes = [shard.cube for shard in shards]
    counts = tuple(cubes.count(cube) for cube in dict.fromkeys(cubes))
    grid = grid_of(shape, policy.split_by(len(shape)), counts)
    places = elements.reshape(-1) if grid is None else grid.places(elements.reshape(-1))
    assert (in_range[places] == elements.reshape(-1)).all()


@FEW
@given(policies, st.tuples(st.integers(1, 7), st.integers(1, 9)), st.data())
def test_strided_blocks_rows_and_masks_reach_the_elements_that_they_name(policy, shape, data):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    rows, cols = data.draw(st.integers(1, shape[0])), data.draw(st.integers(1, shape[1]))
    top, left = data.draw(st.integers(0, shape[0] - rows)), data.draw(st.integers(0, shape[1] - cols))
    numbers = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=5))
    window, end = (slice(top, top + rows), slice(left, left + cols)), data.draw(st.integers(0, x.size))

    def kernel(x, out, found, head, tl):
        if tl.program_id(0) or tl.program_id(1):
            return
        at = x + (top * shape[1] + left) * 4
        block = tl.load(at, (rows, cols), strides=(shape[1], 1))
        tl.store(out, tl.cast(tl.load(x, shape), "f32"))
        tl.store(found, tl.load(x, rows=numbers))
        tl.store(head, tl.load(x, (x.shape[0] * x.shape[1],), mask=tl.arange(0, x.shape[0] * x.shape[1]) < end))
        tl.store(at, -block, strides=(shape[1], 1))

    with RuntimeContext(GraphEngine(small())) as torch:
        placed = torch.from_numpy(x, dp=policy)
        out, found, head = (torch.zeros(*s, dtype="f32") for s in (shape, (len(numbers), shape[1]), (x.size,)))
        torch.launch("k", kernel, placed, out, found, head, target_cubes=range(3), target_pes=range(4))
        assert (out.numpy() == x).all()
        assert (found.numpy() == x[numbers]).all()
        assert (head.numpy() == np.where(np.arange(x.size) < end, x.reshape(-1), 0)).all()
        changed = x.copy()
        changed[window] *= -1
        if policy.cube != "replicate" and policy.pe != "replicate":  # a replica of another PE stays as it was
            assert (placed.numpy() == changed).all()


def test_atomics_change_the_elements_that_they_name():
    x = np.arange(4 * 10, dtype=np.int32).reshape(4, 10)

    def kernel(x, old, tl):
        if tl.program_id(0) == 2:
            tl.store(old, tl.atomic_add(x + 10 * 4, tl.full((20,), 100, "i32")))

    (changed, old), _ = run_kernel(kernel, x, np.zeros(20, np.int32), grid=(4,), dp=COLUMNS, topology=small())
    assert (old == x[1:3].reshape(-1)).all()
    assert (changed - x == np.repeat([0, 100, 0], [10, 20, 10]).reshape(4, 10)).all()


@pytest.mark.parametrize("split", ["row_wise", "column_wise"])
@pytest.mark.parametrize("model", ["va", "pa"])
def test_a_load_without_a_shape_is_the_pes_own_part(split, model):
    x, seen = np.arange(8 * 12, dtype=np.float32).reshape(8, 12), {}

    def kernel(x, tl):
        seen[tl.program_id(0)] = tl.load(x).numpy()

    run_kernel(kernel, x, grid=(4,), dp=DPPolicy(pe=split, num_cubes=1, num_pes=4), topology=small(model))
    for pe, part in enumerate(np.array_split(x, 4, axis=split == "column_wise")):
        np.testing.assert_array_equal(seen[pe], part)


def test_storage_is_one_shard_after_the_other():
    x, seen = np.arange(2 * 8, dtype=np.float32).reshape(2, 8), []

    def kernel(x, tl):
        seen.append(tl.load(x.storage + 4 * 4, (8,)).numpy().tolist())

    run_kernel(kernel, x, grid=(1,), dp=COLUMNS, topology=small())
    assert seen[0] == [2, 3, 10, 11, 4, 5, 12, 13]  # shards 1 and 2: two columns each


@pytest.mark.parametrize("model", ["va", "pa"])
def test_a_block_that_is_a_shard_is_that_shard_as_memory_has_it(model):
    """Kernels of the records address columns so: each of the four shards of a (4, 8) tensor has 4 * 2 elements."""
    x, seen = np.arange(4 * 8, dtype=np.float16).reshape(4, 8), {}

    def kernel(x, out, tl):
        pe = tl.program_id(0)
        at = pe * 4 * 2 * 2 if model == "va" else 0
        seen[pe] = tl.load(x + at, (4, 2)).numpy()
        doubled = tl.composite("math", tl.ref(x + at, (4, 2)), tl.ref(x + at, (4, 2)), math_op="add", out_ptr=out + at)
        tl.wait(doubled)

    arrays, _ = run_kernel(kernel, x, np.zeros_like(x), grid=(4,), dp=COLUMNS, topology=small(model))
    for pe in range(4):
        np.testing.assert_array_equal(seen[pe], x[:, 2 * pe : 2 * pe + 2])
    np.testing.assert_array_equal(arrays[1], 2 * x)


@pytest.mark.parametrize("at", [0, 4, 16])
def test_rows_as_wide_as_a_shard_that_are_no_shard_are_refused(at):
    """They could be rows of the shard, or consecutive elements of the tensor."""

    def kernel(x, tl):
        tl.load(x + at, (2, 2))

    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, np.zeros((4, 8), np.float16), grid=(4,), dp=COLUMNS, topology=small())
    assert "a block of [2, 2] is no part of it" in caught.value.failures[0].message


def refer(x, tl):
    tl.ref(x, (2, 8))


def compose(x, tl):
    tl.composite("math", tl.zeros((2, 8)), math_op="relu", out_ptr=x)


@pytest.mark.parametrize("kernel", [refer, compose])
def test_what_streams_a_block_is_refused(kernel):
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, np.zeros((2, 8), np.float16), grid=(4,), dp=COLUMNS, topology=small())
    assert "the columns of 'x' are split" in caught.value.failures[0].message


@pytest.mark.parametrize(("model", "shape", "says"), [("pa", (2, 8), "own part only"), ("va", (1, 4), "lies in two")])
def test_what_a_pe_cannot_read_is_refused(model, shape, says):
    """With physical addresses other PEs' columns; as f32, two f16 of which one is another PE's."""

    def kernel(x, tl):
        tl.load(x, shape, "f32" if says == "lies in two" else None)

    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, np.zeros((2, 12), np.float16), grid=(4,), dp=COLUMNS, topology=small(model))
    assert says in caught.value.failures[0].message


def test_a_strided_view_agrees_with_numpy_where_blocks_wrap_around_rows():
    """Five elements of each stride of 9 in rows of 8: blocks begin in one row and end in the next."""
    x = np.arange(6 * 8, dtype=np.float32).reshape(6, 8)

    def kernel(x, out, tl):
        if tl.program_id(0) == 0:
            tl.store(out, tl.load(x, (4, 5), strides=(9, 1)))

    arrays, _ = run_kernel(kernel, x, np.zeros((4, 5), np.float32), grid=(4,), dp=COLUMNS, topology=small())
    assert (arrays[1] == as_strided(x, (4, 5), (9 * 4, 4))).all()
