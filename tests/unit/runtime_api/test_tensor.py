"""Tensors on devices: contents, indexing and assignment across shards, placement, repr, freeing; numpy is the judge."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from kernbench.common.errors import AllocationError, DataError, TensorError, UsageError
from kernbench.common.messages import TensorShard
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.policy.placement.dp import SPLITS, DPPolicy, Split
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

ROWS = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
COLUMNS = DPPolicy(pe="column_wise", num_cubes=1, num_pes=4)


@cache
def machine(model: str = "va") -> TopologyGraph:
    """One SIP of two cubes with 8 PEs each."""
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 2,
            "sip.cube_mesh.h": 1,
            "system.address_model": model,
        },
    )


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine())) as made:
        yield made


def counting(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(np.float16)


# ---- contents


@pytest.mark.parametrize("dp", [None, ROWS, COLUMNS, DPPolicy(), DPPolicy(cube="row_wise", pe="column_wise")])
def test_an_array_comes_back_as_it_went(torch: RuntimeContext, dp: DPPolicy | None) -> None:
    array = counting(5, 6)
    assert (torch.from_numpy(array, dp=dp).numpy() == array).all()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "bool"])
def test_every_dtype_holds_small_numbers(torch: RuntimeContext, dtype: str) -> None:
    tensor = torch.from_numpy(np.array([0.0, 1.0, 1.0], np.float32), dtype=dtype, dp=ROWS)
    assert tensor.dtype == dtype
    assert tensor.numpy().astype(np.float32).tolist() == [0, 1, 1]


def test_zeros_and_full(torch: RuntimeContext) -> None:
    assert torch.zeros(2, 3).numpy().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert torch.full((2,), 1.5, dtype="f32").numpy().tolist() == [1.5, 1.5]
    assert torch.zeros((4,), dtype="i32", dp=ROWS).numpy().dtype == np.int32


def test_preset_zeros_were_there_before_and_take_no_time(torch: RuntimeContext) -> None:
    # A tensor of zeros is mapped, as an empty one is, and written; a preset one is mapped.
    began = torch.now_ns
    torch.empty(4, 1 << 16)
    mapped_ns = torch.now_ns - began
    began = torch.now_ns
    tensor = torch.zeros(4, 1 << 16, preset=True)
    assert torch.now_ns - began == mapped_ns
    assert not tensor.numpy().any()
    began = torch.now_ns
    torch.zeros(4, 1 << 16)
    assert torch.now_ns - began > mapped_ns


def test_what_was_never_written_cannot_be_read(torch: RuntimeContext) -> None:
    tensor = torch.empty(4, name="hollow")
    with pytest.raises(DataError, match="never written"):
        tensor.numpy()
    assert "never written" in repr(tensor)


def test_a_tensor_is_not_the_array_it_was_made_of(torch: RuntimeContext) -> None:
    array = counting(4)
    tensor = torch.from_numpy(array)
    array[0] = 99
    tensor.numpy()[1] = 99
    assert tensor.numpy().tolist() == [0, 1, 2, 3]


def test_copy_takes_tensors_and_arrays(torch: RuntimeContext) -> None:
    tensor = torch.zeros(4, 4, dp=COLUMNS)
    assert tensor.copy_(counting(4, 4)) is tensor
    assert (tensor.numpy() == counting(4, 4)).all()
    tensor.copy_(torch.full((4,), 3, dp=ROWS))  # repeated over rows
    assert (tensor.numpy() == 3).all()
    with pytest.raises(DataError, match=r"cannot take an array of shape \(3,\)"):
        tensor.copy_(np.zeros(3))


def test_one_element_is_a_number(torch: RuntimeContext) -> None:
    assert torch.full((1, 1), 2.5).item() == 2.5
    assert torch.full((1,), 1, dtype="bool").item() is True
    with pytest.raises(TensorError, match="has 2 elements"):
        torch.zeros(2).item()


# ---- indexing

INDICES = [
    (2, 3),
    (slice(1, 4), 2),
    (slice(None, None, 2), slice(1, None)),
    (-1,),
    (slice(None), [0, 5]),
    (Ellipsis, slice(2, 4)),
]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dp", [None, ROWS, COLUMNS])
def test_indexing_is_numpys(torch: RuntimeContext, dp: DPPolicy | None, index: tuple[object, ...]) -> None:
    array = counting(5, 6)
    assert np.array_equal(torch.from_numpy(array, dp=dp)[index], array[index])  # type: ignore[index]  # numpy takes what this takes


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dp", [None, ROWS, COLUMNS, DPPolicy(num_cubes=2, num_pes=2)])
def test_assignment_is_numpys(torch: RuntimeContext, dp: DPPolicy | None, index: tuple[object, ...]) -> None:
    array = counting(5, 6)
    tensor = torch.from_numpy(array, dp=dp)
    tensor[index] = array[index] + 100  # type: ignore[index]  # numpy takes what this takes
    array[index] += 100  # type: ignore[index]  # numpy takes what this takes
    assert (tensor.numpy() == array).all()


def test_assignment_writes_every_replica(torch: RuntimeContext) -> None:
    tensor = torch.zeros(4, dp=DPPolicy(num_cubes=2, num_pes=2))
    tensor[1:3] = 7
    memory = torch.engine.memory
    values = [memory.read(shard.pa, (4,), "f16") for shard in tensor.shards]
    assert len(values) == 4
    assert all(tensor.host.read_parts(tensor, [at], timed=False)[0].tolist() == [0, 7, 7, 0] for at in range(4))


def test_replicas_keep_what_is_their_own_between_what_is_assigned(torch: RuntimeContext) -> None:
    tensor = torch.empty(3, dp=DPPolicy(num_cubes=1, num_pes=2))
    torch.launch("number", lambda x, tl: tl.store(x.local, tl.full((3,), tl.program_id(0), "f16")), tensor)
    tensor[::2] = 7
    assert [part.tolist() for part in tensor.host.read_parts(tensor, [0, 1], timed=False)] == [[7, 0, 7], [7, 1, 7]]


@pytest.mark.parametrize("dp", [None, ROWS])
def test_reading_a_part_needs_that_part_only(torch: RuntimeContext, dp: DPPolicy | None) -> None:
    tensor = torch.empty(4, 2, dp=dp, name="hollow")
    tensor[0:2] = 1
    assert tensor[0:2].tolist() == [[1, 1], [1, 1]]
    assert tensor[1, 1].item() == 1
    with pytest.raises(DataError) as refused:
        tensor[1:3].numpy()
    place = "sip0.cube0.pe2" if dp else "sip0.cube0.pe0"
    assert refused.value.what == (
        f"tensor 'hollow': 4 of 8 bytes were never written, the first of them element [2, 0], on {place}"
    )


def test_writing_a_part_writes_that_part_only(torch: RuntimeContext) -> None:
    tensor = torch.empty(6)
    tensor[0:5:2] = [1, 2, 3]
    assert tensor[::2].tolist() == [1, 2, 3]
    for hole in (1, 3, 5):
        with pytest.raises(DataError, match="2 of 2 bytes were never written"):
            tensor[hole].item()
    tensor[1] = 9
    tensor[0:5:4] = 8  # element 1 is kept, element 3 has nothing to keep
    assert tensor[[0, 1, 2, 4]].tolist() == [8, 9, 2, 8]
    with pytest.raises(DataError, match="2 of 2 bytes were never written"):
        tensor[3].item()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.slices(5), st.slices(6), st.integers(-9, 9)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, ROWS, COLUMNS]),
)
def test_any_assignments_leave_just_what_they_named(plan: list[tuple[slice, slice, int]], dp: DPPolicy | None) -> None:
    wanted = np.full((5, 6), np.nan)
    with RuntimeContext(GraphEngine(machine())) as torch:
        tensor = torch.empty(5, 6, dp=dp)
        for rows, columns, number in plan:
            tensor[rows, columns] = number
            wanted[rows, columns] = number
        for at, number in np.ndenumerate(wanted):
            if np.isnan(number):
                with pytest.raises(DataError, match="never written"):
                    tensor[at].item()
            else:
                assert tensor[at].item() == number


def test_part_of_a_hollow_tensor_can_be_assigned(torch: RuntimeContext) -> None:
    tensor = torch.empty(4, 4, dp=ROWS)
    tensor[1] = 5
    with pytest.raises(DataError, match="never written"):
        tensor.numpy()
    tensor[0], tensor[2:] = 4, 6
    assert tensor.numpy()[:, 0].tolist() == [4, 5, 6, 6]


def test_an_index_outside_is_a_clear_error(torch: RuntimeContext) -> None:
    tensor = torch.zeros(4, 4)
    for index in (9, (0, 0, 0), "x"):
        with pytest.raises(IndexError) as refused:
            tensor[index]  # type: ignore[index]  # the mistake
        assert isinstance(refused.value, UsageError)
        with pytest.raises(UsageError, match="index it as a numpy array"):
            tensor[index] = 1  # type: ignore[index]  # the mistake


@settings(deadline=None, max_examples=15)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    cube=st.sampled_from(SPLITS),
    pe=st.sampled_from(SPLITS),
    data=st.data(),
)
def test_any_shape_and_policy_behaves_as_the_array(
    shape: tuple[int, ...], cube: Split, pe: Split, data: st.DataObject
) -> None:
    with RuntimeContext(GraphEngine(machine())) as torch:
        array = counting(*shape)
        try:
            tensor = torch.from_numpy(array, dp=DPPolicy(cube=cube, pe=pe, num_pes=3))
        except UsageError:
            assert "tiled" in cube + pe  # the only splits that want a part for each PE
            reject()
        first = data.draw(st.integers(0, shape[0] - 1))
        last = data.draw(st.integers(0, shape[-1] - 1))
        index = (slice(first, None), ..., last) if len(shape) > 1 else slice(first, None)
        tensor[index] = -1
        array[index] = -1
        assert (tensor.numpy() == array).all()


# ---- time


def test_writing_takes_time_and_looking_takes_none(torch: RuntimeContext) -> None:
    tensor = torch.from_numpy(counting(64, 64))
    made = torch.now_ns
    tensor.numpy(), tensor[0].tolist(), repr(tensor), tensor.data
    assert torch.now_ns == made > 0
    tensor.copy_(counting(64, 64))
    written = torch.now_ns
    assert written > made
    assert (tensor.cpu() == counting(64, 64)).all()
    assert torch.now_ns > written


def test_a_larger_tensor_takes_longer_to_write() -> None:
    def ns(n: int) -> float:
        with RuntimeContext(GraphEngine(machine())) as torch:
            torch.zeros(n)
            return torch.now_ns

    # Past the first flit, bytes go at 128 GB/s, the narrowest link: 2 * (65536 - 16384) / 128.
    assert ns(65536) - ns(16384) == 768


# ---- what it is


def test_a_tensor_knows_its_parts(torch: RuntimeContext) -> None:
    tensor = torch.empty(10, 4, dp=ROWS, name="w")
    assert (tensor.shape, tensor.dtype, tensor.ndim, tensor.nbytes, len(tensor)) == ((10, 4), "f16", 2, 80, 10)
    assert tensor.local_shape == (3, 4)
    assert list(tensor.local_shapes.values()) == [(3, 4), (3, 4), (2, 4), (2, 4)]
    assert [(s.pe, s.offset_bytes, s.nbytes) for s in tensor.shards] == [
        (0, 0, 24),
        (1, 24, 24),
        (2, 48, 16),
        (3, 64, 16),
    ]
    assert isinstance(tensor.shards[0], TensorShard)


def test_repr_says_what_where_and_shows_small_contents(torch: RuntimeContext) -> None:
    text = repr(torch.from_numpy(counting(2, 2), name="a"))
    assert text.splitlines() == [
        "tensor 'a' f16[2, 2] on sip 0, cube 0, pe 0, 8 B, va 0x100000000",
        "[[0. 1.]",
        " [2. 3.]]",
    ]
    wide = repr(torch.zeros(100, 100, dp=COLUMNS, name="b"))
    assert wide.startswith(
        "tensor 'b' f16[100, 100] on sip 0, 4 shards, cube replicate over 1, pe column_wise over 4, "
    )
    assert wide.endswith("local shape [100, 25], 19.5 KiB, va 0x100000000\n(10000 elements)")


# ---- mapping and freeing


def translate(torch: RuntimeContext, cube: int, pe: int, va: int, nbytes: int) -> list[tuple[int, int]]:
    mmu = torch.engine.component(f"sip0.cube{cube}.pe{pe}.pe_mmu")
    assert isinstance(mmu, PeMmuComponent)
    return mmu.translate(va, nbytes)


def test_every_pe_finds_every_shard(torch: RuntimeContext) -> None:
    tensor = torch.empty(8, dp=DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2, num_pes=2))
    assert tensor.va_base is not None
    for cube in range(2):
        for pe in range(8):
            for shard in tensor.shards:
                va = tensor.va_base + shard.offset_bytes
                assert translate(torch, cube, pe, va, shard.nbytes) == [(shard.pa, shard.nbytes)]


def test_every_pe_finds_its_own_replica(torch: RuntimeContext) -> None:
    tensor = torch.empty(8, dp=DPPolicy())
    assert tensor.va_base is not None
    assert len(tensor.shards) == 16
    for shard in tensor.shards:
        assert translate(torch, shard.cube, shard.pe, tensor.va_base, 16) == [(shard.pa, 16)]


def test_a_pe_without_a_replica_uses_one_of_its_cube(torch: RuntimeContext) -> None:
    tensor = torch.empty(8, dp=DPPolicy(num_pes=2))
    assert tensor.va_base is not None
    held = {(s.cube, s.pe): s.pa for s in tensor.shards}
    assert translate(torch, 1, 5, tensor.va_base, 16) == [(held[1, 1], 16)]
    assert translate(torch, 1, 6, tensor.va_base, 16) == [(held[1, 0], 16)]


def test_a_dropped_tensor_gives_its_memory_back(torch: RuntimeContext) -> None:
    tensor = torch.zeros(1024, dp=ROWS)
    first = [shard.pa for shard in tensor.shards]
    va = tensor.va_base
    used = [torch.used_bytes(0, 0, pe) for pe in range(5)]
    assert used == [512, 512, 512, 512, 0]
    del tensor
    again = torch.zeros(1024, dp=ROWS)
    assert [shard.pa for shard in again.shards] == first
    assert again.va_base == va


def test_a_tensor_of_the_same_addresses_does_not_see_the_old_contents(torch: RuntimeContext) -> None:
    tensor = torch.full((16,), 3)
    del tensor
    with pytest.raises(DataError, match="never written"):
        torch.empty(16).numpy()


def test_closing_frees_everything_and_takes_mappings_back() -> None:
    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        tensor = torch.zeros(1024)
        va = tensor.va_base
        assert va is not None
        before = torch.now_ns
    assert engine.now_ns > before
    with pytest.raises(Exception, match="not mapped"):
        translate(torch, 0, 0, va, 2)
    with pytest.raises(UsageError, match="after its context was closed"):
        tensor.numpy()
    with pytest.raises(UsageError, match="this context is closed"):
        torch.zeros(1)
    torch.close()


def test_more_than_fits_is_refused_and_leaves_nothing_behind(torch: RuntimeContext) -> None:
    slice_bytes = torch.spec.cube.hbm_slice_bytes
    half = slice_bytes // 2 // 2  # elements
    kept = torch.empty(half)
    with pytest.raises(AllocationError, match="HBM overflow"):
        torch.empty(2 * half, 2, dp=DPPolicy(pe="column_wise", num_cubes=1, num_pes=2))
    gc.collect()
    assert torch.used_bytes(0, 0, 1) == 0
    assert kept.nbytes == torch.used_bytes(0, 0, 0)


def test_physical_addresses_need_no_mapping() -> None:
    with RuntimeContext(GraphEngine(machine("pa"))) as torch:
        torch.empty(16)
        assert torch.now_ns == 0
        tensor = torch.from_numpy(counting(8, 4), dp=ROWS)
        assert tensor.va_base is None
        assert (tensor.numpy() == counting(8, 4)).all()


def test_tensors_of_two_contexts_do_not_mix(torch: RuntimeContext) -> None:
    with RuntimeContext(GraphEngine(machine())) as other:
        tensor = other.zeros(4)
        with pytest.raises(UsageError, match="belongs to another context"):
            torch.launch("k", lambda x: None, tensor)


# ---- as Python expects it


def test_numpy_integers_are_sizes(torch: RuntimeContext) -> None:
    assert torch.zeros(np.int64(3), dtype="i8").shape == (3,)
    made = torch.zeros((np.int32(2), np.int64(3)), dp=ROWS)
    assert [type(n) for n in made.shape] == [int, int]
    assert made.local_shape == (1, 3)


@pytest.mark.parametrize("size", [4.5, None, "4", ((2, 2), 3)])
def test_what_is_no_size_is_refused(torch: RuntimeContext, size: object) -> None:
    with pytest.raises(UsageError, match="cannot be placed"):
        torch.empty(*size) if isinstance(size, tuple) else torch.empty(size)  # type: ignore[arg-type]  # the mistake


def test_rows_can_be_gone_through_and_a_single_number_taken(torch: RuntimeContext) -> None:
    assert [row.tolist() for row in torch.from_numpy(counting(2, 3), dp=ROWS)] == [[0, 1, 2], [3, 4, 5]]
    one = torch.full((1,), 2.5)
    assert (float(one), int(one)) == (2.5, 2)


def test_contents_that_are_no_numbers_are_refused(torch: RuntimeContext) -> None:
    made = torch.zeros(2)
    with pytest.raises(DataError, match="cannot take <U1 contents"):
        made.copy_("a")
    with pytest.raises(DataError, match="inhomogeneous"):
        torch.from_numpy([[1.0, 2.0], [3.0]], dtype="f16")


@pytest.mark.parametrize("policy", [None, ROWS])
def test_a_strided_write_is_one_request_a_shard_whatever_lies_between(policy: DPPolicy | None) -> None:
    taken = []
    for made in ("zeros", "empty"):
        with RuntimeContext(GraphEngine(machine())) as torch:
            x = getattr(torch, made)(16, 64, dp=policy)
            start_ns = torch.engine.now_ns
            x[:, ::2] = 3
            taken.append(torch.engine.now_ns - start_ns)
            assert (x[:, ::2].numpy() == 3).all()
            if made == "empty":
                with pytest.raises(DataError, match="never written"):
                    x[:, 1].numpy()
    assert taken[0] == taken[1]
