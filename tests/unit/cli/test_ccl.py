"""`kernbench ccl`: the options and the table of nccl-tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import Measured, MeasuredCollective, WantedCollective
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
    head, changed, what, form, groups, names, units, *rows, wrong, average = out.splitlines()
    assert head == "# all_reduce on machine default, 2 ranks; simulated time"
    assert changed == f"# the machine is changed: {', '.join(SMALL[1::2])}"
    assert what == "# time: of the slowest kernel, without the launch; with launch: from the call to its completion"
    assert form == "# torch.distributed has all_reduce in place only"
    assert groups.split() == ["#", "out-of-place", "in-place", "with", "launch"]
    figures = ["time", "algbw", "busbw", "#wrong"]
    columns = ["size", "count", "type", "redop", "root", *figures, *figures, "out", "in", "algorithm"]
    assert names.split() == ["#", *columns]
    each = ["(us)", "(GB/s)", "(GB/s)"]
    assert units.split() == ["#", "(B)", "(elements)", *each, *each, "(us)", "(us)"]
    assert [row.split()[:4] for row in rows] == [
        ["8", "4", "half", "sum"],
        ["64", "32", "half", "sum"],
        ["512", "256", "half", "sum"],
    ]
    assert [row.split()[5:9] for row in rows] == [["N/A"] * 4] * 3  # torch.distributed reduces in place
    assert [row.split()[12] for row in rows] == ["0", "0", "0"]
    assert wrong == "# Out of bounds values : 0 OK"
    assert average.startswith("# Avg bus bandwidth    :")


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
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
    assert out.splitlines()[7].split()[4] == "1"
    assert "N/A" in out
    assert "not checked" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["all_redoce"], "no collective 'all_redoce'"),
        (["-b", "many"], "-b takes a size, not 'many'"),
        (["-b", "64", "-e", "8"], "sizes from 64 to 8"),
        (["-b", "8", "-d", "quad"], "-d quad is not known"),
        (["-b", "8", "-o", "xor"], "-o xor is not known"),
        (["-b", "8", "--algorithm", "tree", "--algorithm", "rings"], "no algorithm 'rings'"),
        (["gather", "-b", "8", "--algorithm", "tree"], "algorithm 'tree' does no gather"),
        (["-b", "8", "-o", "avg", "-d", "int8"], "-o avg of i8"),
        (["broadcast", "-b", "8", "-r", "7"], "root 7 of 2 ranks"),
        (["-b", "8", "-f", "1"], "a factor of 1"),
        (["broadcast", "-b", "8", "-r", "first"], "-r takes a rank, not 'first'"),
        (["barrier", "-b", "8"], "a barrier has no elements"),
        (["sendrecv", "-b", "8", "-g", "1"], "sendrecv needs 2 ranks or more"),
        (["-b", "8", "-Z", "csv", "--json"], "--json and -Z csv together"),
        (["sendrecv", "-b", "8", "--algorithm", "tree"], "algorithm 'tree' does no send"),
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
def test_the_count_is_per_rank_as_nccl_tests_has_it(collective: MeasuredCollective, total: int, count: int) -> None:
    """A KiB of f32 on 3 ranks: 256 elements, or 3 blocks of 85."""
    wanted = WantedCollective(collective, 1024, "f32")
    assert (wanted.total(3), wanted.count(3)) == (total, count)


def test_without_sizes_it_goes_up_to_256_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(graph: object, wanted: WantedCollective, **_: object) -> Measured:
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
    def fail_at_64(graph: TopologyGraph, wanted: WantedCollective, **kwargs: Any) -> Measured:
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
    assert "all_to_all      auto" in lines
    (ring,) = [line for line in lines if line.startswith("ring_allreduce ")]
    assert ring.split(maxsplit=1)[1] == "All-reduce around a ring: reduce-scatter, then all-gather"
    data = json.loads(ccl(capsys, "--list", "--json")[1])
    assert data["collectives"]["broadcast"] == "auto"
    assert {row["algorithm"]: row["collectives"] for row in data["algorithms"]}["tree"] == [
        "all_reduce", "reduce", "broadcast",
    ]  # fmt: skip


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "gather", "scatter"])
def test_what_can_be_done_in_place_is_measured_in_both_forms(
    collective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ccl(capsys, collective, "-b", "3000", "-g", "3", "-r", "1", "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0
    for form in ("out_of_place", "in_place"):
        assert row[form]["wrong"] == 0
        assert row[form]["algbw_gbs"] == pytest.approx(row["size_bytes"] / row[form]["time_us"] / 1000)
        assert row[form]["time_with_launch_us"] > row[form]["time_us"]
    assert row["time_us"] == row["out_of_place"]["time_us"]


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
def test_in_place_takes_no_further_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of 1 KiB of 4 ranks: an input and an output of 4 KiB, or the output alone."""
    code, out, _ = ccl(capsys, "all_gather", "-b", "4K", "-g", "4", "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0
    assert row["out_of_place"]["memory"]["tensors_bytes"] == 5 * 1024
    assert row["in_place"]["memory"]["tensors_bytes"] == 4 * 1024


def test_the_most_memory_is_reported_as_nccl_tests_does(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "-b", "1K", "-e", "4K", "-M", "1")
    name, _, listed = out.splitlines()[-1].partition(" : ")
    assert name.split() == ["#", "Memory", "of", "a", "SIP"]
    assert [part.split()[0] for part in listed.split(" | ")] == ["tensors", "rings", "kernels", "total"]
    assert listed.startswith("tensors 4 KiB | ")  # one tensor, in place


def test_sendrecv_goes_to_the_next_rank(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "sendrecv", "-b", "4K", "-g", "3", "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0
    assert (row["algorithm"], row["count"], row["wrong"], row["in_place"]) == ("p2p", 1024, 0, None)
    assert row["busbw_gbs"] == row["algbw_gbs"]  # all of a tensor leaves every rank


def test_a_barrier_is_one_row_without_elements(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "barrier", "-g", "4", "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0
    assert (row["size_bytes"], row["count"], row["dtype"], row["wrong"]) == (0, 0, None, None)
    assert 0 < row["time_us"] < row["time_with_launch_us"]


def test_every_type_of_element_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ccl(capsys, "-b", "64", "-d", "all", "-o", "all", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert {row["dtype"] for row in rows} == {
        "f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool",
    }  # fmt: skip
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    assert {row["op"] for row in rows if row["dtype"] == "i64"} == {"sum", "prod", "min", "max"}


def test_names_of_types_are_those_of_nccl_tests(capsys: pytest.CaptureFixture[str]) -> None:
    assert ccl(capsys, "-b", "64", "-d", "int64")[1].splitlines()[7].split()[:3] == ["64", "8", "int64"]


def test_every_root_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "broadcast", "-b", "64", "-r", "all", "-g", "3", "--json")
    assert [row["root"] for row in json.loads(out)["rows"]] == [0, 1, 2]


def test_rows_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    """-Z is that of rccl-tests."""
    _, out, _ = ccl(capsys, "-b", "8", "-e", "64", "-f", "8", "-Z", "csv")
    head, *rows = [line.split(",") for line in out.splitlines()]
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["size_bytes"] for row in table] == ["8", "64"]
    assert {row["out_of_place_time_us"] for row in table} == {""}
    assert all(float(row["in_place_time_us"]) < float(row["in_place_time_with_launch_us"]) for row in table)


def test_z_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert ccl(capsys, "-b", "8", "-Z", "json") == ccl(capsys, "-b", "8", "--json")


def test_the_machine_as_changed_is_in_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ccl(capsys, "-b", "8", "-g", "3", "--set", "system.sips.count=4", "--json")
    answer = json.loads(out)
    assert answer["changed"] == {
        **dict(each.split("=") for each in SMALL[1::2]),
        "system.sips.count": "3",
    }  # -g is last
    assert answer["ranks"] == 3


def test_times_have_at_least_four_digits() -> None:
    assert [time_us(us) for us in (0.01234, 1.0, 12.345, 123.47, 23456.7)] == [
        "0.0123", "1.0000", "12.35", "123.5", "23457",
    ]  # fmt: skip
