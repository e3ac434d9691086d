"""Candidates that are simulated, and twice the hardware under one mapping: what the closed model says holds in
simulation, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.models.test_layer import PUBLIC, llm_layer, machine, run

from kernbench.common.errors import UsageError
from kernbench.models import mapper
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.topology import load_topology

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
MIB = 1 << 20
DOUBLED = {
    "MACs": {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192.0},
    "HBM": {"cube.memory_map.hbm_channel_bw_gbs": 64.0},
    "links": {"sip.links.cube_to_cube.bw_gbs": 1024.0, "cube.ucie.per_connection_bw_gbs": 256.0},
    "TCM": {"cube.memory_map.tcm_mb_per_pe": 4},
}


def layer_row(result: BenchResult) -> dict[str, float]:
    return next(row for row in result.returned[0] if row.get("part") == "layer")


@pytest.fixture
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all sizes have candidates."""
    monkeypatch.setattr(mapper, "LEAST_MACS", 0)
    mapper.candidates_of.cache_clear()
    mapper.choose_layer.cache_clear()
    yield
    mapper.candidates_of.cache_clear()
    mapper.choose_layer.cache_clear()


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.slow
@pytest.mark.usefixtures("_small_products")
@pytest.mark.parametrize(("phase", "sizes"), [("prefill", {"tokens": 16}), ("decode", {"batch": 2, "context": 64})])
def test_twice_the_hardware_is_never_slower_and_follows_the_bound(
    phase: str, sizes: dict[str, object], tmp_path: Path
) -> None:
    """The mapping that is chosen for the machine, on machines with twice the MACs, HBM, links or TCM. What moves the
    bound by 3 % or more moves the time.
    """
    file = tmp_path / "choice.yaml"
    params = {"model": "tiny-llama", "phase": phase, **sizes}
    given = {**params, "mapping_report": str(file)}
    base = layer_row(run(llm_layer, load_topology(None, SMALL), device="whole", params=given, data=False))
    pinned = yaml.safe_load(file.read_text())
    for name, changed in DOUBLED.items():
        there = {**pinned["sip"], "tcm_bytes": pinned["sip"]["tcm_bytes"] + (2 * MIB if name == "TCM" else 0)}
        file.write_text(yaml.safe_dump({**pinned, "sip": there}))
        graph = load_topology(None, {**SMALL, **changed})
        again = {**params, "mapping": str(file)}
        more = layer_row(run(llm_layer, graph, device="whole", params=again, data=False))
        assert more["time_us"] <= base["time_us"] * 1.0001, name
        if more["bound_us"] < 0.97 * base["bound_us"]:
            assert more["time_us"] < 0.99 * base["time_us"], name


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.usefixtures("_small_products")
def test_the_fastest_of_the_simulated_candidates_is_taken(tmp_path: Path) -> None:
    """The report has simulated times of the plan by rules and of one other plan for each product, the chosen one
    first, and of both kinds of attention.
    """
    file = tmp_path / "mine.yaml"
    file.write_text(PUBLIC)
    params = {"model": f"{file}:mine", "tokens": 32, "simulate": 1, "mapping_report": "-"}
    result = run(llm_layer, machine(1), device="whole", params=params)
    rows = [row for row in result.returned[0] if "choice of" in row]
    for name in ("qkv", "out_proj", "mlp_up", "mlp_down"):
        times = [row["simulated_us"] for row in rows if row["choice of"] == name and "simulated_us" in row]
        assert len(times) == 2
        assert times == sorted(times)
        assert next(row for row in rows if row["choice of"] == name)["chosen"] == "yes"
    attention = {row["chosen"]: row["estimate_us"] for row in rows if row["choice of"] == "attention"}
    assert attention["yes"] <= attention["-"]
    parts = {row["part"]: row["time_us"] for row in result.returned[0] if "part" in row}
    assert parts["attention"] == pytest.approx(attention["yes"], rel=0.02)


@pytest.mark.parametrize("params", [{"phase": "decode"}, {"mapping": "columns"}])
def test_candidates_are_simulated_for_auto_at_prefill_only(params: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="are simulated at prefill, for mapping=auto"):
        run(llm_layer, machine(1), device="whole", params={"model": "tiny-llama", "simulate": 2, **params})
