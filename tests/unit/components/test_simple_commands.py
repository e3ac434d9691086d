"""A simple command is gone when it is over: the garbage collector has nothing to find, however many there were."""

from __future__ import annotations

import gc
from typing import Any

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology


def rounds(x: Any, count: int, tl: Any) -> None:
    """Two loads, two vector ops, a product and two stores: 7 commands per round."""
    for _ in range(count):
        early = tl.load_async(x.local, (16, 16))
        block = tl.load(x.local, (16, 16))
        tl.store(x.local, tl.dot(tl.exp(block), tl.wait(early)) * 2.0)
        tl.wait(tl.store_async(x.local, block))


def garbage_of(count: int) -> int:
    """Objects that only the collector could free after a kernel of so many rounds."""
    one_cube = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    with RuntimeContext(GraphEngine(load_topology(None, one_cube), op_log=OpLog())) as torch:
        x = torch.zeros(16, 16)
        gc.collect()
        gc.disable()
        try:
            torch.launch("rounds", rounds, x, count)
            return gc.collect()
        finally:
            gc.enable()


def test_commands_leave_nothing_for_the_garbage_collector() -> None:
    gc.collect()
    gc.freeze()  # what other tests have made need not be looked through, here or later
    many, few = (min(garbage_of(count) for _ in range(3)) for count in (40, 2))  # other threads leave some too
    assert many - few < 38  # less than one object per round
