"""A PE with an engine that KernBench does not have: from its own file to op log, figures and pictures.

The unit serves exp and log at 128 f16 functions per ns, 64 for f32. The machine and its times are those of
test_pe_pipeline.py: 1 ns per command, 16 ns to fetch and 16 ns to multiply a 32 x 64 x 32 tile, 4 ns to store it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from kernbench.common.engine_declaration import COMPUTE_WIRES, Attribute, EngineDeclaration
from kernbench.common.errors import ComponentError
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.pipeline import lanes_ns
from kernbench.components.builtin.stages import MathStage
from kernbench.report.roofline import roofline_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

ONE_PE = {
    "system.sips.count": 1,
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
}
PE = "cube.pe_template.components"
DECLARATION = EngineDeclaration(
    {"functions_per_ns": Attribute(1.0, 1e6, default=128.0)}, ops=("exp", "log"), wires=COMPUTE_WIRES, has_own_slot=True
)


class SfuStage(MathStage):
    """Says in the log how many functions it evaluates, and counts eight flops for each."""

    __slots__ = ()

    def fields(self, addresses):
        return {"function": self.op, "functions": self.elements}

    @property
    def amount(self):
        return 8 * self.elements


class OwnSlot(ComputeEngine):
    declaration = DECLARATION

    def stage_ns(self, stage):
        return lanes_ns(stage.elements, self.node.attrs["functions_per_ns"], stage.dtype)


class SharedSlot(OwnSlot):
    declaration = replace(DECLARATION, has_own_slot=False)


class OwnStage(OwnSlot):
    declaration = replace(DECLARATION, stage=SfuStage)


class NoSuchOp(OwnSlot):
    declaration = replace(DECLARATION, ops=("exp", "expp"))


class NoStage(OwnSlot):
    declaration = replace(DECLARATION, stage=int)


@pytest.fixture(autouse=True)
def _blocks(monkeypatch):
    module = ModuleType("further_engines")
    for cls in (OwnSlot, SharedSlot, OwnStage, NoSuchOp, NoStage):
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "further_engines", module)


def machine(cls=None, **attrs):
    further = {} if cls is None else {f"{PE}.pe_sfu": {"impl": f"further_engines:{cls.__name__}", "attrs": attrs}}
    return load_topology(None, ONE_PE | further)


def logged(kernel, *arrays, graph):
    log = OpLog()
    run = run_kernel(kernel, *arrays, topology=graph, op_log=log)
    return run, log.records


def by_steps(tl):
    x = tl.zeros((1000,))
    tl.exp(x + x)


def tiled(a, b, tl):
    """Four tiles whose operands and result are in TCM."""
    tl.wait(tl.composite("gemm", tl.load(a), tl.load(b), epilogue=[{"op": "exp"}]))


def ones(*shape):
    return np.ones(shape, np.float16)


def test_a_simple_command_goes_to_the_engine_that_declares_its_op():
    run, records = logged(by_steps, graph=machine(OwnSlot))
    assert run.time_ns == (1 + 4) + (1 + 8)  # 1000 elements on 256 lanes, then on 128
    assert [(r.component_id.rpartition(".")[2], r.op_kind, r.op_name) for r in records] == [
        ("pe_math", "math", "add"),
        ("pe_sfu", "math", "exp"),
    ]
    assert logged(by_steps, graph=machine())[0].time_ns == (1 + 4) + (1 + 4)


def test_its_attrs_come_from_the_description():
    run, _ = logged(by_steps, graph=machine(OwnSlot, functions_per_ns=10, overhead_ns=3))
    assert run.time_ns == (1 + 4) + (1 + 3 + 100)


@pytest.mark.parametrize(
    ("cls", "ns"),
    [
        # GEMM and exp each take 16 ns per tile. A unit of its own begins when the first tile is fetched and multiplied,
        # and is then one tile behind GEMM; on a shared slot the eight ops take turns.
        (OwnSlot, 16 + 4 * 16 + 16 + 4),
        (SharedSlot, 16 + 8 * 16 + 4),
    ],
)
def test_an_engine_works_beside_the_others_if_it_has_a_slot_of_its_own(cls, ns):
    _, records = logged(tiled, ones(64, 64), ones(64, 64), graph=machine(cls))
    composite = next(record for record in records if record.op_name == "composite_gemm")
    assert composite.t_end - composite.t_start == ns
    exps = [r for r in records if r.component_id.endswith("pe_sfu")]
    assert [(r.op_name, r.t_end - r.t_start) for r in exps] == [("TileToken/MATH", 16.0)] * 4


def test_values_do_not_depend_on_who_computes_them():
    def kernel(x, out, tl):
        tl.store(out, tl.log(tl.exp(tl.load(x))))

    x = np.linspace(-3, 3, 512).astype(np.float16)
    ours, shipped = (logged(kernel, x, np.zeros_like(x), graph=graph)[0] for graph in (machine(OwnSlot), machine()))
    assert np.array_equal(ours.arrays[1], shipped.arrays[1])


def test_machines_with_and_without_it_share_no_plan():
    a, b = ones(64, 64), ones(64, 64)
    served = [
        {r.component_id.rpartition(".")[2] for r in logged(tiled, a, b, graph=graph)[1] if r.op_kind == "math"}
        for graph in (machine(), machine(OwnSlot), machine(), machine(SharedSlot))
    ]
    assert served == [{"pe_math"}, {"pe_sfu"}, {"pe_math"}, {"pe_sfu"}]


def test_its_stage_says_what_the_log_has_on_it_and_how_many_flops_it_counts():
    graph = machine(OwnStage)
    _, records = logged(tiled, ones(64, 64), ones(64, 64), graph=graph)
    exp = next(record for record in records if record.component_id.endswith("pe_sfu"))
    assert exp.params == {"stage_type": "MATH", "tile_id": 0, "function": "exp", "functions": 1024}
    assert launched(graph).engines["pe_sfu"].flops == 8 * 64 * 64


def launched(graph):
    with RuntimeContext(GraphEngine(graph, op_log=OpLog())) as torch:
        launch = torch.launch("tiled", tiled, torch.from_numpy(ones(64, 64)), torch.from_numpy(ones(64, 64)))
        torch.wait_all()
        return launch


@pytest.mark.parametrize(
    ("rate", "gemm_ns", "sfu_ns"),
    [(128.0, 64.0, 64.0), (32.0, 64.0, 256.0), (512.0, 64.0, 16.0)],
)
def test_figures_of_a_launch_know_it_and_slots_bound_it_one_by_one(rate, gemm_ns, sfu_ns):
    graph = machine(OwnSlot, functions_per_ns=rate)
    launch = launched(graph)
    engines = launch.as_json()["engines"]
    assert engines["pe_sfu"] == {"ops": 4, "busy_ns": sfu_ns, "busy_ns_max": sfu_ns, "flops": 64 * 64}
    assert engines["pe_gemm"]["busy_ns"] == gemm_ns
    assert roofline_of(launch, graph).compute_ns == max(gemm_ns, sfu_ns)
    assert launch.pes[0].compute_ns == max(gemm_ns, sfu_ns)


def test_engines_that_share_a_slot_bound_a_launch_together():
    graph = machine(SharedSlot)
    launch = launched(graph)
    assert roofline_of(launch, graph).compute_ns == launch.pes[0].compute_ns == 64 + 64


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (NoSuchOp, "pe_sfu declares the op 'expp', and there is none of that name"),
        (NoStage, "pe_sfu declares int as the stage of its ops"),
    ],
)
def test_a_declaration_that_cannot_be_served_is_refused_before_anything_runs(cls, what):
    with pytest.raises(ComponentError) as caught:
        GraphEngine(machine(cls))
    assert caught.value.what == what
    assert caught.value.where == f"impl further_engines:{cls.__name__}"
