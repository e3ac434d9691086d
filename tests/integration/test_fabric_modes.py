"""Random kernels take the same time, op by op, whether the fabric uses trains or moves every flit."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.sim_engine.op_log import OpLog

SIZES = [32, 64, 96, 100]  # the last fills neither flits nor rounds of channels


def program(seed: int) -> tuple[Any, dict[str, object]]:
    """A bench of loads, stores, products of own and shared matrices and pauses, PEs in step or each its own way."""
    rng = random.Random(seed)
    size, in_step = rng.choice(SIZES), rng.random() < 0.4
    cubes, pes = rng.choice([1, 1, 2]), rng.choice([1, 2, 8])

    def kernel(a: Any, b: Any, c: Any, shared: Any, tl: Any) -> None:
        own = random.Random(seed if in_step else 100 * seed + 8 * tl.program_id(1) + tl.program_id(0))
        for _ in range(own.randint(2, 6)):
            what = own.random()
            if what < 0.3:
                tl.load(own.choice([a, b]).local, a.local_shape)
            elif what < 0.6:
                left, right = tl.ref(a.local, a.local_shape), tl.ref(shared, shared.shape)
                tl.composite("gemm", left, right, out_ptr=c.local)
            elif what < 0.75:
                tl.store(b.local, tl.load(b.local, b.local_shape) * 0.5)
            elif what < 0.85:
                tl.cycles(own.randint(1, 200))
            else:
                tl.wait()

    def bench(torch: Any) -> None:
        dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
        a, b, c = (torch.zeros(cubes * pes * size, size, dp=dp) for _ in range(3))
        torch.launch(
            "kernel", kernel, a, b, c, torch.zeros(size, size), target_cubes=range(cubes), target_pes=range(pes)
        )

    return bench, {"cube.pe_template.components.pe_dma.attrs.outstanding": rng.choice([1, 1, 2, 4])}


@pytest.mark.parametrize("seed", range(12))
def test_a_random_kernel_has_the_same_op_log_in_both_modes(seed: int) -> None:
    kept = []
    for mode in ("adaptive", "flits"):
        bench, overrides = program(seed)
        log = OpLog()
        result = kernbench.run(
            bench, overrides={"system.sips.count": 1, **overrides}, device=0, op_log=log, mode=mode, data=False
        )
        kept.append((result.total_ns, list(log.items())))
    assert kept[0][1]
    assert kept[0] == kept[1]
