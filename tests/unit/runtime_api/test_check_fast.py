"""Check mode: a program that depends on which fast paths are taken is found out, and the guilty one is named."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench import repeatable
from kernbench.common.errors import FastCheckError, UsageError
from kernbench.sim_engine.fast_paths import ALL, EXACT
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog
from kernbench.testing import tiny_machine


@repeatable
def add_one(x: Any, tl: Any) -> None:
    tl.store(x.local, tl.load(x.local, (8, 64)) + 1.0)


def sound(torch: Any) -> float:
    x = torch.zeros(8, 64)
    for _ in range(3):
        torch.launch("add", add_one, x, target_pes=(0,), target_cubes=(0,))
    return float(x.numpy().sum())


def depends_on(name: str) -> Any:
    """A program that is one cycle longer where a fast path is on: as a fast path would be that has a mistake."""

    def program(torch: Any) -> None:
        extra = getattr(torch.engine.fast_paths, name)
        torch.launch("wait", waits, 100 + extra, target_pes=(0,), target_cubes=(0,))

    return program


def waits(cycles: int, tl: Any) -> None:
    tl.cycles(cycles)
    tl.dot(tl.zeros((16, 16)), tl.zeros((16, 16)))  # its record begins a cycle later


def run(program: Any, **options: Any) -> kernbench.BenchResult:
    return kernbench.run(program, tiny_machine(), **options)


def test_a_sound_program_is_the_same_and_the_first_run_is_the_result() -> None:
    result = run(sound, check_fast=True)
    assert result.ok
    assert result.fast_check is not None
    assert result.fast_check.as_json() == {"ok": True, "difference": None, "without": {}, "guilty": []}
    assert result.simulation.launches.reused == 2
    assert result.returned == [8 * 64 * 3.0]
    assert "fast_check" not in run(sound).as_json()


def test_the_first_difference_names_op_pe_and_line() -> None:
    result = run(depends_on("compiled"), check_fast=True)
    assert not result.ok
    assert result.fast_check is not None
    found = result.fast_check.difference
    assert found is not None
    assert found.what == "op log"
    assert found.where.startswith("op 0, gemm_f16 on sip0.cube0.pe0.pe_gemm at ")
    assert found.line is not None
    file, _, number = found.line.rpartition(":")
    assert Path(file).name == Path(__file__).name
    assert linecache.getline(__file__, int(number)).strip().startswith("tl.dot(")


@pytest.mark.parametrize("name", ["launches", "composites", "compiled"])
def test_each_names_the_guilty_one(name: str) -> None:
    check = run(depends_on(name), check_fast="each").fast_check
    assert check is not None
    assert check.guilty == (name,)
    assert check.as_text().endswith(f"the difference comes from: {name}")


def test_trains_are_guilty_only_where_nothing_that_needs_them_is() -> None:
    check = run(depends_on("trains"), check_fast="each").fast_check
    assert check is not None
    assert check.guilty == ("trains",)


def test_a_difference_that_another_fast_path_hides_is_found_with_each() -> None:
    """One cycle more without launches, as all of them off have not: the runs with all on and all off agree."""

    def program(torch: Any) -> None:
        paths = torch.engine.fast_paths
        torch.launch("wait", waits, 100 + (paths == ALL.without("launches")), target_pes=(0,), target_cubes=(0,))

    assert run(program, check_fast=True).ok
    result = run(program, check_fast="each")
    assert result.fast_check is not None
    assert result.fast_check.difference is None
    assert not result.ok


def test_numbers_of_tensors_are_compared_when_they_are_freed() -> None:
    def program(torch: Any) -> None:
        torch.full((8,), 1.0 + torch.engine.fast_paths.trains, name="mine")

    check = run(program, check_fast=True).fast_check
    assert check is not None
    assert check.difference is not None
    assert (check.difference.what, check.difference.where) == ("contents", "mine on sip0.cube0.pe0")


def test_an_error_of_one_run_only_is_a_difference_and_of_both_is_the_error() -> None:
    def program(torch: Any) -> None:
        torch.zeros(8)
        if torch.engine.fast_paths.trains:
            raise UsageError("only with trains")

    check = run(program, check_fast=True).fast_check
    assert check is not None
    assert check.difference is not None
    assert check.difference.what == "outcome"
    assert check.difference.expected == "it ends well"
    assert check.difference.found.startswith("UsageError: only with trains")

    def always(torch: Any) -> None:
        raise UsageError("always")

    with pytest.raises(UsageError, match="always"):
        run(always, check_fast=True)


def test_two_runs_that_fail_in_different_ways_are_a_difference_and_both_are_reported() -> None:
    def fails(torch: Any) -> None:
        raise UsageError("as usual" if torch.engine.fast_paths.trains else "exactly")

    with pytest.raises(FastCheckError) as found:
        run(fails, check_fast=True)
    assert "expected: UsageError: exactly" in str(found.value)
    assert "found:    UsageError: as usual" in str(found.value)
    assert [str(error).splitlines()[0] for error in (found.value.usual, found.value.exact)] == ["as usual", "exactly"]


def test_the_environment_checks_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXACT, "check")
    assert not run(depends_on("trains")).ok
    assert run(sound).ok


def test_a_log_in_a_file_is_that_of_the_first_run(tmp_path) -> None:
    runs = []

    def program(torch: Any) -> None:
        runs.append(torch.engine.fast_paths)
        sound(torch)

    with StreamingOpLog(tmp_path / "ops") as log:
        assert run(program, op_log=log, check_fast=True).ok
    assert [paths == ALL for paths in runs] == [True, True, False]  # the second stands in for the first
    kept = OpLog()
    run(sound, op_log=kept)
    assert len(log) == len(kept)
