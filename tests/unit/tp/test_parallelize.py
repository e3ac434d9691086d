"""parallelize_module on the layers of kernbench.tp: the same numbers as the layers that every rank has whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tensor_programs import array

from kernbench.common.errors import KernBenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.tp import LayerNorm, Linear, RowParallelLinear, initialize_model_parallel

SMALL = {"system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


class Block:
    """norm, up, gelu, down."""

    def __init__(self, torch: RuntimeContext) -> None:
        given = {"torch": torch, "dtype": "f32"}
        self.norm = LayerNorm(8, **given)
        self.up = Linear(8, 16, init=array(8, 16) / 4, activation="gelu", bias=True, bias_init=array(16), **given)
        self.down: Any = Linear(16, 8, init=array(16, 8) / 4, **given)

    def __call__(self, x: Any) -> Any:
        return self.down(self.up(self.norm(x)))


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.parametrize("by_tokens", [False, True])
def test_a_parallel_block_gives_the_numbers_of_the_whole_one(by_tokens: bool) -> None:
    found: dict[int, list[Any]] = {}

    def worker(rank: int) -> None:
        initialize_model_parallel(torch=torch)
        parallel = torch.distributed.tensor.parallel
        dt = torch.distributed.tensor
        mesh = torch.distributed.init_device_mesh("cuda", (2,))
        x = torch.from_numpy(array(4, 8), dp=None)
        whole = Block(torch)(x)
        block = Block(torch)
        split = dt.Shard(0) if by_tokens else None
        plan = {
            "norm": parallel.SequenceParallel(),
            "up": parallel.ColwiseParallel(input_layouts=split),
            "down": parallel.RowwiseParallel(output_layouts=split),
        }
        parallel.parallelize_module(block, mesh, plan)
        assert isinstance(block.down, RowParallelLinear)
        y = block(x.chunk(2)[rank].clone() if by_tokens else x)
        found[rank] = [whole.numpy(), y.numpy()]
        with pytest.raises(KernBenchError, match="a norm and ColwiseParallel"):
            parallel.parallelize_module(block, mesh, {"norm": parallel.ColwiseParallel()})

    with RuntimeContext(GraphEngine(load_topology(None, SMALL))) as torch:
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(worker, nprocs=2)
    for rank, (whole, y) in found.items():
        assert np.allclose(y, whole[2 * rank : 2 * rank + 2] if by_tokens else whole, rtol=1e-4, atol=1e-5)
