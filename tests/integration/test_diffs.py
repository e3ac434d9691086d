"""What changed between two runs: rows of every table sum to the change of the total."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.integration.conftest import ONE_SIP, save_run

from kernbench.cli.main import kernbench
from kernbench.common.units import format_ns
from kernbench.report.explain.diff import TABLES, diff_runs, differences

KERNEL = """
import numpy as np
from kernbench.benches.registry import bench
{comment}

def twice(x, tl):
    a = tl.load(x)
{extra}    tl.store(x, a)


@bench(name='twice', description='for a test')
def run(torch):
    x = torch.from_numpy(np.zeros(4096, np.float16), name='x')
    torch.launch('twice', twice, x)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The same kernel, once with two lines more and a comment that moves all of it."""
    root = tmp_path_factory.mktemp("two")
    (root / "a").mkdir()
    (root / "b").mkdir()
    (root / "a" / "kernel.py").write_text(KERNEL.format(comment="", extra=""))
    extra = "    a = a + a\n    a = tl.exp(a)\n"
    (root / "b" / "kernel.py").write_text(KERNEL.format(comment="# moves\n# all\n", extra=extra))
    return tuple(save_run(root / f"run-{name}", str(root / name / "kernel.py"), *ONE_SIP) for name in "ab")


@pytest.mark.parametrize("table", TABLES)
def test_the_rows_of_every_table_sum_to_the_change(two, saved_runs, table):
    for a, b in (two, two[::-1], (saved_runs["qkv"], saved_runs["flash"])):
        for whole, before, after in ((True, a, b), (False, a.launches[0], b.launches[0])):
            found = diff_runs(a, b, whole=whole)
            rows = found.tables[table]
            assert sum(row.delta_ns for row in rows) == found.delta_ns == after.total_ns - before.total_ns
            assert sum(row.a_ns or 0.0 for row in rows) == before.total_ns
        assert [abs(row.delta_ns) for row in rows] == sorted((abs(row.delta_ns) for row in rows), reverse=True)


def test_lines_that_moved_are_the_same_and_new_ones_are_only_in_b(two):
    rows = {row.name: row for row in diff_runs(*two).tables["line"]}
    assert rows["a = a + a"].only == "B"
    assert rows["a = tl.exp(a)"].only == "B"
    moved = rows["a = tl.load(x)"]
    assert moved.only == ""
    assert moved.delta_ns == 0.0
    # 4096 f16 elements over 256 lanes: 16 ns for each op, and 1 ns for the scheduler.
    assert rows["a = a + a"].b_ns == rows["a = tl.exp(a)"].b_ns == 17.0
    assert diff_runs(*two).delta_ns == 34.0


def test_a_run_compared_with_itself_has_no_change(saved_runs):
    found = diff_runs(saved_runs["ccl"], saved_runs["ccl"])
    assert found.delta_ns == 0.0
    assert all(row.delta_ns == 0.0 and not row.only for rows in found.tables.values() for row in rows)


def test_the_command_prints_the_same_table_as_text_and_as_json(two):
    paths = [str(run.path) for run in two]
    text = CliRunner().invoke(kernbench, ["diff", *paths], catch_exceptions=False).output
    assert "B - A: +34.00 ns" in text
    assert "only in B" in text
    assert "A twice, launch 0: twice: " in text
    assert f"take {format_ns(two[0].total_ns)} and {format_ns(two[1].total_ns)}: --whole." in text
    data = json.loads(CliRunner().invoke(kernbench, ["diff", *paths, "--json"]).output)
    assert data["delta_ns"] == 34.0
    assert (data["a"]["scope"], data["a"]["total_ns"]) == ("launch:0", two[0].launches[0].total_ns)
    assert list(data["tables"]) == list(TABLES)
    assert {"name", "a_ns", "b_ns", "delta_ns", "only"} == set(data["tables"]["line"][0])


def test_it_says_which_values_of_the_machine_and_which_parameters_differ(tmp_path):
    runs = [
        save_run(
            tmp_path / name, "gemm-single-pe", *ONE_SIP, "--param", f"m={m}", "--set", f"cube.ucie.n_connections={n}"
        )
        for name, m, n in (("a", 32, 4), ("b", 64, 2))
    ]
    expected = ["The machines differ: cube.ucie.n_connections 4 → 2.", "Parameters: m 32 → 64."]
    assert differences(*runs) == expected
    text = CliRunner().invoke(kernbench, ["diff", *(str(run.path) for run in runs)], catch_exceptions=False).output
    assert all(line in text.splitlines() for line in expected)
    assert differences(runs[0], runs[0]) == []
