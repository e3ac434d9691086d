"""Programs on tensors (`tensor_programs.py`): PyTorch's results and ours are equal, however tensors are placed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch as pytorch
from tests.frontends.tensor_programs import PROGRAMS

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

PLACEMENTS = {
    "one PE": None,
    "rows": DPPolicy(pe="row_wise", num_cubes=1, num_pes=4),
    "rows and columns": DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2, num_pes=2),
    "replicas": DPPolicy(num_cubes=2, num_pes=2),
}


@cache
def machine() -> TopologyGraph:
    return load_topology(None, {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


def plain(result: Any) -> Any:
    """Tensors as arrays, in lists as they are."""
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    return np.array(result.numpy()) if hasattr(result, "numpy") else result


@cache
def wanted(name: str) -> Any:
    pytorch.set_default_dtype(pytorch.float32)
    return plain(PROGRAMS[name](pytorch, lambda array: pytorch.from_numpy(array.copy())))


def check_equal(found: Any, reference: Any, where: str) -> None:
    if isinstance(reference, list):
        assert len(found) == len(reference), where
        for at, (one, other) in enumerate(zip(found, reference, strict=True)):
            check_equal(one, other, f"{where}[{at}]")
    elif isinstance(reference, np.ndarray):
        assert found.dtype == reference.dtype, where
        loose = reference.dtype == np.float16
        np.testing.assert_allclose(found, reference, rtol=2e-3 if loose else 1e-5, atol=1e-6, err_msg=where)
    else:
        assert found == reference, where


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_gives_the_same_numbers(name: str, placement: str) -> None:
    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.set_default_dtype(torch.float32)
        found = plain(PROGRAMS[name](torch, lambda array: torch.from_numpy(array, dp=PLACEMENTS[placement])))
    check_equal(found, wanted(name), name)
