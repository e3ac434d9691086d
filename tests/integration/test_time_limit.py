"""Kernels that never end: a limit of simulated time, and Ctrl-C, say where every PE stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import kernbench
from kernbench.cli.main import main
from kernbench.common.errors import DeadlockError, StoppedRun, TimeLimitError, UsageError
from kernbench.testing import run_kernel

RUN_COMMAND = "runpy.run_module('kernbench', run_name='__main__', alter_sys=True)"
LIVELOCK = """
def take(lock, tl):
    while int(tl.atomic_cas(lock, 0, 1)):
        pass
    if tl.program_id(0) == 2:
        tl.cycles(1)  # and the lock is never released


def run(torch):
    torch.launch(take, torch.zeros(1, dtype="i32"), target_pes=range(3))
"""
ONE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


def spin(lock, tl):
    while int(tl.atomic_cas(lock, 0, 1)):
        pass


def test_a_lock_that_is_never_released_ends_with_a_line_for_every_pe_that_waits():
    with pytest.raises(TimeLimitError) as caught:
        run_kernel(spin, np.ones(1, np.int32), grid=(3,), max_time_ns=2000)
    assert [kernel.key for kernel in caught.value.kernels] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert all(kernel.source == "while int(tl.atomic_cas(lock, 0, 1)):" for kernel in caught.value.kernels)
    said = str(caught.value)
    assert said.startswith("the run takes more than 2.00 us of simulated time, its limit\n  running: kernel 'spin' on ")
    assert "sip0.cube0.pe0..pe2 (3 PEs) waits for" in said


def test_a_limit_that_is_not_reached_changes_nothing():
    def once(x, tl):
        tl.atomic_add(x, 1)

    plain, limited = run_kernel(once, np.ones(1, np.int32)), run_kernel(once, np.ones(1, np.int32), max_time_ns=1e6)
    assert plain.time_ns == limited.time_ns


def test_what_happens_at_the_limit_still_happens():
    def bench(torch):
        torch.launch(spin, torch.zeros(1, dtype="i32"))

    total_ns = kernbench.run(bench, None, ONE).total_ns
    assert kernbench.run(bench, None, ONE, max_time_ns=total_ns).total_ns == total_ns
    with pytest.raises(TimeLimitError):
        kernbench.run(bench, None, ONE, max_time_ns=total_ns - 0.5)


def test_a_deadlock_within_the_limit_is_reported_as_one():
    def waits(x, tl):
        tl.recv("intra_E", (1,))

    with pytest.raises(DeadlockError):
        run_kernel(waits, np.ones(1, np.int32), grid=(2,), max_time_ns=1e9)


@pytest.mark.parametrize("limit", [0, -1, "1ms", True, float("nan")])
def test_what_is_no_time_is_refused(limit):
    with pytest.raises(UsageError, match="max_time_ns"):
        run_kernel(spin, np.zeros(1, np.int32), max_time_ns=limit)


def test_the_command_takes_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bench = tmp_path / "livelock.py"
    bench.write_text(LIVELOCK)
    sizes = [word for key, value in ONE.items() for word in ("--set", f"{key}={value}")]
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", str(bench), "--max-time", "5us", *sizes])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "error: the run takes more than 5.00 us of simulated time" in said
    assert "livelock.py:3  while int(tl.atomic_cas(lock, 0, 1)):" in said
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", str(bench), "--max-time", "soon", *sizes])
    assert stopped.value.code == 2
    assert "--max-time is 'soon'" in capsys.readouterr().err


def test_an_interrupt_in_a_kernel_says_where_that_kernel_and_the_others_stand():
    def kernel(lock, tl):
        if tl.program_id(0) == 1:
            tl.cycles(3000)
            raise KeyboardInterrupt
        while int(tl.atomic_cas(lock, 0, 1)):
            pass

    with pytest.raises(StoppedRun) as caught:
        run_kernel(kernel, np.ones(1, np.int32), grid=(2,))
    assert [kernel.source for kernel in caught.value.kernels] == [
        "while int(tl.atomic_cas(lock, 0, 1)):",
        "raise KeyboardInterrupt",
    ]
    assert str(caught.value).startswith("stopped at ")


def test_ctrl_c_prints_where_every_pe_stands(tmp_path: Path):
    bench = tmp_path / "livelock.py"
    bench.write_text(LIVELOCK)
    sizes = [word for key, value in ONE.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "kernbench", "run", "--bench", str(bench), *sizes]
    started = tmp_path / "started"
    bench.write_text(LIVELOCK.replace("    while", f"    open({str(started)!r}, 'w').close()\n    while", 1))
    # A shell that starts the suite in the background has it ignore SIGINT, which processes inherit.
    heeded = f"import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); {RUN_COMMAND}"
    command[1:3] = ["-c", heeded]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as run:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        try:
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130
    assert "stopped at " in said
    assert "running: kernel 'take' on " in said
    assert "while int(tl.atomic_cas(lock, 0, 1)):" in said
