"""Rows on disk: whole or not counted, found again by their point, never mixed with those of another sweep."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from kernbench.common.errors import UsageError
from kernbench.sweep.context import digest_of
from kernbench.sweep.folder import SweepFolder
from kernbench.sweep.points import Point
from kernbench.sweep.rows import SweepRow

IDENTITY = {"bench": "b", "version": "1"}
POINTS = [Point({"m": m}, {}) for m in range(3)]


def row(m: int) -> SweepRow:
    made_with = digest_of(IDENTITY)
    return SweepRow(m, {"m": m}, {}, ok=m != 1, total_ns=float(m), made_with=made_with, error="a\nb" * (m == 1) or None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "s"
    with closing(SweepFolder(path, IDENTITY)) as made:
        for m, point in enumerate(POINTS):
            made.add(point, row(m), 0.5)
    return path


def found(path: Path) -> tuple[list[int], list[str]]:
    """Which of the three rows are there, and what was said."""
    with closing(SweepFolder(path, IDENTITY)) as opened:
        return [m for m, point in enumerate(POINTS) if opened.get(point) == row(m)], opened.notes


def test_rows_are_there_again(folder: Path) -> None:
    assert found(folder) == ([0, 1, 2], [])


def test_a_row_that_was_cut_off_is_not_counted_and_said(folder: Path) -> None:
    rows = folder / "rows.jsonl"
    rows.write_bytes(rows.read_bytes()[:-20])
    left, notes = found(folder)
    assert left == [0, 1]
    assert notes == ["1 damaged of 3 rows: their points run again (rows.damaged-1.jsonl)"]
    assert found(folder) == ([0, 1], [])  # said once; the file is whole again


@pytest.mark.parametrize("damage", [b"", b"\x00\xff", b"{}", b'{"crc":"00000000","data":{}}'])
def test_a_damaged_line_in_the_middle_loses_that_row_only(folder: Path, damage: bytes) -> None:
    rows = folder / "rows.jsonl"
    lines = rows.read_bytes().split(b"\n")
    lines[1] = damage
    rows.write_bytes(b"\n".join(lines))
    left, notes = found(folder)
    assert left == [0, 2]
    assert len(notes) == 1


def test_every_byte_of_a_line_is_checked(folder: Path) -> None:
    rows = folder / "rows.jsonl"
    data = rows.read_bytes()
    for at in range(0, data.index(b"\n"), 7):
        rows.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        left, notes = found(folder)
        assert (left, len(notes)) == ([1, 2], 1), at


@pytest.mark.parametrize("about", [b"", b"[]", b"{", b"\xff"])
def test_rows_are_used_without_the_file_that_describes_them(folder: Path, about: bytes) -> None:
    (folder / "sweep.json").write_bytes(about)
    assert found(folder) == ([0, 1, 2], [])


def test_rows_of_another_sweep_are_refused_with_what_differs(folder: Path) -> None:
    before = (folder / "rows.jsonl").read_bytes()
    with pytest.raises(UsageError, match="version 1 there, 2 now"):
        SweepFolder(folder, {**IDENTITY, "version": "2"})
    assert (folder / "rows.jsonl").read_bytes() == before
    assert found(folder) == ([0, 1, 2], [])


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("mine")
    with pytest.raises(UsageError, match="holds no sweep"):
        SweepFolder(tmp_path, IDENTITY)
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]
    with pytest.raises(UsageError, match="is a file"):
        SweepFolder(tmp_path / "results.csv", IDENTITY)


def test_points_that_failed_can_be_forgotten(folder: Path) -> None:
    with closing(SweepFolder(folder, IDENTITY)) as opened:
        opened.forget_failed()
        assert [m for m, point in enumerate(POINTS) if opened.get(point)] == [0, 2]


def _try_to_open(path: Path) -> None:
    try:
        SweepFolder(path, IDENTITY)
    except UsageError as error:
        raise SystemExit(7 if "running" in error.what else 1) from None


def test_one_process_at_a_time(folder: Path) -> None:
    with closing(SweepFolder(folder, IDENTITY)):
        other = multiprocessing.get_context("spawn").Process(target=_try_to_open, args=(folder,))
        other.start()
        other.join()
        assert other.exitcode == 7


@pytest.mark.parametrize("name", ["rows.jsonl", ".lock"])
def test_what_a_link_in_the_folder_leads_to_is_neither_read_nor_written(folder: Path, name: str) -> None:
    target = folder.parent / "target"
    target.write_text("of the machine\n")
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    with pytest.raises(UsageError, match=f"{name} is a symlink: only regular files of a folder are read"):
        SweepFolder(folder, IDENTITY)
    assert target.read_text() == "of the machine\n"


def test_a_deep_line_loses_that_row_only(folder: Path) -> None:
    deep = b"[" * 100_000
    rows = folder / "rows.jsonl"
    rows.write_bytes(rows.read_bytes() + b'{"crc":"%08x","data":%s}\n' % (crc32(deep), deep))
    assert found(folder)[0] == [0, 1, 2]
