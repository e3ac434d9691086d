"""A whole machine with finite buffers: kernels and collectives run, slower or not, and never get stuck."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import TopologyError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.routing.router import PathRouter
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.machine_hash import machine_hash

SMALL = {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
DEEP = {"slots": 256, "credit_ns": 8.0}
TINY = {"slots": 1, "credit_ns": 8.0}
WORMHOLE = {"slots": 2, "credit_ns": 8.0, "channels": 2, "ownership": "packet", "arbitration": "round_robin"}
QUEUES = {"slots": 2, "credit_ns": 8.0, "order": "voq"}


def to_all(a: Any, out: Any, tl: Any) -> None:
    """Every PE reads all of a matrix that lies on all cubes, and writes its own part of another."""
    total = tl.load(a.storage, (32, 32))
    tl.store(out.local, tl.sum(total, axis=0) * (tl.program_id(0) + 1))


def crossing(torch: Any) -> None:
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=4, num_pes=8)
    a, out = torch.full((32, 32), 1.0, dp=dp), torch.zeros(32, 32, dp=dp)
    torch.launch("to_all", to_all, a, out, target_cubes=range(4), target_pes=range(8))
    rows = np.repeat(np.arange(1, 9)[None], 4, axis=0).reshape(32, 1)
    np.testing.assert_array_equal(out.numpy(), np.broadcast_to(32.0 * rows, (32, 32)))


def total_ns(buffers: dict[str, object] | None, **options: Any) -> float:
    overrides = SMALL if buffers is None else {**SMALL, "fabric.buffers": buffers}
    return kernbench.run(crossing, overrides=overrides, device=0, **options).total_ns


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_small_buffers_are_slow_and_never_stuck() -> None:
    unlimited, deep, tiny = total_ns(None), total_ns(DEEP), total_ns(TINY)
    assert unlimited <= deep < tiny
    assert total_ns(WORMHOLE) > unlimited
    assert total_ns(QUEUES) > unlimited


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_plain_and_compiled_loops_agree_on_a_whole_machine() -> None:
    assert total_ns(WORMHOLE) == total_ns(WORMHOLE, fast=False)


def all_reduced(torch: Any) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("ahbm")
        tensor = torch.full((64,), float(rank + 1))
        torch.distributed.all_reduce(tensor)
        np.testing.assert_array_equal(tensor.numpy(), np.full(64, 3.0))

    torch.multiprocessing.spawn(worker, nprocs=2)


def test_a_collective_runs_with_one_slot_per_link() -> None:
    overrides = {**SMALL, "sip.cube_mesh.h": 1, "fabric.buffers": TINY}
    assert kernbench.run(all_reduced, overrides=overrides, device="whole").total_ns > 0


def test_the_shipped_machine_has_no_buffers_and_the_fingerprint_it_had() -> None:
    spec = load_topology().spec
    assert spec.fabric.buffers is None
    assert machine_hash(spec) != machine_hash(load_topology(None, {"fabric.buffers": DEEP}).spec)


@pytest.mark.parametrize("buffers", [None, QUEUES], ids=["no limit", "finite buffers"])
def test_requests_as_packets_change_times_and_neither_numbers_nor_traffic_of_hbm(
    buffers: dict[str, object] | None,
) -> None:
    overrides = {**SMALL, "system.sips.count": 2, "fabric.buffers": buffers}
    plain = kernbench.run(all_reduced, overrides=overrides, device="whole")
    packets = kernbench.run(
        all_reduced, overrides={**overrides, "fabric.control_bytes": 32}, device="whole", check_fast=True
    )
    assert packets.ok
    assert packets.total_ns > plain.total_ns
    assert [launch.bytes_hbm for launch in packets.launches] == [launch.bytes_hbm for launch in plain.launches]


def test_a_lone_read_pays_its_request_on_every_link() -> None:
    def kernel(x: Any, *, tl: Any) -> None:
        tl.load(x, (64,), "i8")

    def time_ns(nbytes: int) -> float:
        machine = load_topology(None, {**SMALL, "system.sips.count": 1, "fabric.control_bytes": nbytes})
        path = PathRouter(machine).find_path("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe0")
        widths.append([machine.edge(a, b).bw_gbs for a, b in pairwise(path)])
        return float(run_kernel(kernel, np.zeros(64, np.int8), topology=machine).time_ns)

    widths: list[list[float | None]] = []
    assert time_ns(64) - time_ns(0) == sum(64 / gbs for gbs in widths[0] if gbs)


def test_bytes_of_requests_belong_to_machines_with_pes() -> None:
    with pytest.raises(TopologyError, match=r"network\.requests\.nbytes"):
        load_topology("examples/machines/wormhole-noc.yaml", {"fabric.control_bytes": 32})


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(TopologyError, match="flits own nothing"):
        load_topology(None, {"fabric.buffers": {"slots": 4, "channels": 2}})
