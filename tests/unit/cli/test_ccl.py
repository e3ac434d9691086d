"""`kernbench ccl`: the options and the table of nccl-tests."""

from __future__ import annotations

import json

import pytest

from kernbench.cli.ccl import read_bytes
from kernbench.cli.main import main
from kernbench.common.errors import UsageError

SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "cube.pe_layout.pe_per_corner=1"]


def ccl(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["ccl", *args, *SMALL])
    said = capsys.readouterr()
    return int(stopped.value.code or 0), said.out, said.err


def test_a_table_has_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "-b", "8", "-e", "512", "-f", "8", "-d", "half")
    assert code == 0
    head, names, units, *rows, wrong, average = out.splitlines()
    assert head == "# all_reduce on machine default, 2 ranks; simulated time"
    assert names.split() == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "algorithm"]
    assert units.split() == ["(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
    assert [row.split()[:4] for row in rows] == [
        ["8", "4", "f16", "sum"],
        ["64", "32", "f16", "sum"],
        ["512", "256", "f16", "sum"],
    ]
    assert [row.split()[8] for row in rows] == ["0", "0", "0"]
    assert wrong == "# Out of bounds values : 0 OK"
    assert average.startswith("# Avg bus bandwidth    :")


def test_bandwidths_follow_from_size_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "all_gather", "-b", "4K", "-g", "4", "--json")
    (row,) = json.loads(out)["rows"]
    assert row["size_bytes"] == 4096
    assert row["algbw_gbs"] == pytest.approx(4096 / row["time_us"] / 1000)
    assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] * 3 / 4)  # each of 4 ranks gets 3 of 4 blocks


def test_every_op_and_several_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("--algorithm", "ring_allreduce", "--algorithm", "tree")
    _, out, _ = ccl(capsys, "-b", "64", "-o", "all", "-d", "int32", *names, "--json")
    rows = json.loads(out)["rows"]
    assert [(row["algorithm"], row["op"]) for row in rows[:4]] == [
        ("ring_allreduce", "sum"), ("ring_allreduce", "prod"), ("ring_allreduce", "min"), ("ring_allreduce", "max"),
    ]  # fmt: skip
    assert {row["algorithm"] for row in rows} == {"ring_allreduce", "tree"}
    assert not any(row["wrong"] for row in rows)


def test_without_a_check_nothing_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "broadcast", "-b", "64", "-c", "0", "-r", "1")
    assert out.splitlines()[3].split()[4] == "1"
    assert "N/A" in out
    assert "not checked" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["all_redoce"], "no collective 'all_redoce'"),
        (["-b", "many"], "-b takes a size, not 'many'"),
        (["-b", "64", "-e", "8"], "sizes from 64 to 8"),
        (["-b", "8", "-d", "double"], "-d double is not known"),
        (["-b", "8", "-o", "xor"], "-o xor is not known"),
        (["-b", "8", "--algorithm", "rings"], "no algorithm 'rings'"),
        (["broadcast", "-b", "8", "-r", "7"], "root 7 of 2 ranks"),
        (["-b", "8", "-f", "1"], "a factor of 1"),
    ],
)
def test_wrong_input_is_refused(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ccl(capsys, *args)
    assert (code, out) == (2, "")
    assert said in err
    assert "hint:" in err


def test_sizes_are_powers_of_two() -> None:
    assert [read_bytes(text, "-b") for text in ("8", "64K", "128M", "1G", "2kib")] == [8, 65536, 1 << 27, 1 << 30, 2048]
    with pytest.raises(UsageError):
        read_bytes("2G", "-b")
