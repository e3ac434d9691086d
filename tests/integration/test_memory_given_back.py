"""A machine that nobody uses any more is given back, also where kernels on it never ended: these keep themselves."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest
from tests.integration.test_known_launches import EVERYWHERE, SPLIT, machine

import kernbench
from kernbench import repeatable
from kernbench.common.errors import DeadlockError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.steady import launch_explorer


@repeatable
def to_the_other_sip(tl: Any) -> None:
    """Waits for a message that comes from another SIP."""
    tl.send_async("global_E", tl.zeros((4, 64)))
    tl.recv("global_W", (4, 64))
    tl.wait()


def test_a_launch_that_is_explored_in_vain_leaves_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    explored: list[bool] = []
    explore = launch_explorer.Explorer.explore

    def noted(self: Any, *args: Any) -> Any:
        course = explore(self, *args)
        explored.append(course is not None)
        return course

    monkeypatch.setattr(launch_explorer.Explorer, "explore", noted)

    def run() -> Any:
        engine = GraphEngine(machine(), data=False)
        with RuntimeContext(engine) as torch:
            torch.install_ipcq()
            for _ in range(2):
                torch.launch("k", to_the_other_sip, **EVERYWHERE, sips=(0, 1))
        return ref(engine)

    engine = run()
    gc.collect()
    assert explored
    assert not any(explored)
    assert engine() is None


def stuck(x: Any, tl: Any) -> None:
    try:
        tl.recv(f"intra_{tl.program_id(0) ^ 1}", (4, 64))
    finally:  # it is thrown out, and asks for more all the same
        tl.load(x.local, (4, 64))


def test_a_run_that_ends_in_a_deadlock_leaves_no_machine() -> None:
    engines: list[Any] = []

    def bench(torch: Any) -> None:
        engines.append(ref(torch.engine))
        torch.install_ipcq()
        torch.launch("stuck", stuck, torch.zeros(64, 256, dp=SPLIT), **EVERYWHERE)

    with pytest.raises(DeadlockError, match="stuck"):
        kernbench.run(bench, machine(), device=0)
    gc.collect()
    assert [engine() for engine in engines] == [None]


def test_a_context_that_ends_in_a_deadlock_leaves_no_machine() -> None:
    def program(engine: GraphEngine) -> None:
        with RuntimeContext(engine) as torch:
            torch.install_ipcq()
            torch.launch("stuck", stuck, torch.zeros(64, 256, dp=SPLIT), **EVERYWHERE)

    engine = GraphEngine(machine())
    is_there = ref(engine)
    with pytest.raises(DeadlockError, match="stuck"):
        program(engine)
    del engine
    gc.collect()
    assert is_there() is None
