"""Machines without HBM, whose tensors lie in SRAM by default: times by hand, values, fast paths, refusals."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from tests.home_memory import program_in

import kernbench
from kernbench.benches.llm_layer import llm_layer
from kernbench.cli.main import main
from kernbench.common.errors import AllocationError, KernBenchError, RoutingError, TopologyError, UsageError
from kernbench.common.messages import PeDmaMsg
from kernbench.models.bounds import Need, rates_of
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.routing.router import AddressResolver
from kernbench.probes.probe import run_probe
from kernbench.report.diagrams import machine_views
from kernbench.report.machine_facts import machine_facts_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

HBM_KEY = "cube.memory_map.hbm_total_gb_per_cube"
NO_HBM = {HBM_KEY: 0}
ONE_PE = {
    **NO_HBM,
    "system": {"sips": {"count": 1}, "ns_per_mm": 0.0},
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
    "cube.placement.sram.pos_mm": [1.5, 1.5],  # at the router of the PE
}
TWO_SIPS = {
    **NO_HBM,
    "system.sips.count": 2,
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
}


def test_a_load_is_latency_and_bytes_over_the_port_of_the_sram() -> None:
    """A router of 2 ns each way, 2 ns in the SRAM; 4096 bytes over its port of 128 GB/s; a flit on the PE's port."""
    graph = load_topology(None, ONE_PE)
    assert not any(node.kind == "hbm_ctrl" for node in graph.nodes.values())
    engine = GraphEngine(graph)
    pa = PhysAddr.cube_sram_addr(0, 0, 0, graph.spec.address_layout).encode()
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=4096))
    engine.wait(handle)
    assert engine.get_completion(handle)[1]["total_ns"] == 2 + 2 + 2 + 4096 / 128 + 256 / 256


def test_the_formula_of_the_probe_holds() -> None:
    report = run_probe(load_topology(None, TWO_SIPS), None, 4096, sweep=False)
    assert [check.name for check in report.checks if not check.ok] == []
    names = {
        "h2d-1hop",
        "d2h-1hop",
        "pe-sram",
        "pe-cross-cube-sram",
        "pe-cross-sip-sram-write",
        "contention-all-to-sram",
    }
    assert names <= {case.name for case in report.cases}


@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_kernels_and_collectives_are_right_and_fast_paths_change_nothing(model: str) -> None:
    machine = TWO_SIPS | {"system.address_model": model}
    assert kernbench.run(program_in("sram"), overrides=machine, device="whole", check_fast=True).ok


def test_weights_stay_in_tcm_over_launches() -> None:
    def fill(source: Any, weights: Any, tl: Any) -> None:
        tl.store(weights.local, tl.load(source.local, (64, 64)))

    def multiply(x: Any, weights: Any, out: Any, tl: Any) -> None:
        tl.store(out.local, tl.dot(tl.load(x.local, (64, 64)), tl.load(weights.local, (64, 64))))

    def bench(torch: Any) -> None:
        values = np.arange(64 * 64, dtype=np.float16).reshape(64, 64) / 1e4
        x, out = torch.from_numpy(values), torch.zeros(64, 64, dtype="f16")
        weights = torch.empty(64, 64, dtype="f16", space="tcm")
        torch.launch("fill", fill, x, weights, target_pes=0)
        torch.launch("multiply", multiply, x, weights, out, target_pes=0)
        wide = values.astype(np.float32)
        np.testing.assert_allclose(out.numpy().astype(np.float32), wide @ wide, rtol=2e-3)

    kernbench.run(bench, overrides=ONE_PE)


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda torch: torch.zeros(8, space="hbm"), UsageError, "a tensor in HBM, and this machine has none"),
        (lambda torch: torch.zeros(40 << 20, dtype="i8"), AllocationError, "sip0.cube0 SRAM"),
    ],
    ids=["space", "room"],
)
def test_what_needs_hbm_is_refused(make: Any, error: type[KernBenchError], what: str) -> None:
    with RuntimeContext(GraphEngine(load_topology(None, ONE_PE))) as torch, pytest.raises(error, match=what):
        make(torch)


def test_an_address_in_hbm_has_no_node() -> None:
    graph = load_topology(None, ONE_PE)
    resolver, layout = AddressResolver(graph), graph.spec.address_layout
    with pytest.raises(RoutingError, match="no node serves"):
        resolver.resolve(PhysAddr.hbm_addr(0, 0, 0, layout))
    with pytest.raises(RoutingError, match="this machine has no HBM"):
        resolver.find_hbm_ctrl(0, 0, 0)


def test_totals_and_pictures_have_no_hbm() -> None:
    graph = load_topology(None, TWO_SIPS)
    summary = machine_facts_of(graph)
    assert (summary.memory["hbm_bytes"], summary.bandwidth_gbs["hbm"], summary.counts["hbm_pseudo_channels"]) == (
        0,
        0,
        0,
    )
    assert summary.worst_paths[0].name == "PE to SRAM, same cube"
    views = machine_views(graph.spec)
    assert {node.detail for node in views["sip"].nodes if node.kind == "cube"} == {"2 PEs, 32 MB SRAM"}
    assert not any(node.kind in ("hbm_ctrl", "hbm_zone") for view in views.values() for node in view.nodes)


def test_cubes_with_and_without_hbm_are_no_types_of_one_machine() -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, {"cube_types.bare.memory_map.hbm_total_gb_per_cube": 0, "sip.cube_types.bare": [1]})
    (fault,) = caught.value.faults
    assert (fault.key, fault.what) == (
        "cube_types.bare.memory_map.hbm_total_gb_per_cube",
        "the type 'bare' has no HBM, and cube has HBM",
    )


LAYER = {**NO_HBM, "system.sips.count": 1, "sip.cube_mesh": {"w": 2, "h": 1}, "cube.memory_map.sram_mb_per_cube": 64}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_llm_layer_keeps_its_weights_in_sram(phase: Literal["prefill", "decode"]) -> None:
    rows: list[Any] = []

    def bench(torch: RuntimeContext) -> None:
        rows[:] = llm_layer(torch, phase=phase, **({"tokens": 4} if phase == "prefill" else {}))

    machine = {**LAYER, "cube.pe_layout.pe_per_corner": 1}
    result = kernbench.run(bench, overrides=machine, device="whole", verify_data=True, check_fast=True)
    assert result.ok
    figures = {row["figure"]: row["value"] for row in rows if "figure" in row}
    assert figures["fits"] is True
    assert figures["memory there per SIP"] == 2 * 64 * 2**20 / 1e9
    assert figures["fullest SRAM, this layer"] > 0.1
    parts = [row for row in rows if "part" in row and row["bound"] != "-"]
    assert {row["bound"] for row in parts} == {"SRAM"}
    assert all(0 < row["bound_us"] <= row["mapping_bound_us"] <= row["time_us"] for row in parts)
    assert sum(launch.bytes_hbm for launch in result.launches) == 0


def test_the_bound_of_a_layer_takes_the_ports_of_sram() -> None:
    """Two cubes of 128 GB/s each way: reads and writes together at most 512, one way 256; 16 DMA ports carry more."""
    rates = rates_of(load_topology(None, LAYER).spec)
    assert (rates.memory, rates.hbm_bytes, rates.port_bytes) == ("SRAM", 512.0, 256.0)
    assert Need(read_bytes=2560.0, written_bytes=1280.0).bound(rates) == ("SRAM", 10.0)
    assert rates_of(load_topology().spec).memory == "HBM"


def test_a_layer_that_does_not_fit_is_refused_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", "llm-layer", "--param", "model=llama3-8b", "--param", "tp=1", "--set", f"{HBM_KEY}=0",
              "--set", "cube.memory_map.sram_mb_per_cube=8"])  # fmt: skip
    assert stopped.value.code == 2
    what = "one layer of llama3-8b has 416.0 MiB of weights, and the SRAM of 1 SIP of 'default' has 128 MiB"
    assert what in capsys.readouterr().err
