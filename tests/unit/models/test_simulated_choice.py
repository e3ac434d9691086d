"""Candidates that are simulated, and twice the hardware under `auto`: what the closed model says holds in simulation,
too.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.models.test_layer import PUBLIC, llm_layer, machine, run

from kernbench.common.errors import UsageError
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.topology import load_topology

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
TWO_PES = {
    "system.sips.count": 1,
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.corners": ["NW", "SE"],
    "cube.pe_layout.pe_per_corner": 1,
}
SAME = 1.01  # of a time: the order in which loads and messages meet differs
TCM = "cube.memory_map.tcm_mb_per_pe"
DOUBLED: dict[str, dict[str, object]] = {
    "MACs": {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192.0},
    "HBM": {"cube.memory_map.hbm_channel_bw_gbs": 64.0},
    "links": {"sip.links.cube_to_cube.bw_gbs": 1024.0, "cube.ucie.per_connection_bw_gbs": 256.0},
    "half as much TCM again": {TCM: 3},
    "TCM": {TCM: 4},
}


def layer_row(result: BenchResult) -> dict[str, float]:
    return next(row for row in result.returned[0] if row.get("part") == "layer")


def layer_on(machine_keys: dict[str, object], phase: str, sizes: dict[str, object]) -> dict[str, float]:
    """The row of a whole layer of tiny-llama by `auto`."""
    params = {"model": "tiny-llama", "phase": phase, **sizes}
    return layer_row(run(llm_layer, load_topology(None, machine_keys), device="whole", params=params, data=False))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "phase", "sizes"),
    [
        (SMALL, "prefill", {"tokens": 48}),
        (SMALL, "prefill", {"tokens": 128}),
        (SMALL, "decode", {"batch": 1, "context": 64}),
        (SMALL, "decode", {"batch": 8, "context": 64}),
        (TWO_PES, "prefill", {"tokens": 64}),
        (TWO_PES, "decode", {"batch": 64, "context": 32}),
    ],
)
def test_twice_the_hardware_is_never_slower_and_follows_the_bound(
    small: dict[str, object], phase: str, sizes: dict[str, object]
) -> None:
    """What `auto` takes on each machine, on machines with twice the MACs, HBM, links or TCM. What moves the bound by
    10 % or more moves the time. TCM is doubled in two steps: products of few rows by `split_k` took a single round
    where TCM held all sums, and nothing hid their reduction.
    """
    base = layer_on(small, phase, sizes)
    found = {name: layer_on({**small, **changed}, phase, sizes) for name, changed in DOUBLED.items()}
    assert found["TCM"]["time_us"] <= found["half as much TCM again"]["time_us"] * SAME
    for name, more in found.items():
        assert more["time_us"] <= base["time_us"] * SAME, name
        if more["bound_us"] < 0.9 * base["bound_us"]:
            assert more["time_us"] < 0.995 * base["time_us"], name


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step_is_never_slower_with_more_tcm(batch: int) -> None:
    """Pieces of a decode step were as long as TCM allowed, and ran so far ahead that what a kernel waits for queued
    behind them: with 1.75 MB of TCM a step took 6 % longer than with 1.5.
    """
    sizes = {"batch": batch, "context": 512}
    times = [layer_on({**SMALL, TCM: mib}, "decode", sizes)["time_us"] for mib in (1.5, 1.75, 4)]
    assert all(more <= less * SAME for less, more in pairwise(times)), times


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_the_fastest_of_the_simulated_candidates_is_taken(tmp_path: Path) -> None:
    """The report has simulated times of the plan by rules and of one other plan for each product, the chosen one
    first, and of both kinds of attention.
    """
    file = tmp_path / "mine.yaml"
    file.write_text(PUBLIC)
    params = {"model": f"{file}:mine", "tokens": 32, "simulate": 1, "mapping_report": "-"}
    result = run(llm_layer, machine(1), device="whole", params=params)
    rows = [row for row in result.returned[0] if "estimate_us" in row]
    for name in ("qkv", "out_proj", "mlp_up", "mlp_down"):
        times = [row["simulated_us"] for row in rows if row["choice of"] == name and row["simulated_us"] is not None]
        assert len(times) == 2
        assert times == sorted(times)
        assert next(row for row in rows if row["choice of"] == name)["chosen"] == "yes"
    attention = {row["chosen"]: row["simulated_us"] for row in rows if row["choice of"] == "attention"}
    assert attention["yes"] <= attention["-"]
    parts = {row["part"]: row["time_us"] for row in result.returned[0] if "part" in row}
    assert parts["attention"] < attention["yes"] < parts["attention"] + 0.5  # with launches


@pytest.mark.parametrize("params", [{"phase": "decode"}, {"mapping": "columns"}])
def test_candidates_are_simulated_for_auto_at_prefill_only(params: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="are simulated at prefill, for mapping=auto"):
        run(llm_layer, machine(1), device="whole", params={"model": "tiny-llama", "simulate": 2, **params})
