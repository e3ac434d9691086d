"""A folder takes its place as a whole: at every moment there is one, with several processes at it, and after a kill."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.browser.generated_run import write_generated_run

from kernbench.common.errors import UsageError
from kernbench.report import open_run
from kernbench.report.runs import replaced as module
from kernbench.report.runs.replaced import exchange, replaced


def put(target: Path, text: str) -> None:
    with replaced(target, lambda: None, lambda part: (part / "whole").is_file()) as part:
        (part / "text").write_text(text)
        (part / "whole").touch()


def _put_often(target: Path, times: int) -> None:
    for number in range(times):
        put(target, f"{os.getpid()} {number}")


def _begin_and_wait(target: Path, began: str) -> None:
    with replaced(target, lambda: None, lambda part: True) as part:
        (part / "text").write_text("half")
        Path(began).touch()
        time.sleep(60)


def test_two_folders_exchange_their_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "none")


def test_at_every_moment_there_is_a_whole_folder_while_two_processes_replace_it(tmp_path: Path) -> None:
    target = tmp_path / "run"
    put(target, "first")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_often, args=(target, 60)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        folder = os.open(target, os.O_RDONLY)  # never FileNotFoundError
        os.close(folder)
        seen += 1
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen > 100
    assert sorted(file.name for file in target.iterdir()) == ["text", "whole"]
    assert [child.name for child in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_makes_is_not(tmp_path: Path) -> None:
    target, began = tmp_path / "run", tmp_path / "began"
    other = multiprocessing.get_context("spawn").Process(target=_begin_and_wait, args=(target, str(began)))
    other.start()
    while not began.exists():
        time.sleep(0.01)
    put(target, "mine")
    assert len(list(tmp_path.glob(".run.*.part"))) == 1  # the other one's
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    put(target, "again")
    assert not list(tmp_path.glob(".run.*"))
    assert (target / "text").read_text() == "again"


def test_a_block_that_fails_or_leaves_nothing_whole_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "run"
    put(target, "first")
    with pytest.raises(ZeroDivisionError), replaced(target, lambda: None, lambda part: True):
        raise ZeroDivisionError
    with replaced(target, lambda: None, lambda part: False):
        pass
    assert (target / "text").read_text() == "first"
    assert [child.name for child in tmp_path.iterdir()] == ["run"]


def test_what_may_not_be_replaced_by_now_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "run"

    def refuse() -> None:
        raise UsageError("it holds other things")

    def put_into_a_folder_that_came_meanwhile() -> None:
        with replaced(target, refuse, lambda part: True):
            target.mkdir()
            (target / "precious").touch()

    with pytest.raises(UsageError, match="other things"):
        put_into_a_folder_that_came_meanwhile()
    assert [child.name for child in target.iterdir()] == ["precious"]


def test_where_names_cannot_be_exchanged_the_old_folder_steps_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without that operation, which this test cannot mount."""
    monkeypatch.setattr(module, "exchange", lambda one, other: False)
    target = tmp_path / "run"
    put(target, "first")
    put(target, "second")
    assert (target / "text").read_text() == "second"
    assert [child.name for child in tmp_path.iterdir()] == ["run"]


def test_an_old_folder_that_a_killed_process_put_aside_is_put_back(tmp_path: Path) -> None:
    target = tmp_path / "run"
    put(target, "first")
    target.rename(tmp_path / ".run.1-0.old")
    with replaced(target, lambda: None, lambda part: False):
        assert (target / "text").read_text() == "first"
    assert [child.name for child in tmp_path.iterdir()] == ["run"]


def _alternate(target: Path, runs: list[Path], times: int) -> None:
    for number in range(times):
        with replaced(target, lambda: None, lambda part: True) as part:
            shutil.copytree(runs[number % 2], part, dirs_exist_ok=True)


def test_a_run_can_be_opened_at_every_moment_and_what_is_read_is_of_one_run(tmp_path: Path) -> None:
    """A reader that was overtaken says so; it never takes the other run for a damaged one."""
    runs = [tmp_path / "one", tmp_path / "two"]
    for rounds, run in enumerate(runs, 1):
        write_generated_run(run, pes=1, rounds=rounds)
    target = tmp_path / "run"
    _alternate(target, runs, 1)
    writer = multiprocessing.get_context("spawn").Process(target=_alternate, args=(target, runs, 60))
    writer.start()
    read: list[int] = []
    errors: set[str] = set()
    while writer.is_alive():
        run = open_run(target)
        try:
            assert len(run.ops.t_end) == run.manifest.ops
            assert run.launches[0].end_ns == run.total_ns
            read.append(run.manifest.ops)
        except UsageError as error:
            errors.add(error.what)
    writer.join()
    assert errors <= {"the run was replaced while it was open"}
    assert writer.exitcode == 0
    assert set(read) == {4, 8}
