"""Tables of `auto` from measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.ccl.config import choose, load_ccl_config
from kernbench.ccl.config_spec import AutoRow
from kernbench.ccl.tuned import Measurement, check_writable, choose_rows, table_text, write_whole
from kernbench.common.errors import UsageError

SLOW = "lrab_hierarchical_allreduce"


def trials(nbytes: int, *times: tuple[str, float]) -> list[Measurement]:
    return [Measurement(nbytes, name, None, time_ns) for name, time_ns in times]


def test_a_row_ends_half_way_between_two_sizes_that_differ() -> None:
    tried = trials(1024, ("tree", 10), (SLOW, 20)) + trials(16384, ("tree", 50), (SLOW, 40))
    before = [Measurement(1024, SLOW, None, 20), Measurement(16384, SLOW, None, 40)]
    rows, chosen = choose_rows(tried, before)
    assert rows == (AutoRow("tree", 4096), AutoRow(SLOW))  # sqrt(1 KiB * 16 KiB) = 4 KiB
    assert [trial.time_ns for trial in chosen] == [10, 40]


def test_what_the_present_table_takes_stays_where_nothing_is_2_percent_faster() -> None:
    tried = trials(1024, ("tree", 100), (SLOW, 102)) + trials(4096, ("tree", 100), (SLOW, 103))
    before = [Measurement(1024, SLOW, None, 102), Measurement(4096, SLOW, None, 103)]
    rows, _ = choose_rows(tried, before)
    assert rows == (AutoRow(SLOW, 2048), AutoRow("tree"))


def test_a_choice_stays_from_one_size_to_the_next_where_nothing_is_2_percent_faster() -> None:
    tried = trials(1024, ("tree", 10), (SLOW, 20), ("chain", 30)) + trials(
        4096, ("tree", 101), (SLOW, 100.5), ("chain", 100)
    )
    before = [Measurement(1024, SLOW, None, 20), Measurement(4096, "ring", None, 200)]
    rows, _ = choose_rows(tried, before)
    assert rows == (AutoRow("tree"),)


def test_chunks_are_part_of_a_choice() -> None:
    tried = [
        Measurement(1024, "tree", None, 10),
        Measurement(4096, "tree", None, 50),
        Measurement(4096, "tree", 8192, 40),
    ]
    rows, _ = choose_rows(tried, [tried[0], tried[1]])
    assert rows == (AutoRow("tree", 2048), AutoRow("tree", None, 8192))


def test_a_written_table_is_read_back_as_it_was(tmp_path: Path) -> None:
    rows = (AutoRow("tree", 2048), AutoRow("ring_allreduce", 65536, 8192), AutoRow("hierarchical_all_pes"))
    write_whole(tmp_path / "tuned.yaml", table_text({"all_reduce": rows}, ["For machine X.", ""]))
    assert (tmp_path / "tuned.yaml").read_text() == (
        "# For machine X.\n"
        "#\n"
        "auto:\n"
        "  all_reduce:\n"
        "    - { up_to_bytes: 2048, algorithm: tree }\n"
        "    - { up_to_bytes: 65536, algorithm: ring_allreduce, chunk_bytes: 8192 }\n"
        "    - { algorithm: hierarchical_all_pes }\n"
    )
    (tmp_path / "ccl.yaml").write_text("auto: tuned.yaml\n")
    config = load_ccl_config(tmp_path / "ccl.yaml")
    assert config.auto["all_reduce"] == rows
    assert config.auto["broadcast"] == load_ccl_config({}).auto["broadcast"]  # what was not tuned is as shipped
    assert choose(config, "all_reduce", 4096).chunk_bytes == 8192


def test_a_file_that_cannot_be_finished_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "tuned.yaml"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        check_writable(tmp_path / "none" / "tuned.yaml")
