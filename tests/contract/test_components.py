"""What every builtin block must do, run over the whole components table: a new row is tested as soon as it is there.

The blocks of MET also carry traffic, so that what they charge is seen in measured times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernbench.common.errors import ComponentError
from kernbench.common.flits import FlitArrival
from kernbench.common.messages import CubeDmaMsg, HostMessage, MemoryWriteMsg, PeDmaMsg, Request
from kernbench.components.base import ActiveComponent, Component, MemoryComponent, Packet, TransitComponent
from kernbench.components.table import BUILTIN, component_class
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

SMALL = {
    "system.sips.count": 2,
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.corners": ["NW"],
}
SIP_PORT = "builtin.sip_port"
PRODUCTS = {  # other impls of PE_GEMM, with as many MACs as the shipped engine has
    "builtin.systolic": {"rows": 64, "columns": 64},
    "builtin.unit_group": {"units": 4, "unit_m": 64, "unit_n": 64, "unit_least": 16},
    "builtin.core_group": {"cores": 4, "arrays": 4, "rows": 16, "columns": 16, "local_kb": 192, "feed_gbs": 512.0},
}
MET = {  # the node of each impl that the traffic below passes or reaches
    "builtin.forwarding": "sip0.cube0.noc.r0c0",
    "builtin.switch": "fabric.switch0",
    "builtin.noc": "sip0.cube0.noc.r0c1",
    "builtin.ucie": "sip0.io0.io_ucie.P0",
    "builtin.pcie_ep": "sip0.io0.pcie_ep",
    SIP_PORT: "sip0.io0.sip_port.E",
    "builtin.io_cpu": "sip0.io0.io_cpu",
    "builtin.m_cpu": "sip0.cube0.m_cpu",
    "builtin.hbm_ctrl": "sip1.cube0.hbm_ctrl.pe0",
    "builtin.sram": "sip0.cube0.sram",
    "builtin.pe_dma": "sip0.cube0.pe1.pe_dma",
    "builtin.pe_tcm": "sip0.cube0.pe1.pe_tcm",
}
OVERHEAD_NS = 3.5
every_impl = pytest.mark.parametrize("impl", BUILTIN)
every_met_impl = pytest.mark.parametrize("impl", MET)


def classes_of(base: type[Component]) -> list[str]:
    return [impl for impl in BUILTIN if issubclass(component_class(impl), base)]


def key_of(impl: str) -> str:
    """Where in a machine description the block stands; a router where the shipped machine has none of its kind."""
    if impl == "builtin.forwarding":
        return "cube.components.router"
    if impl == SIP_PORT:
        return "system.sips.links.port"
    if impl in PRODUCTS:
        return "cube.pe_template.components.pe_gemm"
    keys = [key for key, _, component in load_topology(None, SMALL).spec.components() if component.impl == impl]
    return keys[0] if keys else "cube.components.router"


def machine(impl: str, actual: str | None = None, overhead_ns: float = OVERHEAD_NS) -> TopologyGraph:
    """A small machine with `impl` (or `actual` in its stead) where it belongs, at an overhead of 3.5 ns."""
    key = key_of(impl)
    if impl == SIP_PORT:  # of machines whose SIPs are joined directly, not of the shipped one
        port = {"kind": "sip_port", "impl": actual or impl, "attrs": {"overhead_ns": overhead_ns}}
        links = {"bw_gbs": 12.5, "distance_mm": 0.0, "port": port}
        return load_topology(None, {**SMALL, "system.sips.links": links})
    attrs = {"overhead_ns": overhead_ns, **PRODUCTS.get(impl, {})}
    given: dict[str, object] = {f"{key}.attrs.{name}": value for name, value in attrs.items()}
    if impl == "builtin.pe_mmu":
        given["system.address_model"] = "va"  # no other model has one
    return load_topology(None, {**SMALL, f"{key}.impl": actual or impl, **given})


def node_of(graph: TopologyGraph, impl: str) -> str:
    return MET.get(impl) or next(node.id for node in graph.nodes.values() if node.impl == impl)


def traffic(graph: TopologyGraph) -> list[HostMessage]:
    """Requests that between them pass or reach every block of MET."""
    slice_bytes = graph.spec.cube.hbm_slice_bytes
    here, there = (PhysAddr.pe_hbm_addr(sip, 0, 0, 0, slice_bytes).encode() for sip in (0, 1))
    targets = [there, PhysAddr.cube_sram_addr(0, 0, 0).encode(), PhysAddr.pe_tcm_addr(0, 0, 1, 0).encode()]
    return [
        *(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=512, is_write=True) for pa in targets),
        PeDmaMsg(src_sip=0, src_cube=0, src_pe=1, dst_pa=here, nbytes=512),
        MemoryWriteMsg(dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=here, nbytes=512),
        CubeDmaMsg(sip=0, offset=0, nbytes=512, target_pes=(0,)),
    ]


def run(graph: TopologyGraph) -> list[dict[str, Any]]:
    """The traces of the traffic, one request after the other."""
    engine = GraphEngine(graph, trace_hops=True)
    traces = []
    for message in traffic(graph):
        handle = engine.submit(message)
        assert engine.wait(handle).ok
        traces.append(engine.get_completion(handle)[1])
    return traces


def block(impl: str) -> tuple[Component, list[Packet]]:
    """A block in its machine, and what it sends."""
    graph, sent = machine(impl), list[Packet]()
    engine = GraphEngine(graph)
    engine.send = sent.append  # type: ignore[method-assign, assignment]  # nothing travels, so that the block is seen alone
    return component_class(impl)(graph.node(node_of(graph, impl)), engine), sent


def active_block(impl: str) -> tuple[ActiveComponent, list[Packet]]:
    component, sent = block(impl)
    assert isinstance(component, ActiveComponent)
    return component, sent


@every_impl
def test_is_transit_or_active_and_documented(impl: str) -> None:
    cls = component_class(impl)
    assert issubclass(cls, TransitComponent) != issubclass(cls, ActiveComponent)
    assert cls.__doc__


@every_impl
def test_charges_its_overhead_on_entry(impl: str) -> None:
    component, _ = block(impl)
    assert component.entry_ns == component.node.overhead_ns == OVERHEAD_NS


@every_met_impl
def test_overhead_is_paid_by_the_traffic_that_meets_it(impl: str) -> None:
    node, met = MET[impl], 0
    free = machine(impl, overhead_ns=0.0)
    for with_cost, without in zip(run(machine(impl)), run(free), strict=True):
        if any(hop["node"] == node for leg in with_cost["hops"] for hop in leg["nodes"]):
            met += 1
            assert with_cost["total_ns"] >= without["total_ns"] + OVERHEAD_NS
    assert met


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("impl", [impl for impl in classes_of(TransitComponent) if impl in MET])
def test_transit_delays_each_flit_by_exactly_its_overhead(impl: str) -> None:
    component, _ = block(impl)
    assert isinstance(component, TransitComponent)
    for index in (0, 1, 127):
        flit = FlitArrival(component.node.id, "before", 10.0 * index, index, 128, 256, 32768, None)
        assert component.flit_delay_ns(flit) == OVERHEAD_NS
    node, seen = MET[impl], 0
    graph = machine(impl)
    for leg in [leg for trace in run(graph) for leg in trace["hops"] if leg["nbytes"]]:
        for hop, after in zip(leg["nodes"], leg["nodes"][1:], strict=False):
            if hop["node"] == node:
                flit_ns = 256 / (graph.edge(node, after["node"]).bw_gbs or 0)
                assert hop["first_departure_ns"] - hop["first_arrival_ns"] == OVERHEAD_NS + flit_ns
                seen += 1
    assert seen


@pytest.mark.parametrize("impl", classes_of(ActiveComponent))
def test_active_sends_on_what_only_passes(impl: str) -> None:
    component, sent = active_block(impl)
    packet = Packet(Request(), ("before", component.node.id, "after"), nbytes=64, address=0, place=1)
    assert component.handle(packet) is None
    assert sent == [packet]


@pytest.mark.parametrize("impl", classes_of(ActiveComponent))
def test_active_refuses_what_it_cannot_serve(impl: str) -> None:
    component, sent = active_block(impl)
    packet = Packet(Request(), ("before", component.node.id), place=1)
    with pytest.raises(ComponentError, match=f"{component.node.id} cannot serve a Request") as caught:
        component.handle(packet)
    assert caught.value.where == f"impl {impl}"
    assert sent == []


@pytest.mark.parametrize("impl", classes_of(MemoryComponent))
def test_memory_answers_a_read_with_its_bytes_and_a_write_with_none(impl: str) -> None:
    component, sent = active_block(impl)
    path = ("before", component.node.id)
    component.handle(Packet(Request(), path, wanted_bytes=700, address=0, place=1))
    component.handle(Packet(Request(), path, nbytes=700, address=0, place=1))
    assert [(reply.is_reply, reply.nbytes, reply.path, reply.place) for reply in sent] == [
        (True, 700, path[::-1], 0),
        (True, 0, path[::-1], 0),
    ]


@every_impl
def test_a_users_subclass_takes_its_place_from_yaml_alone(
    impl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_name, _, class_name = BUILTIN[impl].partition(":")
    mine = "users_" + impl.replace(".", "_")
    (tmp_path / f"{mine}.py").write_text(f"from {module_name} import {class_name}\nclass Mine({class_name}): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = machine(impl, f"{mine}:Mine")
    node = MET.get(impl) or next(node.id for node in graph.nodes.values() if node.impl == f"{mine}:Mine")
    assert type(GraphEngine(graph).component(node)).__name__ == "Mine"
    assert run(graph) == run(machine(impl))


@every_met_impl
def test_the_same_traffic_twice_gives_the_same_traces(impl: str) -> None:
    graph = machine(impl)
    assert run(graph) == run(graph)
