"""Programs of several ranks (`rank_programs.py`, `dtensor_programs.py`, `user_programs.py`, `training_programs.py`):
gloo and ours give equal numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.frontends import dtensor_programs, rank_programs, training_programs, user_programs
from tests.frontends.gloo_programs import Program, plain, run_on_gloo

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

PROGRAMS = {
    world: (*rank_programs.PROGRAMS[world], *dtensor_programs.PROGRAMS.get(world, ()))
    for world in rank_programs.PROGRAMS
}
PROGRAMS[4] += user_programs.PROGRAMS + training_programs.PROGRAMS
CASES = [(world, program) for world, programs in PROGRAMS.items() for program in programs]


@cache
def machine(world: int) -> TopologyGraph:
    return load_topology(None, {"system.sips.count": world, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})


@cache
def wanted(world: int) -> dict[str, list[Any]]:
    return run_on_gloo(PROGRAMS[world], world)


def check_equal(found: Any, reference: Any, where: str) -> None:
    if isinstance(reference, list):
        assert len(found) == len(reference), where
        for at, (one, other) in enumerate(zip(found, reference, strict=True)):
            check_equal(one, other, f"{where}[{at}]")
    elif isinstance(reference, np.ndarray):
        assert (found.dtype, found.shape) == (reference.dtype, reference.shape), where
        loose = reference.dtype == np.float16
        np.testing.assert_allclose(found, reference, rtol=1e-2 if loose else 1e-5, atol=1e-5, err_msg=where)
    else:
        assert found == reference, where


def test_there_are_enough_programs() -> None:
    assert len({program.__name__ for _, program in CASES}) >= 50  # and those of tensor_programs.py
    for program in (rank_programs.megatron_mappings, rank_programs.megatron_mlp):
        assert [world for world in (2, 4, 8) if program in PROGRAMS[world]] == [2, 4, 8]


@pytest.mark.parametrize(("world", "program"), CASES, ids=[f"{p.__name__}-{world}" for world, p in CASES])
def test_the_same_program_gives_the_same_numbers_on_every_rank(world: int, program: Program) -> None:
    found: dict[int, Any] = {}

    def body(rank: int) -> None:
        found[rank] = plain(program(torch, rank, world))

    with RuntimeContext(GraphEngine(machine(world))) as torch:
        torch.set_default_dtype(torch.float32)
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(body, nprocs=world)
    for rank in range(world):
        check_equal(found[rank], wanted(world)[program.__name__][rank], f"{program.__name__} on rank {rank}")
