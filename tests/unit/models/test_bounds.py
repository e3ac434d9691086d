"""Bounds by hand, on the shipped machine: 128 PEs per SIP of 4096 MACs, 128 f32 lanes and 256 bytes per ns."""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.benches.llm_layer import llm_layer
from kernbench.models.bounds import Need, rates_of
from kernbench.models.shapes import shipped_models
from kernbench.runtime_api.bench_runner import run
from kernbench.topology import TopologyGraph, load_topology


def test_rates_are_those_of_one_sip() -> None:
    rates = rates_of(load_topology().spec)
    assert rates.macs == 128 * 4096
    assert rates.f32_lanes == 128 * 128
    assert rates.hbm_bytes == rates.port_bytes == 128 * 256
    assert rates.cube_bytes == 2 * 512  # a corner cube has two neighbours
    assert rates.sip_bytes == 128


@pytest.mark.parametrize(
    ("need", "name", "ns"),
    [
        (Need(macs=128 * 4096 * 10, read_bytes=128 * 256 * 9), "compute", 10),
        (Need(macs=128 * 4096 * 3, lanes=128 * 128 * 4), "compute", 7),  # they take turns
        (Need(macs=128 * 4096, read_bytes=128 * 256 * 5, written_bytes=128 * 256 * 4), "HBM", 9),
        (Need(cube_bytes=2048, read_bytes=100), "link", 2),
        (Need(sip_bytes=1280), "collective", 10),
    ],
)
def test_the_largest_is_the_bound(need: Need, name: str, ns: float) -> None:
    assert need.bound(rates_of(load_topology().spec)) == (name, ns)


def test_a_memory_faster_than_the_ports_is_bound_by_them_one_way_and_used_by_both_together() -> None:
    twice = rates_of(load_topology(None, {"cube.memory_map.hbm_channel_bw_gbs": 64.0}).spec)
    nbytes = 128 * 256 * 10
    assert Need(read_bytes=nbytes).bound(twice) == ("HBM", 10)  # ports bring 256 a ns, whatever a slice could give
    assert Need(read_bytes=nbytes, written_bytes=nbytes).bound(twice) == ("HBM", 10)  # 512 a ns, both ways


def test_a_sip_with_two_io_chiplets_has_two_links_to_the_switch() -> None:
    chiplets = [{"id": "io0", "side": "N"}, {"id": "io1", "side": "S"}]
    assert rates_of(load_topology({"sip": {"io_chiplets": chiplets}}).spec).sip_bytes == 2 * 128


# ---- no part of a layer is faster than its bounds


@cache
def machine(sips: int, w: int, h: int) -> TopologyGraph:
    """Cubes of four PEs."""
    mesh = {"system.sips.count": sips, "sip.cube_mesh.w": w, "sip.cube_mesh.h": h}
    return load_topology(None, {**mesh, "cube.pe_layout.pe_per_corner": 1})


def parts(sips: int = 1, w: int = 2, h: int = 2, **params: object) -> dict[str, dict[str, float | None]]:
    (returned,) = run(llm_layer, machine(sips, w, h), device="whole", params=params).returned
    assert isinstance(returned, list)
    return {row["part"]: row for row in returned if "part" in row}


def over(part: dict[str, float | None], column: str) -> bool:
    """Whether a bound is above the part's time."""
    bound, time = part[column], part["time_us"]
    return bound is not None and time is not None and bound > time


LARGE = ("gpt3-175b", "llama2-70b", "llama3-405b")
PREFILL = {"tokens": 4}
DECODE = {"phase": "decode", "context": 64}
CASES: list[tuple[str, int, dict[str, object]]] = [
    # Weights over four SIPs, whose kernels repeat each other; large ones at decode, which is simulated sooner.
    *((model, 1 if model.startswith("tiny") else 4, PREFILL) for model in shipped_models() if model not in LARGE),
    *((model, 1, DECODE) for model in ("llama2-70b", "mixtral-8x7b", "tiny-gpt")),
    ("tiny-mixtral", 2, {"tokens": 3, "batch": 3, "mapping": "columns"}),
    ("llama3-8b", 1, {"tokens": 18, "mapping": "tokens"}),
    ("tiny-llama", 2, {"tokens": 10, "sequence_parallel": True}),
    ("tiny-llama", 2, {**DECODE, "batch": 5}),
]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(("model", "sips", "params"), CASES)
def test_no_part_of_a_shipped_model_is_faster_than_its_bounds(model: str, sips: int, params: dict[str, object]) -> None:
    found = parts(sips, h=1, model=model, **params)
    for column in ("bound_us", "mapping_bound_us"):
        assert [name for name, part in found.items() if over(part, column)] == []


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_the_machines_bound_has_weights_once_and_the_mappings_once_for_every_group_with_rows_of_them() -> None:
    """8 tokens of two experts each on four cubes, a group each: 16 rows by expert, 2 of each of eight, 4 a group.
    So a group has rows of two experts, and every expert's weights are read by one group: no copy is read twice.
    """
    experts = parts(model="mixtral-8x7b", tokens=8, mapping="tokens")
    weight, rows = 4096 * 14336, 16
    nbytes = 2 * (8 * 2 * weight + rows * 4096)  # gate and up of eight experts, and rows, f16
    read_us = nbytes / (16 * 256) / 1000  # more than rows x 14336 results and the products, 16 PEs of 256 GB/s
    written_us = 2 * rows * 14336 / (16 * 256) / 1000
    up = experts["mlp_up"]
    assert up["bound"] == "HBM"
    assert up["bound_us"] == up["mapping_bound_us"] == pytest.approx(read_us + written_us)
    # The query, key and value weights of 8 tokens are read by every group: four times by the mapping, once at least.
    qkv, columns = experts["qkv"], (32 + 2 * 8) * 128
    once = 2 * (4096 * columns + 8 * 4096 + 8 * columns)
    assert qkv["bound_us"] == pytest.approx(once / (16 * 256) / 1000)
    assert qkv["mapping_bound_us"] == pytest.approx((once + 3 * 2 * 4096 * columns) / (16 * 256) / 1000)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_copies_of_an_input_have_the_mappings_bound_only() -> None:
    spread = parts(model="tiny-gpt", tokens=8, mapping="columns")["spread qkv"]
    assert spread["bound"] == "-"
    assert spread["bound_us"] is None
    assert spread["of_bound_pct"] is None
    assert spread["mapping_bound_us"]
