"""A run in which nothing can happen any more says who waits, at which kernel line, and for what.

The machine's HBM is of the test's own: it swallows what some PEs' DMA engines ask for.
"""

from __future__ import annotations

import sys
from functools import cache
from inspect import getsourcelines
from types import ModuleType
from typing import Any

import pytest

from kernbench.cli.main import main
from kernbench.common.errors import DeadlockError, LaunchError
from kernbench.common.messages import KernelLaunchMsg, KernelRef
from kernbench.components.base import Packet, Process
from kernbench.components.builtin.hbm_ctrl import HbmCtrlComponent
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

MINE = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)


class Swallows(HbmCtrlComponent):
    """Never answers a DMA engine; serves the host."""

    def accept(self, packet: Packet) -> Process | None:
        return None if packet.path[0].endswith("pe_dma") else super().accept(packet)


@pytest.fixture(autouse=True, scope="module")
def _module() -> None:
    module = ModuleType("deadlock_test_blocks")
    module.Swallows = Swallows  # type: ignore[attr-defined]  # a module made for the test
    sys.modules["deadlock_test_blocks"] = module


@cache
def machine() -> TopologyGraph:
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": 1,
            "cube.components.hbm_ctrl.impl": "deadlock_test_blocks:Swallows",
        },
    )


@pytest.fixture
def torch() -> RuntimeContext:
    return RuntimeContext(GraphEngine(machine()))


def kernel(x: Any, tl: Any) -> None:
    pe = tl.program_id(0)
    if pe == 0:
        tl.load(x.local, (2, 8))  # a load
    if pe == 1:
        handle = tl.composite("math", tl.ref(x.local, (2, 8)), out_ptr=x.local, math_op="exp")
        tl.wait(handle)  # a composite
    if pe == 3:
        tl.composite("math", tl.ref(x.local, (2, 8)), out_ptr=x.local, math_op="abs")


def line_with(text: str) -> tuple[int, str]:
    lines, first = getsourcelines(kernel)
    return next((first + at, line.strip()) for at, line in enumerate(lines) if text in line)


def test_every_blocked_pe_is_named_with_its_line_and_what_it_waits_for(torch: RuntimeContext) -> None:
    x = torch.zeros(8, 8, dp=MINE)
    with pytest.raises(DeadlockError) as caught:
        torch.launch("k", kernel, x)
    error = caught.value
    assert (error.where or "").startswith(f"the host waits for: kernel 'k' at {__file__}:")
    assert [(b.sip, b.cube, b.pe) for b in error.blocked] == [(0, 0, 0), (0, 0, 1), (0, 0, 3)]  # PE 2 has nothing to do
    assert {(b.kernel, b.file) for b in error.blocked} == {("k", __file__)}
    assert [(b.line, b.source) for b in error.blocked] == [
        line_with("# a load"),
        line_with("# a composite"),
        line_with("def kernel"),
    ]
    own = x.as_arg().local_address_for((0, 0, 0))
    assert [b.waits_for for b in error.blocked] == [
        f"a DMA read of 32 bytes at {own:#x}",  # 2 x 8 of f16
        "a composite exp (number 0)",
        "a composite abs (number 0), after the kernel's end",
    ]


def test_the_report_reads_line_by_line(torch: RuntimeContext) -> None:
    x = torch.zeros(8, 8, dp=MINE)
    with pytest.raises(DeadlockError) as caught:
        torch.launch("k", kernel, x, target_pes=2)  # which is number 0 of the launch
    line, source = line_with("# a load")
    own = x.as_arg().local_address_for((0, 0, 2))
    launched = test_the_report_reads_line_by_line.__code__.co_firstlineno + 3
    assert str(caught.value).splitlines()[:4] == [
        "deadlock: nothing is left that could happen, and the host still waits",
        f"  where: the host waits for: kernel 'k' at {__file__}:{launched}",
        f"  blocked: kernel 'k' on rank 0 (sip 0, cube 0, pe 2) waits for a DMA read of 32 bytes at {own:#x}",
        f"    at {__file__}:{line}  {source}",
    ]


def test_both_kernels_of_a_pe_are_named(torch: RuntimeContext) -> None:
    torch.engine.reserve_communication_tcm([0], 0, 4096)
    x = torch.zeros(8, 8, dp=MINE)
    torch.launch("compute", kernel, x, target_pes=0, wait=False)
    torch.launch("communicate", kernel, x, target_pes=0, stream="communication", wait=False)
    with pytest.raises(DeadlockError) as caught:
        torch.wait_all()
    assert [(b.pe, b.kernel) for b in caught.value.blocked] == [(0, "compute"), (0, "communicate")]
    assert len({b.waits_for for b in caught.value.blocked}) == 1  # both wait in the same load


def test_a_kernel_that_was_aborted_in_a_command_is_reported_until_its_engine_is_done(torch: RuntimeContext) -> None:
    def half(x: Any, tl: Any) -> None:
        if tl.program_id(0) == 1:
            raise ValueError("no good")
        tl.load(x.local, (2, 8))

    x = torch.zeros(8, 8, dp=MINE)
    with pytest.raises(LaunchError, match="no good"):
        torch.launch("k", half, x, target_pes=(0, 1))
    with pytest.raises(DeadlockError) as caught:
        torch.wait_all()
    own = x.as_arg().local_address_for((0, 0, 0))
    waits_for = f"a DMA read of 32 bytes at {own:#x}, after the kernel's end"
    assert [(b.pe, b.waits_for) for b in caught.value.blocked] == [(0, waits_for)]


def test_an_engine_without_a_host_reports_the_same() -> None:
    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        x = torch.zeros(8, 8, dp=MINE)
        engine.kernels["k"] = kernel
        handle = engine.submit(KernelLaunchMsg(sip=0, kernel_ref=KernelRef("k"), args=(x.as_arg(),), target_pes=(0,)))
        with pytest.raises(DeadlockError, match="is never answered") as caught:
            engine.wait(handle)
    assert [b.pe for b in caught.value.blocked] == [0]


def test_the_command_ends_with_2_and_names_the_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench = tmp_path / "stands.py"
    bench.write_text(
        "def kernel(x, tl):\n    tl.load(x, (4,))\n\n\ndef run(torch):\n    torch.launch('k', kernel, torch.zeros(4))\n"
    )
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", str(bench), "--set", "cube.components.hbm_ctrl.impl=deadlock_test_blocks:Swallows"])
    assert stopped.value.code == 2
    assert f"    at {bench}:2  tl.load(x, (4,))" in capsys.readouterr().err
