"""What others may rely on: import paths, command names, keys of JSON and YAML. A change here is a change for users."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files

import pytest
import yaml

from kernbench.ccl.calls import ReduceOp
from kernbench.cli.main import COMMANDS, main
from kernbench.common import messages
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.report.runs.layout import ACTIVITY_COLUMNS, LANE_COLUMNS, OP_COLUMNS, PLACE_COLUMNS
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import tiny_machine
from kernbench.topology import load_topology

IMPORTS = [
    "kernbench:__version__",
    "kernbench:autotune",
    "kernbench:repeatable",
    "kernbench.topology:load_topology",
    "kernbench.policy.address.phyaddr:PhysAddr",
    "kernbench.policy.routing.router:AddressResolver",
    "kernbench.policy.routing.router:PathRouter",
    "kernbench.sim_engine.engine:GraphEngine",
    "kernbench.sim_engine.fast_paths:FastPaths",
    "kernbench.runtime_api.check_fast:FastCheck",
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
    "kernbench.runtime_api.distributed:DistributedContext",
    "kernbench.runtime_api.distributed:ProcessGroup",
    "kernbench.runtime_api.distributed:ReduceOp",
    "kernbench.runtime_api.distributed:Work",
    "kernbench.runtime_api.multiprocessing:SpawnException",
    "kernbench.ccl.calls:CollectiveCall",
    "kernbench.ccl.install:load_ccl_config",
    "kernbench.ccl.install:resolve_algorithm_config",
    "kernbench.ccl.sfr_config:configure_sfr_intercube_multisip",
    "kernbench.ccl.topologies:ring_1d",
    "kernbench.ccl.topologies:torus_2d",
    "kernbench.ccl.topologies:mesh_2d_no_wrap",
    "kernbench.ccl.algorithms.lrab_hierarchical_allreduce:kernel",
    "kernbench.ccl.algorithms.lrab_hierarchical_allreduce:kernel_args",
    "kernbench.ccl.algorithms.lrab_hierarchical_allreduce:TOPO_NAME_TO_KIND",
    "kernbench.ccl.algorithms.ring_allreduce:kernel",
    "kernbench.ccl.algorithms.recursive_doubling:kernel",
    "kernbench.ccl.algorithms.tree:kernel",
    "kernbench.ccl.algorithms.hierarchical_all_pes:kernel",
    "kernbench.benches.registry:bench",
    "kernbench.benches.registry:resolve",
    "kernbench.benches.registry:evaluation_bench",
    "kernbench.evaluation.contract:Evaluation",
    "kernbench.report.charts:Chart",
    "kernbench.tp:ColumnParallelLinear",
    "kernbench.tp:RowParallelLinear",
    "kernbench.tp:initialize_model_parallel",
    "kernbench.probes.probe",
    "kernbench.report",
    "kernbench.report:open_run",
    "kernbench.web",
    "kernbench.web.server:make_app",
    "kernbench.web.shelf:Shelf",
    "kernbench:sweep",
    "kernbench.sweep:SweepRow",
    "kernbench.sweep:pareto_front",
    "kernbench.cli.main:main",
]
TORCH = {
    "ahbm": "set_device current_device device device_count synchronize is_available is_initialized",
    "accelerator": "set_device_index current_device_index device_index device_count synchronize is_available",
    "multiprocessing": "spawn SpawnException",
    "distributed": "init_process_group destroy_process_group is_available is_initialized get_rank get_world_size "
    "get_backend new_group get_process_group_ranks get_group_rank get_global_rank group GroupMember ProcessGroup "
    "ReduceOp Work all_reduce reduce broadcast all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor "
    "all_to_all_single gather scatter send recv isend irecv barrier P2POp batch_isend_irecv all_to_all "
    "monitored_barrier all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list "
    "recv_object_list new_subgroups new_subgroups_by_enumeration get_node_local_rank tensor device_mesh "
    "init_device_mesh",
}
PROBE_CASE_KEYS = {
    "name", "category", "direction", "nbytes", "issuers", "total_ns", "overhead_ns", "wire_ns", "drain_ns",
    "bottleneck_gbs", "effective_gbs", "utilization", "utilization_aggregate", "path",
}  # fmt: skip


@pytest.mark.parametrize("path", IMPORTS)
def test_import_path_is_there(path: str) -> None:
    module, _, name = path.partition(":")
    assert not name or hasattr(import_module(module), name)


def test_command_names() -> None:
    assert {"run", "runs", "report", "explain", "trace", "query", "diff", "sweep", "list"} <= set(COMMANDS)
    assert {"probe", "topology", "fidelity", "ccl", "tune-ccl", "validate", "web", "compare"} <= set(COMMANDS)
    for target, about in COMMANDS.values():
        assert about.endswith(".")
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))


def test_columns_of_a_saved_run_and_keys_of_what_reads_it(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert " ".join(OP_COLUMNS) == (
        "id lane launch kind name t_asked t_ready t_start t_end line nbytes flops release released_by transfer_ns "
        "latency_ns queue_ns wait_places wait_ns route deps tensors params"
    )
    assert " ".join(LANE_COLUMNS) == "name component port slot kind sip cube pe ops busy_ns"
    assert " ".join(PLACE_COLUMNS) == "kind src dst channel link_class gbs nbytes wait_ns contended_ns"
    assert " ".join(ACTIVITY_COLUMNS) == "place bin nbytes wait_ns contended_ns"

    def printed(*args: str) -> dict:
        with pytest.raises(SystemExit) as stopped:
            main([*args, "--json"])
        assert stopped.value.code == 0
        return json.loads(capsys.readouterr().out)

    one = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    folder = str(tmp_path / "run")
    printed("run", "--bench", "gemm-single-pe", *one, "--save", folder)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert " ".join(manifest) == (
        "schema kind version hash created command identifier directory bench title params device devices machine "
        "machine_hash total_ns kernels_ns verified ok launches ops bin_ns bins files digests digest"
    )
    explained = printed("explain", folder)
    assert " ".join(explained) == (
        "schema command scope total_ns sentence verdict bound finish path lanes stalls calls run what_if"
    )
    assert " ".join(explained["path"]) == "class lane link place line launch wait"
    assert set(explained["path"]["class"][0]) == {"name", "ns", "share"}
    changed = printed("diff", folder, folder)
    assert " ".join(changed) == "schema command a b delta_ns tables"
    assert " ".join(changed["tables"]) == "class launch engine link line"
    (row,) = printed("runs", str(tmp_path))["runs"]
    assert " ".join(row) == "id name machine total_ns launches_ns verified launches ops dir error"


def test_yaml_top_level_keys() -> None:
    shipped = yaml.safe_load((files("kernbench.topology") / "default.yaml").read_text())
    after = {"energy", "area", "power", "cost", "limits", "fabric", "hbm", "cube_types", "sip_types"}
    assert set(shipped) == {"system", "sip", "io_chiplet", "cube"} | after


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


def test_ccl_json_keys(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    with pytest.raises(SystemExit) as stopped:
        main(["ccl", "-b", "8", "-e", "64", "-f", "8", "-d", "half", "--json", *small])
    assert stopped.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert {key: report[key] for key in ("schema", "command", "machine", "topology", "ranks", "ok")} == {
        "schema": 1, "command": "ccl", "machine": "default", "topology": None, "ranks": 2, "ok": True,
    }  # fmt: skip
    assert report["changed"] == {"sip.cube_mesh.w": "1", "sip.cube_mesh.h": "1"}
    figures = {"time_us", "time_with_launch_us", "algbw_gbs", "busbw_gbs", "wrong", "memory"}
    for row in report["rows"]:
        assert set(row) == figures | {
            "collective", "algorithm", "size_bytes", "count", "dtype", "op", "root", "out_of_place", "in_place",
        }  # fmt: skip
        assert set(row["in_place"]) == figures
        assert set(row["in_place"]["memory"]) == {"tensors_bytes", "rings_bytes", "kernels_bytes"}


TENSOR = """
    size dim numel element_size stride is_contiguous contiguous view reshape flatten squeeze unsqueeze transpose permute
    chunk split narrow data data_ptr numpy cpu tolist item sum mean max min abs sqrt exp relu gelu softmax clamp where
    matmul to clone copy_ fill_ zero_ ones_ normal_ uniform_ masked_fill argmax topk allclose equal add_ mul_ sub_ div_
"""
FUNCTIONS = """
    tensor ones zeros empty full zeros_like empty_like full_like ones_like arange randn rand eye linspace as_tensor
    from_numpy cat stack where matmul no_grad manual_seed Generator device set_default_dtype nn cuda
"""


def test_tensors_have_pytorchs_names() -> None:
    torch = RuntimeContext(GraphEngine(tiny_machine()))
    assert [name for name in TENSOR.split() if not hasattr(Tensor, name)] == []
    assert [name for name in FUNCTIONS.split() if not hasattr(torch, name)] == []


@pytest.mark.parametrize("namespace", TORCH)
def test_host_code_finds_pytorchs_names_on_torch(namespace: str) -> None:
    found = getattr(RuntimeContext(GraphEngine(tiny_machine())), namespace)
    assert {name for name in dir(found) if not name.startswith(("_", "team_"))} == set(TORCH[namespace].split())


def test_reduce_ops() -> None:
    assert [op.name for op in ReduceOp] == ["SUM", "PRODUCT", "MIN", "MAX", "AVG"]
    assert [op.value for op in ReduceOp] == ["sum", "product", "min", "max", "avg"]


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
