"""Where host programs may be run ahead by workers."""

from __future__ import annotations

import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError
from kernbench.sim_engine.host_ahead import HostAhead
from kernbench.triton_emu.recording_tl import KEPT, SeenArray


def test_all_programs_have_to_be_within_a_block() -> None:
    host, seen = HostAhead(), []

    def program() -> None:
        with host.scope(lambda: 2):
            getcurrent().parent.switch()

    one, other = greenlet(program), greenlet(program)
    for each in (one, other, one, other):
        each.switch()
        seen.append(host.may_begin)
    assert seen == [False, True, False, False]


def test_nested_blocks_are_one() -> None:
    host, ends = HostAhead(), []
    host.on_end.append(lambda: ends.append(host.may_begin))
    with host.scope(lambda: 1):
        with host.scope(lambda: 1):
            assert host.may_begin
        assert host.may_begin
        assert not ends
    with host.scope(lambda: 2), host.scope(lambda: 2):
        assert not host.may_begin
    assert ends == [False, False]


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_number_of_workers_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_WORKERS", text)
    with pytest.raises(UsageError, match=f"KERNBENCH_WORKERS is '{text}'"):
        HostAhead()


def test_why_no_process_runs_ahead_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_WORKERS", "0")
    assert HostAhead().why_none == "KERNBENCH_WORKERS is 0"
    assert HostAhead(allowed=False).why_none == "this fast path is off"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert HostAhead().why_none == "worker processes are made on Linux only"


@pytest.mark.parametrize("dtype", [np.int32, np.float32, ml_dtypes.bfloat16])
def test_what_a_kernel_saw_cannot_be_changed_in_another_process_either(dtype: type) -> None:
    seen = pickle.loads(pickle.dumps(SeenArray(np.zeros((4, 4), dtype).T)))
    assert isinstance(seen, SeenArray)
    assert not seen.value.flags.writeable
    assert pickle.loads(pickle.dumps(KEPT)) is KEPT
