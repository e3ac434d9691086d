"""Memory as bytes that hold values: what reads give, and that a random program leaves the bytes a plain interpreter
leaves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.dtypes import DTYPES, F16, F32, I8
from kernbench.common.errors import DataError
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value, ValueGraph


@pytest.fixture
def graph():
    return ValueGraph()


@pytest.fixture
def store(graph):
    return MemoryStore(graph)


def matrix(graph, rows, columns, start=0):
    return graph.constant(np.arange(start, start + rows * columns, dtype=np.float32).reshape(rows, columns))


def array(value: Value) -> np.ndarray:
    return evaluate([value], threads=1)[0]


def test_a_read_of_what_was_written_is_the_same_value(graph, store):
    value = matrix(graph, 4, 8)
    store.write(0x1000, value)
    assert store.read(0x1000, (4, 8), F32) is value
    assert store.read(0x1000, (4, 8), "fp32") is value


def test_another_shape_or_dtype_reinterprets_the_bytes(graph, store):
    value = matrix(graph, 2, 4)
    store.write(0, value)
    assert (array(store.read(0, (8,), F32)) == np.arange(8)).all()
    assert (array(store.read(0, (32,), I8)).view(np.uint8) == value.data.reshape(-1).view(np.uint8)).all()


def test_a_read_that_starts_inside_an_element_is_exact(graph, store):
    value = graph.constant(np.arange(16, dtype=np.int8))
    store.write(0, value)
    assert array(store.read(3, (2,), F32)).tobytes() == bytes(range(3, 11))


def test_a_later_write_does_not_change_a_value_already_read(graph, store):
    store.write(0, matrix(graph, 4, 4))
    before = store.read(16, (4,), F32)
    store.write(0, graph.full((16,), 9.0, F32))
    store.free(0, 64)
    assert array(before).tolist() == [4, 5, 6, 7]


def test_a_small_write_splits_the_older_one(graph, store):
    store.write(0, graph.full((8,), 1.0, F32))
    store.write(8, graph.full((2,), 2.0, F32))
    assert array(store.read(0, (8,), F32)).tolist() == [1, 1, 2, 2, 1, 1, 1, 1]
    assert len(store) == 3


def test_bytes_never_written_are_an_error_that_names_the_first(graph, store):
    store.write(0x100, matrix(graph, 1, 4))
    with pytest.raises(DataError, match="4 of 20 bytes were never written, the first at 0x110"):
        store.read(0x100, (5,), F32)
    store.write(0x110, matrix(graph, 1, 1))
    store.write(0x118, matrix(graph, 1, 1))
    with pytest.raises(DataError, match="4 of 28 bytes were never written, the first at 0x114"):
        store.read(0x100, (7,), F32)
    with pytest.raises(DataError, match="the first at 0x114"):
        store.read_strided(0x104, (3, 1), (0x10, 4), F32)


def test_never_written_bytes_can_be_asked_for_as_zeros(graph, store):
    store.write(4, graph.full((1,), 7.0, F32))
    assert array(store.read(0, (3,), F32, zero_fill=True)).tolist() == [0, 7, 0]
    assert array(store.read(0x1000, (2, 2), F16, zero_fill=True)).tolist() == [[0, 0], [0, 0]]


def test_freed_bytes_are_gone_and_their_neighbours_stay(graph, store):
    store.write(0, matrix(graph, 4, 4))
    store.free(16, 16)
    assert array(store.read(0, (4,), F32)).tolist() == [0, 1, 2, 3]
    assert array(store.read(32, (4,), F32)).tolist() == [8, 9, 10, 11]
    assert store.gaps(0, 64) == [(16, 32)]
    assert store.gaps(32, 32) == []
    with pytest.raises(DataError, match="never written, the first at 0x10"):
        store.read(0, (16,), F32)


def test_a_tile_of_a_stored_matrix_is_one_view(graph, store):
    parent = matrix(graph, 8, 16)
    store.write(0, parent)
    tile = store.read_strided((2 * 16 + 4) * 4, (3, 5), (64, 4), F32)
    assert tile.id == parent.id + 1
    assert tile.op == "view"
    assert tile.inputs == (parent,)
    assert (array(tile) == np.arange(128).reshape(8, 16)[2:5, 4:9]).all()


def test_tiles_of_a_tensor_of_one_number_are_again_one_number(graph, store):
    store.write(0, graph.full((1 << 20, 1 << 10), 3.0, F16))  # 2 GiB, held nowhere
    tile = store.read_strided(1 << 21, (32, 64), (2048, 2), F16)
    assert tile.op == "full"
    assert (array(tile) == 3).all()


def test_a_tile_written_to_a_matrix_is_one_entry_and_reads_back_as_itself(graph, store):
    store.write(0, graph.full((64, 64), 0.0, F32))
    for row in range(0, 64, 16):
        for column in range(0, 64, 32):
            store.write_strided((row * 64 + column) * 4, matrix(graph, 16, 32, row * 64 + column), (256, 4))
    assert len(store) == 8  # 4 x 2 tiles, and nothing of the zeros
    tile = matrix(graph, 16, 32)
    store.write_strided((16 * 64 + 32) * 4, tile, (256, 4))
    assert len(store) == 8
    assert store.read_strided((16 * 64 + 32) * 4, (16, 32), (256, 4), F32) is tile


def test_tiles_read_back_in_another_tiling(graph, store):
    expected = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    store.write(0, graph.full((64, 64), 0.0, F32))
    for row in range(0, 64, 16):
        for column in range(0, 64, 32):
            tile = graph.constant(expected[row : row + 16, column : column + 32])
            store.write_strided((row * 64 + column) * 4, tile, (256, 4))
    assert (array(store.read_strided(8 * 256, (32, 64), (256, 4), F32)) == expected[8:40]).all()
    assert (array(store.read_strided(20 * 4, (64, 24), (256, 4), F32)) == expected[:, 20:44]).all()
    assert (array(store.read(100, (3000,), F32)) == expected.reshape(-1)[25:3025]).all()


def test_a_matrix_read_by_columns_is_transposed(graph, store):
    store.write(0, matrix(graph, 4, 6))
    assert (array(store.read_strided(0, (6, 4), (4, 24), F32)) == np.arange(24).reshape(4, 6).T).all()


def test_a_stride_of_zero_repeats_a_row_when_read_and_is_refused_when_written(graph, store):
    store.write(0, matrix(graph, 1, 4))
    assert (array(store.read_strided(0, (3, 4), (0, 4), F32)) == np.tile(np.arange(4), (3, 1))).all()
    with pytest.raises(DataError, match="overlap"):
        store.write_strided(0, matrix(graph, 3, 4), (0, 4))
    with pytest.raises(DataError, match=r"strides \(4,\) of a tensor of shape \(3, 4\)"):
        store.read_strided(0, (3, 4), (4,), F32)


def test_copies_of_copies_are_views_of_the_first(graph, store):
    first = matrix(graph, 4, 8)
    store.write(0, first)
    for step in range(1, 5):
        store.write(step * 0x100, store.read((step - 1) * 0x100 + 4, (32 - step,), F32))
    last = store.read(0x400, (3,), F32)
    assert last.inputs == (first,)
    assert array(last).tolist() == [4, 5, 6]


SIZE = 96
ops = st.one_of(
    st.tuples(st.just("write"), st.integers(0, SIZE - 1), st.integers(1, 24), st.integers(0, 0), st.integers(0, 0)),
    st.tuples(st.just("strided"), st.integers(0, SIZE - 1), st.integers(1, 6), st.integers(1, 8), st.integers(1, 24)),
    st.tuples(
        st.just("copy"), st.integers(0, SIZE - 1), st.integers(1, 24), st.integers(0, SIZE - 1), st.integers(0, 0)
    ),
    st.tuples(st.just("take"), st.integers(0, SIZE - 1), st.integers(1, 6), st.integers(1, 8), st.integers(0, 24)),
    st.tuples(st.just("free"), st.integers(0, SIZE - 1), st.integers(1, 24), st.integers(0, 0), st.integers(0, 0)),
)
grid_ops = st.one_of(
    st.tuples(st.just("strided"), st.sampled_from([0, 4, 8, 16, 20, 24, 36, 40, 52]), st.integers(1, 4),
              st.sampled_from([4, 8]), st.just(16)),
    st.tuples(st.just("take"), st.sampled_from([0, 4, 8, 16, 20, 24, 36, 40]), st.integers(1, 4),
              st.sampled_from([4, 8, 12]), st.just(16)),
    ops,
)  # fmt: skip


def run_program(program):
    """The same loads and stores on the store, and on a plain array with a mask of what was written."""
    graph = ValueGraph()
    store = MemoryStore(graph)
    plain, written = np.zeros(SIZE * 4, np.uint8), np.zeros(SIZE * 4, bool)
    taken: list[tuple[Value, bytes]] = []
    fresh = 0
    for name, addr, n, m, stride in program:
        index = addr + np.arange(n) if name != "strided" and name != "take" else None
        if index is None:
            index = addr + stride * np.arange(n)[:, np.newaxis] + np.arange(m)
        if name in ("write", "strided"):
            data = ((np.arange(index.size) + fresh) % 251).astype(np.uint8).view(np.int8).reshape(index.shape)
            fresh += index.size
            if name == "write":
                store.write(addr, graph.constant(data))
            elif stride < m and n > 1:
                with pytest.raises(DataError):
                    store.write_strided(addr, graph.constant(data), (stride, 1))
                continue
            else:
                store.write_strided(addr, graph.constant(data), (stride, 1))
            plain[index], written[index] = data.view(np.uint8), True
        elif name == "copy":
            if written[m + np.arange(n)].all():
                store.write(addr, store.read(m, (n,), I8))
                plain[index] = plain[m + np.arange(n)].copy()
                written[index] = True
        elif name == "take":
            if written[index].all():
                taken.append((store.read_strided(addr, (n, m), (stride, 1), I8), plain[index].tobytes()))
            else:
                with pytest.raises(DataError):
                    store.read_strided(addr, (n, m), (stride, 1), I8)
            filled = store.read_strided(addr, (n, m), (stride, 1), I8, zero_fill=True)
            taken.append((filled, np.where(written[index], plain[index], 0).astype(np.uint8).tobytes()))
        else:
            store.free(addr, n)
            written[index] = False
    taken.append(
        (store.read(0, (SIZE * 4,), I8, zero_fill=True), np.where(written, plain, 0).astype(np.uint8).tobytes())
    )
    return taken


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(ops, grid_ops), max_size=30))
def test_a_random_program_leaves_the_bytes_a_plain_interpreter_leaves(program):
    taken = run_program(program)
    for got, (_, expected) in zip(evaluate([value for value, _ in taken], threads=1), taken, strict=True):
        assert got.tobytes() == expected


@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_bytes_survive_any_pair_of_dtypes(written_as, read_as, shift, seed):
    raw = np.random.default_rng(seed).integers(0, 2, 32, dtype=np.uint8)
    graph = ValueGraph()
    store = MemoryStore(graph)
    store.write(shift, graph.constant(raw.view(written_as.numpy)))
    got = array(store.read(shift, (32 // read_as.itemsize,), read_as))
    assert got.tobytes() == raw.tobytes()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8), st.integers(0, 30), st.integers(0, 40))
def test_gaps_are_the_bytes_that_nothing_was_written_to(writes: list[tuple[int, int]], addr: int, nbytes: int) -> None:
    graph = ValueGraph()
    memory, written = MemoryStore(graph), np.zeros(80, bool)
    for at, n in writes:
        memory.write(at, graph.full((n,), 1, "i8"))
        written[at : at + n] = True
    found = memory.gaps(addr, nbytes)
    missing = [at for first, end in found for at in range(first, end)]
    assert missing == np.flatnonzero(~written[addr : addr + nbytes]).tolist()
    assert all(a[1] < b[0] for a, b in pairwise(found))  # each as long as it can be
