"""A machine without references is given back, also where kernels on it never ended: these keep themselves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import pytest
from greenlet import GreenletExit
from tests.integration.test_replayed_launches import EVERYWHERE, SPLIT, machine

import kernbench.testing
from kernbench import repeatable
from kernbench.common.errors import DeadlockError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.memo import launch_recorder


@pytest.fixture(autouse=True)
def collections_look_through_what_the_test_makes() -> Iterator[None]:
    """And not through what all tests before it have left."""
    gc.freeze()
    yield
    gc.unfreeze()


@repeatable
def to_the_other_sip(tl: Any) -> None:
    """Waits for a message that comes from another SIP."""
    tl.send_async("global_E", tl.zeros((4, 64)))
    tl.recv("global_W", (4, 64))
    tl.wait()


def test_a_launch_that_is_recorded_in_vain_leaves_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[bool] = []
    record = launch_recorder.LaunchRecorder.record

    def noted(self: Any, *args: Any) -> Any:
        recording = record(self, *args)
        recorded.append(recording is not None)
        return recording

    monkeypatch.setattr(launch_recorder.LaunchRecorder, "record", noted)

    def run() -> Any:
        engine = GraphEngine(machine(), data=False)
        with RuntimeContext(engine) as torch:
            torch.install_ipcq()
            for _ in range(2):
                torch.launch("k", to_the_other_sip, **EVERYWHERE, sips=(0, 1))
        return ref(engine)

    engine = run()
    gc.collect()
    assert recorded == [False, False]  # its first cube and its first SIP, once
    assert engine() is None


def stuck(x: Any, tl: Any) -> None:
    try:
        tl.recv(f"intra_{tl.program_id(0) ^ 1}", (4, 64))
    finally:  # it is thrown out, and asks for more all the same
        tl.load(x.local, (4, 64))


@pytest.mark.parametrize("wait", [True, False])  # the deadlock is found at once, or when all is over
def test_a_run_that_ends_in_a_deadlock_leaves_no_machine(wait: bool) -> None:
    engines: list[Any] = []

    def bench(torch: Any) -> None:
        engines.append(ref(torch.engine))
        torch.install_ipcq()
        torch.launch("stuck", stuck, torch.zeros(64, 256, dp=SPLIT), **EVERYWHERE, wait=wait)

    with pytest.raises(DeadlockError, match="stuck"):
        kernbench.run(bench, machine(), device=0)
    gc.collect()
    assert [engine() for engine in engines] == [None]


def test_a_kernel_that_is_run_alone_and_gets_stuck_leaves_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Any] = []

    def noted(*args: Any, **named: Any) -> GraphEngine:
        engine = GraphEngine(*args, **named)
        engines.append(ref(engine))
        return engine

    monkeypatch.setattr(kernbench.testing, "GraphEngine", noted)
    with pytest.raises(DeadlockError, match="stuck"):
        kernbench.testing.run_kernel(stuck, np.zeros((8, 64), np.float16), grid=2, dp=DPPolicy(pe="row_wise"))
    gc.collect()
    assert [engine() for engine in engines] == [None]


class OwnError(BaseException):
    """An error that the program does not expect."""


def stores_as_it_ends(x: Any, tl: Any) -> None:
    """Uses blocks that were not made before."""
    try:
        tl.cycles(10**9)
    finally:
        tl.store(x.local, tl.load(x.local, (4, 64)))


def raises_as_it_ends(x: Any, tl: Any) -> None:
    try:
        tl.cycles(10**9)
    finally:
        raise OwnError


@pytest.mark.parametrize("kernel", [stores_as_it_ends, raises_as_it_ends])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_kernels_that_are_thrown_out_hide_no_error(kernel: Any, error: type[BaseException]) -> None:
    engines: list[Any] = []

    def bench(torch: Any) -> None:
        engines.append(ref(torch.engine))
        torch.launch("k", kernel, torch.zeros(64, 256, dp=SPLIT), **EVERYWHERE, wait=False)
        torch.launch("other", lambda tl: tl.cycles(1), sips=(1,))  # time passes, and kernels begin
        raise error("of the bench")

    with pytest.raises(error, match="of the bench"):
        kernbench.run(bench, machine(), device=0)
    gc.collect()
    assert [engine() for engine in engines] == [None]


def test_what_a_kernel_raises_as_its_recording_ends_is_not_seen() -> None:
    @repeatable
    def waits(tl: Any) -> None:
        tl.send_async("global_E", tl.zeros((4, 64)))
        try:
            tl.recv("global_W", (4, 64))
        except GreenletExit:
            raise OwnError from None
        tl.wait()

    with RuntimeContext(GraphEngine(machine(), data=False)) as torch:
        torch.install_ipcq()
        launch = torch.launch("k", waits, **EVERYWHERE, sips=(0, 1))
    assert not launch.failures
