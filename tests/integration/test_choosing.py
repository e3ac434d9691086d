"""Scenarios, comparisons and pages through the command line, on small machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from kernbench.cli.main import main
from kernbench.sweep import sensitivity
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import JsonValue
from kernbench.sweep.sensitivity import Effect

pytestmark = pytest.mark.usefixtures("points_in_this_process")

MIX = """\
workloads:
  - { name: prompt, model: tiny-llama, phase: prefill, tokens: 4, weight: 1 }
  - { name: answer, model: tiny-llama, phase: decode, batch: 2, context: 16, weight: 3 }
"""
SMALL = [
    "--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1",
    "--set", "cube.pe_layout.corners=[NW, SE]", "--set", "cube.pe_layout.pe_per_corner=1",
]  # fmt: skip
HBM = "machine:cube.memory_map.hbm_channel_bw_gbs"
LAYER = ["sweep", "--bench", "llm-layer"]
MACS = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mix.yaml"
    file.write_text(MIX)
    return file


def kernbench(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        main([*args])
    out = capsys.readouterr()
    assert end.value.code == code, out.err
    return out.err if code else out.out


def test_a_scenario_ranks_each_workload_and_the_mix_and_nothing_across(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["--over", f"{HBM}=16,32", "--set", "limits.cost_usd=800", "--workers", "1", "--out", "out"]
    data = json.loads(kernbench(capsys, "sweep", "--scenario", str(mix), *SMALL, *over, "--json"))
    assert data["objectives"] == ["tokens_per_s:max", "cost_usd:min"]
    assert (data["best"], data["front"]) == ([], [])
    assert len(data["rows"]) == 4
    scenario = data["scenario"]
    assert {name: each["share"] for name, each in scenario["workloads"].items()} == {"prompt": 0.25, "answer": 0.75}
    assert [row["point"] for row in data["rows"] if row["infeasible"]] == [2, 3]  # 32 GB/s per channel cost more
    assert scenario["workloads"]["prompt"]["best"] == [0]
    assert scenario["workloads"]["answer"]["best"] == [1]
    cheap, dear = scenario["weighted"]["rows"]
    rates = [
        table["value"]
        for row in data["rows"][:2]
        for table in row["table"]
        if table.get("figure") == "tokens per second in total"
    ]
    assert cheap["tokens_per_s"] == pytest.approx(1 / (0.25 / rates[0] + 0.75 / rates[1]))
    assert dear["infeasible"].startswith("prompt, answer: the machine costs ")
    page = Path(kernbench(capsys, "report", "out").split()[1])
    text = page.read_text()
    assert "Weighted over all workloads" in text
    assert "answer: 75% of tokens" in text
    assert "more than 800 (limits.cost_usd)" in text
    assert "<li>1 of 2 machines is infeasible, and never called best.</li>" in text
    assert "<li>Infeasible machine 1: prompt, answer: the machine costs" in text
    assert '<button type="button">tokens_per_s</button>' in text  # not broken within the word
    assert '<button type="button">memory_map.<wbr>hbm_channel_bw_gbs</button>' in text
    assert "overflow-wrap: anywhere" not in text
    assert "Over all workloads, most tokens_per_s: machine 0 (memory_map.hbm_channel_bw_gbs 16), " in text
    answer = text[text.index("<h3>answer") :]
    first = answer[answer.index("<tbody>") :].splitlines()[1]
    assert first.startswith('<tr><td class="n" data-v="0">')  # machine 0, not point 1
    assert "In all rows" not in text
    assert "layer_ns</dt>" in text
    low, high = cheap["cost_low_usd"], cheap["cost_high_usd"]
    assert f"<small>{low:.2f} to {high:,.2f}</small>" in text  # the range of a price


def test_optuna_searches_machines_by_weighted_figures_and_continues_where_it_was(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    over = ["--over", f"{HBM}=8,16,32,64", "--over", f"{MACS}=1024,2048,4096", "--workers", "1", "--out", "out"]
    search = [*over, "--search", "optuna", "--batch", "2", "--seed", "2", "--objective", "tokens_per_s"]
    args = ["sweep", "--scenario", str(mix), *SMALL, *search, "--no-plot", "--json"]
    begun = json.loads(kernbench(capsys, *args, "--trials", "2"))
    whole = json.loads(kernbench(capsys, *args, "--trials", "4"))
    machines = whole["scenario"]["weighted"]["rows"]
    assert len(whole["rows"]) == 2 * len(machines)
    assert whole["rows"][: len(begun["rows"])] == begun["rows"]
    assert whole["ran"] == len(whole["rows"]) - len(begun["rows"])
    best = max(machines, key=lambda row: row["tokens_per_s"])
    assert whole["scenario"]["weighted"]["best"][0] == best["point"]
    assert json.loads(kernbench(capsys, *args, "--trials", "4"))["ran"] == 0


def test_latencies_of_machines_with_tensors_in_tcm_are_of_that_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tcm.yaml"
    file.write_text("cube: { memory_map: { hbm_total_gb_per_cube: 0, tcm_home_mb_per_pe: 0.5 } }\n")
    data = json.loads(kernbench(capsys, "compare", "default", str(file), *SMALL, "--json"))
    own, far = data["probes_ns"]["pe-tcm"], data["probes_ns"]["pe-same-cube-tcm"]
    assert own[0] is far[0] is data["probes_ns"]["pe-local-hbm"][1] is None
    assert 0 < own[1] < far[1]


def test_damaged_results_are_refused_in_one_message(mix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad").mkdir()
    for text in ('{"command": "sweep"}', '{"command": "sweep", "rows": [1]}', '{"command": "sweep", "rows": {}}'):
        Path("bad/results.json").write_text(text)
        assert kernbench(capsys, "report", "bad", code=2).startswith("error: not the results of a sweep")


def test_sensitivity_varies_each_axis_alone_and_draws_a_tornado(mix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = ["--over", f"{HBM}=16", "--over", f"{MACS}=8192", "--sensitivity", "--objective", "layer_ns,cost_usd"]
    run = ["sweep", "--bench", "llm-layer", "--param", "tokens=4", *SMALL, *over, "--workers", "1", "--out", "alone"]
    data = json.loads(kernbench(capsys, *run, "--json"))
    assert len(data["rows"]) == 3  # as it is, and two changes
    effects = {(each["objective"], each["axis"]): each["change"] for each in data["sensitivity"]}
    assert effects["layer_ns", HBM] > 0 > effects["cost_usd", HBM]
    assert effects["cost_usd", MACS] > 0
    assert Path("alone/sensitivity.svg").is_file()
    assert not Path("alone/sweep.svg").exists()  # points that differ in one axis each make no line
    kernbench(capsys, "report", "alone")
    page = Path("alone/report.html").read_text()
    assert "Each axis alone" in page
    best = page[page.index("<h3>Best</h3>") :].replace("<wbr>", "")
    heads = [
        best.index(f">{head}<") for head in ("point", "memory_map.hbm_channel_bw_gbs", "attrs.macs_per_ns", "layer_ns")
    ]
    assert heads == sorted(heads)  # every axis has its column, before the figures
    assert "<td>as it is</td>" in best


def test_sensitivity_of_a_scenario_is_that_of_its_weighted_figures(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["--over", f"{HBM}=16,32", "--over", f"{MACS}=8192", "--sensitivity", "--objective", "tokens_per_s,cost_usd"]
    run = ["sweep", "--scenario", str(mix), *SMALL, *over, "--workers", "1", "--out", "alone"]
    data = json.loads(kernbench(capsys, *run, "--json"))
    assert len(data["rows"]) == 6  # two workloads; 32 GB/s are there as it is, and not run again
    base, *others = data["scenario"]["weighted"]["rows"]
    effects = {(each["objective"], each["axis"]): each for each in data["sensitivity"]}
    for axis, row in zip((HBM, MACS), others, strict=True):
        for name in ("tokens_per_s", "cost_usd"):
            found = effects[name, axis]
            assert (found["base"], found["at"]) == (base[name], row[name])
    assert effects["tokens_per_s", HBM]["change"] < 0 < effects["cost_usd", MACS]["change"]
    assert Path("alone/sensitivity.svg").is_file()
    text = kernbench(capsys, *run)
    assert "Sensitivity of weighted tokens_per_s" in text


def test_texts_of_a_tornado_chart_overlap_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def kept(figure: Figure, _stem: Path) -> list[Path]:
        drawn.append(figure)
        return []

    monkeypatch.setattr(sensitivity, "save_figure", kept)
    axes: dict[str, list[JsonValue]] = {f"{HBM}&{MACS}": [[16, 2048], [64, 8192]], HBM: [16, 64]}
    effects = [
        Effect(objective, axis, value, 1, 100.0, at, "too large" if at > 150 else None)
        for objective in ("tokens_per_s", "cost_usd", "mj_per_token")
        for axis, values in axes.items()
        for value, at in zip(values, (70.0, 180.0), strict=True)
    ]
    objectives = (Objective("tokens_per_s", maximize=True), Objective("cost_usd"), Objective("mj_per_token"))
    sensitivity.draw_tornado("mix", effects, objectives, tmp_path)
    (figure,) = drawn
    figure.draw_without_rendering()
    for panel in figure.axes:
        boxes = [text.get_window_extent() for text in panel.texts]
        labels = [label.get_window_extent() for label in (*panel.get_yticklabels(), panel.xaxis.label)]
        assert all(figure.bbox.containsx(x) for box in (*boxes, *labels) for x in (box.x0, box.x1))
        bars = [patch.get_window_extent() for patch in panel.patches]
        assert not any(box.overlaps(bar) for box in boxes for bar in bars)
        assert not any(box.overlaps(other) for at, box in enumerate(boxes) for other in boxes[at + 1 :])
    speed, cost, _ = figure.axes
    assert [patch.get_facecolor() for patch in speed.patches[:2]] == [
        patch.get_facecolor() for patch in cost.patches[1::-1]
    ]


def test_an_impossible_machine_has_failed_and_is_not_infeasible_too(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["--over", "machine:cube.ucie.n_connections=0,4", "--workers", "1", "--out", "out", "--no-plot"]
    out = kernbench(capsys, "sweep", "--scenario", str(mix), *SMALL, *over, "--allow-failures")
    assert "infeasible" not in out
    assert out.count("0 is out of range") == 1  # of two points with the same machine
    kernbench(capsys, "report", "out")
    page = Path("out/report.html").read_text()
    assert "are infeasible" not in page
    assert "Infeasible machines" not in page


def test_stacks_and_far_memory_have_latencies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearer stack is at the west side, where the first PE is; a case of a stack moves one block, 4 KiB."""
    (tmp_path / "stacks.yaml").write_text(
        "system: { name: stacks, far_memory: { at: sip, gb: 64, bw_gbs: 64, distance_mm: 100, channels: 4, "
        "channel_bw_gbs: 32 } }\n"
        "sip: { hbm_stacks: { places: [{ id: s0, side: E }, { id: s1, side: W }], gb: 8, channels: 32, "
        "channel_bw_gbs: 32, link_bw_gbs: 256 } }\n"
        "cube: { memory_map: { hbm_mapping_mode: n_to_one } }\n"
    )
    run = ["compare", "default", str(tmp_path / "stacks.yaml"), *SMALL]
    data = json.loads(kernbench(capsys, *run, "--json"))
    (_, near), (_, far) = data["probes_ns"]["pe-stack-nearest"], data["probes_ns"]["pe-stack-farthest"]
    assert near < far < data["probes_ns"]["pe-far"][1]
    assert data["probes_ns"]["pe-far"][0] is None
    assert data["probes_nbytes"]["pe-stack-nearest"] == [None, 4096]
    assert "  stacks: 4 KiB in pe-stack-nearest, pe-stack-farthest\n" in kernbench(capsys, *run)


def test_each_level_of_switches_has_a_latency_where_a_machine_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, levels in (("flat", "{}"), ("trays", "{ tray: { count: 2, bw_gbs: 64.0, distance_mm: 2000.0 } }")):
        text = f"system: {{ name: {name}, sips: {{ count: 4 }}, switch_levels: {levels} }}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    run = ["compare", str(tmp_path / "flat.yaml"), str(tmp_path / "trays.yaml"), *SMALL[2:], "--json"]
    probes = json.loads(kernbench(capsys, *run))["probes_ns"]
    assert list(probes).index("pe-cross-tray-hbm") == list(probes).index("pe-cross-sip-hbm") + 1
    assert probes["pe-cross-tray-hbm"][0] is None
    assert probes["pe-cross-tray-hbm"][1] > probes["pe-cross-sip-hbm"][1]


def test_machines_are_compared_with_probes_and_workloads(mix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fast.yaml").write_text("cube: { memory_map: { hbm_channel_bw_gbs: 64.0 } }\n")
    run = ["compare", "default", "fast.yaml", *SMALL, "--scenario", str(mix), "--workers", "1"]
    data = json.loads(kernbench(capsys, *run, "--json"))
    assert [machine["name"] for machine in data["machines"]] == ["default", "fast"]
    assert data["differences"] == {"cube.memory_map.hbm_channel_bw_gbs": [32.0, 64.0]}
    assert "pe-cross-sip-hbm" not in data["probes_ns"]  # one SIP
    slow, fast = data["probes_ns"]["pe-local-hbm"]
    assert fast <= slow
    figures = {name: each["figures"] for name, each in data["workloads"].items()}
    assert figures["default"]["answer"]["layer_ns"] >= figures["fast"]["answer"]["layer_ns"]
    assert any("an HBM slice gives 512" in text for text in data["machines"][1]["warnings"])
    Path("cheap.yaml").write_text("limits: { cost_usd: 100 }\n")
    few = ["compare", "default", "cheap.yaml", *SMALL, "--no-probes", "--scenario", str(mix), "--workers", "1"]
    text = kernbench(capsys, *few)
    (line,) = [line for line in text.splitlines() if "limits.cost_usd)" in line]
    assert line.startswith("  (1) cheap: the machine costs ")
    assert [each.split()[1:] for each in text.splitlines() if each.startswith("  feasible ")] == [
        ["yes", "no", "(1)"]
    ] * 3
    assert "Warnings" not in text or "limits.cost_usd" not in text[text.index("Warnings") :]
    text = kernbench(capsys, *run[:3], *SMALL, "--no-probes")
    assert "ridge, flop/byte" in text
    assert "Latency" not in text


def test_machines_of_one_name_are_told_apart_and_figures_have_ranges(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, bw in (("a", 32.0), ("b", 64.0)):
        Path(folder).mkdir()
        Path(folder, "m.yaml").write_text(f"cube: {{ memory_map: {{ hbm_channel_bw_gbs: {bw} }} }}\n")
    run = ["compare", "a/m.yaml", "b/m.yaml", *SMALL, "--scenario", str(mix), "--workers", "1", "--no-probes"]
    data = json.loads(kernbench(capsys, *run, "--json"))
    assert [machine["name"] for machine in data["machines"]] == ["a/m.yaml", "b/m.yaml"]
    slow, fast = (data["workloads"][name]["figures"]["weighted"] for name in ("a/m.yaml", "b/m.yaml"))
    assert slow["tokens_per_s"] < fast["tokens_per_s"]
    assert slow["mj_per_token_low"] < slow["mj_per_token"] < slow["mj_per_token_high"]
    lines = kernbench(capsys, *run).splitlines()
    weighted = lines[lines.index("Weighted over all workloads") :]
    (energy,) = (line for line in weighted if line.startswith("  mj_per_token"))
    assert energy.count(" to ") == 2  # a range for each machine


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "default"], "a comparison needs two machines or more, and has 1"),
        (["compare", "default", "default"], "'default' is named twice"),
        (["sweep", "--scenario", "mix.yaml", "--bench", "llm-layer"], "a scenario and a bench"),
        (["sweep", "--scenario", "mix.yaml", "--over", "batch=1,2"], "'batch' is set beside a scenario"),
        (["sweep", "--scenario", "none.yaml"], "the scenario cannot be read"),
        (["sweep", "--bench", "llm-layer", "--sensitivity"], "varies axes one at a time"),
        (["sweep", "--bench", "llm-layer", "--over", f"{HBM}=1", "--where", "batch"], "is no condition"),
        (
            ["sweep", "--bench", "llm-layer", "--over", f"{HBM}=16,32", "--where", f"{HBM} > 99"],
            "no point of 2 satisfies",
        ),
        (["sweep", "--bench", "llm-layer", "--over", f"{HBM}&{MACS}=1&2&3"], "sets 2 keys, and has 3 values"),
        ([*LAYER, "--over", f"{HBM}&{MACS}=16&2048,4096"], "sets 2 keys, and has 1 value for them in one of its"),
        ([*LAYER, "--over", f"{HBM}&{HBM}=16&32"], f"'{HBM}' is set twice by axis"),
        ([*LAYER, "--over", f"{HBM}=16", "--over", f"{HBM}&{MACS}=16&2048"], f"'{HBM}' is set twice by axes"),
        (["sweep", "--bench", "llm-layer", "--over", f"{HBM}=-1,-2"], "out of range"),
        (["report", "."], "no results"),
    ],
)
def test_what_cannot_be_asked_is_refused(mix: Path, capsys: pytest.CaptureFixture[str], args, words) -> None:
    assert words in kernbench(capsys, *args, code=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n", "the file has no workloads"),
        ("workloads: []\n", "workloads is no list"),
        ("workloads: [{ modle: tiny-llama }]\n", "did you mean 'model'"),
        ("workloads: [{ weight: -1 }]\n", "weight is -1"),
        ("workloads: [{ name: a }, { name: a, batch: 2 }]\n", "two workloads are named 'a'"),
        ("workloads: [{ name: a }, { name: b }]\n", "is one that was listed"),
        ("workloads: [{ phase: sleep }]\n", "phase"),
        ("workloads: [{ model: lama3-8b }]\n", "no model 'lama3-8b'; did you mean 'llama3-8b'?"),
        ("workloads: [{ name: a }, { model: none.yaml:mine }]\n", "none.yaml"),
        ("workloads: [{ phase: prefill, context: 8 }]\n", "context at prefill"),
        ("workloads: [{ phase: decode, tokens: 8 }]\n", "tokens=8 at decode"),
        ("workloads: [{ phase: prefill, weight_type: int8 }]\n", "quantised weights or caches at prefill"),
        (
            "workloads: [{ phase: decode, cache_type: fp8, dtype: f32 }]\n",
            "weights or caches with rows in f32",
        ),
        ("workloads: [{ phase: decode, weight_type: int4, batch: 65 }]\n", "weights in int4 with 65 rows"),
        (
            "workloads: [{ model: tiny-mixtral, phase: decode, weight_type: int8, batch: 33 }]\n",
            "weights in int8 with 66 rows (2 experts for each of 33 sequences)",
        ),
        ("workloads: [{ mapping: colums }]\n", "no mapping 'colums'"),
        ("colour: red\nworkloads: [{ name: a }]\n", "unknown key 'colour'"),
    ],
)
def test_faults_of_a_scenario_name_their_line(
    mix: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    mix.write_text(text)
    message = kernbench(capsys, "sweep", "--scenario", "mix.yaml", code=2)
    assert words in message
    assert "mix.yaml" in message


def test_all_faults_of_a_scenario_are_reported_in_the_order_of_their_lines(
    mix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix.write_text(
        "weights: 3\nworkloads:\n  - { name: a, model: none, weight: -1 }\n  - { name: b, modle: tiny-llama }\n  - 7\n"
        "  - { name: c }\n  - { name: c, batch: 2 }\n"
    )
    message = kernbench(capsys, "sweep", "--scenario", "mix.yaml", code=2)
    assert "6 faults in the scenario" in message
    lines = [line.split(":")[2].split()[0] for line in message.splitlines() if "where: mix.yaml:" in line]
    assert lines == ["1", "3", "3", "4", "5", "7"]
    mix.write_text("workload: [{ name: a }]\n")
    assert "unknown key 'workload'; did you mean 'workloads'?" in kernbench(
        capsys, "sweep", "--scenario", "mix.yaml", code=2
    )
    mix.write_text("# nothing yet\n")
    message = kernbench(capsys, "sweep", "--scenario", "mix.yaml", code=2)
    assert "the scenario is empty" in message
    assert "base: default" not in message


def test_plans_are_ranked_by_the_figures_of_the_best_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    over = ["--over", "machine:system.sips.count=1,2", "--workers", "1", "--param", "context=2"]
    plan = ["sweep", "--bench", "llm-plan", *SMALL[2:], *over, "--objective", "tokens_per_s"]
    data = json.loads(kernbench(capsys, *plan, "--out", "all", "--json"))
    assert data["best"] == [1, 0]
    limit = ["--param", "max_latency_ms=0.000001"]
    text = kernbench(capsys, *plan, *limit, "--out", "slow")
    assert "2 infeasible" in text
    assert "no plan is under max_latency_ms=1e-06: of those that fit, tp1 pp1 dp1 takes" in text
    cell = ["--objective", "table:tokens_per_s[tp1 pp1 dp1]"]
    text = kernbench(capsys, *plan[:-2], *cell, "--out", "cell")
    assert "Best by table:tokens_per_s[tp1 pp1 dp1]:max" in text
    kernbench(capsys, "report", "cell")
    text = kernbench(capsys, *plan[:-2], "--objective", "ttft_ms", "--out", "none", code=2)
    assert "no row can have a number for the objective 'ttft_ms'" in text  # the bench decodes
    assert not (tmp_path / "none").exists()
