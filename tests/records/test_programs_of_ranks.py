"""Host programs in the forms of records 0024 (a rank is a SIP) and 0027 (parallel layers), on two SIPs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
import kernbench.tp as tp
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology import TopologyGraph, load_topology


def tray() -> TopologyGraph:
    return load_topology(None, {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


def test_both_names_of_a_device_bind_a_rank_to_its_sip() -> None:
    placed: dict[int, set[int]] = {}

    def worker(rank: int, torch: Any) -> None:
        if rank:
            torch.ahbm.set_device(rank)
        else:
            torch.accelerator.set_device_index(rank)
        assert torch.distributed.get_rank() == rank == torch.accelerator.current_device_index()
        x = torch.zeros((4, 8), dtype="f16", dp=DPPolicy(cube="row_wise", pe="replicate"), name="x")
        placed[rank] = {shard.sip for shard in x.placement}

    def run(torch: Any) -> None:
        torch.distributed.init_process_group(backend="ahbm", world_size=2, rank=0)
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.distributed.get_world_size())

    kernbench.run(run, tray(), device="whole")
    assert placed == {0: {0}, 1: {1}}


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_a_two_layer_mlp_without_a_context_in_its_arguments(capsys: Any) -> None:
    """Its worker has a parameter `torch` that `spawn` is given no argument for."""

    def worker(rank: int, world_size: int, torch: Any) -> None:
        torch.ahbm.set_device(rank)
        tp.initialize_model_parallel(world_size)
        batch, d_in, d_hidden, d_out = 1, 64, 128, 64
        fc1 = tp.ColumnParallelLinear(d_in, d_hidden, torch=torch)
        fc2 = tp.RowParallelLinear(d_hidden, d_out, torch=torch)
        x = torch.zeros((batch, d_in), dtype="f16", dp=DPPolicy(cube="replicate", pe="replicate"), name="x")
        x.copy_(torch.from_numpy(np.full((batch, d_in), 0.1, dtype=np.float16)))
        h = fc1.forward(x)
        y = fc2.forward(h)
        if rank == 0:
            result = y.numpy()
            print(f" tp_mlp: shape={result.shape}, mean={float(result.mean()):.4f}")

    def run(torch: Any) -> None:
        torch.distributed.init_process_group(backend="ahbm")
        ws = torch.distributed.get_world_size()
        torch.multiprocessing.spawn(worker, args=(ws,), nprocs=ws)

    kernbench.run(run, tray())  # which drives the whole tray, since it spawns
    assert "tp_mlp: shape=(1, 64), mean=0.0000" in capsys.readouterr().out
