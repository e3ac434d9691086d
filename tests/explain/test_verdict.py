"""The verdict names the cause of a slow kernel, and following its advice makes shipped benches faster."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.explain.more_slow_kernels import CAUSES as MORE_SLOW_FOR

from kernbench.benches.registry import resolve
from kernbench.cli.main import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report import open_run
from kernbench.report.explain.causes import PathCauses
from kernbench.report.explain.explanation import explain
from kernbench.report.explain.finding import CAUSES
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.hints import HINTS, hint_of
from kernbench.report.explain.transfer_causes import memories_of
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.link_classes import _CLASSES
from kernbench.report.runs.access_times import AccessTimes
from kernbench.report.runs.live_run import live_run
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

SLOW = Path(__file__).parent / "slow_kernels.py"
MORE_SLOW = Path(__file__).parent / "more_slow_kernels.py"
ON_SMALL = ["--device", "sip:0", *(word for key, value in {"system.sips.count": 1, "sip.cube_mesh.w": 2}.items()
                                   for word in ("--set", f"{key}={value}")), "--set", "sip.cube_mesh.h=2"]  # fmt: skip
SLOW_FOR = ("distance", "imbalance", "chain", "overlap", "small_transfers", "memory", "link", "launch", "compute")
ADVISED = (
    "flash-attention --param pes=1", "flash-attention --param pes=0", "softmax", "layernorm", "gelu-mlp",
    "matmul-composite --param variant=ref", "qkv-gemm", "gemm-single-pe",
    "tp-mlp --param tokens=8 --param ffn=512", "ccl-allreduce",
)  # fmt: skip
MODE = "cube.memory_map.hbm_mapping_mode"
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}


@cache
def explained(cause: str, mode: str | None = None):
    file = MORE_SLOW if cause in MORE_SLOW_FOR else SLOW
    spec = resolve(f"{file}:{cause.replace('_', '-')}")
    options = RunOptions(device="sip:0", op_log=OpLog())
    graph = load_topology(None, SMALL if mode is None else {**SMALL, MODE: mode})
    run = live_run(run_bench(spec.run, graph, options, name=spec.name, params={}))
    assert run is not None
    return main_scope(run)


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
@pytest.mark.parametrize("cause", SLOW_FOR)
def test_the_verdict_names_the_cause_of_a_slow_kernel(cause):
    verdict = verdict_of(explained(cause))
    assert verdict.cause == cause, verdict.sentence
    assert verdict.sentence.startswith(verdict.what)
    assert " Try: " in verdict.sentence


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
def test_an_access_to_several_memories_is_far_from_those_that_lie_elsewhere(tmp_path):
    """Of a saved run the route begins with the part that ended first, which is the one in the PE's own cube: the bytes
    of that part cross no UCIe. The farthest part is named, saved or not.
    """
    sentence = "4 reads of sip0.cube3 on the critical path cross UCIe to sip0.cube0"
    assert sentence in explained_sentence("whole-tensor")
    words = ["run", "--bench", f"{MORE_SLOW}:whole-tensor", *ON_SMALL, "--save", str(tmp_path / "run")]
    done = CliRunner().invoke(kernbench, words, catch_exceptions=False)
    assert done.exit_code == 0
    run = open_run(tmp_path / "run")
    reads = [row for row in range(len(run.ops)) if run.ops.kind[row] == "R"]
    assert [memories_of(run, row)[0].partition(".hbm_ctrl")[0] for row in reads] == ["sip0.cube3"] * 4
    assert sentence in ran(["explain", str(tmp_path / "run")], stats=False)["sentence"]


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
@pytest.mark.parametrize("name", MORE_SLOW_FOR)
def test_the_verdict_names_the_cause_of_more_slow_kernels(name):
    verdict = verdict_of(explained(name))
    assert verdict.cause == MORE_SLOW_FOR[name], verdict.sentence


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
@pytest.mark.parametrize(
    "name", ["columns", "panels", "one-channel", "across", "writes-to-one-slice", "barriers", "atomics"]
)
def test_a_saved_run_has_the_same_cause_and_names_the_kernel_line(name, tmp_path):
    """A run that was not saved knows neither lines nor places of queueing."""
    done = CliRunner().invoke(
        kernbench, ["run", "--bench", f"{MORE_SLOW}:{name}", *ON_SMALL, "--save", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    data = ran(["explain", str(tmp_path / "run")], stats=False)
    assert data["verdict"]["cause"] == MORE_SLOW_FOR[name], data["sentence"]
    assert "more_slow_kernels.py:" in data["sentence"]
    command = shlex.split(data["verdict"]["command"])
    assert command[:2] in (["kernbench", "web"], ["kernbench", "explain"])
    assert CliRunner().invoke(kernbench, [*command[1:2], "--help"]).exit_code == 0


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
def test_sentences_of_more_slow_kernels():
    assert "of sip0.cube3 on the critical path cross UCIe to sip0.cube0" in explained_sentence("shared-table")
    assert (
        'keep a copy of `table` in each cube that reads it (DPPolicy(cube="replicate", num_pes=1))'
        in explained_sentence("shared-table")
    )
    assert "8 writes of sip0.cube0 on the critical path cross UCIe to sip0.cube3" in explained_sentence("far-writes")
    assert "place `out` in sip0.cube0" in explained_sentence("far-writes")
    assert "Imbalance: 7 of 8 PEs have no work; sip0.cube0.pe5 does all of it." in explained_sentence("one-of-eight")
    assert "Imbalance: 7 of 8 PEs have no work; sip0.cube0.pe0 does all of it." in explained_sentence("early-return")
    assert "Try: divide the work over all 8 PEs: by tl.program_id" in explained_sentence("early-return")
    assert "Imbalance: 6 of 8 PEs have no work; 2 PEs do all of it." in explained_sentence("two-of-eight")
    assert "through barriers" in explained_sentence("phases")
    assert "8 PEs run one after another through messages" in explained_sentence("chain-of-products")
    assert "16 on the critical path gather 2,048 runs of 2 B, each of which takes a burst of 256 B" in (
        explained_sentence("columns")
    )
    assert "few of the 8 channels of their memory" in explained_sentence("one-channel")
    assert "20 messages of 32 B follow each other" in explained_sentence("ping-pong")
    assert "Barriers: the path waits in 12 of them" in explained_sentence("barriers")
    assert "8 launches take" in explained_sentence("steps")


@pytest.mark.needs("va", reason="kernels read the parts of other PEs")
@pytest.mark.parametrize(
    ("name", "params"), [("blocks-of-one-slice", {"spread": True}), ("weights-of-cube-0", {"copies": True})]
)
def test_the_gain_of_a_placement_is_what_the_advised_placement_gains(name, params):
    scope, placed = explained(name), with_params(name, params)
    measured = 1 - placed.launches[0].total_ns / scope.run.launches[0].total_ns
    assert verdict_of(scope).gain == pytest.approx(measured, abs=0.10)


def with_params(name, params, machine=None):
    spec = resolve(f"{MORE_SLOW}:{name}")
    options = RunOptions(device="sip:0" if machine is None else "all", op_log=OpLog())
    graph = load_topology(None, SMALL if machine is None else machine)
    run = live_run(run_bench(spec.run, graph, options, name=spec.name, params=params))
    assert run is not None
    return run


@pytest.mark.needs("va", reason="kernels read the parts of other PEs")
def test_what_pes_without_work_cost_is_what_dividing_the_work_gains():
    """One PE does eight blocks, or eight PEs do one each."""
    alone, divided = explained("early-return"), with_params("early-return", {"workers": 8})
    assert [len(run.launches[0].pes) + run.launches[0].idle_pes for run in (alone.run, divided)] == [8, 8]
    measured = 1 - divided.launches[0].total_ns / alone.run.launches[0].total_ns
    assert verdict_of(alone).gain == pytest.approx(measured, abs=0.10)
    assert "imbalance" not in {one.cause for one in PathCauses(main_scope(divided)).findings()}
    finish = finish_of(alone)
    assert finish is not None
    assert finish.sentence == "It is the path of sip0.cube0.pe0, the only PE of 8 that has work."


def test_what_few_channels_cost_is_the_time_over_one_channel_less_that_over_all():
    """A load has 64 bursts of 256 B at 32 GB/s: 512 ns in one channel, 64 ns over all eight."""
    found = next(one for one in PathCauses(explained("one-channel")).findings() if one.cause == "memory")
    assert found.gain_ns == pytest.approx(4 * (512 - 64), rel=0.02)


def test_launches_of_two_sips_at_the_same_time_are_not_advised_away():
    """Each SIP has one launch; both start together."""
    spec = resolve(f"{SLOW}:compute")
    graph = load_topology(None, {**SMALL, "system.sips.count": 2})
    run = live_run(run_bench(spec.run, graph, RunOptions(op_log=OpLog()), name=spec.name, params={}))
    assert run is not None
    assert len(run.launches) == 2
    assert "launch" not in {one.cause for one in PathCauses(main_scope(run)).findings()}
    one_each = with_params("small-step", {}, {**SMALL, "system.sips.count": 2})
    scope = main_scope(one_each)
    assert max(scope.by_class, key=lambda name: scope.by_class[name]) == "launch"
    assert verdict_of(scope).cause != "launch"


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
def test_the_sentence_has_the_facts_that_a_reader_needs():
    assert "6 reads of sip0.cube0 on the critical path cross UCIe to sip0.cube3" in explained_sentence("distance")
    assert "place `x` in sip0.cube0" in explained_sentence("distance")
    assert "sip0.cube0.pe2 has" in explained_sentence("imbalance")
    assert "4 PEs run one after another through messages" in explained_sentence("chain")
    assert "7 transfers and compute alternate" in explained_sentence("overlap")
    assert "GEMM work is" in explained_sentence("overlap")  # the largest class of work beside it
    assert "49 of 128 B" in explained_sentence("small_transfers")
    assert "8 requesters meet at sip0.cube0.hbm_ctrl.pe0" in explained_sentence("memory")
    assert "queueing at ucie links" in explained_sentence("link")
    assert "6 launches take" in explained_sentence("launch")


def explained_sentence(cause: str) -> str:
    return verdict_of(explained(cause)).sentence


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
def test_what_distance_costs_is_what_the_same_blocks_take_longer_than_local_ones():
    """A block of 8 KiB from the PE's own slice takes 13 + 8192 / 256 = 45 ns, 8 ns more where channels have links of
    their own: a flit on one of them. The six reads are all on the path.
    """
    scope = explained("distance")
    own_ns = 53.0 if load_topology().spec.cube.has_channel_routers else 45.0
    ops = scope.run.ops
    reads = [row for row in range(len(ops)) if ops.kind[row] == "R"]
    took = sum(float(ops.t_end[row] - ops.t_start[row]) for row in reads)
    found = next(one for one in PathCauses(scope).findings() if one.cause == "distance")
    assert len(reads) == 6
    assert found.gain_ns == pytest.approx(took - 6 * own_ns)


def test_a_single_launch_is_not_advised_away():
    assert "launch" not in {one.cause for one in PathCauses(explained("compute")).findings()}


def test_a_wait_that_is_shorter_than_the_largest_work_is_not_named():
    scope = explained("compute")
    longest = max(ns for cls, ns in scope.by_class.items() if cls in ("gemm", "math", "transfer", "fetch and store"))
    waits = [one for one in PathCauses(scope).findings() if one.cause in ("issue", "distance", "memory", "link")]
    assert all(one.gain_ns < longest for one in waits)
    assert verdict_of(scope).cause == "compute"


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
@pytest.mark.parametrize("bench", ADVISED)
def test_following_the_first_advice_makes_a_bench_faster(bench):
    before = ran(["run", "--bench", *shlex.split(bench)])
    verdict = before["verdict"]
    assert verdict["cause"] in CAUSES
    words = shlex.split(verdict["command"])
    assert words[:2] == ["kernbench", "run"]
    after = ran(words[1:])
    print(f"{bench}: {verdict['command']}: {before['kernels_ns']:.0f} -> {after['kernels_ns']:.0f} ns")
    assert after["kernels_ns"] < before["kernels_ns"]
    assert after["total_ns"] < before["total_ns"]


def test_a_parameter_that_is_advised_is_set_once():
    command = ran(["run", "--bench", "flash-attention", "--param", "pes=1"])["verdict"]["command"]
    assert command == "kernbench run --bench flash-attention --param pes=0"


def ran(words: list[str], *, stats: bool = True) -> dict[str, object]:
    done = CliRunner().invoke(kernbench, [*words, "--json", *["--stats"] * stats], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_every_class_of_links_has_a_hint():
    """A queue at any link ends in advice, also where HBM channels have routers of their own."""
    assert set(_CLASSES.values()) | {"ucie"} <= set(HINTS)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({}, "over more HBM slices"),
        ({"area.hbm_place": "sram"}, "over more SRAM slices"),
        ({"cube.memory_map.hbm_total_gb_per_cube": 0}, "over the SRAM of more cubes"),
    ],
)
def test_advice_names_the_memory_that_the_machine_has(machine, words):
    spec = load_topology(None, {**SMALL, **machine}).spec
    hints = {name: hint_of(name, spec) for name in HINTS}
    assert words in hints["hbm port"]
    assert ("HBM" in " ".join(hints.values())) == (words == "over more HBM slices")
    assert not any(mark in hint for hint in hints.values() for mark in "{}")


def test_where_channels_have_links_of_their_own_an_access_has_the_rate_of_all_of_them():
    shared, own = (
        AccessTimes(load_topology(None, {**SMALL, "cube.memory_map.hbm_mapping_mode": mode})).own_slice(
            "sip0.cube0.pe0"
        )
        for mode in ("n_to_one", "one_to_one")
    )
    assert (shared.gbs, own.gbs) == (256.0, 256.0)
    assert (shared.latency_ns, own.latency_ns) == (13.0, 21.0)  # 8 ns: a flit on the link of one channel, 256 B at 32


@pytest.mark.needs("addresses", reason="kernels read the parts of other PEs, and benches have parallel layers")
@pytest.mark.parametrize("mode", ["n_to_one", "one_to_one"])
def test_what_a_narrow_link_costs_does_not_depend_on_the_links_of_channels(mode):
    """32 KiB over UCIe at 128 GB/s instead of 256 from the own slice: 128 ns, also if that has eight links of 32."""
    assert ", and being narrow costs 128" in verdict_of(explained("link", mode)).sentence


def test_small_transfers_count_their_whole_latency_within_a_cube():
    found = next(one for one in PathCauses(explained("small_transfers")).findings() if one.cause == "small_transfers")
    ops = explained("small_transfers").run.ops
    latency = sum(float(ops.latency_ns[row]) for row in range(len(ops)) if ops.kind[row] in "RW")
    assert found.gain_ns == pytest.approx(latency * 48 / 49)


def test_one_launch_of_several_is_not_advised_away():
    launches = explained("launch")
    assert verdict_of(explain(launches.run, 2)).cause != "launch"


@pytest.mark.needs("addresses", reason="PEs read what lies in another cube")
def test_distance_has_its_hint_on_a_machine_with_types_of_cubes():
    slow = {"memory_map": {"hbm_channel_bw_gbs": 16.0}}
    graph = load_topology(None, {**SMALL, "sip.cube_types": {"slow": [1]}, "cube_types.slow": slow})
    spec = resolve(f"{MORE_SLOW}:weights-of-cube-0")
    options = RunOptions(device="sip:0", op_log=OpLog())
    run = live_run(run_bench(spec.run, graph, options, name=spec.name, params={}))
    verdict = verdict_of(main_scope(run))
    assert verdict.cause == "distance"
    assert 'DPPolicy(cube="replicate", num_pes=1)' in verdict.hint


def skewed(x, worker, tl):
    """One PE does ten times the work of the others."""
    for _ in range(40 if tl.program_id(0) == worker else 4):
        tl.sum(tl.load(x.local, shape=(2048,), dtype="f16"))


def bench_of_two_launches(torch):
    rows = DPPolicy(pe="row_wise", num_cubes=1)
    x = torch.zeros(8, 2048, dtype="f16", name="x", dp=rows)
    for launch in [torch.launch("skewed", skewed, x, worker, wait=False) for worker in (7, 0)]:
        torch.wait(launch)


@pytest.mark.needs("addresses", reason="a launch on parts of a tensor")
def test_launches_that_overlap_gain_no_more_by_balance_than_they_have_of_the_path():
    graph = load_topology(None, SMALL)
    options = RunOptions(device="sip:0", op_log=OpLog())
    run = live_run(run_bench(bench_of_two_launches, graph, options, name="two", params={}))
    whole = explain(run)
    gains = [one.gain_ns for one in PathCauses(whole).findings() if one.cause == "imbalance"]
    assert all(gain <= whole.scope.total_ns for gain in gains)
    assert verdict_of(whole).gain <= 1.0
