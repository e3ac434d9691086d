"""Arithmetic of the host's tensors: kernels on the device, which take time and are listed; numpy is the judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.frontends import rank_programs
from tests.frontends.tensor_programs import PROGRAMS
from tests.unit.runtime_api.test_tensor import COLUMNS, ROWS, counting, machine

import kernbench
from kernbench.common.errors import LaunchError, NotModelledError, TensorError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.op_table import POINTWISE
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine())) as made:
        yield made


def test_an_operation_is_a_launch_that_takes_time_and_is_not_waited_for(torch: RuntimeContext) -> None:
    x = torch.ones(256, dtype=torch.float32)
    before = torch.now_ns
    y = (x + 1) * x
    y += 2
    assert torch.now_ns == before  # three launches are under way
    assert [launch.name for launch in torch.launches] == ["add", "mul", "add"]
    torch.wait_all()
    ends = [launch.end_ns for launch in torch.launches]
    assert before < ends[0] < ends[1] < ends[2]  # one PE runs them in order
    assert set(y.tolist()) == {4.0}


@pytest.mark.parametrize("dp", [None, ROWS, COLUMNS, DPPolicy(num_cubes=2, num_pes=2)])
def test_results_are_placed_as_their_operands_are_and_follow_them_in_order(
    torch: RuntimeContext, dp: DPPolicy | None
) -> None:
    x, wanted = torch.from_numpy(counting(6, 8), dp=dp), counting(6, 8)
    y = x + x.t()[0][:6].unsqueeze(1)  # reads what other PEs hold
    y *= y
    z = (y - x).sum(1)
    assert y.dp == x.dp
    squares = (wanted + wanted.T[0][:6].reshape(6, 1)) ** 2
    assert (y.numpy() == squares).all()
    assert np.allclose(z.numpy(), (squares - wanted).astype(np.float32).sum(1), rtol=1e-3)


def test_parts_on_several_pes_are_summed_where_they_lie(torch: RuntimeContext) -> None:
    x = torch.from_numpy(np.arange(64, dtype=np.float32).reshape(8, 8), dp=ROWS)
    assert x.sum().item() == 63 * 32
    parts, joined = torch.launches
    assert ({r.pe for r in parts.pes}, {r.pe for r in joined.pes}) == ({0, 1, 2, 3}, {0})
    assert x.sum(1).dp == ROWS  # each PE has whole rows


def test_operands_that_lie_alike_need_no_virtual_addresses() -> None:
    with RuntimeContext(GraphEngine(machine("pa"))) as torch:
        x = torch.from_numpy(counting(8, 4), dp=ROWS)
        assert ((x + x).numpy() == 2 * counting(8, 4)).all()
        with pytest.raises(UsageError, match="does not reach all of"):
            x.t().contiguous()
        assert (torch.ones(3) + torch.tensor([1.0, 2.0, 3.0])).tolist() == [2, 3, 4]


def test_a_kernel_after_an_operation_sees_its_result(torch: RuntimeContext) -> None:
    def copied(x, y, tl) -> None:
        tl.store(y.local, tl.load(x, y.local_shape))

    x, y = torch.zeros(4, dp=DPPolicy(num_cubes=1, num_pes=1)), torch.empty(4, dp=DPPolicy(num_cubes=1, num_pes=2))
    x += 5
    torch.launch(copied, x, y)
    assert y.tolist() == [5] * 4


@pytest.mark.parametrize("program", [rank_programs.megatron_mappings])
def test_the_order_of_operations_and_collectives_is_no_coincidence(program) -> None:
    def main(torch: RuntimeContext) -> None:
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(lambda rank: program(torch, rank, 2), nprocs=2)

    small = {"system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    looked = kernbench.run(main, overrides=small, device="whole", check_races=True)
    assert not looked.races
    assert looked.total_ns == kernbench.run(main, overrides=small, device="whole", fast=False).total_ns


def test_a_tensor_on_another_device_is_copied_not_mixed() -> None:
    from tests.unit.runtime_api.tray import machine as tray

    with RuntimeContext(GraphEngine(tray(2))) as torch:
        x, y = torch.ones(4, device="cuda:0"), torch.ones(4, device="cuda:1")
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            x + y
        moved = x.to("cuda:1")
        assert (moved.device, (moved + y).tolist()) == ("sip:1", [2] * 4)
        y.copy_(x * 3)
        assert y.tolist() == [3] * 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda t: t.ones(3) + t.ones(4), "do not broadcast"),
        (lambda t: t.ones(3).add_(t.ones(2, 3)), "in place, shapes do not grow"),
        (lambda t: t.arange(3).div_(2), "cannot be stored"),
        (lambda t: t.ones(2, 3) @ t.ones(2, 3), "let the inner sizes be equal"),
        (lambda t: t.ones(1, 3).expand(2, 3).add_(1), "one element of memory"),
        (lambda t: (x := t.ones(4))[1:].add_(x[:-1]), "different views of the same elements"),
        (lambda t: t.ones(3).sum(1), "there is no axis 1"),
        (lambda t: t.arange(3).mean(), "its result is no integer"),
        (lambda t: t.ones(3).topk(4), "topk of 4"),
        (lambda t: t.cat([t.ones(2, 3), t.ones(2, 4)]), "sizes differ along that axis only"),
        (lambda t: t.ones(3).reshape(2, 2), "invalid for 3 elements"),
    ],
)
def test_what_does_not_fit_is_refused(torch: RuntimeContext, wrong, says: str) -> None:
    with pytest.raises((TensorError, UsageError)) as refused:
        wrong(torch)
    assert says in str(refused.value)
    assert isinstance(refused.value, RuntimeError)


def test_random_numbers_are_a_function_of_the_seed(torch: RuntimeContext) -> None:
    torch.manual_seed(7)
    x, y = torch.randn(40, 50, dtype="f32"), torch.rand(1000, dtype="f32")
    torch.manual_seed(7)
    again = torch.randn(40, 50, dtype="f32", dp=ROWS)  # wherever it lies
    assert (x.numpy() == again.numpy()).all()
    assert abs(x.numpy().mean()) < 0.1
    assert abs(x.numpy().std() - 1) < 0.1
    assert (y.numpy() >= 0).all()
    assert (y.numpy() < 1).all()
    assert len(np.unique(y.numpy())) > 990
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(2, 5, (200,), generator=generator)
    assert set(whole.tolist()) == {2, 3, 4}  # type: ignore[call-overload]  # a list, of one axis
    assert sorted(torch.randperm(9, generator=generator).tolist()) == list(range(9))
    assert [launch.name for launch in torch.launches][:2] == ["normal", "uniform"]


def test_every_operation_of_the_table_is_a_method_and_a_function(torch: RuntimeContext) -> None:
    for name in POINTWISE:
        if name not in ("copy", "isclose", "where", "addcdiv"):
            assert hasattr(Tensor, name), name
            assert hasattr(torch, name) or name in ("silu", "gelu"), name


@pytest.mark.parametrize("name", ["views", "shapes", "numpy_code"])
def test_programs_of_pytorch_users_run(torch: RuntimeContext, name: str) -> None:
    # Their results are compared with PyTorch's in tests/frontends.
    torch.set_default_dtype(torch.float32)
    assert PROGRAMS[name](torch, torch.from_numpy)


def test_a_reduction_takes_every_page_of_an_interleaved_tensor(torch: RuntimeContext) -> None:
    x = torch.from_numpy(np.ones((4096, 8), np.float32), dp=DPPolicy("interleave", "interleave"))
    assert len(x.placement) > 16  # PEs
    assert (x.sum().item(), x.sum(0).tolist()) == (4096 * 8, [4096.0] * 8)


def test_random_whole_numbers_are_exact_and_floats_stay_below_the_end(torch: RuntimeContext) -> None:
    start = 2**24 + 1
    assert set(torch.randint(start, start + 2, (64,)).tolist()) == {start, start + 1}
    wide = torch.randint(0, 2**40, (64,)).numpy()
    assert (wide >= 0).all()
    assert (wide < 2**40).all()
    assert len(set((wide % 2**20).tolist())) > 60  # low bits are random, too
    for dtype, last in (("f16", 1 - 2**-11), ("bf16", 1 - 2**-8)):
        assert torch.rand(4096, dtype=dtype).float().max().item() == last


def test_an_operation_waits_for_a_kernel_on_its_tensor(torch: RuntimeContext) -> None:
    def late(x: Any, tl: Any) -> None:
        block = tl.load(x, (64,))
        for _ in range(50):
            block = block + 1
        tl.store(x, block)

    x = torch.zeros(64, dtype="f32", dp=DPPolicy(num_cubes=1, num_pes=1))
    y = torch.zeros(64, dtype="f32", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4))
    torch.launch("late", late, x, wait=False)
    y.copy_(x)
    assert set(y.tolist()) == {50.0}


def test_arithmetic_on_a_part_in_place_is_one_launch(torch: RuntimeContext) -> None:
    x = torch.zeros((2, 4), dtype="f32")
    before = len(torch.launches)
    x[0] += 1
    assert len(torch.launches) == before + 1
    assert x.tolist() == [[1.0] * 4, [0.0] * 4]


def test_integers_stay_exact_and_have_no_variance(torch: RuntimeContext) -> None:
    big = 2**24 + 1
    x = torch.tensor([big, 3])
    assert x.round().tolist() == [big, 3]
    assert x.addcmul(x, torch.tensor([1, 2])).tolist() == [2 * big, 9]
    assert torch.isclose(x, torch.tensor([big - 1, 3]), rtol=0.0, atol=0.5).tolist() == [False, True]
    for refused in (x.var, x.std, lambda: x.logsumexp(0), lambda: torch.nn.functional.rms_norm(x, [2])):
        with pytest.raises(TensorError, match=r"float tensor|float\(\)"):
            refused()
    with pytest.raises(TensorError, match="no integer"):
        x.masked_fill(x > 3, 1.5)
    assert x.masked_fill(x > 3, 2.0).tolist() == [2, 3]


def test_infinities_are_close_only_to_themselves(torch: RuntimeContext) -> None:
    a, b = [np.inf, -np.inf, np.inf, 1.0, np.nan, 1.0], [np.inf, -np.inf, -np.inf, np.inf, np.nan, 1.0]
    x, y = (torch.from_numpy(np.array(each, np.float32)) for each in (a, b))
    assert torch.isclose(x, y).tolist() == np.isclose(a, b).tolist()


def test_a_number_of_numpy_is_an_operand_on_the_device_and_an_array_is_numpys(torch: RuntimeContext) -> None:
    x = torch.full((3,), 4, dtype="f32")
    for found, wanted in ((np.float32(2) * x, 8), (np.float32(2) - x, -2), (np.float32(2) < x, 1)):
        assert isinstance(found, Tensor)
        assert found.tolist() == [wanted] * 3
    held = np.ones(3, np.float32)
    held += x
    assert (held == 5).all()
    assert isinstance(held * x, np.ndarray)
    assert np.sqrt(x).tolist() == [2.0] * 3
    assert (True & torch.tensor([True, False])).tolist() == [True, False]
    assert (6 ^ torch.tensor([3])).tolist() == [5]


def test_attention_takes_a_mask(torch: RuntimeContext) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.from_numpy(np.eye(4, 4, at, np.float32)) for at in range(3))
    below = np.tri(4, 4, dtype=bool)
    causal = attention(q, k, v, is_causal=True).numpy()
    added = torch.from_numpy(np.where(below, 0, -1e30).astype(np.float32))
    assert (attention(q, k, v, torch.from_numpy(below)).numpy() == causal).all()
    assert (attention(q, k, v, attn_mask=added).numpy() == causal).all()
    with pytest.raises(NotModelledError, match="dropout"):
        attention(q, k, v, dropout_p=0.1)


@pytest.mark.parametrize(("name", "wrong"), [("index_add_", -1), ("index_copy_", 2)])
def test_rows_that_are_not_there_are_refused(torch: RuntimeContext, name: str, wrong: int) -> None:
    put, row = getattr(torch.zeros((2, 4), dtype="f32"), name), torch.ones((1, 4), dtype="f32")
    with pytest.raises(TensorError, match="the index is"):
        put(0, torch.zeros(1, dtype="f32"), row)
    put(0, torch.tensor([wrong]), row)
    with pytest.raises(LaunchError, match=f"TensorError: index {wrong} of 2 rows"):
        torch.wait_all()


def test_results_too_small_for_the_tiles_of_their_operand_are_placed_by_rows(torch: RuntimeContext) -> None:
    x = torch.from_numpy(np.ones((64, 64), np.float32), dp=DPPolicy("tiled_row_major", "tiled_row_major"))
    assert x.var(1).tolist() == [0.0] * 64
    assert (x @ x[:, 0]).tolist() == [64.0] * 64


def test_operations_read_across_parts_with_logical_addresses_in_the_time_of_virtual_ones() -> None:
    """Each PE reads all rows, or a column, of an operand of which it holds some rows."""
    found = []
    for model in ("va", "la"):
        with RuntimeContext(GraphEngine(machine(model))) as torch:
            x = torch.from_numpy(counting(8, 8), dp=ROWS)
            flat, index = torch.from_numpy(counting(1, 64)[0]), torch.tensor([1, 2, 3, 4])
            results = [x @ x, x.sum(0), x + x.t(), x.reshape(64) + flat, x[index], x.cumsum(0)]
            found.append([each.numpy().tolist() for each in results])
            torch.wait_all()
            times = [launch.end_ns - launch.start_ns for launch in torch.launches]
        found[-1].append(times)
    assert found[0] == found[1]
    a = counting(8, 8)
    assert found[0][:3] == [(a @ a).tolist(), a.sum(0).tolist(), (a + a.T).tolist()]


EVERYWHERE = DPPolicy(cube="row_wise", pe="row_wise")


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("placed", [None, EVERYWHERE])
def test_a_large_right_operand_is_copied_into_every_cube_before_a_product_over_many(
    torch: RuntimeContext, placed: DPPolicy | None, is_transposed: bool
) -> None:
    """64 x 128 in f32 are 32 KiB. PEs of both cubes read all of it: from their own cube."""
    a, b = (np.arange(m * n).reshape(m, n) % 5 - 2 for m, n in ((16, 64), (64, 128)))
    x = torch.from_numpy(a.astype(np.float32), dp=EVERYWHERE)
    y = torch.from_numpy((b.T if is_transposed else b).astype(np.float32), dp=placed)
    first = len(torch.launches)
    z = x @ (y.t() if is_transposed else y)
    assert (z.numpy() == a @ b).all()
    copy, product = torch.launches[first:]
    assert (copy.name, product.name) == ("copy", "matmul")
    between_cubes = [
        busy for (one, other), busy in product.links.items() if "ucie" in one and "ucie" in other and "io" not in one
    ]
    assert sum(between_cubes) == 0


def test_a_small_right_operand_is_read_where_it_lies(torch: RuntimeContext) -> None:
    x, y = (torch.from_numpy(counting(16, 16), dp=EVERYWHERE) for _ in range(2))
    first = len(torch.launches)
    assert (x @ y).shape == (16, 16)
    assert [launch.name for launch in torch.launches[first:]] == ["matmul"]


@pytest.mark.parametrize("name", ["isclose", "allclose", "equal"])
def test_comparisons_of_tensors_take_no_numbers_as_in_pytorch(torch: RuntimeContext, name: str) -> None:
    x = torch.ones(4)
    with pytest.raises(TypeError, match=r"argument 'other' must be a tensor, not float"):
        getattr(torch, name)(x, 1.0)
    with pytest.raises(TypeError, match=r"hint: .* x == number compares with a number"):
        getattr(x, name)(1.0)
    assert not [launch for launch in torch.launches if launch.failures]


def test_a_failed_operation_is_reported_once_at_the_line_of_the_program(torch: RuntimeContext) -> None:
    x = torch.from_numpy(np.arange(64, dtype=np.float32).reshape(8, 8), dp=ROWS)
    y = x[torch.tensor([9])]  # fails on the device, and this line does not wait for it
    with pytest.raises(LaunchError, match=r"row 9 of 'x', which has 8") as caught:
        torch.zeros(1, 8, dtype=torch.float32, dp=COLUMNS).copy_(y)  # by other PEs: waits for it
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{__file__}:")
    assert "torch.tensor([9])" in caught.value.where
    assert (x + 1).sum().item() == 64 * 63 / 2 + 64
