"""Machines whose PEs share HBM stacks: times by hand, values, collectives, and fast paths that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.probes.probe import run_probe
from kernbench.report.runs.live_run import live_run
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.wiring import wiring_of
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

# Both stacks at the router of PE 0, in the north-west corner; wires take no time.
CORNER = [{"id": "s0", "side": "W", "at": 0.0}, {"id": "s1", "side": "N", "at": 0.0}]
TWO: dict[str, Any] = {"places": CORNER, "gb": 16, "channels": 16, "channel_bw_gbs": 32.0, "link_bw_gbs": 512.0}
N_TO_ONE = {"cube.memory_map.hbm_mapping_mode": "n_to_one"}  # stacks go together with no other mapping
ONE_PE = {
    **N_TO_ONE,
    "system": {"sips": {"count": 1}, "ns_per_mm": 0.0, "address_model": "va"},
    "sip.cube_mesh": {"w": 1, "h": 1},
    "sip.io_chiplets": [{"id": "io0", "side": "S"}],
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
    "sip.hbm_stacks": TWO,
}
EDGES = [
    {"id": "s0", "cube": 0, "side": "W"},
    {"id": "s1", "cube": 2, "side": "E"},
    {"id": "s2", "cube": 2, "side": "S"},
]
ROW = {
    **N_TO_ONE,
    "system.address_model": "va",
    "system.sips.count": 2,
    "sip.cube_mesh": {"w": 3, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
    "sip.hbm_stacks": {**TWO, "places": EDGES, "interleave_bytes": 1024},
}


def moved_ns(graph: TopologyGraph, offset: int, nbytes: int, *, is_write: bool = False) -> float:
    engine = GraphEngine(graph)
    pa = PhysAddr.hbm_addr(0, 0, offset, graph.spec.address_layout).encode()
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=nbytes, is_write=is_write))
    engine.wait(handle)
    return float(engine.get_completion(handle)[1]["total_ns"])


@pytest.mark.parametrize("offset", [0, 4096, 12288])
def test_a_load_from_one_stack_is_latency_and_bytes_over_the_narrowest_link(offset: int) -> None:
    """A router of 2 ns each way; a burst of 256 bytes at 32 GB/s; a flit on the stack's link of 512 GB/s; 4096 bytes
    over the 256 GB/s of the PE's port.
    """
    graph = load_topology(None, ONE_PE)
    assert moved_ns(graph, offset, 4096) == 2 + 2 + 256 / 32 + 256 / 512 + 4096 / 256
    assert moved_ns(graph, offset, 4096, is_write=True) == 2 + 2 + 256 / 32 + 256 / 512 + 4096 / 256


def test_a_load_from_two_stacks_is_two_requests_that_share_the_port() -> None:
    """Both stacks are equally far, so the 8192 bytes arrive without a gap."""
    graph = load_topology(None, ONE_PE)
    assert moved_ns(graph, 0, 8192) == 2 + 2 + 256 / 32 + 256 / 512 + 8192 / 256
    assert moved_ns(graph, 2048, 4096) == 2 + 2 + 256 / 32 + 256 / 512 + 4096 / 256  # 2048 on each


def test_stacks_that_are_narrower_than_the_port_work_side_by_side() -> None:
    """Of 128 GB/s each, two of them feed a port of 256 GB/s: 8192 bytes take as long as 4096 from one. A flit on the
    stack's link takes 2 ns, one on the port 1 ns; the last flits of both arrive together, so one waits 1 ns.
    """
    graph = load_topology(None, ONE_PE | {"sip.hbm_stacks": {**TWO, "link_bw_gbs": 128.0}})
    assert moved_ns(graph, 0, 4096) == 2 + 2 + 256 / 32 + 4096 / 128 + 256 / 256
    assert moved_ns(graph, 0, 8192) == 2 + 2 + 256 / 32 + 4096 / 128 + 2 * 256 / 256


def test_the_formula_of_the_probe_holds_for_every_stack() -> None:
    report = run_probe(load_topology(None, ROW), None, 1024, sweep=False)
    assert [check.name for check in report.checks if not check.ok] == []
    names = [case.name for case in report.cases]
    assert {"h2d-stack-s0", "pe-stack-s2", "pe-stack-s1-write", "contention-all-to-stack-s0"} <= set(names)


def program(torch: Any) -> None:
    """Rows on all PEs of all cubes, loads that cross stacks, products, and a sum over two SIPs."""
    x = np.arange(24 * 512, dtype=np.float32).reshape(24, 512) / 1e3  # a PE's 4 rows, 8 KiB, lie on all stacks

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("ahbm")
        policy = DPPolicy(cube="row_wise", pe="row_wise")
        source = torch.from_numpy(x, dp=policy)
        target = torch.zeros(24, 512, dtype="f32", dp=policy)
        torch.launch("add", kernbench.repeatable(add_one), source, target)
        np.testing.assert_array_equal(target.numpy(), x + 1)
        np.testing.assert_array_equal(target.cpu(), x + 1)
        total = torch.full((2048,), float(rank + 1))
        torch.distributed.all_reduce(total)
        np.testing.assert_array_equal(total.numpy(), np.full(2048, 3.0))

    torch.multiprocessing.spawn(worker, nprocs=2)


def add_one(source: Any, target: Any, tl: Any) -> None:
    tl.store(target.local, tl.load(source.local, source.local_shape) + 1.0)


BUFFERS = {"fabric.buffers": {"slots": 4, "credit_ns": 8.0}}
BANKS = {"hbm.model": "banks", "hbm.preset": "hbm2"}
OWN = {**TWO, "places": [{"id": f"s{n}", "cube": n, "side": "S"} for n in range(3)], "shared_by": "cube"}


@pytest.mark.parametrize(
    "changes",
    [
        {"system.address_model": "va"},
        {"system.address_model": "pa"},
        {"system.address_model": "la"},
        BUFFERS,
        BANKS,
        {**BUFFERS, **BANKS, "system.address_model": "la"},
    ],
    ids=["va", "pa", "la", "finite buffers", "banks", "all three"],
)
def test_kernels_and_collectives_are_right_and_fast_paths_change_nothing(changes: dict[str, Any]) -> None:
    result = kernbench.run(program, overrides=ROW | changes, device="whole", check_fast=True)
    assert result.ok
    why = "the memory has banks" if "hbm.model" in changes else "HBM is interleaved over stacks"
    assert why in result.engine.stats.launches.as_json()["given_up"]  # type: ignore[operator]  # a part of a JSON document
    use = result.launches[0].hbm
    assert list(use) == [f"sip{result.launches[0].pes[0].sip}.hbm_ctrl.s{n}" for n in range(3)]
    assert sum(each.read_bytes for each in use.values()) == 24 * 512 * 4


def test_a_product_streams_its_operands_from_all_stacks() -> None:
    def multiply(a: Any, b: Any, out: Any, tl: Any) -> None:
        tl.wait(tl.composite("gemm", tl.ref(a, (128, 128)), tl.ref(b, (128, 128)), out))

    def bench(torch: Any) -> None:
        x = np.arange(128 * 128, dtype=np.float16).reshape(128, 128) / 1e4
        a, b, out = torch.from_numpy(x), torch.from_numpy(x.T.copy()), torch.zeros(128, 128, dtype="f16")
        torch.launch("multiply", multiply, a, b, out, target_pes=0)
        expected = x.astype(np.float32) @ x.T.astype(np.float32)
        np.testing.assert_allclose(out.numpy().astype(np.float32), expected, rtol=2e-3)

    assert kernbench.run(bench, overrides=ONE_PE, check_fast=True).ok


def test_a_load_that_is_alone_is_not_said_to_have_queued_whichever_stack_it_is_from() -> None:
    """Blocks of 1 KiB on three stacks in turn, of which two are two cubes away. A run that was not saved took all of
    them for loads from the first stack, and what the others took longer for queueing there.
    """

    def load(x: Any, tl: Any) -> None:
        for block in range(6):
            tl.load(x + block * 1024, (256,))

    def bench(torch: Any) -> None:
        torch.launch("load", load, torch.zeros(6 * 256, dtype="f32"), target_pes=0)

    graph = load_topology(overrides=ROW | {"system.sips.count": 1})
    run = live_run(run_bench(bench, graph, RunOptions(op_log=OpLog()), name="load", params={}))
    assert run is not None
    places = [[run.places[int(place)] for place in run.ops.route.of(row)] for row in range(len(run.ops))]
    ends = [place.src[-2:] for route in places for place in route if ".hbm_ctrl." in place.src and place.dst]
    assert ends == ["s0", "s1", "s2"] * 2
    assert not run.ops.queue_ns.any()


def test_a_cube_that_keeps_its_stack_has_logical_addresses_and_finite_buffers_too() -> None:
    changes = ROW | BUFFERS | {"sip.hbm_stacks": OWN, "system.address_model": "la"}
    result = kernbench.run(program, overrides=changes, device="whole", check_fast=True)
    assert result.ok
    assert {node.rpartition(".")[2] for node in result.launches[0].hbm} == {"s0", "s1", "s2"}


def test_finite_buffers_that_never_fill_leave_the_time_of_a_load_as_it_is() -> None:
    """One slot, and a credit that takes 20 ns to return: each of a stack's 16 flits but the first waits for it."""
    plain = moved_ns(load_topology(None, ONE_PE), 0, 8192)
    assert moved_ns(load_topology(None, ONE_PE | {"fabric.buffers": {"slots": 64}}), 0, 8192) == plain
    one = {"fabric.buffers": {"slots": 1, "credit_ns": 20.0}}
    assert moved_ns(load_topology(None, ONE_PE | one), 0, 8192) > plain + 15 * 20.0


def test_no_buffers_on_ways_to_stacks_wait_for_one_another() -> None:
    """On all four sides of a square of cubes; `layers_of` raises where a route could deadlock with those before."""
    sides = [(0, "W"), (1, "E"), (2, "W"), (2, "S"), (3, "S"), (3, "E")]
    places = [{"id": f"s{n}", "cube": cube, "side": side} for n, (cube, side) in enumerate(sides)]
    changes = {"sip.cube_mesh": {"w": 2, "h": 2}, "sip.hbm_stacks": {**TWO, "places": places}}
    graph = load_topology(None, ROW | BUFFERS | changes)
    network, router = GraphEngine(graph).fabric.network, wiring_of(graph).router
    for cube in range(4):
        for pe in range(2):
            for n in range(len(sides)):
                path = router.find_path(f"sip0.cube{cube}.pe{pe}", f"sip0.hbm_ctrl.s{n}")
                for leg in (path, path[::-1]):
                    network.layers_of(network.route(leg))


def test_a_read_from_a_stack_with_banks_takes_the_latency_of_its_bank() -> None:
    """The host's write has left the row open: CL of 14 ns and 2 ns of data, where a burst takes 8."""

    def read(x: Any, tl: Any) -> None:
        tl.load(x, (1, 32), "f16")

    x = np.zeros((1, 32), np.float16)
    flat, banks = (run_kernel(read, x, topology=load_topology(None, ONE_PE | more)).time_ns for more in ({}, BANKS))
    assert banks - flat == pytest.approx(14 + 2 - 8, abs=1e-3)
