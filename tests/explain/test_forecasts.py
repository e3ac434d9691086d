"""What a free component is expected to gain is what it gains when it is measured, to 10 points of the time."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.explain.test_verdict import MORE_SLOW, SLOW, SLOW_FOR

from kernbench.benches.registry import list_all, resolve
from kernbench.cli.explain import measured
from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.report import open_run
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.what_if import WhatIf, targets_of, what_ifs
from kernbench.report.runs.saved_run import SavedRun

pytestmark = pytest.mark.needs(
    "addresses", reason="kernels read the parts of other PEs, and benches have parallel layers"
)

SMALL = [
    "--device",
    "sip:0",
    "--set",
    "system.sips.count=1",
    "--set",
    "sip.cube_mesh.w=2",
    "--set",
    "sip.cube_mesh.h=2",
]


BENCHES = {
    "tp-mlp --param tokens=8 --param ffn=512": ["router", "ucie"],  # loads of pieces that lie in many cubes
    "ccl-allreduce": ["pe_ipcq", "router", "ucie"],
    "flash-attention --param pes=0": ["pe_math", "hbm", "router"],
    "softmax": ["pe_math", "pe_dma", "launch"],
}
TWO_CUBES_EACH = ("tp-mlp", "ccl-allreduce", "ccl-bench", "tp-transformer-block")
ON_TWO_CUBES = (*TWO_CUBES_EACH, "gelu-mlp", "gpt3-qkv", "qkv-gemm-multi-pe", "flash-attention", "layernorm")
ON_TWO_PES = ("llm-plan", "llm-layer")  # of the only cube of a SIP
TRAY = (*TWO_CUBES_EACH, "pe2pe", "llm-layer", "llm-plan")  # run on all SIPs
FURTHER = (
    "flash-attention", "gelu-mlp --param rows=32 --param d_hidden=128", "gemm-single-pe",
    "gpt3-qkv --param heads=1 --param seq=16", "layernorm", "matmul-composite", "qkv-gemm --param seq=16",
    "qkv-gemm-multi-pe --param seq=16", "va-offset-verify", "pe2pe --param max_bytes=1024",
    "ccl-bench --param max_bytes=4096",
    "llm-layer --param tokens=4 --set system.sips.count=1",
    "llm-plan --param context=2 --param mapping=columns",
    "tp-transformer-block --param seq=4 --param hidden=128 --param ffn=128 --param heads=4 "
    "--set cube.pe_layout.pe_per_corner=1",
)  # fmt: skip
TWO_CUBES = ["--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1"]  # for each SIP of a tray
TWO_PES = [
    "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1",
    "--set", "cube.pe_layout.corners=[NW, SE]", "--set", "cube.pe_layout.pe_per_corner=1",
]  # fmt: skip
MORE = {
    "columns": ["hbm"],  # bursts
    "one-channel": ["hbm"],
    "barriers": ["pe_ipcq", "router", "launch"],
    "phases": ["router"],
    "ping-pong": ["pe_ipcq", "pe_dma", "router"],
    "chain-of-products": ["pe_ipcq", "router"],
    "writes-to-one-slice": ["hbm", "router"],
    "across": ["ucie"],
    "blocks-of-one-slice": ["router"],  # the slice itself limits what faster ways to it gain
    "weights-of-cube-0": ["ucie"],
}


@pytest.mark.parametrize("cause", SLOW_FOR)
def test_a_forecast_is_within_ten_points_of_its_measurement(cause: str, tmp_path: Path) -> None:
    """For the two components with the largest forecasts, and for the DMA engine, whose latency others cause."""
    run, explanation, forecasts = forecast([f"{SLOW}:{cause.replace('_', '-')}"], tmp_path)
    chosen = sorted(forecasts, key=lambda name: -forecasts[name].gain_ns)[:2]
    compare(run, explanation, [forecasts[name] for name in dict.fromkeys((*chosen, "pe_dma"))])


def test_where_channels_have_links_each_of_them_carries_its_share_of_an_access(tmp_path: Path) -> None:
    """Eight links of 32 GB/s with an eighth of the bytes are as loaded as one of 256: the queue is UCIe's."""
    words = [f"{SLOW}:link", "--set", "cube.memory_map.hbm_mapping_mode=one_to_one"]
    run, explanation, forecasts = forecast(words, tmp_path)
    compare(run, explanation, [forecasts["ucie"]])
    assert forecasts["ucie"].share > 0.5


@pytest.mark.parametrize("bench", FURTHER)
def test_the_largest_forecast_of_a_bench_is_what_it_measures(bench: str, tmp_path: Path) -> None:
    run, explanation, forecasts = forecast(shlex.split(bench), tmp_path)
    compare(run, explanation, [max(forecasts.values(), key=lambda one: one.gain_ns)])


@pytest.mark.parametrize("bench", [spec.name for spec in list_all()])
def test_every_bench_of_one_run_has_its_forecasts_measured(bench: str, tmp_path: Path) -> None:
    """An evaluation has many runs, and none of them is the one to explain: it cannot be saved, and has no forecast."""
    if resolve(bench).is_evaluation:
        done = CliRunner().invoke(kernbench, ["run", "--bench", bench, "--save", str(tmp_path / "run")])
        assert isinstance(done.exception, UsageError)
        assert done.exception.what == "--save is for one run, and an evaluation has many"
        assert not list(tmp_path.iterdir())
    else:
        assert bench in {words.split()[0] for words in (*BENCHES, *FURTHER)}


def test_direct_links_between_sips_can_be_made_free(tmp_path: Path) -> None:
    """Only where a machine has them: a forecast of them is of no use elsewhere."""
    links = (
        "{bw_gbs: 12.5, distance_mm: 0.0, port: {kind: sip_port, impl: builtin.sip_port, attrs: {overhead_ns: 250.0}}}"
    )
    words = ["ccl-allreduce", "--set", f"system.sips.links={links}", "--set", "system.sips.count=3"]
    run, explanation, forecasts = forecast(words, tmp_path)
    compare(run, explanation, [forecasts["sip_link"]])
    assert forecasts["sip_link"].share > 0.3
    assert "sip_link" not in forecast(["gemm-single-pe"], tmp_path / "without")[2]


@pytest.mark.parametrize("bench", [*BENCHES, *MORE])
def test_a_component_owns_only_what_vanishes_with_it(bench: str, tmp_path: Path) -> None:
    words = shlex.split(bench) if bench in BENCHES else [f"{MORE_SLOW}:{bench}"]
    run, explanation, forecasts = forecast(words, tmp_path)
    compare(run, explanation, [forecasts[name] for name in {**BENCHES, **MORE}[bench]])


def forecast(bench: list[str], folder: Path) -> tuple[SavedRun, Explanation, dict[str, WhatIf]]:
    small = TWO_PES if bench[0] in ON_TWO_PES else TWO_CUBES if bench[0] in ON_TWO_CUBES else SMALL[4:]
    machine = small if bench[0] in TRAY else [*SMALL[:4], *small]
    done = CliRunner().invoke(kernbench, ["run", "--bench", *bench, *machine, "--save", str(folder / "run")])
    assert done.exit_code == 0, done.output
    run = open_run(folder / "run")
    explanation = main_scope(run)
    return run, explanation, {one.name: one for one in what_ifs(run, explanation, targets_of(run.graph.spec))}


def compare(run: SavedRun, explanation: Explanation, forecasts: list[WhatIf]) -> None:
    for one in forecasts:
        gained = measured(run, explanation, one, None).gained_ns / one.total_ns
        print(f"{one.name}: foreseen {one.share:.1%}, measured {gained:.1%}")
        assert one.share == pytest.approx(gained, abs=0.10), one.name


def test_a_bench_file_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "slow.py").write_text(SLOW.read_text())
    monkeypatch.chdir(tmp_path / "mine")
    CliRunner().invoke(kernbench, ["run", "--bench", "slow.py:launch", *SMALL, "--save", "run"], catch_exceptions=False)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    done = CliRunner().invoke(kernbench, ["explain", "../mine/run", "--what-if", "launch"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "launch free: " in done.output
