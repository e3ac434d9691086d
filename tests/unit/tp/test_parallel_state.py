"""Which ranks form a group, whose state it is, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.tp.numpy_ranks import NumpyDistributed, machine, run_ranks

from kernbench import tp
from kernbench.common.errors import SpawnException, UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.tp.parallel_state import data_parallel_ranks, tensor_parallel_ranks


def test_consecutive_ranks_share_a_model() -> None:
    """World 8, TP 4, DP 2: as Megatron's documentation draws it."""
    assert tensor_parallel_ranks(8, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert data_parallel_ranks(8, 4) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert tensor_parallel_ranks(4, 1) == [(0,), (1,), (2,), (3,)]
    assert data_parallel_ranks(4, 1) == [(0, 1, 2, 3)]


def test_each_rank_knows_its_place_in_both_groups() -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(2, torch=torch)
        assert tp.get_tensor_model_parallel_world_size() == tp.get_data_parallel_world_size() == 2
        assert tp.get_tensor_model_parallel_group(torch) == ((0, 1), (2, 3))[rank // 2]
        assert tp.get_data_parallel_group() == ((0, 2), (1, 3))[rank % 2]
        return tp.get_tensor_model_parallel_rank(), tp.get_data_parallel_rank()

    assert run_ranks(4, body) == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_groups_reduce_apart_from_each_other() -> None:
    """Ranks 0 and 1 sum 1 + 2, ranks 2 and 3 sum 3 + 4."""

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(2, torch=torch)
        x = torch.full((2, 4), rank + 1, dp=tp.Grid.of(torch).rows)
        assert tp.reduce_from_tp_region(x, torch) is x
        return float(x.numpy()[1, 3])

    assert run_ranks(4, body) == [3, 3, 7, 7]


def test_without_a_size_all_ranks_share_the_model_and_a_rank_that_ends_leaves_nothing() -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        assert not tp.model_parallel_is_initialized()
        tp.initialize_model_parallel(torch=torch)
        assert tp.model_parallel_is_initialized(torch)
        return tp.get_tensor_model_parallel_world_size(torch)

    assert run_ranks(2, body) == run_ranks(2, body) == [2, 2]
    assert not tp.model_parallel_is_initialized()


@pytest.mark.parametrize("size", [0, 3, 8, True, 2.0])
def test_a_size_that_does_not_divide_the_world_is_refused(size: int) -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        return tp.initialize_model_parallel(size, torch=torch)

    with pytest.raises(UsageError, match="the world has 4 ranks") as error:
        run_ranks(4, body)
    assert error.value.hint == "use one of 1, 2, 4"


def test_several_contexts_in_one_program_keep_their_own_groups() -> None:
    """Two simulations side by side: the latest is meant where a call names none."""
    with RuntimeContext(GraphEngine(machine(1))) as one, RuntimeContext(GraphEngine(machine(1))) as other:
        for torch in (one, other):
            torch.distributed = NumpyDistributed(torch, 1)  # type: ignore[assignment]  # has what layers need of it
            state = tp.initialize_model_parallel(torch=torch)
            assert tp.parallel_state.model_parallel() is state
        with pytest.raises(UsageError, match="initialised already"):
            tp.initialize_model_parallel(torch=one)
        assert tp.parallel_state.model_parallel(one).torch is one
        tp.destroy_model_parallel(other)
        assert tp.parallel_state.model_parallel().torch is one
        tp.destroy_model_parallel()
        tp.destroy_model_parallel()
        with pytest.raises(UsageError, match="not initialised"):
            tp.get_tensor_model_parallel_rank(one)
        assert tp.initialize_model_parallel(1).torch is other
        tp.destroy_model_parallel()
    with pytest.raises(UsageError, match=r"no (torch|process group)"):  # contexts of other tests may be open
        tp.initialize_model_parallel(1)


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.parametrize("world", [1, 2, 4])
def test_region_functions_take_apart_and_put_together(world: int) -> None:
    x = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        held = torch.from_numpy(x, dp=tp.Grid.of(torch).rows)
        assert tp.copy_to_tp_region(held) is held
        columns, rows = tp.scatter_to_tp_region(held), tp.scatter_to_sequence_parallel_region(held)
        assert (columns.numpy() == np.split(x, world, axis=1)[rank]).all()
        assert (rows.numpy() == np.split(x, world)[rank]).all()
        assert (tp.gather_from_tp_region(columns).numpy() == x).all()
        assert (tp.gather_from_sequence_parallel_region(rows).numpy() == x).all()
        share = tp.reduce_scatter_to_sequence_parallel_region(held)
        assert (share.numpy() == np.split(world * x, world)[rank]).all()
        return None

    run_ranks(world, body, check_races=True)


def test_an_uneven_scatter_is_refused() -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        return tp.scatter_to_tp_region(torch.zeros(4, 3))

    with pytest.raises(UsageError, match="columns is 3, which 2 ranks"):
        run_ranks(2, body)


def test_physical_addresses_are_refused() -> None:
    graph = load_topology(None, {"system.sips.count": 1, "system.address_model": "pa"})
    with (
        RuntimeContext(GraphEngine(graph)) as torch,
        pytest.raises(UsageError, match="need virtual or logical addresses"),
    ):
        tp.Grid.of(torch)


def test_a_refusal_within_a_spawned_rank_names_the_line_that_called() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        tp.initialize_model_parallel(3, torch=torch)

    with RuntimeContext(GraphEngine(machine(2))) as torch:
        torch.distributed.init_process_group("ahbm")
        with pytest.raises(SpawnException) as caught:
            torch.multiprocessing.spawn(worker, (torch,), nprocs=2)
    line = worker.__code__.co_firstlineno + 1
    assert f"where: {__file__}:{line}  tp.initialize_model_parallel(3, torch=torch)" in str(caught.value)
