"""DTensors: every transition by its collective, operations propagate placements; numpy is the judge."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.frontends.tensor_programs import array
from tests.unit.runtime_api.tray import Tray

from kernbench.common.errors import (
    DistributedError,
    DistributedTypeError,
    NotModelledError,
    TensorError,
    TensorIndexError,
)
from kernbench.runtime_api.dtensor_placement import Partial, Replicate, Shard, chunk_bounds

PLACEMENTS = {"Shard(0)": Shard(0), "Shard(1)": Shard(1), "Replicate()": Replicate(), "Partial('sum')": Partial()}
COLLECTIVE = {
    ("Shard", "Replicate"): "all_gather",
    ("Shard", "Shard"): "send",
    ("Partial", "Replicate"): "all_reduce",
    ("Partial", "Shard"): "reduce_scatter",
}


@pytest.fixture
def tray() -> Tray:
    return Tray(2)


def test_chunks_are_those_of_torch_chunk() -> None:
    # 5 elements in 4 chunks: of ceil(5 / 4) = 2 elements, the last ones smaller or empty.
    assert [chunk_bounds(5, 4, at) for at in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]


@pytest.mark.parametrize(("have", "to"), [*product(PLACEMENTS.values(), list(PLACEMENTS.values())[:3])])
def test_every_transition_by_its_collective(tray: Tray, have: Any, to: Any) -> None:
    torch = tray.torch

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        whole = torch.from_numpy(array(4, 4))
        if have.is_partial():
            x = dt.DTensor.from_local(torch.from_numpy(array(4, 4) * (1 + rank)), mesh, [have])
        else:
            x = dt.distribute_tensor(whole, mesh, [have], src_data_rank=None)
        first = len(tray.started)
        y = x.redistribute(placements=[to])
        return [y.to_local().numpy(), y.full_tensor().numpy(), {call.name for call in tray.started[first:]}]

    total = array(4, 4) * (3 if have.is_partial() else 1)
    for rank, (local, full, names) in tray.spawn(worker, nprocs=2).items():
        wanted = total
        if isinstance(to, Shard):
            wanted = total[2 * rank : 2 * rank + 2] if to.dim == 0 else total[:, 2 * rank : 2 * rank + 2]
        assert np.array_equal(local, wanted)
        assert np.array_equal(full, total)
        needed = COLLECTIVE.get((type(have).__name__, type(to).__name__)) if have != to else None
        assert needed is None or needed in names


def test_a_product_over_a_sharded_inner_axis_is_a_sum_that_is_still_to_be_taken(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
        x = dt.distribute_tensor(torch.from_numpy(array(3, 4)), mesh)
        up = dt.distribute_tensor(torch.from_numpy(array(4, 6)), mesh, [dt.Shard(1)])
        down = dt.distribute_tensor(torch.from_numpy(array(6, 2)), mesh, [dt.Shard(0)])
        hidden = torch.relu(x @ up)
        y = hidden @ down
        return [
            hidden.placements,
            y.placements,
            (y + y).placements,
            y.sum(0).placements,
            y.relu().full_tensor().numpy(),
        ]

    wanted = np.maximum(np.maximum(array(3, 4) @ array(4, 6), 0) @ array(6, 2), 0)
    for hidden, y, twice, summed, out in tray.spawn(worker, nprocs=2).values():
        assert [hidden, y, twice, summed] == [(Shard(1),), (Partial(),), (Partial(),), (Partial(),)]
        assert np.allclose(out, wanted)


@pytest.mark.needs("addresses", reason="a tensor is copied to cubes that hold it in another way")
def test_a_grid_of_ranks_and_cubes(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2, 2), mesh_dim_names=("tp", "cube"))
        x = dt.distribute_tensor(torch.from_numpy(array(4, 6)), mesh, [dt.Shard(0), dt.Shard(1)])
        y = x.redistribute(placements=[dt.Replicate(), dt.Shard(0)])
        z = y.t() @ y  # over the axis that is split over cubes
        assert not z.placements[1].is_partial()
        assert np.array_equal(z.numpy(), array(4, 6).T @ array(4, 6))
        return [mesh.shape, mesh["tp"].size(), x.to_local().dp.cube, y.to_local().dp.cube, (y * 2).numpy()]

    for shape, size, before, after, twice in tray.spawn(worker, nprocs=2).values():
        assert (shape, size, before, after) == ((2, 2), 2, "column_wise", "row_wise")
        assert np.array_equal(twice, 2 * array(4, 6))


def test_what_does_not_fit_names_the_operation_and_both_placements(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        x = dt.distribute_tensor(torch.ones(4, 4), mesh, [dt.Shard(0)])
        with pytest.raises(DistributedTypeError, match=r"add: got mixed .* placed \[Shard\(0\)\]"):
            x + torch.ones(4, 4)
        with pytest.raises(DistributedError, match=r"distribute_tensor: Shard\(2\) of a tensor of 2 axes"):
            dt.distribute_tensor(torch.ones(4, 4), mesh, [dt.Shard(2)])
        with pytest.raises(DistributedError, match=r"2 placements \[Shard\(0\), Shard\(1\)\]"):
            x.redistribute(placements=[dt.Shard(0), dt.Shard(1)])
        with pytest.raises(DistributedError, match=r"from Shard\(0\) to Partial\('sum'\)"):
            x.redistribute(placements=[dt.Partial()])
        y = dt.distribute_tensor(torch.ones(5, 3), mesh, [dt.Shard(1)])
        says = r" of shapes \[4, 4\] and \[5, 3\], placed \[Shard\(0\)\] and \[Shard\(1\)\]"
        with pytest.raises(DistributedError, match="matmul" + says):
            x @ y
        with pytest.raises(DistributedError, match="add" + says):
            x + y
        with pytest.raises(DistributedError, match="in a world of 2"):
            torch.distributed.init_device_mesh("cuda", (4,))
        with pytest.raises(NotModelledError, match="to_local"):
            x.view(16)

    tray.spawn(worker, nprocs=2)


def test_addends_and_candidates_stay_only_through_operations_that_commute_with_their_reduction(tray: Tray) -> None:
    torch = tray.torch
    a, diagonal = array(4, 3) + 1, np.diag([5, 6, 7, 8]).astype(np.float32)

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        x = dt.distribute_tensor(torch.from_numpy(a), mesh, [dt.Shard(0)])
        d = dt.distribute_tensor(torch.from_numpy(diagonal), mesh, [dt.Shard(0)])
        ones = dt.ones(4, 1, device_mesh=mesh, dtype="f32")
        halved, scaled, inverse = x.sum(0) / 2, x.sum(0) * 2, 1.0 / x.sum(0)
        assert halved.placements == scaled.placements == (Partial(),)
        assert inverse.placements == (Replicate(),)
        results = [halved, scaled, inverse, d.amax(0).sum(), (-d).amin(0).mean(), d.amax(0, True) @ ones]
        return [each.numpy() for each in results]

    total = a.sum(0)
    wanted = [total / 2, total * 2, 1 / total, 26, -6.5, [[26]]]  # 5 + 6 + 7 + 8 = 26, the largest of each column
    for results in tray.spawn(worker, nprocs=2).values():
        assert all(np.allclose(found, each) for found, each in zip(results, wanted, strict=True))


def test_a_product_of_sums_over_different_dimensions_of_a_mesh() -> None:
    tray = Tray(4)
    torch = tray.torch
    a = np.arange(8, dtype=np.float32)

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2, 2))
        rows, columns = [dt.Shard(0), dt.Replicate()], [dt.Replicate(), dt.Shard(0)]
        x, y = (dt.distribute_tensor(torch.from_numpy(a), mesh, each).sum() for each in (rows, columns))
        return [(x * y).placements, (x * y).numpy(), (x + y).numpy()]

    for placements, product_, sum_ in tray.spawn(worker, nprocs=4).values():
        assert placements == (Partial(), Partial())
        assert (product_, sum_) == (28 * 28, 28 + 28)


def test_norms_are_over_the_last_axes_that_are_named(tray: Tray) -> None:
    torch = tray.torch
    a, weight, bias = array(2, 4, 3) + 1, array(4, 3) + 2, array(3)

    def worker(rank: int) -> list[Any]:
        dt, functional = torch.distributed.tensor, torch.nn.functional
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        x = dt.distribute_tensor(torch.from_numpy(a), mesh, [dt.Shard(1)])
        w = dt.distribute_tensor(torch.from_numpy(weight), mesh, [dt.Shard(0)])
        b = dt.distribute_tensor(torch.from_numpy(bias), mesh)
        with pytest.raises(TensorError, match=r"layer_norm over \[4\]"):
            functional.layer_norm(x, (4,))
        with pytest.raises(TensorError, match=r"rms_norm over \[2, 2, 4, 3\]"):
            functional.rms_norm(x, (2, 2, 4, 3))
        shifted, both = functional.layer_norm(x, (3,), bias=b), functional.rms_norm(x, (4, 3), w, eps=0.5)
        assert (shifted.placements, both.placements) == ((Shard(1),), (Replicate(),))
        return [shifted.numpy(), both.numpy()]

    layer = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5) + bias
    rms = a / np.sqrt((a * a).mean((1, 2), keepdims=True) + 0.5) * weight
    for shifted, both in tray.spawn(worker, nprocs=2).values():
        assert np.allclose(shifted, layer, atol=1e-5)
        assert np.allclose(both, rms, atol=1e-5)


def test_a_mask_is_filled_in_place_and_a_rank_without_elements_has_no_say_in_a_maximum(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        x = dt.distribute_tensor(torch.from_numpy(array(4, 3)), mesh, [dt.Shard(0)])
        assert x.masked_fill_(x > 0, -7.0) is x
        assert np.array_equal(x.numpy(), np.where(array(4, 3) > 0, -7, array(4, 3)))
        row = np.array([[-5, 3, -2]])  # one row: the second rank has none
        for dtype in (np.int32, np.float32):
            y = dt.distribute_tensor(torch.from_numpy(row.astype(dtype)), mesh, [dt.Shard(0)])
            assert (y.amax(0).tolist(), y.amin().item()) == ([-5, 3, -2], -5)
        assert (x.size(-1), x.size()) == (3, (4, 3))
        with pytest.raises(TensorIndexError, match="no axis 5 of 2"):
            x.size(5)

    tray.spawn(worker, nprocs=2)


@pytest.mark.needs("addresses", reason="a tensor is copied to cubes that hold it in another way")
def test_a_tensor_of_one_number_lies_on_the_cubes_as_it_says(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2, 2), mesh_dim_names=("tp", "cube"))
        made = [dt.full((4, 6), 3, device_mesh=mesh, placements=[dt.Shard(0), each]) for each in (Shard(0), Shard(1))]
        return [(x.to_local().dp.cube, x.to_local().dp.num_cubes, x.numpy().sum()) for x in made]

    for rows, columns in tray.spawn(worker, nprocs=2).values():
        assert (rows, columns) == (("row_wise", 2, 72), ("column_wise", 2, 72))  # 4 * 6 * 3 = 72


@pytest.mark.parametrize("stacks", [(4, 4), (1, 4)])
def test_stacks_of_matrices_are_split_alike_for_their_product(tray: Tray, stacks: tuple[int, int]) -> None:
    torch = tray.torch
    a, b = array(stacks[0], 2, 6), array(stacks[1], 6, 2)
    pairs = [(Shard(0), Replicate()), (Replicate(), Shard(0)), (Shard(1), Shard(1)), (Shard(2), Shard(2))]

    def worker(rank: int) -> None:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        for left, right in pairs:
            x = dt.distribute_tensor(torch.from_numpy(a), mesh, [left], src_data_rank=None)
            y = dt.distribute_tensor(torch.from_numpy(b), mesh, [right], src_data_rank=None)
            assert (x @ y).shape == (4, 2, 2)
            assert np.allclose((x @ y).numpy(), a @ b), (left, right)

    tray.spawn(worker, nprocs=2)


def test_axes_cut_by_both_dimensions_of_a_mesh_are_cut_in_the_order_of_dimensions() -> None:
    tray = Tray(4)
    torch = tray.torch
    pairs = [
        ((Shard(1), Shard(1)), (Shard(0), Shard(1))),  # the inner cut stays, and is still made again
        ((Shard(0), Shard(0)), (Replicate(), Shard(0))),
        ((Replicate(), Shard(0)), (Shard(0), Shard(0))),
        ((Shard(0), Shard(1)), (Shard(1), Shard(0))),
    ]

    def worker(rank: int) -> None:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2, 2))
        for have, to in pairs:
            x = dt.distribute_tensor(torch.from_numpy(array(4, 4)), mesh, have, src_data_rank=None)
            y = x.redistribute(placements=to)
            direct = dt.distribute_tensor(torch.from_numpy(array(4, 4)), mesh, to, src_data_rank=None)
            assert np.array_equal(y.to_local().numpy(), direct.to_local().numpy()), (have, to)

    tray.spawn(worker, nprocs=4)


def test_addends_are_made_and_not_redistributed_to_as_in_pytorch(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> list[Any]:
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        whole = torch.from_numpy(array(4, 4))
        x = dt.distribute_tensor(whole, mesh, [dt.Replicate()])
        with pytest.raises(RuntimeError, match=r"from Replicate\(\) to Partial\('sum'\) along dimension 0"):
            x.redistribute(placements=[dt.Partial()])
        halves = dt.distribute_tensor(whole, mesh, [dt.Partial()])
        assert halves.redistribute(placements=[dt.Partial()]).placements == (dt.Partial(),)
        largest = dt.distribute_tensor(whole, mesh, [dt.Partial("max")])
        threes = dt.full((3,), 3.0, device_mesh=mesh, placements=[dt.Partial()])
        return [each.numpy() for each in (halves.to_local(), halves.full_tensor(), largest.to_local())] + [
            threes.to_local().tolist(),
            threes.full_tensor().tolist(),
        ]

    for half, full, largest, threes, six in tray.spawn(worker, nprocs=2).values():
        assert np.array_equal(half, array(4, 4) / 2)
        assert np.array_equal(full, array(4, 4))
        assert np.array_equal(largest, array(4, 4))
        assert (threes, six) == ([3.0] * 3, [6.0] * 3)
