"""`torch.timing_only()`: a run that keeps no tensor contents."""

from __future__ import annotations

from functools import partial

import pytest

import kernbench
from kernbench.common.errors import LaunchError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.triton_emu.repeatable import is_repeatable
from kernbench.triton_emu.tl_context import TLContext

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}


@kernbench.repeatable
def double(x, tl):
    rows = tl.load(x.local)
    tl.store(x.local, rows + rows)


def doubled(torch, timing_only: bool = True):
    if timing_only:
        torch.timing_only()
    x = torch.full((16, 64), 1, dp=DPPolicy(cube="row_wise", pe="row_wise"))
    torch.launch(double, x)
    return x


def test_the_time_is_that_of_a_run_with_contents():
    timed, whole = (kernbench.run(doubled, None, SMALL, params={"timing_only": only}) for only in (True, False))
    assert timed.total_ns == whole.total_ns
    assert timed.op_log.records == whole.op_log.records


def test_contents_cannot_be_read():
    def read(torch):
        doubled(torch).numpy()

    with pytest.raises(UsageError, match="this run keeps no data"):
        kernbench.run(read, None, SMALL)


@pytest.mark.parametrize("look", [lambda x: float(x[0, 0]), lambda x: x.numpy(), lambda x: bool((x + 1)[0, 0] > 0)])
def test_a_kernel_cannot_look_at_what_it_loaded(look):
    @kernbench.repeatable
    def kernel(x, tl):
        look(tl.load(x.local))

    def bench(torch):
        torch.timing_only()
        torch.launch(kernel, torch.full((16, 64), 1, dp=DPPolicy(cube="row_wise", pe="row_wise")))

    with pytest.raises(LaunchError, match="a look at numbers that were loaded, in a run that keeps none"):
        kernbench.run(bench, None, SMALL)


def test_a_kernel_may_look_at_what_it_has_made():
    def kernel(x, tl):
        assert tl.arange(0, 4).numpy().tolist() == [0, 1, 2, 3]
        tl.load(x.local, (1, 4), mask=tl.arange(0, 4) < 3)

    def bench(torch):
        torch.timing_only()
        torch.launch(kernel, torch.full((16, 64), 1, dp=DPPolicy(cube="row_wise", pe="row_wise")))

    assert kernbench.run(bench, None, SMALL).ok


def test_a_cube_of_kernels_is_not_run_twice(monkeypatch):
    seen = []

    def noted(tl, axis):  # which no recording answers
        seen.append(tl._env.program[axis])
        return seen[-1]

    monkeypatch.setattr(TLContext, "program_id", noted)

    @kernbench.repeatable
    def counted(x, tl):
        tl.program_id(1)
        if tl.num_programs(0):
            double(x, tl)

    def bench(torch):
        torch.timing_only()
        torch.launch(counted, torch.full((16, 64), 1, dp=DPPolicy(cube="row_wise", pe="row_wise")))

    result = kernbench.run(bench, None, SMALL)
    assert result.engine.launch_replayer.replayed_regions == 2
    assert seen == [0] * 8 + [1] * 8


def test_all_ranks_may_say_so():
    result = kernbench.run(doubled, None, {**SMALL, "system.sips.count": 2})
    assert result.ok


def test_not_after_the_first_tensor():
    def late(torch):
        torch.full((16,), 1)
        torch.timing_only()

    with pytest.raises(UsageError, match="contents are dropped after the first tensor"):
        kernbench.run(late, None, SMALL)


def test_what_can_be_repeatable():
    class Kernel:
        def method(self, x, tl):
            double(x, tl)

    def plain(x, a, tl):
        double(x, tl)

    assert is_repeatable(kernbench.repeatable(partial(plain, a=1)))
    assert is_repeatable(partial(double))
    assert not is_repeatable(partial(plain, a=1))
    assert is_repeatable(kernbench.repeatable(Kernel().method))
    with pytest.raises(UsageError, match="repeatable marks a kernel, not 3"):
        kernbench.repeatable(3)  # type: ignore[type-var]  # the mistake


def test_not_where_contents_are_verified():
    with pytest.raises(UsageError, match="timing_only in a run that is to be verified"):
        kernbench.run(doubled, None, SMALL, verify_data=True)
