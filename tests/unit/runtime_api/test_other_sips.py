"""Tensors of one SIP in kernels of another: mapped when first passed, reached over the tray, unmapped when freed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import AddressError, KernBenchError
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

COUNTING = np.arange(64, dtype=np.float16)
ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2, num_pes=4)


@cache
def machine(model: str) -> TopologyGraph:
    """Two SIPs of two cubes with 8 PEs each."""
    return load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.address_model": model})


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine("va"))) as made:
        yield made


def copy(x: Any, y: Any, tl: Any) -> None:
    tl.store(y, tl.load(x, x.shape))


def on_sip(torch: RuntimeContext, sip: int, array: Any = COUNTING, dp: DPPolicy | None = None) -> Tensor:
    torch.ahbm.set_device(sip)
    return torch.from_numpy(array, dp=dp)


def launched(torch: RuntimeContext, source: Tensor, out: Tensor) -> Launch:
    """The copy on PE 0 of cube 0 of SIP 0."""
    return torch.launch("copy", copy, source, out, sips=0, target_cubes=0, target_pes=0)


def pieces(torch: RuntimeContext, sip: int, va: int, nbytes: int) -> list[tuple[int, int]]:
    mmu = torch.engine.component(f"sip{sip}.cube0.pe0.pe_mmu")
    assert isinstance(mmu, PeMmuComponent)
    return mmu.translate(va, nbytes)


@pytest.mark.parametrize("model", ["va", "pa"])
def test_a_kernel_reads_and_writes_tensors_of_another_sip(model: str) -> None:
    with RuntimeContext(GraphEngine(machine(model))) as torch:
        near, far = on_sip(torch, 0), on_sip(torch, 1, COUNTING + 100)
        near_out, far_out = on_sip(torch, 0, 0 * COUNTING), on_sip(torch, 1, 0 * COUNTING)
        local = launched(torch, near, near_out)
        assert (near_out.numpy() == COUNTING).all()
        read = launched(torch, far, near_out)
        assert (near_out.numpy() == COUNTING + 100).all()
        write = launched(torch, near, far_out)
        assert (far_out.numpy() == COUNTING).all()
        assert [(pe.sip, pe.cube, pe.pe) for pe in read.pes] == [(0, 0, 0)]
        # Either way passes two PCIe endpoints (5 ns each) and the switch (5 ns), there and back.
        assert read.pe_exec_ns_max > local.pe_exec_ns_max + 2 * 15
        assert write.pe_exec_ns_max > local.pe_exec_ns_max + 2 * 15


def test_both_address_models_reach_another_sip_in_the_same_time() -> None:
    times = []
    for model in ("va", "pa"):
        with RuntimeContext(GraphEngine(machine(model))) as torch:
            times.append(launched(torch, on_sip(torch, 1), on_sip(torch, 0)).pe_exec_ns_max)
    assert times[0] == times[1]  # a translation takes 0 ns by default


def test_the_shards_of_another_sip_are_found_over_all_its_pes(torch: RuntimeContext) -> None:
    source, out = on_sip(torch, 1, COUNTING, ROWS), on_sip(torch, 0, 0 * COUNTING)
    assert len(source.shards) == 8
    launched(torch, source, out)
    assert (out.numpy() == COUNTING).all()


def test_a_launch_maps_a_far_tensor_once_and_that_takes_time(torch: RuntimeContext) -> None:
    source, out = on_sip(torch, 1), on_sip(torch, 0)
    before, requests = torch.now_ns, torch.requests
    first = launched(torch, source, out)
    assert torch.requests == requests + 2  # the mapping and the launch
    assert first.start_ns > before
    again = torch.now_ns
    second = launched(torch, source, out)
    assert torch.requests == requests + 3
    assert second.start_ns == again
    assert second.pe_exec_ns_max == first.pe_exec_ns_max


def test_tensors_of_two_sips_are_known_to_both_halves_of_a_launch(torch: RuntimeContext) -> None:
    def swap(x: Any, y: Any, tl: Any) -> None:
        mine, other = (x, y) if tl.program_id(2) == 0 else (y, x)
        seen = tl.load(other)
        tl.cycles(10_000)  # the other half has read by then
        tl.store(mine, seen)

    x, y = on_sip(torch, 0), on_sip(torch, 1, COUNTING + 100)
    torch.launch("swap", swap, x, y)
    assert (x.numpy() == COUNTING + 100).all()
    assert (y.numpy() == COUNTING).all()


def test_a_freed_tensor_is_unmapped_on_every_sip_that_knew_it(torch: RuntimeContext) -> None:
    source, out = on_sip(torch, 1), on_sip(torch, 0)
    launched(torch, source, out)
    va, shard = source.va_base, source.shards[0]
    assert va is not None
    for sip in (0, 1):
        assert pieces(torch, sip, va, 128) == [(shard.pa, 128)]
    requests = torch.requests
    del source
    torch.launch("idle", lambda tl: None)  # the next call frees it
    assert torch.requests == requests + 3  # two unmaps and the launch
    torch.wait_all()
    for sip in (0, 1):
        with pytest.raises(AddressError, match="not mapped"):
            pieces(torch, sip, va, 128)


def test_a_place_that_does_not_exist_is_refused_and_leaves_nothing_to_unmap(torch: RuntimeContext) -> None:
    source = on_sip(torch, 1)
    wrongs: list[dict[str, Any]] = [{"sips": 7}, {"target_cubes": 99}]
    for wrong in wrongs:
        with pytest.raises(KernBenchError):
            torch.launch("copy", copy, source, source, **wrong)
    torch.close()
