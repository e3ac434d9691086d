"""`kernbench ccl`: the options and the table of nccl-tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import CollectiveName, Measured, Wanted
from kernbench.cli.ccl import read_bytes
from kernbench.cli.main import main
from kernbench.common.errors import UsageError
from kernbench.report.collective_table import time_us
from kernbench.topology.graph import TopologyGraph

SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "cube.pe_layout.pe_per_corner=1"]


def ccl(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["ccl", *args, *SMALL])
    output = capsys.readouterr()
    return int(stopped.value.code or 0), output.out, output.err


def test_a_table_has_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "-b", "8", "-e", "512", "-f", "8", "-d", "half")
    assert code == 0
    head, what, names, units, *rows, wrong, average = out.splitlines()
    assert head == "# all_reduce on machine default, 2 ranks; simulated time"
    assert what == "# time: of the slowest kernel, without the launch"
    columns = "#       size         count      type   redop    root      time    algbw    busbw  #wrong  algorithm"
    assert names == columns
    assert units.split() == ["#", "(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)"]
    assert [row.split()[:4] for row in rows] == [
        ["8", "4", "half", "sum"],
        ["64", "32", "half", "sum"],
        ["512", "256", "half", "sum"],
    ]
    assert [row.split()[8] for row in rows] == ["0", "0", "0"]
    assert wrong == "# Out of bounds values : 0 OK"
    assert average.startswith("# Avg bus bandwidth    :")


def test_bandwidths_follow_from_size_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "all_gather", "-b", "4K", "-g", "4", "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["size_bytes"], row["count"]) == (4096, 256)  # of f32: 1024 on every rank afterwards, 256 from each
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
    assert out.splitlines()[4].split()[4] == "1"
    assert "N/A" in out
    assert "not checked" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["all_redoce"], "no collective 'all_redoce'"),
        (["-b", "many"], "-b takes a size, not 'many'"),
        (["-b", "64", "-e", "8"], "sizes from 64 to 8"),
        (["-b", "8", "-d", "double"], "-d double is not known"),
        (["-b", "8", "-o", "xor"], "-o xor is not known"),
        (["-b", "8", "--algorithm", "tree", "--algorithm", "rings"], "no algorithm 'rings'"),
        (["gather", "-b", "8", "--algorithm", "tree"], "algorithm 'tree' does no gather"),
        (["-b", "8", "-o", "avg", "-d", "int8"], "-o avg of i8"),
        (["broadcast", "-b", "8", "-r", "7"], "root 7 of 2 ranks"),
        (["-b", "8", "-f", "1"], "a factor of 1"),
    ],
)
def test_wrong_input_is_refused(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ccl(capsys, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert "hint:" in err


def test_sizes_are_powers_of_two() -> None:
    assert [read_bytes(text, "-b") for text in ("8", "64K", "128M", "1G", "2kib")] == [8, 65536, 1 << 27, 1 << 30, 2048]
    with pytest.raises(UsageError):
        read_bytes("2G", "-b")


@pytest.mark.parametrize(
    ("collective", "total", "count"),
    [("all_reduce", 256, 256), ("broadcast", 256, 256), ("reduce", 256, 256), ("all_gather", 255, 85),
     ("reduce_scatter", 255, 85), ("all_to_all", 255, 85), ("gather", 255, 85), ("scatter", 255, 85)],
)  # fmt: skip
def test_the_count_is_per_rank_as_nccl_tests_has_it(collective: CollectiveName, total: int, count: int) -> None:
    """A KiB of f32 on 3 ranks: 256 elements, or 3 blocks of 85."""
    wanted = Wanted(collective, 1024, "f32")
    assert (wanted.total(3), wanted.count(3)) == (total, count)


def test_without_sizes_it_goes_up_to_256_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(graph: object, wanted: Wanted, **_: object) -> Measured:
        asked.append(wanted.nbytes)
        return Measured("all_reduce", "tree", wanted.nbytes, 1, "f32", "sum", None, 1.0, 1.0, 1.0, 0)

    monkeypatch.setattr("kernbench.cli.ccl.measure_alone", measure)
    for args, sizes in (
        ([], [1024, 4096, 16384, 65536, 262144]),
        (["-e", "4K"], [1024, 4096]),
        (["-e", "64"], [64]),
        (["-b", "8"], [8]),
        (["-b", "8", "-e", "24", "-i", "8"], [8, 16, 24]),
    ):
        asked.clear()
        with pytest.raises(SystemExit):
            main(["ccl", *args, *SMALL])
        assert asked == sizes


def test_what_nccl_tests_repeats_is_taken_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ccl(capsys, "-b", "8", "-w", "5", "-n", "20", "--agg_iters", "1", "-t", "2", "-g", "1")
    assert code == 0
    assert "2 ranks" in out  # 2 threads of 1 SIP
    assert err == "note: -n, -w, -m did nothing: a run is deterministic, and one iteration is exact\n"


def test_one_rank_is_no_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert ccl(capsys, "-b", "8", "-g", "1")[1].startswith("# all_reduce on machine default, 1 rank;")


def test_rows_are_printed_as_they_come(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_64(graph: TopologyGraph, wanted: Wanted, **kwargs: Any) -> Measured:
        if wanted.nbytes == 64:
            raise UsageError("no more", hint="stop here")
        return measure_alone(graph, wanted, **kwargs)

    monkeypatch.setattr("kernbench.cli.ccl.measure_alone", fail_at_64)
    code, out, _ = ccl(capsys, "-b", "8", "-e", "64", "-f", "8")
    assert code == 2
    assert out.splitlines()[-1].split()[0] == "8"


def test_a_list_names_collectives_and_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "--list")
    assert code == 0
    lines = out.splitlines()
    assert "all_to_all      direct" in lines
    (ring,) = [line for line in lines if line.startswith("ring_allreduce ")]
    assert ring.split(maxsplit=1)[1] == "All-reduce around a ring: reduce-scatter, then all-gather"
    data = json.loads(ccl(capsys, "--list", "--json")[1])
    assert data["collectives"]["broadcast"] == "auto"
    assert {row["algorithm"]: row["collectives"] for row in data["algorithms"]}["tree"] == [
        "all_reduce", "reduce", "broadcast",
    ]  # fmt: skip


def test_times_have_at_least_four_digits() -> None:
    assert [time_us(us) for us in (0.01234, 1.0, 12.345, 123.47, 23456.7)] == [
        "0.0123", "1.0000", "12.35", "123.5", "23457",
    ]  # fmt: skip
