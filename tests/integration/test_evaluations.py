"""What the figures of the shipped evaluations claim, held against the committed rows; and those rows made again."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from kernbench.benches.milestones.channel_mapping import MODE as CHANNEL_MODE
from kernbench.benches.pe2pe import CREDIT
from kernbench.benches.registry import resolve
from kernbench.evaluation.contract import Row, number, values_of, where
from kernbench.evaluation.results import EvaluationResults, figure_stems, flat_row, read_results
from kernbench.runtime_api.bench_runner import WHOLE, RunOptions, run_bench
from kernbench.sweep.context import SweepContext
from kernbench.sweep.points import point_of
from kernbench.sweep.target import target_of
from kernbench.sweep.work import PointRunner, PointTask
from kernbench.topology import load_topology

pytestmark = pytest.mark.needs("shipped", reason="the committed rows are of the shipped machine")

COMMITTED = Path(__file__).parents[2] / "docs/results"
BENCHES = sorted(folder.name for folder in COMMITTED.iterdir() if folder.is_dir())
OTHER_MACHINES = {"llmcompass": "a100-cores"}  # of results that are not of the shipped machine
DTYPE_LIMIT = {"validated": 2e-3}  # f16 results of about 0.1


@cache
def results(bench: str) -> EvaluationResults:
    return read_results(COMMITTED / bench)


def rows(bench: str, **values: str | int | float) -> list[Row]:
    return where(results(bench).rows, **values)


# ----------------------------------------------------------------------------------------------------------- the set


def test_there_are_at_least_four_benches_and_ten_figures_of_the_default_machine() -> None:
    assert len(BENCHES) >= 4
    assert sum(len(figure_stems(COMMITTED / bench)) for bench in BENCHES) >= 10
    for bench in BENCHES:
        assert not results(bench).failed
        assert load_topology(results(bench).machine).spec.system.name == OTHER_MACHINES.get(bench, "default")


@pytest.mark.parametrize("bench", BENCHES)
def test_every_figure_has_picture_caption_and_a_place_in_the_page(bench: str) -> None:
    page = (COMMITTED / "README.md").read_text()
    for stem in figure_stems(COMMITTED / bench):
        assert stem.with_suffix(".png").is_file()
        assert stem.with_suffix(".md").read_text().startswith("# ")
        assert f"{bench}/{stem.name}.png" in page, stem.name


# Points that are cheap to run again; each point of design-space takes half a minute, of llm-scaling minutes.
AGAIN: list[tuple[str, dict[str, str | int]]] = [
    ("pe-dma-perf", {"place": "far cube", "direction": "read", "size_bytes": 4096}),
    ("pe-dma-perf", {"place": "next-cube", "direction": "write", "issuers": 8}),
    ("channel-mapping", {"part": "skew", "direction": "read", "hot_pes": 6, CHANNEL_MODE: "one_to_one"}),
    ("channel-mapping", {"part": "stride", "stride_bursts": 8, CHANNEL_MODE: "n_to_one"}),
    ("milestone-1h-gemm", {"m": 100, "variant": "load-ref", "dtype": "f8e4m3"}),
    ("milestone-1h-gemm", {"part": "epilogue", "epilogue": "bias, gelu"}),
    ("pe2pe", {"hop": "same cube", "size_bytes": 4096, CREDIT: "blocking"}),
    ("pe2pe", {"hop": "other SIP", "buffer_kind": "hbm"}),
    ("milestone-1h-ccl", {"part": "strong", "sips": 2, "algorithm": "hierarchical_all_pes"}),
    ("milestone-gqa-llama70b", {"part": "validated", "panel": "single-decode"}),
    ("llmcompass", {"phase": "decode", "study": "cores", "place": "B"}),
]


@pytest.mark.parametrize(("bench", "which"), AGAIN)
def test_committed_rows_are_what_the_machine_gives_today(bench: str, which: dict[str, str | int]) -> None:
    """In every column of the row: what the point returned, and what every row has (times, bytes, energy, price). A
    column that came later is in rows that were made since.
    """
    (row,) = rows(bench, **which)
    spec, committed = resolve(bench), results(bench)
    assert spec.evaluation is not None
    settings = spec.evaluation.points(load_topology(committed.machine), **committed.parameters)
    (at,) = [at for at, each in enumerate(settings) if all(row.get(name) == value for name, value in each.items())]
    runner = PointRunner(SweepContext(target_of(spec.evaluation.point), bench, committed.machine, WHOLE))
    found = flat_row(runner.run(PointTask(at, point_of(settings[at], {}))).row)
    assert {name: found.get(name) for name in row} == row


@pytest.mark.parametrize("bench", BENCHES)
def test_time_in_kernels_is_never_longer_than_the_run(bench: str) -> None:
    assert all(number(row, "kernels_ns") <= number(row, "total_ns") for row in rows(bench))


@pytest.mark.parametrize("bench", sorted(path.name for path in COMMITTED.iterdir() if path.is_dir()))
def test_committed_rows_have_all_that_figures_show(bench: str) -> None:
    evaluation = resolve(bench).evaluation
    assert evaluation is not None
    charts = evaluation.figures(results(bench).rows, load_topology(results(bench).machine))
    shown = [f"{at:02}-{chart.name}" for at, chart in enumerate(charts, 1)]
    assert shown == [stem.name for stem in figure_stems(COMMITTED / bench)]


# --------------------------------------------------------------------------------------------------------- pe-dma-perf


@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize("size", [256, 16384, 1 << 20])
def test_latency_grows_with_distance(direction: str, size: int) -> None:
    within = ["same PE", "same cube, nearest", "same cube, farthest"]
    beyond = ["same PE", "next cube, nearest", "next cube, farthest", "far cube"]
    for names in (within, beyond):
        (found,) = [
            [
                rows("pe-dma-perf", part="distance", place=name, direction=direction, size_bytes=size)[0]
                for name in names
            ]
        ]
        times = [number(row, "latency_ns") for row in found]
        far = [number(row, "distance_mm") for row in found]
        assert times == sorted(times)
        assert far == sorted(far)


def test_large_transfers_cost_their_bytes_and_twice_as_much_in_another_cube() -> None:
    def large_ns(place: str) -> float:
        (row,) = rows("pe-dma-perf", part="distance", place=place, direction="read", size_bytes=1 << 20)
        return number(row, "latency_ns")

    alone = large_ns("same PE")
    assert large_ns("same cube, farthest") < 1.02 * alone
    for place in ("next cube, nearest", "next cube, farthest", "far cube"):  # 128 GB/s of a connection, not 256
        assert 2.0 * alone < large_ns(place) < 2.1 * alone


def test_a_lone_transfer_takes_the_textbook_time_and_its_parts_add_up() -> None:
    parts = [name for name in rows("pe-dma-perf")[0] if name.endswith("_ns") and name.removesuffix("_ns") in
             ("pe_setup", "noc", "ucie", "io_pcie", "transfer", "memory", "contention")]  # fmt: skip
    assert len(parts) == 7
    for row in rows("pe-dma-perf", part="distance"):
        assert number(row, "latency_ns") == number(row, "formula_ns")
    for row in rows("pe-dma-perf"):
        assert sum(number(row, part) for part in parts) == pytest.approx(number(row, "latency_ns"))


def test_bandwidth_is_never_above_the_peak_of_the_links() -> None:
    for row in rows("pe-dma-perf"):
        assert number(row, "effective_gbs") <= number(row, "aggregate_peak_gbs")


@pytest.mark.parametrize("place", ["own-slice", "next-cube", "other-sip"])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_together_pes_have_more_bandwidth_until_their_links_are_full(place: str, direction: str) -> None:
    some = rows("pe-dma-perf", part="contention", place=place, direction=direction)
    rates = [number(row, "effective_gbs") for row in some]
    assert rates == sorted(rates)
    alone = rows("pe-dma-perf", part="contention", place="one-slice", direction=direction)
    full = [number(row, "effective_gbs") for row in alone]
    assert max(full) < 1.05 * min(full)  # one slice is full with one PE


def test_large_transfers_approach_the_bandwidth_of_their_path() -> None:
    for place in ("same PE", "same cube, farthest", "far cube"):
        some = rows("pe-dma-perf", part="distance", place=place, direction="read")
        shares = [number(row, "effective_gbs") / number(row, "path_peak_gbs") for row in some]
        assert shares == sorted(shares)
        assert shares[-1] > 0.95


# ---------------------------------------------------------------------------------------------------- milestone-1h-gemm


def test_measured_mac_utilisation_is_never_above_the_theoretical() -> None:
    for row in rows("milestone-1h-gemm"):
        assert 0 < number(row, "utilisation") <= number(row, "utilisation_bound") <= 1


def test_operands_in_tcm_use_the_mac_array_best_and_large_products_nearly_all_of_it() -> None:
    for m, k, n in {(row["m"], row["k"], row["n"]) for row in rows("milestone-1h-gemm", part="shapes", dtype="f16")}:
        some = rows("milestone-1h-gemm", part="shapes", dtype="f16", m=m, k=k, n=n)  # type: ignore[arg-type]  # numbers of a row
        assert [str(row["variant"]) for row in some] == ["load", "load-ref", "ref"]
        shares = [number(row, "utilisation") for row in some]
        assert shares == sorted(shares, reverse=True)
    (largest,) = rows("milestone-1h-gemm", part="shapes", dtype="f16", m=512, variant="load")
    assert number(largest, "utilisation") > 0.99


def test_no_product_is_above_its_roof() -> None:
    for row in rows("milestone-1h-gemm", part="shapes"):
        # 2 flops x 4096 products per ns of f16, half of that for f32, double for one byte; a slice gives 256 GB/s.
        peak = 2 * 4096 * {"f16": 1.0, "f32": 0.5, "f8e4m3": 2.0}[str(row["dtype"])]
        intensity = number(row, "flops") / number(row, "bytes_hbm")
        assert number(row, "gflops") <= min(peak, 256 * intensity)


def test_the_automatic_tile_is_the_fastest() -> None:
    for m in values_of(rows("milestone-1h-gemm", part="tile"), "m"):
        some = rows("milestone-1h-gemm", part="tile", m=m)  # type: ignore[arg-type]  # a number of a row
        auto = next(row for row in some if row["tile"] == "auto")
        assert number(auto, "window_ns") == min(number(row, "window_ns") for row in some)


# ---------------------------------------------------------------------------------------------------------------- pe2pe


def test_no_message_is_faster_than_its_bytes_over_the_narrowest_link() -> None:
    gbs = {"same cube": 256, "next cube": 128, "far cube": 128, "other SIP": 128}
    for row in rows("pe2pe"):
        for name in ("send_ns", "store_ns", "send_recv_ns", "store_load_ns"):
            assert number(row, name) >= number(row, "size_bytes") / gbs[str(row["hop"]).removesuffix(", vertical")]
        assert number(row, "send_recv_ns") >= number(row, "send_ns")


def test_a_message_of_up_to_four_slots_beats_a_store_beyond_its_cube_and_equals_it_within() -> None:
    for row in where(rows("pe2pe", buffer_kind="tcm"), **{CREDIT: "posted"}):
        ahead = number(row, "store_ns") - number(row, "send_ns")
        if row["hop"] == "same cube":
            assert abs(ahead) < 6.5
        elif number(row, "size_bytes") <= 4 * 4096:
            assert ahead > 0
        if row["hop"] != "far cube" or number(row, "size_bytes") <= 4 * 4096:
            assert number(row, "send_recv_ns") < number(row, "store_load_ns")


# ----------------------------------------------------------------------------------------------------- milestone-1h-ccl


@pytest.mark.parametrize("grid", ["ring_1d", "torus_2d", "mesh_2d_no_wrap"])
def test_an_all_reduce_is_right_grows_with_size_and_is_never_below_its_bound(grid: str) -> None:
    some = rows("milestone-1h-ccl", part="latency", grid=grid)
    assert len(some) >= 12
    times = [number(row, "time_ns") for row in some]
    assert times == sorted(times)
    assert all(number(row, "time_ns") >= number(row, "bound_ns") for row in some)
    assert all(row.get("wrong_elements", 0) == 0 for row in some)


def test_fewer_rounds_win_and_the_center_is_the_better_root() -> None:
    for ring, torus in zip(
        rows("milestone-1h-ccl", grid="ring_1d"), rows("milestone-1h-ccl", grid="torus_2d"), strict=True
    ):
        assert number(torus, "time_ns") < number(ring, "time_ns")  # 3 rounds, not 5
    center = rows("milestone-1h-ccl", part="root", root="center")
    corner = rows("milestone-1h-ccl", part="root", root="corner")
    for a, b in zip(center, corner, strict=True):
        assert number(a, "time_ns") < number(b, "time_ns")


def test_large_messages_approach_the_link_of_a_sip_and_never_exceed_it() -> None:
    some = rows("milestone-1h-ccl", part="algorithm")
    assert all(number(row, "busbw_gbs") <= 128 for row in some)
    for name in ("ring_allreduce", "hierarchical_all_pes"):
        (largest,) = [row for row in some if row["algorithm"] == name and row["size_bytes"] == 1 << 20]
        assert number(largest, "busbw_gbs") > 0.9 * 128


def scaling(part: str, algorithm: str) -> list[float]:
    """Times by number of SIPs."""
    return [number(row, "time_ns") for row in rows("milestone-1h-ccl", part=part, algorithm=algorithm)]


@pytest.mark.parametrize("part", ["strong", "weak"])
def test_around_a_ring_time_grows_with_the_number_of_sips(part: str) -> None:
    assert all(later > earlier for earlier, later in pairwise(scaling(part, "lrab_hierarchical_allreduce")))


@pytest.mark.parametrize("part", ["strong", "weak"])
def test_an_exchange_of_all_with_all_is_faster_and_grows_far_less(part: str) -> None:
    around, at_once = (scaling(part, name) for name in ("lrab_hierarchical_allreduce", "hierarchical_all_pes"))
    assert all(direct < ring for ring, direct in zip(around, at_once, strict=True))
    assert at_once[-1] < 3 * at_once[0]  # 16 SIPs after 2
    assert around[-1] > 5 * around[0]


# ----------------------------------------------------------------------------------------------- milestone-gqa-llama70b


def test_attention_equals_its_reference_in_every_panel() -> None:
    some = rows("milestone-gqa-llama70b", part="validated")
    assert len(some) == 4
    assert all(0 < number(row, "largest_error") < DTYPE_LIMIT["validated"] for row in some)


def test_decode_issues_exactly_two_products_per_rank_whatever_the_context() -> None:
    for panel in ("single-decode", "multi-decode"):
        counts = [number(row, "gemms") for row in rows("milestone-gqa-llama70b", panel=panel)]
        assert set(counts) == {2.0}
        assert len(counts) >= 4


def test_prefill_issues_two_products_per_block_and_passes_each_on_once_less_than_there_are_ranks() -> None:
    for panel, ranks in (("single-prefill", 8), ("multi-prefill", 16)):
        for row in rows("milestone-gqa-llama70b", part="timed", panel=panel):
            blocks = number(row, "context") / ranks / 128  # of 128 keys, of each rank
            assert number(row, "gemms") == 2 * ranks * blocks
            assert number(row, "sends") == number(row, "receives") == 2 * (ranks - 1) * blocks


def test_users_on_other_sips_change_nothing() -> None:
    for panel in ("multi-prefill", "multi-decode"):
        times = [number(row, "time_ns") for row in rows("milestone-gqa-llama70b", part="users", panel=panel)]
        assert len(times) == 2
        assert len(set(times)) == 1


def test_prefill_over_cubes_is_near_the_bound_of_its_ring_and_decode_costs_more_per_token() -> None:
    timed = {str(row["panel"]): row for row in rows("milestone-gqa-llama70b", part="timed", context=32768)}
    over_cubes = timed["multi-prefill"]
    assert number(over_cubes, "bound_ns") == number(over_cubes, "ring_bound_ns")
    assert number(over_cubes, "bound_ns") > 0.8 * number(over_cubes, "time_ns")
    for panel in ("single", "multi"):
        cost = [
            number(timed[f"{panel}-{phase}"], "time_ns") / number(timed[f"{panel}-{phase}"], "query_tokens")
            for phase in ("prefill", "decode")
        ]
        assert cost[0] < cost[1]


def test_more_query_tokens_in_a_chunk_cost_less_each() -> None:
    for panel in ("single-prefill", "multi-prefill"):
        some = rows("milestone-gqa-llama70b", part="queries", panel=panel)
        each = [number(row, "time_ns") / number(row, "tokens") for row in some]
        assert len(each) >= 4
        assert each == sorted(each, reverse=True)


def test_no_panel_is_faster_than_its_bound_and_time_grows_with_context() -> None:
    for panel in ("single-prefill", "single-decode", "multi-prefill", "multi-decode"):
        some = rows("milestone-gqa-llama70b", part="timed", panel=panel)
        assert all(number(row, "time_ns") >= number(row, "bound_ns") for row in some)
        assert all(number(b, "time_ns") > number(a, "time_ns") for a, b in pairwise(some))


# ---------------------------------------------------------------------------------------------------------- llm-scaling


def test_times_of_a_layers_parts_add_up_to_the_layer() -> None:
    graph = load_topology(None, {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
    evaluation = resolve("llm-scaling").evaluation
    assert evaluation is not None
    params = {"models": "tiny-llama", "sips": "1", "tokens": 8, "context": 8}
    settings = evaluation.points(graph, **params)
    assert [(each["phase"], each["sips"]) for each in settings] == [("prefill", 1), ("decode", 1)]
    point = point_of(settings[1], {})
    (row,) = run_bench(evaluation.point, graph, RunOptions(device="whole"), params=point.params).returned
    assert isinstance(row, dict)
    groups = (
        "one_launch_us",
        "products_us",
        "attention_us",
        "other_compute_us",
        "copies_us",
        "communication_us",
        "launching_us",
    )
    assert sum(row[name] for name in groups) == pytest.approx(row["layer_us"])
    assert row["communication_us"] == 0  # one SIP, one cube
    bounded = sum(row[f"bound_{name}_us"] for name in ("compute", "HBM", "link", "collective"))
    assert bounded == pytest.approx(row["layer_us"] - row["launching_us"])


# ---------------------------------------------------------------------------------------------------------- llm-scaling


def test_each_tray_is_faster_than_the_smaller_ones() -> None:
    for model in ("llama3-8b", "llama2-70b"):
        for phase in ("prefill", "decode"):
            times = [number(row, "layer_us") for row in rows("llm-scaling", model=model, phase=phase)]
            assert len(times) == 5
            assert times == sorted(times, reverse=True)
