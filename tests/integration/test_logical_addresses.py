"""Logical addresses: segments in the tables of PEs' DMA engines instead of MMUs, and the faults of accesses to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.baaw import BaawSegment
from kernbench.common.errors import AddressError, AllocationError, LaunchError
from kernbench.common.messages import BaawSegmentInstallMsg, BaawSegmentRemoveMsg
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.policy.address.baaw import BaawTable
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.triton_emu.repeatable import repeatable

SMALL = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.sips.count": 1, "system.address_model": "la"}
LA_BASE = 0x1_0000_0000
ROWS = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)


def context(**machine: Any) -> RuntimeContext:
    return RuntimeContext(GraphEngine(load_topology(None, SMALL | machine)))


def table_of(torch: RuntimeContext, cube: int = 0, pe: int = 0) -> BaawTable:
    dma = torch.engine.component(f"sip0.cube{cube}.pe{pe}.pe_dma")
    assert isinstance(dma, PeDmaComponent)
    assert dma.baaw is not None
    return dma.baaw


def copied(x: Any, out: Any, tl: Any) -> None:
    tl.store(out.local, tl.load(x.local, x.local_shape))


def test_a_machine_with_logical_addresses_has_no_mmu() -> None:
    nodes = load_topology(None, SMALL).nodes
    assert "sip0.cube0.pe0.pe_dma" in nodes
    assert not [node for node in nodes if node.endswith("pe_mmu")]


def test_tensors_lie_one_after_the_other_from_4_gib_on() -> None:
    with context() as torch:
        x, y = torch.zeros(100, dtype="i8"), torch.zeros(100, dtype="i8")
        assert (x.la_base, y.la_base) == (LA_BASE, LA_BASE + 256)
        assert "la 0x100000000" in repr(x)
    with context(**{"system.address_model": "va"}) as torch:
        assert torch.zeros(4).la_base is None


def test_an_allocation_installs_a_segment_for_each_part_and_a_free_removes_it() -> None:
    with context() as torch:
        x = torch.zeros(8, 64, dtype="i8", dp=ROWS)
        segments = table_of(torch, pe=3).segments
        assert [(s.la_base - LA_BASE, s.la_size, s.agg_node_id) for s in segments] == [
            (pe * 128, 128, f"sip0.cube0.hbm_ctrl.pe{pe}") for pe in range(4)
        ]
        assert [s.agg_pa_base for s in segments] == [shard.pa for shard in x.shards]
        before = torch.now_ns
        del x
        y = torch.zeros(64, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
        assert torch.now_ns > before
        assert [(s.la_base, s.la_size) for s in table_of(torch, pe=3).segments] == [(LA_BASE, 64)]
        assert y.la_base == LA_BASE


def test_a_segment_reaches_a_table_as_a_mapping_reaches_an_mmu() -> None:
    """Control messages to every PE of the cubes, over the same routers: the times are equal."""
    times = []
    for model in ("va", "la"):
        with context(**{"system.address_model": model}) as torch:
            torch.empty(64, dtype="i8", dp=ROWS)
            times.append(torch.now_ns)
    assert times[0] == times[1] > 0


def test_one_address_is_another_replica_for_another_pe() -> None:
    with context() as torch:
        x = torch.zeros(64, dtype="i8", dp=DPPolicy(num_cubes=2, num_pes=8))
        assert x.la_base is not None
        places = [table_of(torch, cube, pe).translate(x.la_base, 64) for cube in range(2) for pe in range(8)]
        assert places == [[(shard.pa, 64)] for shard in x.shards]
        assert len({pa for ((pa, _),) in places}) == 16


def test_a_segment_of_a_split_slice_names_channels_and_their_routers() -> None:
    """4 KiB on 8 channels: 512 B each, from consecutive bursts on."""
    with context(**{"cube.memory_map.hbm_mapping_mode": "one_to_one"}) as torch:
        x = torch.zeros(4096, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
        (segment,) = table_of(torch).segments
        pa = x.shards[0].pa
        assert (segment.mode, segment.channel_count, segment.channel_size) == ("one_to_one", 8, 512)
        assert (segment.channel_ids, segment.pa_bases) == (tuple(range(8)), tuple(pa + 256 * ch for ch in range(8)))
        requests = table_of(torch).resolve(LA_BASE, 4096)
        assert [(r.pa, r.nbytes, r.dst_node) for r in requests] == [
            (pa + 256 * ch, 512, f"sip0.cube0.pe0.ch_r{ch}") for ch in range(8)
        ]


def test_kernels_read_and_write_own_parts_parts_of_others_and_sram() -> None:
    def moved(x: Any, shared: Any, out: Any, tl: Any) -> None:
        pe, part = tl.program_id(0), 2 * 64
        tl.store(shared + 64 * pe, tl.load(x + part * ((pe + 1) % 4), (64,), "i8"))
        tl.store(out.local, tl.load(shared + 64 * pe, (64,), "i8") + 1)

    with context() as torch:
        x = torch.zeros(8, 64, dtype="i8", dp=ROWS)
        shared = torch.empty(256, dtype="i8", dp=DPPolicy(num_cubes=1), space="sram")
        out = torch.empty(4, 64, dtype="i8", dp=ROWS)
        torch.launch("moved", moved, x, shared, out)
        assert (out.numpy() == 1).all()


def test_an_access_across_the_end_of_a_segment_is_an_error_at_the_line_of_the_kernel() -> None:
    def crosses(x: Any, tl: Any) -> None:
        tl.load(x + 100, (64,), "i8")  # parts have 128 bytes

    with context() as torch:
        x = torch.zeros(8, 64, dtype="i8", dp=ROWS)
        with pytest.raises(LaunchError, match=r"64 bytes at logical address 0x100000064 cross the end") as raised:
            torch.launch("crosses", crosses, x)
        assert "tl.load(x + 100, (64,)" in str(raised.value.where)
        assert "x.local" in str(raised.value.hint)


def test_an_access_that_spans_parts_by_its_nature_has_a_run_in_each() -> None:
    """Parts of 128 bytes: what is counted from `storage` or `across`, or names rows or lanes, is placed by part."""

    def gathers(x: Any, out: Any, tl: Any) -> None:
        tl.store(out, tl.load(x.storage + 100, (64,)))
        tl.store(out + 64, tl.load(x, rows=[1, 2]))
        tl.store(out + 192, tl.load(x + 100, (64,), mask=tl.arange(0, 64) < 40, other=0))
        tl.store(x.storage + 60, tl.load(x.across + 220, (200,)))
        tl.store(x.across.local, tl.load(x.local, (8,)))  # it differs from the pointer of the part in `across` alone

    def column(x: Any, out: Any, tl: Any) -> None:
        tl.store(out, tl.load(x, (1, 64)))  # its columns are split: 16 on each PE

    values = np.arange(8 * 64).reshape(8, 64).astype(np.int8)
    with context() as torch:
        x, out = torch.from_numpy(values, dp=ROWS), torch.zeros(256, dtype="i8")
        torch.launch("gathers", gathers, x, out, target_pes=[0])
        flat, masked = values.reshape(-1), np.where(np.arange(64) < 40, values.reshape(-1)[100:164], 0)
        expected = np.concatenate([flat[100:164], values[1], values[2], masked])
        np.testing.assert_array_equal(out.numpy(), expected)
        after = flat.copy()
        after[60:260] = flat[220:420]
        np.testing.assert_array_equal(x.numpy().reshape(-1), after)
        split = torch.from_numpy(values[:1], dp=DPPolicy(pe="column_wise", num_cubes=1, num_pes=4))
        wide = torch.zeros(1, 64, dtype="i8")
        torch.launch("column", column, split, wide, target_pes=[0])
        np.testing.assert_array_equal(wide.numpy(), values[:1])


def test_an_access_without_a_segment_is_an_error_at_the_line_of_the_kernel() -> None:
    def reads(x: Any, tl: Any) -> None:
        tl.load(x, (64,), "i8")

    with context() as torch:
        x = torch.zeros(64, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
        torch.engine.wait(torch.engine.submit(BaawSegmentRemoveMsg(sip=0, la_base=LA_BASE, la_size=64)))
        with pytest.raises(LaunchError, match="0x100000000 is in no segment of this PE") as raised:
            torch.launch("reads", reads, x)
        assert 'tl.load(x, (64,), "i8")' in str(raised.value.where)


def test_an_overlapping_installation_is_an_error() -> None:
    torch = context()
    x = torch.zeros(64, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
    again = BaawSegment(LA_BASE + 63, 8, x.shards[0].pa, "sip0.cube0.hbm_ctrl.pe0")
    handle = torch.engine.submit(BaawSegmentInstallMsg(sip=0, target_cubes=(0,), segments=(again,)))
    with pytest.raises(AddressError, match="overlap a segment at 0x100000000"):
        torch.engine.wait(handle)


def test_a_pe_has_64_gib_of_logical_addresses() -> None:
    many = {"sip.cube_mesh.w": 4, "cube.memory_map.hbm_total_gb_per_cube": 128}
    with context(**many) as torch, pytest.raises(AllocationError, match="logical address space of a PE"):
        torch.empty(65 << 30, dtype="i8", dp=DPPolicy(cube="row_wise", pe="row_wise"))


@pytest.mark.parametrize(("mode", "one_event"), [("n_to_one", 2), ("one_to_one", 0)])
def test_replays_are_exact_and_composites_over_channel_routers_are_simulated(mode: str, one_event: int) -> None:
    def gemm(a: Any, b: Any, out: Any, tl: Any) -> None:
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=out))

    def program(torch: RuntimeContext) -> None:
        one = DPPolicy(num_cubes=1, num_pes=1)
        a, b, out = (torch.zeros(128, 128, dp=one) for _ in range(3))
        for _ in range(2):
            torch.launch("gemm", gemm, a, b, out)
        for _ in range(3):
            torch.launch("again", repeatable(gemm), a, b, out)

    machine = SMALL | {"cube.memory_map.hbm_mapping_mode": mode}
    result = kernbench.run(program, None, machine, check_fast=True)
    assert result.fast_check is not None
    assert result.fast_check.ok
    assert result.simulation.launches.reused > 0
    assert result.simulation.composites.one_event == one_event
