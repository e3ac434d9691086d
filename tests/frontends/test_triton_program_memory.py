"""Memory of Triton programs: which tensor an access may touch, and what is a copy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.frontends.triton_programs import NEEDS_BLOCK_POINTERS, simulated, tl, torch, triton

from kernbench.common.errors import LaunchError, UsageError

N = 64


@triton.jit
def copy_from(x, out, first, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at + first))


@triton.jit
def copy_to(x, out, first, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at + first, tl.load(x + at))


@triton.jit
def through_shapes(x, out, first, B: tl.constexpr):
    at = tl.arange(0, B)
    ptrs = tl.reshape(tl.broadcast_to((x + first)[None, None], (1, B)) + at[None, :], (B,))
    tl.store(out + at, tl.load(tl.trans(tl.reshape(ptrs, (B // 2, 2))).reshape(B)))


@triton.jit
def chosen(x, y, out, first, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(tl.where(at % 2 == 0, x + at + first, y + at)))


@triton.jit
def indirect(x, index, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + tl.load(index + at)))


@triton.jit
def by_block_pointer(x, out, first, B: tl.constexpr):
    block = tl.make_block_ptr(x, (B,), (1,), (first,), (B,), (0,))
    tl.store(out + tl.arange(0, B), tl.load(block))


@triton.jit
def by_descriptor(x, out, rows, B: tl.constexpr):
    blocks = tl.make_tensor_descriptor(x, [rows, B], [B, 1], [1, B])
    tl.store(out + tl.arange(0, B), blocks.load([rows - 1, 0]).reshape(B))


@triton.jit
def from_table(table, out, B: tl.constexpr):
    at = tl.arange(0, B)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    y = tl.load(table + 1).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(tl.where(at % 2 == 0, x + at, y + at)))


@triton.jit
def double_(x, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at, tl.load(x + at) * 2)


@triton.jit
def write_pairs(x):
    program = tl.program_id(0)
    tl.store(x + program // 2, program)


@triton.jit
def count_under_lock(lock, x):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(x, tl.load(x) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def wait_for_next(flag, out):
    program = tl.program_id(0)
    if program == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(out, 1.0)
    elif program == 1:
        tl.atomic_xchg(flag, 1)


@triton.jit
def wait_by_loads(flag, out, first, then):
    if tl.program_id(0) == first:
        while tl.load(flag, volatile=True) + tl.load(flag + 1, volatile=True) == 0:
            pass
        tl.store(out, 1.0)
    elif tl.program_id(0) == then:
        total = tl.zeros((64,), tl.float32)
        for _ in range(400):
            total += tl.load(out + tl.arange(0, 64))
        tl.store(flag + 1, tl.sum(total).to(tl.int32) + 1)


def neighbours() -> tuple:
    """Two tensors that lie next to each other; views of one storage would be one tensor."""
    memory = np.zeros((4, N), np.float32)
    first, second = (torch.from_numpy(memory[at]) for at in (1, 2))
    assert second.data_ptr() - first.data_ptr() == N * 4
    return first, second


def message(launch) -> str:
    with pytest.raises(LaunchError) as caught, simulated():
        launch()
    return str(caught.value)


@pytest.mark.parametrize("kernel", [copy_from, through_shapes])
def test_a_load_beyond_its_tensor_is_found_where_the_next_tensor_begins(kernel):
    x, y = neighbours()
    text = message(lambda: kernel[(1,)](x, y, 16, B=N))
    assert f"load out of bounds in program (0, 0, 0): element {N} of 'x', which has {N}" in text


def test_a_store_before_its_tensor_is_found_and_changes_nothing():
    before, out = neighbours()
    x = torch.ones(N)
    text = message(lambda: copy_to[(1,)](x, out, -1, B=N))
    assert f"store out of bounds in program (0, 0, 0): element -1 of 'out', which has {N}" in text
    assert not before.any()


def test_a_choice_between_pointers_may_touch_both_tensors_and_no_third():
    x, y = torch.arange(0.0, N), torch.arange(100.0, 100 + N)
    out = torch.empty(N)
    with simulated():
        chosen[(1,)](x, y, out, 0, B=N)
    assert torch.equal(out, torch.where(torch.arange(N) % 2 == 0, x, y))
    x, third = neighbours()
    text = message(lambda: chosen[(1,)](x, y, third, 16, B=N))
    assert f"element {N} of 'x', which has {N}" in text


def test_an_index_from_memory_is_checked_against_the_tensor_of_the_pointer():
    x, y = neighbours()
    index = torch.arange(N, dtype=torch.int64)
    index[7] = N + 3
    text = message(lambda: indirect[(1,)](x, index, y, B=N))
    assert f"element {N + 3} of 'x', which has {N}" in text


@NEEDS_BLOCK_POINTERS
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
def test_a_block_pointer_is_checked_against_its_tensor():
    x, y = neighbours()
    text = message(lambda: by_block_pointer[(1,)](x, y, 8, B=N))
    assert f"element {N} of 'x', which has {N}" in text


def test_a_descriptor_that_says_more_rows_than_there_are_is_found():
    x, y = neighbours()
    text = message(lambda: by_descriptor[(1,)](x, y, 2, B=N))
    assert f"element {N} of 'x', which has {N}" in text


def test_a_view_may_reach_what_its_storage_has():
    whole, out = torch.arange(2.0 * N), torch.empty(N)
    with simulated():
        copy_from[(1,)](whole[N : N + 8], out, -N, B=N)
    assert torch.equal(out, whole[:N])


def test_pointers_from_memory_are_checked_by_their_addresses():
    x, y, out = torch.zeros(N), torch.ones(N), torch.empty(N)
    with simulated():
        from_table[(1,)](torch.tensor([x.data_ptr(), y.data_ptr()]), out, B=N)
    assert torch.equal(out, (torch.arange(N) % 2).float())


def test_an_empty_tensor_has_no_element():
    text = message(lambda: copy_from[(1,)](torch.empty(0), torch.empty(N), 0, B=N))
    assert "of 'x', which has 0" in text


# ---- copies


def test_copies_between_host_and_accelerator_are_copies():
    with simulated():
        x = torch.arange(8.0, device="cuda")
        kept = [x.cpu(), x.to("cpu"), x.to(device="cpu"), x.cpu().numpy(), x.to(torch.device("cpu"), torch.float32)]
        host = torch.arange(8.0)
        copies = [
            host.cuda(),
            host.to("cuda"),
            host.to(x),
            host.to(device="cuda:0"),
            torch.as_tensor(kept[3], device="cuda"),
        ]
        for each in (x, *copies):
            double_[(1,)](each, B=8)
    assert all(list(each) == list(range(8)) for each in (*kept, host))
    assert all(list(each) == list(range(0, 16, 2)) for each in (x, *copies))


def test_what_is_there_already_is_not_copied():
    with simulated():
        x = torch.arange(8.0, device="cuda")
        like = torch.empty_like(x)
        assert all(each.cuda() is each for each in (x, like, x + 1, torch.cat([x, x]), x.to("cuda")))
        assert x[2:].to("cuda").data_ptr() == x[2:].data_ptr()
        moved = torch.arange(8.0).cuda()
        assert moved.to(x.device) is moved
        host = x.cpu()
        assert host.cpu() is host


def test_a_module_is_moved_with_its_parameters():
    with simulated():
        before = torch.nn.Linear(4, 4)
        weight = before.weight.data
        module = before.cuda()
        module(torch.ones(2, 4, device="cuda")).sum().backward()
        assert module.weight.grad is not None
        assert module.weight.data_ptr() != weight.data_ptr()
        assert module.to("cuda").weight is module.weight


# ---- order between programs


def test_programs_that_share_a_pe_are_in_no_order():
    with simulated(check_races=True) as sim:  # 8 PEs with two programs each
        write_pairs[(16,)](torch.zeros(8, dtype=torch.int32))
    (race,) = sim.result.races
    assert (race.kind, race.count, race.first.pe, race.second.pe) == ("write-write", 8, 0, 0)
    assert (race.first.program, race.second.program) == ((0, 0, 0), (1, 0, 0))
    assert "pe 0, program (1, 0, 0)" in str(race)


def test_a_lock_orders_programs_of_one_pe_and_launches_follow_each_other():
    lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    with simulated(check_races=True) as sim:
        for programs in (24, 8, 1, 16):  # of different numbers of programs on each PE
            count_under_lock[(programs,)](lock, x)
            double_[(1,)](x, B=1)
    assert sim.result.races == []
    assert x.item() == (((24 * 2 + 8) * 2 + 1) * 2 + 16) * 2


# ---- which storages there are


@triton.jit
def sum_of(x, y, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(y + at) + tl.load(x + at % 8))


@pytest.mark.parametrize("first", [0, 16])
def test_tensors_on_one_array_of_numpy_are_one_storage(first):
    array = np.arange(N, dtype=np.float32)
    x, y, out = torch.from_numpy(array[first : first + 8]), torch.from_numpy(array), torch.empty(N)
    with simulated():
        sum_of[(1,)](x, y, out, B=N)
        assert torch.equal(out, y + x.repeat(N // 8))
        sum_of[(1,)](y, y, y, B=8)
    assert list(array[:8]) == [2 * each for each in range(8)]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.zeros(N, device="meta"), "argument 'x' of kernel 'copy_from' is a tensor on device 'meta'"),
        (lambda: torch.eye(4).to_sparse_csr(), "argument 'x' of kernel 'copy_from' is a tensor torch.sparse_csr"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_without_memory_here_are_refused(make, why):
    x = make()
    with pytest.raises(UsageError, match=why), simulated():
        copy_from[(1,)](x, torch.zeros(N), 0, B=N)


def test_tensors_that_are_no_arguments_are_named_by_the_order_of_their_addresses(tmp_path):
    """Runs that differ in the addresses of the host only are equal."""
    saved = []
    for padding in (0, 10007):
        folder = tmp_path / str(padding)
        with simulated(save=str(folder)):
            kept = [torch.zeros(padding) for _ in range(3)]
            x, y, out = torch.zeros(N), torch.ones(N), torch.empty(N)
            pair = (x, y) if padding else (y, x)  # which is first asked for is first named
            first, second = (each.data_ptr() for each in pair)
            from_table[(1,)](torch.tensor([first, second]), out, B=N)
        assert len(kept) == 3
        saved.append([(folder / name).read_bytes() for name in ("ops.parquet", "places.parquet")])
    assert saved[0] == saved[1]


def test_a_launch_that_failed_and_was_caught_leaves_the_others_their_rows():
    x, out = torch.ones(N), torch.empty(N)
    with simulated() as sim:
        with pytest.raises(LaunchError):
            copy_from[(1,)](x, out, 1, B=N)
        copy_from[(1,)](x, out, 0, B=N)
    failed, done = sim.as_json()["launches"]
    assert "kernel" not in failed
    assert (done["kernel"], done["ns"]) == ("copy_from", sim.launches[0].ns)


# ---- waits


def test_a_wait_for_a_later_program_of_the_same_pe_is_found():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    with simulated() as sim:  # each on a PE of its own
        wait_for_next[(2,)](flag, out)
    assert sim.launches[0].ns > 0
    assert out.item() == 1
    text = message(lambda: wait_for_next[(16,)](flag.zero_(), out))
    assert "program (0, 0, 0) waits for ever" in text
    assert "program (1, 0, 0) runs after it on this PE" in text
    assert "while tl.atomic_add(flag, 0) == 0:" in text


def test_a_long_wait_for_a_program_that_works_ends():
    """400 loads of the same 64 words are no wait, and while they are done others may wait."""
    flag, out = torch.zeros(2, dtype=torch.int32), torch.zeros(64)
    with simulated():
        wait_by_loads[(8,)](flag, out, 0, 7)
    assert out[0].item() == 1
    text = message(lambda: wait_by_loads[(16,)](flag.zero_(), out.zero_(), 2, 3))
    assert "program (2, 0, 0) waits for ever" in text


def test_autocast_of_the_accelerator_casts():
    with simulated():
        x = torch.rand(4, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype == torch.float32
            assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cuda"):
            assert torch.nn.functional.linear(x, x).dtype == torch.float16
        assert (x @ x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
