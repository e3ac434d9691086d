"""Rooflines of launches whose tensors lie in SRAM or TCM: the bytes of that memory, over its ports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.roofline import peak_of, roofline_of
from kernbench.topology import load_topology

NO_HBM: dict[str, Any] = {
    "system.sips.count": 2,
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
    "cube.memory_map.hbm_total_gb_per_cube": 0,
    "cube.memory_map.hbm_mapping_mode": "n_to_one",
    "system.address_model": "va",
}
ROWS = DPPolicy(cube="row_wise", pe="row_wise")
X = np.zeros((64, 512), dtype=np.float32)  # 128 KiB, 64 KiB in each of two SRAMs


@kernbench.repeatable
def fetch(source: Any, tl: Any) -> None:
    tl.load(source.local, source.local_shape)


@kernbench.repeatable
def copy(source: Any, target: Any, tl: Any) -> None:
    tl.store(target.local, tl.load(source.local, source.local_shape))


def bench(torch: Any) -> None:
    source, target = torch.from_numpy(X, dp=ROWS), torch.zeros(64, 512, dtype="f32", dp=ROWS)
    for _ in range(2):
        torch.launch("fetch", fetch, source)
        torch.launch("copy", copy, source, target)


def test_bytes_are_those_of_sram_over_its_ports() -> None:
    """Two SRAM ports of 128 GB/s each way: 128 KiB read take 512 ns, and no longer if as much is written meanwhile."""
    result = kernbench.run(bench, overrides=NO_HBM, check_fast=True)
    ours = [launch for launch in result.launches if launch.sips == (0,)]
    rooflines = [roofline_of(launch, result.engine.graph) for launch in ours]
    assert [roofline.memory_ns for roofline in rooflines] == [512.0] * 4
    assert [roofline.nbytes for roofline in rooflines] == [131072, 262144] * 2
    assert all(roofline.memory == "SRAM" and roofline.bound == "memory" for roofline in rooflines)
    assert all(0.4 < roofline.share <= 1.0 for roofline in rooflines)
    assert ours[1].memories["sip0.cube1.sram"] == (131072, 65536, 65536)
    assert [launch.bytes_hbm for launch in ours] == [0] * 4


def test_the_peak_of_a_machine_without_hbm_is_that_of_its_sram() -> None:
    """Two cubes with two PEs on a port of 128 GB/s; DMA ports of 256 GB/s limit nothing. Half reads, half writes have
    both ways.
    """
    spec = load_topology(None, NO_HBM | {"system.sips.count": 1}).spec
    assert peak_of(spec).gbs == 2 * 128.0
    assert peak_of(spec, read_share=0.5).gbs == 2 * 256.0
    narrow = load_topology(None, NO_HBM | {"system.sips.count": 1, "cube.links.pe_dma_to_router_bw_gbs": 32.0}).spec
    assert peak_of(narrow).gbs == 4 * 32.0


def test_sram_counts_beside_hbm() -> None:
    """A tensor in SRAM of a machine with HBM: 64 KiB of one SRAM at 128 GB/s."""

    def mixed(torch: Any) -> None:
        shared = torch.from_numpy(X[:32], dp=DPPolicy(num_cubes=1), space="sram")
        torch.launch("fetch", fetch, shared, target_pes=0, target_cubes=0)

    with_hbm = {key: value for key, value in NO_HBM.items() if "hbm" not in key}
    result = kernbench.run(mixed, overrides=with_hbm | {"system.sips.count": 1})
    roofline = roofline_of(result.launches[0], result.engine.graph)
    assert (roofline.memory, roofline.nbytes, roofline.memory_ns) == ("SRAM", 65536, 512.0)


def test_messages_through_rings_in_sram_count_there() -> None:
    def exchange(torch: Any) -> None:
        def worker(rank: int) -> None:
            torch.distributed.init_process_group("ahbm", ccl={"defaults": {"buffer_kind": "sram"}})
            total = torch.full((4096,), float(rank + 1))
            torch.distributed.all_reduce(total)
            np.testing.assert_array_equal(total.numpy(), np.full(4096, 3.0))

        torch.multiprocessing.spawn(worker, nprocs=2)

    result = kernbench.run(exchange, overrides=NO_HBM, device="whole", check_fast=True)
    assert result.ok
    sent = [launch.bytes_sent for launch in result.launches]
    written = [
        sum(use.written_bytes for node, use in launch.memories.items() if node.endswith(".sram"))
        for launch in result.launches
    ]
    assert any(sent)
    assert all(into >= out for into, out in zip(written, sent, strict=True))


def test_a_launch_on_tcm_alone_is_bound_by_its_ports() -> None:
    """A square of 256 x 256 f16 is fetched, and its sum with itself stored: over 512 GB/s each way."""

    def double(tl: Any) -> None:
        x = tl.zeros((256, 256), "f16")
        for _ in range(4):
            x = x + x

    def alone(torch: Any) -> None:
        torch.launch("double", double, target_pes=0, target_cubes=0)

    result = kernbench.run(alone, overrides={"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}})
    launch = result.launches[0]
    roofline = roofline_of(launch, result.engine.graph)
    moved = launch.engines["pe_fetch_store"].amounts["bytes"] if "pe_fetch_store" in launch.engines else 0
    assert (roofline.nbytes, roofline.memory) == (moved, "TCM" if moved else "HBM")
    assert roofline.memory_ns == pytest.approx(moved / 1024)
    assert roofline.memory_ns <= launch.exec_ns
