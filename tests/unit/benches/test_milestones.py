"""Parts of evaluations that can be derived without running one: rings of cubes, lists of trays, machines to try."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.benches.milestones import design_space, llm_scaling, llmcompass, milestone_gqa_llama70b
from kernbench.benches.milestones._gqa import mesh_ring
from kernbench.benches.milestones._layers import counts_of, models_of
from kernbench.common.errors import UsageError
from kernbench.models.shapes import load_model
from kernbench.topology import load_topology
from kernbench.topology.load import load_spec


@pytest.mark.parametrize(("width", "height"), [(4, 4), (3, 4), (4, 3), (2, 5), (5, 2), (1, 4), (4, 1), (3, 3), (1, 1)])
def test_a_ring_of_cubes_goes_from_neighbour_to_neighbour(width: int, height: int) -> None:
    ring = mesh_ring(width, height)
    assert sorted(ring) == list(range(width * height))
    hops = [
        abs(a % width - b % width) + abs(a // width - b // width)
        for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)
    ]
    closed = width * height % 2 == 0 and min(width, height) > 1
    assert all(hop <= 1 for hop in (hops if closed else hops[:-1]))  # no mesh of an odd number has a closed ring


def test_contexts_reach_32k_in_all_four_panels_and_every_sip_is_a_user_where_data_is_checked() -> None:
    settings = milestone_gqa_llama70b.points(load_topology())
    for panel in ("single-prefill", "single-decode", "multi-prefill", "multi-decode"):
        assert [each["context"] for each in settings if each["part"] == "timed" and each["panel"] == panel] == [
            2048,
            8192,
            32768,
        ]
    assert [each["users"] for each in settings if each["part"] == "validated"] == [1, 1, 2, 2]


def test_contexts_are_dealt_to_ranks_alike() -> None:
    three = load_topology(None, {"sip.cube_mesh.w": 3, "sip.cube_mesh.h": 1, "system.sips.count": 1})
    over_cubes = [each for each in milestone_gqa_llama70b.points(three) if str(each["panel"]).startswith("multi")]
    assert over_cubes
    assert all(int(each["context"]) % 3 == 0 for each in over_cubes)


def test_trays_and_models_are_lists_and_what_cannot_be_cut_has_no_point() -> None:
    assert counts_of("sips", "4, 1,2,2") == [1, 2, 4]
    for wrong in ("1,x", "0", "", "-1"):
        with pytest.raises(UsageError, match="sips is"):
            counts_of("sips", wrong)
    with pytest.raises(UsageError, match="no model 'nope'"):
        models_of("tiny-llama, nope")
    eight = load_model("llama3-8b")  # 32 heads, 8 key heads
    assert [n for n in (1, 2, 3, 4, 8, 16, 24, 32) if eight.can_be_split(n)] == [1, 2, 4, 8, 16, 32]
    settings = llm_scaling.points(load_topology(), models="llama3-8b", sips="1,3,16", tokens=64, context=128)
    assert [(each["phase"], each["sips"], each["tokens"], each["context"]) for each in settings] == [
        ("prefill", 1, 64, 0), ("prefill", 16, 64, 0), ("decode", 1, 1, 128), ("decode", 16, 1, 128),
    ]  # fmt: skip


def test_a_design_space_has_every_machine_once_and_the_one_as_given_among_them() -> None:
    machine = load_topology()
    settings = [each for each in design_space.points(machine) if each["phase"] == "prefill"]
    keys = [tuple(sorted((name, value) for name, value in each.items() if "machine:" in name)) for each in settings]
    assert len(set(keys)) == len(keys)
    assert keys[0] == (("machine:system.sips.count", 1),)
    assert [each[design_space.MACS] for each in settings if design_space.MACS in each] == [
        2048.0, 8192.0, 16384.0, 2048.0, 8192.0,
    ]  # fmt: skip
    shares = [(each[design_space.TCM], each[design_space.RESERVED]) for each in settings if design_space.TCM in each]
    assert shares == [(1.5, 0.75), (1.75, 0.875)]  # the scheduler's is half of each
    links = {each[design_space.UCIE]: each[design_space.DIE_LINK] for each in settings if design_space.UCIE in each}
    assert links == {2: 256.0, 8: 1024.0}  # 128 GB/s each


def test_a_design_space_leaves_out_machines_that_cannot_be() -> None:
    """Eight connections are the most: their double is left out, and what remains can be built."""
    machine = load_topology(None, {"cube.ucie.n_connections": 8, "sip.links.cube_to_cube.bw_gbs": 1024})
    settings = [each for each in design_space.points(machine) if each["phase"] == "prefill"]
    assert [each[design_space.UCIE] for each in settings if design_space.UCIE in each] == [4]
    for each in settings:
        load_topology(machine.spec, {name[8:]: value for name, value in each.items() if name.startswith("machine:")})


def test_a_design_space_is_of_one_model() -> None:
    with pytest.raises(UsageError, match="no model 'tiny-llama,tiny-gpt'"):
        design_space.points(load_topology(), model="tiny-llama,tiny-gpt")


def test_a_front_holds_what_nothing_beats_in_both_time_and_the_objective() -> None:
    cloud = [
        {"cost": cost, "layer_us": us} for cost, us in ((1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 2.0))
    ]
    assert design_space.pareto(cloud, "cost") == [cloud[0], cloud[1], cloud[4]]


def test_figures_of_a_design_space_mark_the_machine_as_given_and_measure_against_it() -> None:
    machine = load_topology()
    has = design_space.resources(machine.spec)

    def row(phase: str, us: float, cost: float, **other: float) -> dict[str, float | str | int]:
        own = {**has, **other}
        return {
            "model": "m", "phase": phase, "batch": 1, "tokens": 8, "context": 0, "layer_us": us, "cost": cost,
            "energy_per_token_mj": 1.0, "area_mm2": 5.0, "macs_per_byte": own["macs"] / 256, "hbm_gbs": 256.0, **own,
        }  # fmt: skip

    rows = [
        made
        for phase in ("prefill", "decode")
        for made in (row(phase, 8.0, 0.5), row(phase, 4.0, 1.0, macs=8192.0), row(phase, 10.0, 0.25, ucie=2.0))
    ]
    charts = {chart.name: chart for chart in design_space.figures(rows, machine)}
    assert list(charts) == ["question-ucie", "question-tcm", "question-macs", "front-cost"]  # others do not differ
    lines = {line.label: line.points for line in charts["question-macs"].panels[0].lines}  # type: ignore[union-attr]  # a panel of lines
    assert lines["speed"] == ((16.0, 1.0), (32.0, 2.0))
    assert lines["speed per cost"] == ((16.0, 1.0), (32.0, 1.0))  # twice as fast, twice the cost
    front = {line.label: line.points for line in charts["front-cost"].panels[1].lines}  # type: ignore[union-attr]  # a panel of lines
    assert front["Pareto front"] == ((0.5, 10.0), (1.0, 8.0), (2.0, 4.0))
    assert front["machine as given"] == ((1.0, 8.0),)


# ----------------------------------------------------------------------------------------------------------- llmcompass

CARD = Path(__file__).parents[3] / "examples/machines/a100-cores.yaml"


def test_designs_of_cores_have_as_many_macs_lanes_and_bytes_but_for_the_first() -> None:
    designs = llmcompass.DESIGNS.values()
    assert [d.cores * d.arrays * d.side**2 for d in designs] == [1 << 15, *4 * [1 << 17]]
    assert [d.cores * d.lanes for d in designs] == [1 << 12, *4 * [1 << 14]]
    assert {d.cores * d.local_kb for d in designs} == {24576}


def test_machines_of_a_card_study_load_and_differ_in_what_they_say() -> None:
    card = load_topology(CARD)
    for each in llmcompass.machines(card.spec, "full"):
        keys = {key.removeprefix("machine:"): value for key, value in each.items() if key.startswith("machine:")}
        cube = load_spec(card.spec, keys).cube
        if each["study"] == "bandwidth":
            total = cube.n_pes * cube.memory_map.hbm_channels_per_pe * cube.memory_map.hbm_channel_bw_gbs
            assert total == float(each["place"])
        if each["study"] == "buffer":
            assert cube.pe_template.components.pe_gemm.number_attr("local_kb") == float(each["place"])
    phases = [each["phase"] for each in llmcompass.points(card, scale="small")]
    assert phases == 7 * ["prefill"] + 7 * ["decode"]


def test_a_card_study_refuses_a_machine_without_cores() -> None:
    with pytest.raises(UsageError, match="machine 'default' has no cores to vary"):
        llmcompass.points(load_topology())


def test_times_of_a_card_study_are_relative_to_the_baseline_of_the_paper() -> None:
    def row(study: str, place: str, us: float) -> dict[str, str | float]:
        return {"study": study, "place": place, "phase": "prefill", "layer_us": us, "hbm_gbs": 2000.0, "local_kb": 192}

    rows = [row("as given", "as given", 100.0), row("buffer", "64", 150.0), row("cores", "B", 80.0)]
    assert llmcompass.times_of(rows, "buffer", "prefill") == {"64": (1.5, 72.02 / 59.9), "192": (1.0, 1.0)}
    assert llmcompass.times_of(rows, "cores", "prefill") == {"B": (1.0, 1.0)}
