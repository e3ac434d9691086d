"""What others may rely on: import paths, command names, keys of JSON and YAML. A change here is a change for users."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files

import pytest
import yaml

from kernbench.cli.main import COMMANDS, main
from kernbench.common import messages
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

IMPORTS = [
    "kernbench:__version__",
    "kernbench.topology:load_topology",
    "kernbench.policy.address.phyaddr:PhysAddr",
    "kernbench.policy.routing.router:AddressResolver",
    "kernbench.policy.routing.router:PathRouter",
    "kernbench.sim_engine.engine:GraphEngine",
    "kernbench.sim_engine.fabric:Fabric",
    "kernbench.sim_engine.fabric:FabricEnvironment",
    "kernbench.sim_engine.fabric:FlitArrival",
    "kernbench.sim_engine.fabric:Network",
    "kernbench.sim_engine.fabric:Transfer",
    "kernbench.components.base:Component",
    "kernbench.components.base:TransitComponent",
    "kernbench.components.base:ActiveComponent",
    "kernbench.components.base:MemoryComponent",
    "kernbench.components.base:Context",
    "kernbench.components.base:Packet",
    "kernbench.components.builtin.forwarding:ForwardingComponent",
    "kernbench.components.builtin.pcie_ep:PcieEpComponent",
    "kernbench.components.builtin.io_cpu:IoCpuComponent",
    "kernbench.components.builtin.m_cpu:MCpuComponent",
    "kernbench.components.builtin.hbm_ctrl:HbmCtrlComponent",
    "kernbench.components.builtin.sram:SramComponent",
    "kernbench.components.builtin.pe_dma:PeDmaComponent",
    "kernbench.components.builtin.pe_tcm:PeTcmComponent",
    "kernbench.components.custom",
    "kernbench.common.errors:KernBenchError",
    "kernbench.common.messages:MemoryWriteMsg",
    "kernbench.common.messages:MemoryReadMsg",
    "kernbench.common.messages:PeDmaMsg",
    "kernbench.common.messages:CubeDmaMsg",
    "kernbench.common.messages:Completion",
    "kernbench.benches.registry:bench",
    "kernbench.benches.registry:resolve",
    "kernbench.probes.probe",
    "kernbench.report",
    "kernbench:sweep",
    "kernbench.sweep:SweepRow",
    "kernbench.sweep:pareto_front",
    "kernbench.cli.main:main",
]
PROBE_CASE_KEYS = {
    "name", "category", "direction", "nbytes", "issuers", "total_ns", "overhead_ns", "wire_ns", "drain_ns",
    "bottleneck_gbs", "effective_gbs", "utilization", "utilization_aggregate", "path",
}  # fmt: skip


@pytest.mark.parametrize("path", IMPORTS)
def test_import_path_is_there(path: str) -> None:
    module, _, name = path.partition(":")
    assert not name or hasattr(import_module(module), name)


def test_command_names() -> None:
    assert {"run", "sweep", "list", "probe", "topology", "fidelity"} <= set(COMMANDS)
    for target, about in COMMANDS.values():
        assert about.endswith(".")
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))


def test_yaml_top_level_keys() -> None:
    shipped = yaml.safe_load((files("kernbench.topology") / "default.yaml").read_text())
    assert set(shipped) == {"system", "sip", "io_chiplet", "cube"}


def test_probe_json_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["probe", "--case", "pe-local-hbm", "--no-sweep", "--json"])
    assert stopped.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["command"]) == (1, "probe")
    for case in report["cases"]:
        assert set(case) >= PROBE_CASE_KEYS
    for check in report["checks"]:
        assert set(check) == {"name", "ok", "detail"}


def test_message_fields() -> None:
    assert list(messages.PeDmaMsg.__dataclass_fields__)[-6:] == [
        "src_sip", "src_cube", "src_pe", "dst_pa", "nbytes", "is_write",
    ]  # fmt: skip


def test_engine_calls_and_trace_keys() -> None:
    engine = GraphEngine(load_topology(), trace_hops=True)
    pa = PhysAddr.cube_sram_addr(0, 0, 0).encode()
    handle = engine.submit(messages.PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=64))
    engine.wait(handle)
    engine.wait_all()
    completion, trace = engine.get_completion(handle)
    assert completion.ok
    assert engine.now_ns == trace["end_ns"]
    assert {"total_ns", "start_ns", "end_ns", "path", "hops"} <= set(trace)
    assert set(trace["hops"][0]) == {"from", "to", "nbytes", "start_ns", "end_ns", "nodes"}
    assert set(trace["hops"][0]["nodes"][0]) == {
        "node", "first_arrival_ns", "first_departure_ns", "last_arrival_ns", "last_departure_ns",
    }  # fmt: skip
