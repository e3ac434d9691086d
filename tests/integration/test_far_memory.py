"""Far memory: times by hand, tensors in it, rooflines and energy, and fast paths that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import UsageError
from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.allocator import AddressConfig, FarMemoryAllocator
from kernbench.policy.placement.dp import DPPolicy
from kernbench.probes.probe import run_probe
from kernbench.report.energy import energy_of
from kernbench.report.explain.causes import PathCauses
from kernbench.report.explain.explanation import explain
from kernbench.report.explain.finding import MEMORY
from kernbench.report.roofline import roofline_of
from kernbench.report.runs.live_run import live_run
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

FAR: dict[str, Any] = {
    "gb": 64,
    "bw_gbs": 64.0,
    "distance_mm": 0.0,
    "header_bytes": 4,
    "payload_bytes": 64,
    "overhead_ns": 60.0,
    "channels": 4,
    "channel_bw_gbs": 16.0,
}
SMALL: dict[str, Any] = {
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
    "system.sips.count": 2,
}
LEVELS = {"system.switch_levels": {"tray": {"count": 2, "bw_gbs": 64.0, "distance_mm": 100.0}}}
ONE_PE = {
    "system": {"sips": {"count": 1}, "ns_per_mm": 0.0},
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
}
ROWS = DPPolicy(cube="row_wise", pe="row_wise")


def machine(place: str, **more: object) -> dict[str, object]:
    return {**SMALL, **(LEVELS if place == "tray" else {}), "system.far_memory": {**FAR, "at": place, **more}}


def moved_ns(far: dict[str, Any], nbytes: int, *, is_write: bool, ns_per_mm: float = 0.0) -> float:
    graph = load_topology(None, {**ONE_PE, "system.far_memory": far, "system.ns_per_mm": ns_per_mm})
    engine = GraphEngine(graph)
    pa = FarMemoryAllocator(0, AddressConfig.from_spec(graph.spec)).address(0).encode()
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=nbytes, is_write=is_write))
    engine.wait(handle)
    return float(engine.get_completion(handle)[1]["total_ns"])


# A router of 2 ns, two UCIe ports of 8 ns, each way; the controller once.
NODES_NS = 2 * (2 + 8 + 8) + 60
# A flit on the PE's port, on four connections of 128 GB/s and between the dies.
OTHER_LINKS_NS = 256 / 256 + 4 * 256 / 128 + 256 / 512


@pytest.mark.parametrize("is_write", [False, True])
def test_time_is_path_link_and_memory(is_write: bool) -> None:
    """4096 bytes are 64 packets of 64 bytes behind 4: 4352 bytes on the link of 64 GB/s. A burst of 256 bytes takes 16
    ns on its channel of 16 GB/s: before the first flit of a read leaves, after the last one of a write.
    """
    assert moved_ns(FAR, 4096, is_write=is_write) == NODES_NS + OTHER_LINKS_NS + 4352 / 64 + 256 / 16


def test_the_slower_of_link_and_memory_decides() -> None:
    """Two channels of 16 GB/s: 16 bursts of 16 ns each, two at a time, so the link has two flits left after that."""
    slow = {**FAR, "channels": 2}
    assert moved_ns(slow, 4096, is_write=False) == NODES_NS + OTHER_LINKS_NS + 16 * 16 / 2 + 2 * 272 / 64
    wide = {**FAR, "bw_gbs": 128.0, "payload_bytes": None, "header_bytes": 0, "channel_bw_gbs": 64.0}
    assert moved_ns(wide, 4096, is_write=False) == NODES_NS + OTHER_LINKS_NS + 4096 / 128 + 256 / 64


def test_a_longer_link_adds_its_wire_each_way() -> None:
    near, long = (moved_ns({**FAR, "distance_mm": mm}, 4096, is_write=False, ns_per_mm=0.1) for mm in (0.0, 1000.0))
    assert long - near == pytest.approx(2 * 100.0)


@pytest.mark.parametrize("place", ["sip", "switch", "tray"])
def test_the_formula_of_the_probe_holds(place: str) -> None:
    report = run_probe(load_topology(None, machine(place)), None, 4096, sweep=False)
    assert [check.name for check in report.checks if not check.ok] == []
    names = {case.name for case in report.cases}
    assert {"h2d-far", "d2h-far", "pe-far", "pe-far-write", "pe-cross-sip-far", "contention-all-to-far"} <= names


@kernbench.repeatable
def add_one(source: Any, target: Any, tl: Any) -> None:
    tl.store(target.local, tl.load(source.local, source.local_shape) + 1.0)


def multiply(a: Any, b: Any, out: Any, tl: Any) -> None:
    tl.wait(tl.composite("gemm", tl.ref(a, (64, 64)), tl.ref(b, (64, 64)), out))


def program(torch: Any) -> None:
    """Splits over PEs, over cubes, one copy for all; launches that repeat at other addresses; a product; a sum."""
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("ahbm")
        for dp, parts in ((ROWS, 4), (DPPolicy(cube="row_wise"), 2), (DPPolicy(), 1)):
            for _ in range(2):
                source = torch.from_numpy(x + rank, dp=dp, space="far")
                target = torch.zeros(64, 96, dtype="f32", dp=dp, space="far")
                assert (source.space, len(source.shards)) == ("far", parts)
                torch.launch("add", add_one, source, target)
                np.testing.assert_array_equal(target.numpy(), x + rank + 1)
        near = torch.zeros(64, 96, dtype="f32", dp=ROWS)
        torch.launch("fetch", add_one, torch.from_numpy(x, dp=ROWS, space="far"), near)
        np.testing.assert_array_equal(near.numpy(), x + 1)
        a = np.arange(64 * 64, dtype=np.float16).reshape(64, 64) / 1e3
        out = torch.zeros(64, 64, dtype="f16")
        torch.launch("multiply", multiply, torch.from_numpy(a, space="far"), torch.from_numpy(a), out, target_pes=0)
        expected = a.astype(np.float32) @ a.astype(np.float32)
        np.testing.assert_allclose(out.numpy().astype(np.float32), expected, rtol=2e-3)
        total = torch.full((256,), float(rank + 1))
        torch.distributed.all_reduce(total)
        np.testing.assert_array_equal(total.numpy(), np.full(256, 3.0))

    torch.multiprocessing.spawn(worker, nprocs=2)


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("sip", {}),
        ("switch", {}),
        ("tray", {"system.address_model": "pa"}),
        ("sip", {"fabric.buffers": {"slots": 16}}),
        ("tray", {"fabric.buffers": {"slots": 16}}),
    ],
    ids=str,
)
def test_kernels_are_right_and_the_fast_paths_change_nothing(place: str, more: dict[str, Any]) -> None:
    changes = machine(place, channels=64, switch_penalty_ns=4.0) | more
    result = kernbench.run(program, overrides=changes, device="whole", check_fast=True)
    assert result.ok
    launch = result.launches[0]
    name = f"sip{launch.sips[0]}.io0.far" if place == "sip" else "fabric.far"
    assert all(node.startswith(name) for node in launch.memories)
    assert launch.bytes_hbm == 0
    assert launch.bytes_far == 2 * 64 * 96 * 4


def test_with_logical_addresses_too() -> None:
    changes = machine("sip") | {"system.address_model": "la"}

    def bench(torch: Any) -> None:
        x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
        source, target = (torch.from_numpy(each, dp=ROWS, space="far") for each in (x, 0 * x))
        torch.launch("add", add_one, source, target)
        np.testing.assert_array_equal(target.numpy(), x + 1)

    assert kernbench.run(bench, overrides=changes, check_fast=True).ok


def test_roofline_and_energy_count_the_link_and_the_memory() -> None:
    """64 KiB read by 4 PEs: 69,632 bytes over the link of 64 GB/s take longer than over channels or ports; 128 GB/s of
    link leave the channels, 64 GB/s for reads and writes together.
    """
    x = np.zeros((64, 256), dtype=np.float32)

    def fetch(source: Any, tl: Any) -> None:
        tl.load(source.local, source.local_shape)

    def bench(torch: Any) -> None:
        torch.launch("fetch", fetch, torch.from_numpy(x, dp=ROWS, space="far"))

    def run(**more: object) -> Any:
        one = machine("sip", **more) | {"system.sips.count": 1, "energy.pj_per_byte.far": 100.0}
        return kernbench.run(bench, overrides=one)

    result = run()
    roofline = roofline_of(result.launches[0], result.engine.graph)
    assert (roofline.bound, roofline.memory, roofline.nbytes) == ("memory", "far memory", 65536)
    assert roofline.memory_ns == pytest.approx(65536 * 68 / 64 / 64)
    assert roofline.share > 0.8
    energy = energy_of(result)
    assert energy.launches[0].joules["far"] == pytest.approx(65536 * 100e-12)
    assert energy.run.joules["far"] == pytest.approx(2 * 65536 * 100e-12)  # the host wrote it
    wide = run(bw_gbs=128.0)
    assert roofline_of(wide.launches[0], wide.engine.graph).memory_ns == 65536 / 64


def test_requests_that_meet_at_far_memory_are_advised_to_keep_data_near() -> None:
    """Other slices or other SRAMs, which hot memories are advised to use, are no help there."""

    def fetch(source: Any, tl: Any) -> None:
        tl.load(source.local, source.local_shape)

    def bench(torch: Any) -> None:
        torch.launch("fetch", fetch, torch.zeros(64, 512, dtype="f32", dp=ROWS, space="far"))

    graph = load_topology(overrides={**machine("sip"), "system.sips.count": 1})
    options = RunOptions(device="sip:0", op_log=OpLog())
    found = PathCauses(explain(live_run(run_bench(bench, graph, options, name="fetch", params={})))).findings()
    (hot,) = [finding for finding in found if finding.cause == MEMORY]
    assert "meet at sip0.io0.far" in hot.what
    assert hot.hint == "keep what is read often in HBM, or load it earlier"


def test_a_shipped_coefficient_counts_the_energy_of_far_memory() -> None:
    """4 KiB are read once, at 1,300 pJ per 8 bytes; its link as PCIe."""

    def fetch(source: Any, tl: Any) -> None:
        tl.load(source.local, source.local_shape)

    def bench(torch: Any) -> None:
        torch.launch("fetch", fetch, torch.zeros(64, 16, dtype="f32", dp=ROWS, space="far"))

    launch = energy_of(kernbench.run(bench, overrides=machine("sip") | {"system.sips.count": 1})).launches[0]
    assert launch.joules["far"] == pytest.approx(4096 / 8 * 1300e-12)
    assert launch.joules["pcie"] == pytest.approx(4096 * 68 / 64 * 6.5 * 8e-12)  # with headers
    assert launch.not_counted == ("energy.static_w",)


def test_a_machine_without_far_memory_says_so() -> None:
    def bench(torch: Any) -> None:
        torch.zeros(4, space="far")

    with pytest.raises(UsageError, match="a tensor in far memory, and this machine has none"):
        kernbench.run(bench, overrides=SMALL)
