"""A PE's TCM has one owner: what the host allocates there and what a kernel's tensors take never share a byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import AllocationError, KernelError, LaunchError
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

KIB = 1024
HERE = (0, 0, 0)  # a PE


@cache
def machine() -> TopologyGraph:
    """One PE per corner, with 2 MiB of TCM each, of which kernels and host share one."""
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": 1,
        },
    )


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine())) as made:
        yield made


def on_one_pe(torch: RuntimeContext, kernel: Any, **options: Any) -> Any:
    return torch.launch("k", kernel, target_cubes=0, target_pes=0, **options)


@given(st.lists(st.tuples(st.integers(1, 300 * KIB), st.booleans()), max_size=6), st.integers(KIB, 64 * KIB))
@settings(max_examples=15, deadline=None)
def test_allocations_and_a_kernels_tensors_never_share_a_byte(wanted: list[tuple[int, bool]], block: int) -> None:
    with RuntimeContext(GraphEngine(machine())) as torch:
        taken: list[tuple[int, int]] = []  # start and end
        for nbytes, stays in wanted:
            try:
                address = torch.memory.alloc_tcm(*HERE, nbytes)
            except AllocationError:
                continue
            taken.append((address.raw, address.raw + nbytes))
            if not stays:  # leaves a hole before what comes next
                hole, _ = taken.pop()
                keep = torch.memory.alloc_tcm(*HERE, 1) if nbytes < 200 * KIB else None
                torch.memory.free_tcm(PhysAddr(hole), nbytes)
                taken += [(keep.raw, keep.raw + 1)] if keep is not None else []

        def kernel(tl: Any) -> None:
            held = []
            with suppress(KernelError):  # until there is no room
                while True:
                    held.append(tl.zeros((block,), "i8"))
            taken.extend((x.address, x.address + block) for x in held)

        on_one_pe(torch, kernel)
        ordered = sorted(taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(ordered))


def test_an_overflow_counts_only_what_the_host_has_left(torch: RuntimeContext) -> None:
    torch.memory.alloc_tcm(*HERE, 1000 * KIB)
    left = 1024 * KIB - 1000 * KIB
    with pytest.raises(LaunchError, match=f"{left} free of {left}, the largest block {left}"):
        on_one_pe(torch, lambda tl: tl.zeros((25 * KIB,), "i8"))
    on_one_pe(torch, lambda tl: tl.zeros((24 * KIB,), "i8"))


def test_a_kernel_gets_the_largest_free_block(torch: RuntimeContext) -> None:
    low = torch.memory.alloc_tcm(*HERE, 100 * KIB)
    torch.memory.alloc_tcm(*HERE, 10 * KIB)
    torch.memory.free_tcm(low, 100 * KIB)
    addresses: list[int] = []
    on_one_pe(torch, lambda tl: addresses.append(tl.zeros(((1024 - 110) * KIB,), "i8").address))
    assert addresses == [PhysAddr.pe_tcm_addr(*HERE, 110 * KIB).raw]


def test_a_tcm_that_is_all_taken_leaves_a_kernel_nothing_until_it_is_freed(torch: RuntimeContext) -> None:
    everything = torch.memory.alloc_tcm(*HERE, 1024 * KIB)
    with pytest.raises(LaunchError, match="0 free of 0"):
        on_one_pe(torch, lambda tl: tl.zeros((1,), "i8"))
    torch.memory.free_tcm(everything, 1024 * KIB)
    assert on_one_pe(torch, lambda tl: tl.zeros((1024 * KIB,), "i8")).pes[0].tcm_peak_bytes == 1024 * KIB


def test_nothing_is_handed_out_under_a_kernel_that_runs(torch: RuntimeContext) -> None:
    launch = on_one_pe(torch, lambda tl: tl.cycles(1000), wait=False)
    torch.launch("other", lambda tl: tl.cycles(1), target_cubes=0, target_pes=1)  # lets the first begin
    with pytest.raises(AllocationError, match="64 bytes required, but a kernel is running") as caught:
        torch.memory.alloc_tcm(*HERE, 64)
    assert "before the launch" in str(caught.value.hint)
    torch.wait(launch)
    assert torch.memory.alloc_tcm(*HERE, 64) == PhysAddr.pe_tcm_addr(*HERE, 0)


def test_a_kernel_that_fails_or_is_stopped_gives_its_tcm_back(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        held = tl.zeros((100,), "i8")
        if tl.program_id(0) == 0:
            raise ValueError("no good")
        tl.cycles(10**5)
        del held

    with pytest.raises(LaunchError, match="no good"):
        torch.launch("k", kernel, target_cubes=0, target_pes=(0, 1))
    torch.wait_all()
    for pe in (0, 1):
        assert torch.memory.alloc_tcm(0, 0, pe, 1024 * KIB) == PhysAddr.pe_tcm_addr(0, 0, pe, 0)


@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_two_hosts_of_one_machine_share_its_memories(model: str) -> None:
    engine = GraphEngine(load_topology(machine().spec, {"system.address_model": model}))
    first, second = RuntimeContext(engine), RuntimeContext(engine)
    x, y = first.zeros(64), second.zeros(64)
    assert x.shards[0].pa != y.shards[0].pa
    assert model != "la" or x.la_base != y.la_base  # a PE has one table of segments
    first.close()
    second.close()
