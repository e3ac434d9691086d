"""`kernbench tune-ccl`: a table for `auto`, measured on the machine at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.ccl.config import load_ccl_config
from kernbench.cli.main import main

SMALL = ["--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1", "--set", "cube.pe_layout.corners=[NW, SE]"]
SMALL += ["--set", "cube.pe_layout.pe_per_corner=1"]
QUICK = ["-b", "1K", "-e", "4K", "-f", "4"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tune(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["tune-ccl", *args])
    output = capsys.readouterr()
    return int(stopped.value.code or 0), output.out, output.err


@pytest.mark.needs("addresses", reason="some collectives of split tensors are refused with physical addresses")
def test_the_table_holds_what_was_fastest_and_auto_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = tune(capsys, *SMALL, *QUICK, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["command"], report["machine"], report["file"]) == ("tune-ccl", "default", "ccl.tuned.yaml")
    assert [table["table"] for table in report["tables"]] == [
        "all_reduce",
        "all_reduce_per_cube",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
    ]
    tried = {table["table"]: {trial["algorithm"] for trial in table["trials"]} for table in report["tables"]}
    assert tried["all_reduce_per_cube"] == tried["all_reduce"]  # all that ship know of cubes
    assert len(tried["all_reduce"]) == 7
    for table in report["tables"]:
        for size in table["sizes"]:
            times = [trial["time_us"] for trial in table["trials"] if trial["size_bytes"] == size["size_bytes"]]
            assert size["time_us"] <= min(times) * 1.02
            assert size["gain"] >= 1
    Path("ccl.yaml").write_text("auto: ccl.tuned.yaml\n")
    config = load_ccl_config()
    for table in report["tables"]:
        assert [row.algorithm for row in config.auto[table["table"]]] == [row["algorithm"] for row in table["rows"]]


def test_the_same_machine_gives_the_same_file_and_another_one_another_hash(capsys: pytest.CaptureFixture[str]) -> None:
    fast = ("--table", "broadcast", "-b", "1K", "-e", "1K")
    files = []
    for more in ([], [], ["--set", "system.sips.count=3"]):
        assert tune(capsys, *SMALL, *fast, "-o", "mine.yaml", *more)[0] == 0
        files.append(Path("mine.yaml").read_text())
    assert files[0] == files[1]
    assert files[0].splitlines()[0] != files[2].splitlines()[0]
    assert "for machine default (" in files[0]
    assert "`auto: mine.yaml`" in files[0]


def test_it_says_what_it_chose_and_what_that_gains(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow.yaml").write_text("auto:\n  broadcast:\n    - { algorithm: chain }\n")
    options = ("--table", "broadcast", "-b", "4K", "-e", "4K", "--ccl", "slow.yaml", "--set", "system.sips.count=4")
    code, out, _ = tune(capsys, *SMALL, *options)
    assert code == 0
    assert "4 KiB" in out
    assert "direct" in out
    assert "faster than chain" in out
    assert "written to ccl.tuned.yaml" in out


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--table", "send"), "no table 'send'"),
        (("--chunk", "1000"), "--chunk 1000 is not a multiple of 256"),
        (("-o", "none/x.yaml"), "there is no folder none"),
        (("-b", "zero"), "-b takes a size"),
        (("-f", "1"), "a factor of 1"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(
    args: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    code, _, err = tune(capsys, *SMALL, *args)
    assert code == 2
    assert what in err
    assert "hint:" in err
    assert list(empty_folder.iterdir()) == []
