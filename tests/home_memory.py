"""A host program on two SIPs whose tensors lie in the memory that is their home, whichever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kernbench
from kernbench.common.commands import Space
from kernbench.policy.placement.dp import DPPolicy


def add_one(source: Any, target: Any, tl: Any) -> None:
    tl.store(target.local, tl.load(source.local, source.local_shape) + 1.0)


def program_in(space: Space) -> Callable[[Any], None]:
    """Parts of PEs, parts of cubes, a tensor with fewer rows than PEs, operators, and a sum over two SIPs; tensors must
    lie in `space`.
    """
    x = np.arange(16 * 256, dtype=np.float32).reshape(16, 256) / 1e3

    def program(torch: Any) -> None:
        def worker(rank: int) -> None:
            torch.distributed.init_process_group("ahbm")
            for rows, policy in (
                (16, DPPolicy(cube="row_wise", pe="row_wise")),
                (16, DPPolicy(cube="replicate", pe="column_wise")),
                (16, DPPolicy(cube="row_wise")),
                (1, DPPolicy(cube="replicate", pe="row_wise")),
            ):
                source = torch.from_numpy(x[:rows], dp=policy)
                target = torch.zeros(rows, 256, dtype="f32", dp=policy)
                assert (source.space, target.space) == (space, space)
                for _ in range(2):
                    torch.launch("add", kernbench.repeatable(add_one), source, target)
                np.testing.assert_array_equal(target.numpy(), x[:rows] + 1)
                np.testing.assert_array_equal(target.cpu(), x[:rows] + 1)
                np.testing.assert_array_equal((source + target).numpy(), x[:rows] + (x[:rows] + 1))
                torch.distributed.all_reduce(target)
                np.testing.assert_array_equal(target.numpy(), 2 * (x[:rows] + 1))

        torch.multiprocessing.spawn(worker, nprocs=2)

    return program
