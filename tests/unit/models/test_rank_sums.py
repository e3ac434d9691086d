"""A decode layer that ranks share, as one launch on each: numbers as numpy has them, equal totals, choice and bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.models.test_layer import FOUR_PES, llm_layer, machine, names, rows, run, verified

from kernbench.common.errors import UsageError
from kernbench.models import fused_plan, layer_choice
from kernbench.models.layer_choice import LayerRequest, chosen_mapping
from kernbench.models.machine_model import MachineModel, machine_model
from kernbench.models.mapper import LayerChoice
from kernbench.models.plans import SipShape
from kernbench.models.rank_sums import RankSum, RankSums, rank_sums
from kernbench.models.shapes import load_model
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

FUSED = "layer in one launch"
DECODE: dict[str, object] = {"model": "tiny-llama", "phase": "decode"}


def take(monkeypatch: pytest.MonkeyPatch, *, by_owners: bool) -> None:
    """Sums of all layers directly or by owners, whatever is faster."""
    monkeypatch.setattr(fused_plan, "rank_sums", lambda _machine, ranks, _nbytes: RankSums(ranks, by_owners))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("by_owners", "tp", "sips", "pes", "model", "batch", "context"),
    [
        (False, 2, 2, 2, "tiny-llama", 1, 300),  # caches in parts, which are merged
        (True, 2, 4, 2, "tiny-llama", 2, 70),  # two groups with batches of their own
        (False, 4, 4, 2, "tiny-llama", 1, 33),  # a key head for each rank
        (True, 4, 4, 2, "tiny-llama", 1, 33),
        (False, 2, 2, 2, "tiny-llama", 5, 33),  # rows over the PEs that reduce sums
        (True, 2, 2, 2, "tiny-llama", 5, 33),
        (True, 2, 2, 4, "tiny-gpt", 4, 50),  # a layernorm, one weight for the MLP, no angles
    ],
)
def test_numbers_are_right(
    monkeypatch: pytest.MonkeyPatch, by_owners: bool, tp: int, sips: int, pes: int, model: str, batch: int, context: int
) -> None:
    take(monkeypatch, by_owners=by_owners)
    result = verified(sips, pes, model=model, phase="decode", batch=batch, context=context, tp=tp)
    assert names(result) == [FUSED, "launching", "layer"]
    assert len(result.data) == sips


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_sums_in_several_blocks_of_columns_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows by 128 columns of a cube in f32, 512 bytes at a time."""
    monkeypatch.setattr(fused_plan, "SUMS_BYTES", 512)
    assert names(verified(2, 2, **DECODE, batch=3, context=40))[0] == FUSED


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("by_owners", [False, True])
def test_it_has_no_races_and_takes_as_long_with_all_fast_paths_off(
    monkeypatch: pytest.MonkeyPatch, by_owners: bool
) -> None:
    take(monkeypatch, by_owners=by_owners)
    params = {**DECODE, "batch": 2, "context": 70}
    found = run(llm_layer, machine(2, 4), device="whole", params=params, check_races=True)
    assert found.races == []
    fast, slow = (
        run(llm_layer, machine(2, 4), device="whole", params=params, fast=each).total_ns for each in (True, False)
    )
    assert fast == slow


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_it_is_faster_than_parts_and_not_faster_than_its_bound() -> None:
    one, parts = (
        rows(run(llm_layer, machine(2, 4), device="whole", params={**DECODE, "context": 64, "mapping": name}))["layer"]
        for name in ("auto", "decode")
    )
    assert one["bound_us"] < one["time_us"] < 0.6 * parts["time_us"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_what_crosses_the_links_of_a_sip_is_part_of_the_bound() -> None:
    """Two sums of 4 rows of 256 elements in f16 by 2 ranks: 2 x 2 KiB each way, at 0.5 GB/s."""
    slow = {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, **FOUR_PES}
    graph = load_topology(None, {**slow, "system.links.io_ep_to_switch.bw_gbs": 0.5})
    found = rows(run(llm_layer, graph, device="whole", params={**DECODE, "batch": 4, "context": 64}))
    assert found[FUSED]["bound"] == "collective"
    assert found["layer"]["bound_us"] == pytest.approx(2 * 4 * 256 * 2 / 0.5 / 1000)


def add_up(x, columns, *, plan, rank, tl):
    """x[1] becomes the sum of all ranks' x[0], a share of three rows for each PE."""
    place = x + tl.program_id(0) * 2 * 3 * columns * 4
    started = RankSum(tl.load(place, (3, columns), "f32"), plan, rank, "f16", tl)
    tl.store(place + 3 * columns * 4, tl.cast(started.finish(), "f32"))


@pytest.mark.parametrize("by_owners", [False, True])
@pytest.mark.parametrize(("ranks", "columns"), [(2, 8), (3, 7), (3, 2), (4, 5)])  # owners without columns, too
def test_totals_are_equal_on_all_ranks_and_added_in_their_order(by_owners: bool, ranks: int, columns: int) -> None:
    one = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    drawn = np.random.default_rng(0).normal(size=(ranks, 4, 3, columns)).astype(np.float32)
    results: list[np.ndarray] = []
    with RuntimeContext(GraphEngine(load_topology(None, {"system.sips.count": ranks, **one}))) as torch:
        torch.install_ipcq()

        def work(rank: int) -> None:
            torch.ahbm.set_device(rank)
            given = np.stack([drawn[rank], np.zeros_like(drawn[rank])], axis=1)
            x = torch.from_numpy(given.reshape(-1))
            plan = RankSums(ranks, by_owners)
            where = {"target_cubes": (0,), "target_pes": range(4)}
            torch.launch("add_up", partial(add_up, plan=plan, rank=rank), x, columns, **where)
            results.append(x.numpy().reshape(4, 2, 3, columns)[:, 1])

        torch.multiprocessing.spawn(work, nprocs=ranks)
    expected = np.zeros((4, 3, columns), np.float32)
    for each in drawn:
        expected = expected + each.astype(np.float16).astype(np.float32)
    if by_owners:
        expected = expected.astype(np.float16).astype(np.float32)
    assert len(results) == ranks
    for found in results:
        np.testing.assert_array_equal(found, expected)


def model_of(sips: int, gbs: float) -> MachineModel:
    found = machine_model(load_topology(None, {"system.sips.count": sips}), SipShape(4, 4, 8, 1 << 20))
    return replace(found, sip_link=gbs, rank_ns=200.0)


@pytest.mark.parametrize(
    ("ranks", "kib", "gbs", "by_owners"),
    [
        (2, 1024, 16.0, False),  # either of two sends as much both ways
        (4, 8, 128.0, False),  # 192 ns and a message, 96 and two
        (8, 8, 128.0, True),  # 448, 112
        (4, 8, 16.0, True),  # 1,536, 768
    ],
)
def test_the_way_with_the_least_estimate_is_taken(ranks: int, kib: int, gbs: float, by_owners: bool) -> None:
    assert rank_sums(model_of(ranks, gbs), ranks, kib * 1024) == RankSums(ranks, by_owners)


def request(model: str = "llama3-8b", **changed: Any) -> LayerRequest:
    return replace(LayerRequest(load_model(model), "decode", 1, 1, 2, tp=2, world=2, context=64), **changed)


def test_large_groups_are_one_launch_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_choice, "MOST_PES", 7)
    with RuntimeContext(GraphEngine(machine(2, 2))) as torch:  # 8 PEs
        taken, _ = chosen_mapping("auto", torch, request("tiny-llama"))
        asked, _ = chosen_mapping("fused", torch, request("tiny-llama"))
    assert isinstance(taken, LayerChoice)
    assert taken.mapping.fused is None
    assert "8 PEs share the layer" in taken.not_fused
    assert "mapping=fused takes it all the same" in taken.not_fused
    assert isinstance(asked, LayerChoice)
    assert asked.mapping.fused is not None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sequence_parallel": True}, "with sequence_parallel each SIP has rows of its own"),
        ({"model": "tiny-mixtral"}, "tiny-mixtral has experts"),
        ({"phase": "prefill"}, "it is for phase=decode"),
    ],
)
def test_one_launch_that_is_asked_for_and_is_not_possible_is_refused(changed: dict[str, object], why: str) -> None:
    with RuntimeContext(GraphEngine(machine(2, 2))) as torch, pytest.raises(UsageError, match=why):
        chosen_mapping("fused", torch, request(**{"model": "tiny-llama", **changed}))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_pinned_choice_is_taken_again_by_as_many_ranks(tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    params = {**DECODE, "context": 64}
    first, again = (
        run(llm_layer, machine(2), device="whole", params={**params, **more})
        for more in ({"mapping_report": str(file)}, {"mapping": str(file)})
    )
    assert rows(again)["layer"]["time_us"] == rows(first)["layer"]["time_us"]
    assert names(again)[0] == FUSED
    file.write_text(file.read_text().replace("ranks: 2", "ranks: 3"))
    with pytest.raises(UsageError, match="ranks is 3, in this run 2"):
        run(llm_layer, machine(2), device="whole", params={**params, "mapping": str(file)})


def rank_ns(machine: dict[str, object], ranks: int) -> float:
    graph = load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.sips.count": 8, **machine})
    return machine_model(graph, SipShape(1, 1, 8, 1 << 20), 0, ranks).rank_ns


def test_the_way_between_ranks_is_that_of_the_farthest_over_the_links_that_there_are() -> None:
    """Below one switch all are as far; of two trays the second has a switch more on its way; along a line each rank
    adds a link.
    """
    assert rank_ns({}, 1) == 0 < rank_ns({}, 2) == rank_ns({}, 8)
    trays = {"system.switch_levels": {"tray": {"count": 2, "bw_gbs": 64.0, "distance_mm": 2000.0}}}
    assert rank_ns(trays, 4) == rank_ns({}, 4) < rank_ns(trays, 5)
    line = {
        "system.sips": {"topology": "mesh_2d_no_wrap", "w": 8, "h": 1, "links": {"bw_gbs": 64.0, "distance_mm": 1e3}}
    }
    ways = [rank_ns(line, ranks) for ranks in (2, 3, 4)]
    assert ways[1] - ways[0] == pytest.approx(ways[2] - ways[1])
    assert ways[1] - ways[0] >= 10  # 1 m of wire
