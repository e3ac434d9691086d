"""Files of others' folders are read only where they are regular files of that folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.common.regular_files import check_regular, is_regular, read_regular


def test_a_regular_file_is_read_and_one_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert is_regular(tmp_path / "a")
    assert read_regular(tmp_path / "a", most_bytes=5) == b"12345"
    with pytest.raises(UsageError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", most_bytes=4)


def test_links_pipes_and_folders_are_refused_and_never_wait(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the machine")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, kind in (("link", "a symlink"), ("pipe", "a FIFO"), ("folder", "a folder")):
        assert not is_regular(tmp_path / name)
        with pytest.raises(UsageError, match=f"{name} is {kind}"):
            read_regular(tmp_path / name)


def test_what_is_not_there_is_the_systems_own_error(tmp_path: Path) -> None:
    check_regular(tmp_path / "none")
    assert not is_regular(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
