"""The critical path explains a run to the last femtosecond, and says what a faster component would gain."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import groupby, pairwise

import pytest
from click.testing import CliRunner
from tests.integration.conftest import RUNS

from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.common.units import format_ns
from kernbench.report import open_run
from kernbench.report.explain.as_json import TABLES
from kernbench.report.explain.classes import CLASSES, HOST, LAUNCH, WORK
from kernbench.report.explain.explanation import explain
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.headline import headline, main_scope
from kernbench.report.explain.path import critical_path, scope_of
from kernbench.report.explain.stalls import stalls_of
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.explain.what_if import machine_with, targets_of, what_ifs

SCOPES = [(name, launch) for name in RUNS for launch in (None, 0)]


@pytest.mark.parametrize(("name", "launch"), SCOPES)
def test_the_path_has_no_gap_and_sums_to_the_time_of_its_scope(saved_runs, name, launch):
    run = saved_runs[name]
    scope = scope_of(run, launch)
    path = critical_path(run, scope)
    assert path[0].t0 == scope.begin_ns
    assert path[-1].t1 == scope.end_ns
    assert all(earlier.t1 == later.t0 for earlier, later in pairwise(path))
    assert sum(segment.ns for segment in path) == scope.total_ns  # bit for bit
    assert scope.total_ns == (run.total_ns if launch is None else run.launches[0].total_ns)
    assert {segment.cls for segment in path} <= set(CLASSES)


def test_paths_that_are_equal_are_counted_and_the_time_others_have_to_spare_is_said(saved_runs):
    finish = finish_of(explain(saved_runs["flash"], 0))
    assert (finish.pe, finish.pes, finish.together, finish.equal) == ("sip0.cube0.pe0", 8, 8, 8)
    assert "8 of 8 PEs end last, at the same time, on equal paths" in finish.sentence
    assert finish_of(explain(saved_runs["flash"])) is None
    run = saved_runs["ccl"]
    finish, ends = finish_of(explain(run, 0)), sorted(pe.end_ns for pe in run.launches[0].pes)
    assert finish.together == ends.count(ends[-1])
    assert finish.slack_ns == (ends[-1] - max(e for e in ends if e < ends[-1]) if ends[0] < ends[-1] else None)


@pytest.mark.parametrize(("name", "launch"), SCOPES)
def test_every_table_sums_to_the_scope(saved_runs, name, launch):
    explanation = explain(saved_runs[name], launch)
    for table in TABLES:
        assert sum(getattr(explanation, f"by_{table}").values()) == explanation.scope.total_ns, table
    for use in explanation.accounts:
        assert use.total_ns == explanation.scope.total_ns, use.lane.name


@pytest.mark.parametrize("name", RUNS)
def test_a_path_follows_what_released_each_op_from_the_launch_to_the_end(saved_runs, name):
    run = saved_runs[name]
    ops = run.ops
    path = critical_path(run, scope_of(run, 0))
    passed = [op for op, _ in groupby(segment.op for segment in path) if op >= 0]
    assert passed
    for earlier, later in pairwise(passed):
        by = int(ops.released_by[ops.row_of[later]])
        if by >= 0 and ops.kind[ops.row_of[by]] != "S":
            assert by == earlier
    assert ops.release[ops.row_of[passed[0]]] == "launch"


def test_a_launch_leaves_out_the_host_and_a_run_does_not(saved_runs):
    run = saved_runs["qkv"]
    assert HOST not in explain(run, 0).by_class
    assert {HOST, LAUNCH} <= set(explain(run).by_class)


def test_eight_pes_that_read_from_one_slice_are_said_to_queue_there(tmp_path):
    """Every PE reads the same 16 KiB, which lie in the HBM slice of PE 0: its channels and its port are the bound."""
    bench = tmp_path / "shared.py"
    bench.write_text(
        "import numpy as np\n"
        "from kernbench.benches.registry import bench\n\n\n"
        "def read(x, tl):\n"
        "    tl.load(x)\n\n\n"
        "@bench(name='shared', description='all PEs read one slice')\n"
        "def run(torch):\n"
        "    x = torch.from_numpy(np.zeros(8192, np.float16), name='x')\n"
        "    torch.launch('read', read, x, target_pes=tuple(range(8)))\n"
    )
    from tests.integration.conftest import save_run

    run = save_run(tmp_path / "run", str(bench), "--set", "system.sips.count=1")
    explanation = explain(run, 0)
    bound = verdict_of(explanation)
    assert bound.link_class in ("hbm channel", "hbm port"), bound.sentence
    assert "8 requesters meet at sip0.cube0.hbm_ctrl.pe0" in bound.what
    assert "shared.py:6" in bound.what
    # 8 x 16 KiB leave one slice at 256 GB/s: 512 ns, of which the last PE's own 64 ns are transfer. It waits less by as
    # much as its request comes later than the first: 22.2 ns of routers and wires.
    assert explanation.by_class["queue"] == pytest.approx(512 - 64 - 22.2)
    assert "spread the tensors" in bound.hint


@pytest.mark.parametrize("name", RUNS)
def test_the_sentence_and_the_stalls_are_plain_words_with_shares_of_the_path(saved_runs, name):
    explanation = explain(saved_runs[name], 0)
    bound = verdict_of(explanation)
    assert bound.sentence.endswith(".")
    assert " Try: " in bound.sentence
    assert 0.1 <= bound.share <= 1.0
    stalls = stalls_of(explanation)
    assert [stall.ns for stall in stalls] == sorted((stall.ns for stall in stalls), reverse=True)
    assert sum(stall.ns for stall in stalls) <= sum(ns for cls, ns in explanation.by_class.items() if cls not in WORK)


# ---- what if


@pytest.mark.parametrize(
    ("name", "component"),
    [("qkv", "pe_dma"), ("qkv", "hbm"), ("qkv", "pe_gemm"), ("flash", "pe_math"), ("ccl", "ucie*"), ("va", "router")],
)
def test_what_the_path_says_of_a_free_component_is_within_ten_points_of_a_new_run(saved_runs, name, component):
    run = saved_runs[name]
    args = ["explain", str(run.path), "--launch", "0", "--what-if", component, "--json"]
    data = json.loads(CliRunner().invoke(kernbench, args, catch_exceptions=False).output)
    (one,) = data["what_if"]
    assert one["measured_ns"] < one["total_ns"] == run.launches[0].total_ns
    measured = one["total_ns"] - one["measured_ns"]
    assert one["gain_ns"] == pytest.approx(measured, abs=0.10 * one["total_ns"])


@pytest.mark.parametrize(("name", "component"), [("qkv", "hbm"), ("flash", "router"), ("ccl", "launch")])
def test_where_nothing_else_changes_the_path_says_what_a_free_component_gains(saved_runs, name, component):
    """HBM: its bursts and its port; routers on the way of a load, its request and the launch; CPUs of the launch."""
    run = saved_runs[name]
    args = ["explain", str(run.path), "--launch", "0", "--what-if", component, "--json"]
    (one,) = json.loads(CliRunner().invoke(kernbench, args, catch_exceptions=False).output)["what_if"]
    assert one["measured_ns"] == pytest.approx(one["foreseen_ns"], abs=2.0)  # of 700 ns and more


@pytest.mark.needs("n_to_one", reason="channels with routers queue in another way")
def test_a_free_component_may_gain_more_than_the_path_foresees_since_others_queue_less_elsewhere(saved_runs, tmp_path):
    """Sixteen PEs read, eight of them over UCIe: without the time of a burst their flits meet less on the way."""
    run = saved_runs["shifted"]
    args = ["explain", str(run.path), "--what-if", "hbm", "--save", str(tmp_path), "--json"]
    (one,) = json.loads(CliRunner().invoke(kernbench, args, catch_exceptions=False).output)["what_if"]
    before, after = main_scope(run), main_scope(open_run(tmp_path / "hbm"))
    gained = one["total_ns"] - one["measured_ns"]
    assert one["gain_ns"] == pytest.approx(before.by_class["latency"] - after.by_class["latency"], abs=0.01)
    assert gained - one["gain_ns"] == pytest.approx(before.by_class["queue"] - after.by_class["queue"], abs=0.01)
    assert gained > one["gain_ns"] + 1.0
    assert set(before.by_link) == {"not queued", "ucie", "router"}  # none of it at HBM


def test_a_new_run_can_be_saved_and_is_one_of_the_same_program_on_that_machine(saved_runs, tmp_path):
    run = saved_runs["va"]
    args = ["explain", str(run.path), "--whole", "--what-if", "router", "--save", str(tmp_path / "free"), "--json"]
    (one,) = json.loads(CliRunner().invoke(kernbench, args, catch_exceptions=False).output)["what_if"]
    again = open_run(tmp_path / "free" / "router")
    assert again.total_ns == one["measured_ns"]
    assert again.name == f"{run.name}, router free"
    assert again.manifest.machine_hash == machine_with(run, one["settings"]) != run.manifest.machine_hash
    assert (again.manifest.bench, again.manifest.params) == (run.manifest.bench, run.manifest.params)
    done = CliRunner().invoke(kernbench, ["explain", str(run.path), "--save", str(tmp_path / "x")])
    assert "--save without --what-if" in str(done.exception)


def test_a_component_that_has_no_share_in_the_path_gains_nothing(saved_runs):
    run = saved_runs["flash"]
    explanation = explain(run, 0)
    assert what_ifs(run, explanation, ["sram"])[0].gain_ns == 0.0
    with pytest.raises(UsageError, match="no component 'pe_dmx'"):
        what_ifs(run, explanation, ["pe_dmx"])[0]
    assert what_ifs(run, explanation, ["*"])[0].name.count(" and ") == len(targets_of(run.graph.spec)) - 1


# ---- the command


def test_the_command_prints_the_sentence_first_and_draws_a_picture(saved_runs, tmp_path):
    run = saved_runs["flash"]
    picture = tmp_path / "path.svg"
    args = ["explain", str(run.path), "--picture", str(picture)]
    text = CliRunner().invoke(kernbench, args, catch_exceptions=False).output
    sentence = verdict_of(explain(run, 0)).sentence
    assert text.startswith("flash-attention pes=0 seq_k=128, launch 0: flash: ")
    assert sentence in " ".join(text.split())
    assert f"takes {format_ns(run.total_ns)}: --whole." in text
    lines = [
        line for line in text.splitlines() if not line.startswith("  Next: ")
    ]  # a command is one line, to be copied
    assert max(map(len, lines)) <= 120
    for head in ("Critical path by class", "By engine", "By kernel line", "Largest stalls"):
        assert head in text
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert len(list(root)) > 20
    data = json.loads(CliRunner().invoke(kernbench, ["explain", str(run.path), "--json"]).output)
    assert data["sentence"] == sentence
    assert sum(row["ns"] for row in data["path"]["line"]) == data["total_ns"] == run.launches[0].total_ns
    assert data["scope"]["id"] == "launch:0"
    data = json.loads(CliRunner().invoke(kernbench, ["explain", str(run.path), "--whole", "--json"]).output)
    assert data["sentence"] == verdict_of(explain(run)).sentence
    assert (data["scope"]["id"], data["total_ns"]) == ("run", run.total_ns)


def test_several_launches_are_explained_from_the_first_to_the_last_and_measured_so(saved_runs):
    run = saved_runs["ccl"]
    done = CliRunner().invoke(kernbench, ["explain", str(run.path), "--what-if", "launch", "--json"])
    data = json.loads(done.output)
    (one,) = data["what_if"]
    assert data["scope"]["id"] == "kernels"
    assert data["total_ns"] == one["total_ns"] == main_scope(run).scope.total_ns
    assert one["measured_ns"] < one["total_ns"] < run.total_ns


def test_wrong_arguments_are_said(saved_runs, tmp_path):
    path = str(saved_runs["qkv"].path)
    for args, message in [
        (["explain", path, "--launch", "7"], "no launch 7"),
        (["explain", path, "--launch", "0", "--whole"], "--launch and --whole together"),
        (["diff", path, path, "--launch", "0", "--whole"], "--launch and --whole together"),
        (["explain", path, "--picture", str(tmp_path / "no" / "x.svg")], "cannot be written"),
        (["explain", str(tmp_path)], "no saved run"),
    ]:
        done = CliRunner().invoke(kernbench, args)
        assert isinstance(done.exception, UsageError)
        assert message in str(done.exception)


def test_runs_lists_what_there_is_and_what_is_damaged(saved_runs, tmp_path):
    root = saved_runs["qkv"].path.parent
    data = json.loads(CliRunner().invoke(kernbench, ["runs", str(root), "--json"]).output)
    assert [row["dir"] for row in data["runs"]] == [str(root / name) for name in sorted(RUNS)]
    assert {row["error"] for row in data["runs"]} == {None}
    assert saved_runs["qkv"].id in CliRunner().invoke(kernbench, ["runs", str(root)]).output
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    listed = CliRunner().invoke(kernbench, ["runs", str(tmp_path)]).output
    assert "broken" in listed
    assert "cannot be read" in listed
    (tmp_path / "empty").mkdir()
    assert "no saved runs" in CliRunner().invoke(kernbench, ["runs", str(tmp_path / "empty")]).output


# ---- the sentence that a run ends with


@pytest.mark.parametrize("name", ["qkv", "flash"])
def test_a_run_ends_with_what_bounded_it_whether_it_is_saved_or_not(saved_runs, tmp_path, name):
    """Without --save lines are not known; the verdict, and its share, are the same."""
    run = ["run", "--bench", *RUNS[name]]
    saved = CliRunner().invoke(kernbench, [*run, "--save", str(tmp_path / "run")], catch_exceptions=False).output
    assert f"{headline(saved_runs[name])} wrote" in " ".join(saved.partition("Critical path of")[2].split())
    plain = CliRunner().invoke(kernbench, run).output
    assert re.search(r"^  look at   kernbench run --bench \S+ .* --save \S+-run$", plain, re.MULTILINE)
    sentence = " ".join(plain.partition("Critical path of")[2].split())
    share = re.search(r"([0-9.]+%)", headline(saved_runs[name]))
    assert share is not None
    assert share[1] in sentence


def test_several_launches_are_judged_from_the_first_to_the_end_of_the_last(saved_runs):
    run = saved_runs["ccl"]
    scope = main_scope(run).scope
    assert (scope.begin_ns, scope.end_ns) == (
        min(launch.start_ns for launch in run.launches),
        max(launch.end_ns for launch in run.launches),
    )
    assert sum(segment.ns for segment in main_scope(run).path) == scope.total_ns
    assert headline(run).startswith("2 launches, ")


def test_a_tensor_operation_has_the_line_of_the_program(tmp_path):
    """Its kernel is the package's own; the program's reader does not know it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from kernbench.benches.registry import bench\n"
        "@bench(name='program', description='an operation')\n"
        "def program(torch):\n"
        "    x = torch.from_numpy(np.ones((64, 64), np.float16), name='x')\n"
        "    y = torch.exp(x)\n"
        "    (x + y).numpy()\n"
    )
    one = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    done = CliRunner().invoke(kernbench, ["run", "--bench", str(program), *one, "--save", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    run = open_run(tmp_path / "run")
    assert {line.name for line in run.lines} == {"program.py:6", "program.py:7"}
    assert {line.text for line in run.lines} == {"y = torch.exp(x)", "(x + y).numpy()"}


PROGRAM = """
def train(torch):
    torch.distributed.init_process_group("ahbm")

    def worker(rank):
        x, w = torch.ones((64, 64), dtype="f16"), torch.ones((64, 64), dtype="f16")
        y = x @ w
        torch.distributed.all_reduce(y)

    torch.multiprocessing.spawn(worker, nprocs=2)
"""


def test_launches_of_operations_and_collectives_are_shown_with_the_line_of_the_program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    small = [part for key in ("w", "h") for part in ("--set", f"sip.cube_mesh.{key}=1")]
    folder = str(tmp_path / "run")
    ran = CliRunner().invoke(kernbench, ["run", "--bench", f"{tmp_path}/train.py:train", *small, "--save", folder])
    assert ran.exit_code == 0, ran.output
    text = CliRunner().invoke(kernbench, ["explain", folder]).output
    lines = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("    launches ")]
    assert "train.py:7  y = x @ w" in lines
    assert "train.py:8  torch.distributed.all_reduce(y)" in lines
    data = json.loads(CliRunner().invoke(kernbench, ["explain", folder, "--json"]).output)
    called = {line["called_at"].partition("  ")[2]: line["launches"] for line in data["calls"]}
    names = [launch.name for launch in open_run(folder).launches]
    assert {names[at].partition(".")[0] for at in called["torch.distributed.all_reduce(y)"]} == {"all_reduce"}
    assert len(called["y = x @ w"]) == 2  # one launch on each of two ranks
    (at, _) = called["torch.distributed.all_reduce(y)"]
    one = CliRunner().invoke(kernbench, ["explain", folder, "--launch", str(at)]).output
    assert f"launch {at}: train.py:8  torch.distributed.all_reduce(y)" in one
    assert "y = x @ w" not in one.partition("By engine")[2]
