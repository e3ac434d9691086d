"""Every conclusion of docs/results/README.md, held against the committed rows of its figure."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from kernbench.benches.milestones.buffers import SCHEMES
from kernbench.benches.milestones.ccl_auto import SHIPPED as SHIPPED_MESH
from kernbench.benches.milestones.ccl_auto import SMALL as SMALL_MESH
from kernbench.benches.milestones.ccl_auto import ratios
from kernbench.benches.milestones.channel_mapping import MODE, MODES
from kernbench.benches.milestones.design_space import pareto
from kernbench.benches.milestones.llmcompass import times_of
from kernbench.benches.pe2pe import CREDIT
from kernbench.evaluation.contract import Row, number, where
from kernbench.evaluation.results import read_results

COMMITTED = Path(__file__).parents[2] / "docs/results"
TESTED: set[str] = set()  # figures whose conclusion has a test: BENCH/NN-NAME
Test = Callable[..., None]


def concludes(figure: str) -> Callable[[Test], Test]:
    """Marks the test of what the page concludes from a figure."""
    TESTED.add(figure)
    return lambda test: test


@cache
def _all(bench: str) -> tuple[Row, ...]:
    return read_results(COMMITTED / bench).rows


def rows(bench: str, **values: str | int | float) -> list[Row]:
    return where(_all(bench), **values)


def column(some: list[Row], name: str) -> list[float]:
    return [number(row, name) for row in some]


def test_every_conclusion_of_the_page_has_a_test() -> None:
    page = (COMMITTED / "README.md").read_text(encoding="utf-8")
    parts = re.split(r"!\[[^]]*\]\(([^)]*)\.png\)", page)
    concluded = {stem for stem, text in zip(parts[1::2], parts[2::2], strict=True) if "**Conclude:**" in text}
    assert concluded == TESTED


# --------------------------------------------------------------------------------------------------------- pe-dma-perf


def latency(place: str, size: int) -> float:
    (row,) = rows("pe-dma-perf", part="distance", direction="read", place=place, size_bytes=size)
    return number(row, "latency_ns")


@concludes("pe-dma-perf/01-latency-by-distance")
def test_small_transfers_cost_distance_and_large_ones_their_bytes() -> None:
    assert latency("far cube", 256) > 10 * latency("same PE", 256)
    assert latency("other SIP", 256) < latency("far cube", 256)
    assert latency("other SIP", 1 << 20) > latency("far cube", 1 << 20)
    alone = latency("same PE", 1 << 20)
    assert latency("same cube, farthest", 1 << 20) < 1.02 * alone
    assert all(2 < latency(place, 1 << 20) / alone < 2.1 for place in ("next cube, nearest", "far cube"))


@concludes("pe-dma-perf/02-path-bandwidth")
def test_the_farther_the_longer_a_transfer_must_be_and_between_sips_it_never_fills_its_link() -> None:
    def shares(place: str) -> list[float]:
        some = rows("pe-dma-perf", part="distance", direction="read", place=place)
        return [number(row, "effective_gbs") / number(row, "path_peak_gbs") for row in some]

    near, far, other = shares("same PE"), shares("far cube"), shares("other SIP")
    assert all(a > b for a, b in zip(near, far, strict=True))
    assert max(other) < 0.4
    assert max(near) > 2903 / 3350  # what a copy on an H100 reaches of its memory's rate


@concludes("pe-dma-perf/03-latency-breakdown")
def test_ucie_ports_are_most_of_the_far_latency_and_routers_within_a_cube() -> None:
    for place, most in (("far cube", "ucie_ns"), ("same cube, farthest", "noc_ns")):
        (row,) = rows("pe-dma-perf", part="distance", direction="read", place=place, size_bytes=256)
        assert number(row, most) > number(row, "latency_ns") / 2


def together(place: str) -> list[Row]:
    return rows("pe-dma-perf", part="contention", direction="read", place=place)


@concludes("pe-dma-perf/04-aggregate-bandwidth")
def test_one_pe_fills_a_slice_own_slices_add_up_and_shared_connections_decide() -> None:
    one = column(together("one-slice"), "effective_gbs")
    assert max(one) < 1.05 * min(one)
    own = together("own-slice")
    assert len({round(number(row, "effective_gbs") / number(row, "issuers"), 6) for row in own}) == 1
    first, second = column(together("next-cube"), "effective_gbs")[:2]
    assert second < 1.1 * first


@concludes("pe-dma-perf/05-contention-breakdown")
def test_a_shared_slice_costs_waiting_in_proportion() -> None:
    some = together("one-slice")
    per_pe = [number(row, "contention_ns") / (number(row, "issuers") - 1) for row in some[1:]]
    assert max(per_pe) < 1.02 * min(per_pe)
    assert {number(row, "memory_ns") for row in some} == {number(some[0], "memory_ns")}


# ----------------------------------------------------------------------------------------------------- channel-mapping


def split_over_one_link(**values: str | int | float) -> float:
    """The time of an access with a request for each channel, over its time behind one link."""
    n_to_one, one_to_one = (rows("channel-mapping", **{MODE: mode}, **values) for mode in MODES)
    assert len(n_to_one) == len(one_to_one) == 1
    return number(one_to_one[0], "access_ns") / number(n_to_one[0], "access_ns")


@concludes("channel-mapping/01-access-size")
def test_separate_requests_gain_between_sips_and_cost_one_flit_on_a_channel_elsewhere() -> None:
    sizes = [4**n * 64 for n in range(8)]
    for direction, least in (("read", 0.75), ("write", 0.56)):
        far = {size: split_over_one_link(place="other SIP", direction=direction, size_bytes=size) for size in sizes}
        assert all((ratio < 1) == (size >= 1024) for size, ratio in far.items())
        assert far[1 << 20] < least
        near = [rows("channel-mapping", place="own slice", direction=direction, **{MODE: mode}) for mode in MODES]
        extra = [b - a for a, b in zip(*(column(some, "access_ns") for some in near), strict=True)]
        assert extra == [2.0] + [8.0] * 7  # 64 B take a quarter of a flit's time on the link
    assert split_over_one_link(place="own slice", direction="read", size_bytes=256) > 1.5
    assert split_over_one_link(place="own slice", direction="read", size_bytes=1 << 18) < 1.01


@concludes("channel-mapping/02-stride")
def test_a_stride_of_all_channels_makes_one_hot_in_both_modes() -> None:
    for mode in MODES:
        some = rows("channel-mapping", part="stride", **{MODE: mode})
        took = dict(zip(column(some, "stride_bursts"), column(some, "access_ns"), strict=True))
        assert all(took[odd] == took[1] for odd in (3, 5, 7, 9))
        assert took[8] == took[16] > 3.5 * took[1]
    assert all(split_over_one_link(part="stride", stride_bursts=stride) > 1 for stride in (1, 2, 4, 8, 16))


@concludes("channel-mapping/03-sharing-pes")
def test_eight_pes_hide_the_longer_access() -> None:
    assert all(1 <= split_over_one_link(part="PEs", pes=8, direction=way) < 1.02 for way in ("read", "write"))
    assert split_over_one_link(part="PEs", pes=1, direction="read") > 1.2


@concludes("channel-mapping/04-skew")
def test_separate_requests_gain_behind_a_hot_channel_where_most_pes_read_it() -> None:
    reads = [split_over_one_link(part="skew", direction="read", hot_pes=n) for n in range(8)]
    writes = [split_over_one_link(part="skew", direction="write", hot_pes=n) for n in range(8)]
    assert [ratio < 1 for ratio in reads] == [False] * 6 + [True] * 2
    assert [round(100 * (1 - ratio)) for ratio in reads[6:]] == [4, 3]  # per cent
    assert all(1 < ratio < 1.06 for ratio in (*reads[:6], *writes))


# ------------------------------------------------------------------------------------------------------------- buffers


@concludes("buffers/01-depth")
def test_sixty_four_flits_are_enough_however_buffers_are_organised() -> None:
    (unlimited,) = column(rows("buffers", scheme="no limit"), "gbs")
    shares = {
        scheme: dict(zip(column(some, "depth"), (gbs / unlimited for gbs in column(some, "gbs")), strict=True))
        for scheme in SCHEMES
        if (some := rows("buffers", scheme=scheme))
    }
    least = {scheme: min(depth for depth, share in of.items() if share >= 0.95) for scheme, of in shares.items()}
    assert list(least.values()) == [16, 32, 64, 64]
    assert all(abs(1 - of[8] - 1 / 7) < 0.02 for of in shares.values())
    assert all(abs(of[128] / of[64] - 1) < 0.01 for of in shares.values())


# ---------------------------------------------------------------------------------------------------- milestone-1h-gemm


def products(variant: str, dtype: str = "f16", **sizes: int) -> list[Row]:
    return rows("milestone-1h-gemm", part="shapes", variant=variant, dtype=dtype, **sizes)


@concludes("milestone-1h-gemm/01-stage-busy-time")
def test_with_one_operand_streamed_the_dma_is_busiest_and_the_array_waits_half_of_the_time() -> None:
    for row in products("load-ref"):
        stages = column([row], "dma_read_ns") + [number(row, f"{name}_ns") for name in ("fetch", "gemm", "store")]
        assert number(row, "dma_read_ns") == max(stages)
    assert all(
        0.4 < 1 - number(row, "utilisation") < 0.6 for row in products("load-ref", m=512) + products("load-ref", m=256)
    )


@concludes("milestone-1h-gemm/02-mac-utilisation")
def test_operands_in_tcm_use_nearly_all_macs_and_streaming_costs_nearly_a_factor_of_two() -> None:
    assert all(number(row, "utilisation") > 0.9 for m in (128, 256, 512) for row in products("load", m=m))
    assert all(
        number(row, "utilisation") < 0.75
        for row in products("load", k=64)
        if number(row, "n") * number(row, "m") > 4096
    )
    assert number(products("load", m=512)[0], "utilisation") > 780.17 / 989  # the best published on an H100
    (row,) = products("ref", m=512)
    assert 1.7 < number(row, "utilisation_bound") / number(row, "utilisation") < 2


@concludes("milestone-1h-gemm/03-element-types")
def test_one_byte_elements_use_less_of_the_array_and_are_faster() -> None:
    for variant in ("load-ref", "ref"):
        for two, one in zip(products(variant), products(variant, "f8e4m3"), strict=True):
            assert number(one, "utilisation") < number(two, "utilisation")
            assert number(one, "window_ns") < number(two, "window_ns")


@concludes("milestone-1h-gemm/04-roofline")
def test_products_that_stream_both_operands_lie_below_the_slope_by_one_factor() -> None:
    large = [row for row in products("ref") if number(row, "flops") >= 1 << 22 and number(row, "m") % 32 == 0]
    factors = [256 * number(row, "flops") / number(row, "bytes_hbm") / number(row, "gflops") for row in large]
    assert len(factors) >= 5
    assert min(factors) > 1
    assert max(factors) < 1.25 * min(factors)


@concludes("milestone-1h-gemm/05-epilogues")
def test_epilogues_are_nearly_free_behind_a_streamed_product() -> None:
    times = {str(row["epilogue"]): number(row, "window_ns") for row in rows("milestone-1h-gemm", part="epilogue")}
    assert all(time < 1.02 * times["none"] for time in times.values())


@concludes("milestone-1h-gemm/06-tile-shape")
def test_the_native_tile_is_the_slowest_for_streamed_operands_and_auto_the_best() -> None:
    for m in (256, 32):
        times = {str(row["tile"]): number(row, "window_ns") for row in rows("milestone-1h-gemm", part="tile", m=m)}
        assert times["32x64x32"] == max(times.values())
        assert times["auto"] == min(times.values())
        assert m == 32 or times["64x64x64"] < times["32x64x32"] / 2


# ---------------------------------------------------------------------------------------------------------------- pe2pe


@concludes("pe2pe/01-one-sided")
def test_messages_against_stores() -> None:
    for row in where(rows("pe2pe", buffer_kind="tcm"), **{CREDIT: "posted"}):
        ratio, fits = number(row, "send_ns") / number(row, "store_ns"), number(row, "size_bytes") <= 4 * 4096
        hop = str(row["hop"]).removesuffix(", vertical")
        if row["hop"] == "same cube":
            assert abs(number(row, "send_ns") - number(row, "store_ns")) < 6.5
        elif fits:
            assert ratio < 1
        else:
            assert ratio < {"same cube": 1.11, "next cube": 1.1, "far cube": 2.6, "other SIP": 1.0}[hop]
    for row in where(rows("pe2pe"), **{CREDIT: "blocking"}):
        assert row["hop"] == "other SIP" or number(row, "send_ns") >= number(row, "store_ns")
    assert max(number(row, "send_ns") / number(row, "store_ns") for row in rows("pe2pe", hop="far cube")) > 2.4


@concludes("pe2pe/02-with-consumption")
def test_a_receiver_has_bytes_earlier_by_message_except_far_away() -> None:
    for row in rows("pe2pe", buffer_kind="tcm"):
        is_late = row["hop"] == "far cube" and number(row, "size_bytes") >= 32768
        assert (number(row, "send_recv_ns") > number(row, "store_load_ns")) == is_late


@concludes("pe2pe/03-bandwidth-by-hop")
def test_rings_belong_in_tcm_and_four_slots_fill_a_third_of_the_far_link() -> None:
    largest = where(rows("pe2pe", size_bytes=262144), **{CREDIT: "posted"})
    for hop in ("same cube", "next cube", "far cube", "other SIP"):
        rates = {str(row["buffer_kind"]): number(row, "send_recv_gbs") for row in where(largest, hop=hop)}
        assert rates["tcm"] == max(rates.values())
        assert hop != "far cube" or all(0.25 < rate / 128 < 0.4 for rate in rates.values())


# ----------------------------------------------------------------------------------------------------- milestone-1h-ccl


def reduced(grid: str) -> list[Row]:
    return rows("milestone-1h-ccl", part="latency", grid=grid)


@concludes("milestone-1h-ccl/02-allreduce-latency")
def test_the_smallest_take_little_more_than_their_latency_and_fewest_rounds_win() -> None:
    grids = {grid: reduced(grid) for grid in ("ring_1d", "torus_2d", "mesh_2d_no_wrap")}
    assert all(number(some[0], "bound_ns") > 0.8 * number(some[0], "time_ns") for some in grids.values())
    for at, row in enumerate(grids["torus_2d"]):
        assert all(number(row, "time_ns") <= number(some[at], "time_ns") for some in grids.values())


@concludes("milestone-1h-ccl/03-allreduce-efficiency")
def test_with_large_messages_the_bound_of_the_hierarchical_algorithm_is_far() -> None:
    for grid in ("ring_1d", "torus_2d", "mesh_2d_no_wrap"):
        shares = [number(row, "bound_ns") / number(row, "time_ns") for row in reduced(grid)]
        assert shares[-1] < 0.6 * shares[0]


@concludes("milestone-1h-ccl/04-allreduce-settings")
def test_rings_in_tcm_the_root_in_the_centre_and_chunks_of_16_kib() -> None:
    for size in (64, 4096, 32768):
        for part, name, best in (("buffer", "buffer_kind", "tcm"), ("root", "root", "center")):
            some = rows("milestone-1h-ccl", part=part, size_bytes=size)
            assert min(some, key=lambda row: number(row, "time_ns"))[name] == best
    chunks = {number(row, "chunk_bytes"): number(row, "time_ns") for row in rows("milestone-1h-ccl", part="chunk")}
    assert chunks[1024] > chunks[4096] > chunks[16384] == chunks[65536]


@concludes("milestone-1h-ccl/05-allreduce-scaling")
def test_rounds_of_a_ring_add_up_and_an_exchange_has_none() -> None:
    for part in ("strong", "weak"):
        ring = rows("milestone-1h-ccl", part=part, algorithm="lrab_hierarchical_allreduce")
        direct = rows("milestone-1h-ccl", part=part, algorithm="hierarchical_all_pes")
        assert column(ring, "sips") == [2, 4, 8, 16]
        times, at_once = column(ring, "time_ns"), column(direct, "time_ns")
        assert all(later > earlier for earlier, later in pairwise(times))
        assert number(direct[-1], "time_ns") < number(ring[-1], "bound_ns")
        assert at_once[-1] < 3 * at_once[0]
        last, before = times[-1] / times[-2], times[-2] / times[-3]
        assert last > (2.2 if part == "strong" else 5) > before  # from 8 to 16 SIPs it more than doubles


@concludes("milestone-1h-ccl/06-allreduce-algorithms")
def test_the_direct_exchange_is_the_best_but_for_two_sizes_and_within_a_tenth_there() -> None:
    some = rows("milestone-1h-ccl", part="algorithm")
    behind: dict[int, str] = {}
    for size in sorted({int(number(row, "size_bytes")) for row in some}):
        times = {str(row["algorithm"]): number(row, "time_ns") for row in where(some, size_bytes=size)}
        best = min(times, key=lambda name: times[name])
        assert times["hierarchical_all_pes"] < 1.1 * times[best]
        if best != "hierarchical_all_pes":
            behind[size] = best
    assert behind == {32768: "recursive_doubling", 1 << 20: "ring_allreduce"}
    for name in ("ring_allreduce", "hierarchical_all_pes"):
        (largest,) = where(some, algorithm=name, size_bytes=1 << 20)
        assert number(largest, "busbw_gbs") > 0.9 * 128


# ----------------------------------------------------------------------------------------------- milestone-gqa-llama70b


def panel(name: str, context: int = 32768) -> Row:
    (row,) = rows("milestone-gqa-llama70b", part="timed", panel=name, context=context)
    return row


@concludes("milestone-gqa-llama70b/01-attention-time")
def test_prefill_takes_twice_its_products_and_decode_twice_its_reads() -> None:
    for name in ("single-prefill", "multi-prefill"):
        assert 1.9 < number(panel(name), "time_ns") / number(panel(name), "compute_bound_ns") < 2.2
    over_cubes = panel("multi-prefill")
    assert 0.85 < number(over_cubes, "ring_bound_ns") / number(over_cubes, "time_ns") < 0.95
    for name in ("single-decode", "multi-decode"):
        assert 1.8 < number(panel(name), "time_ns") / number(panel(name), "hbm_bound_ns") < 2.4


@concludes("milestone-gqa-llama70b/02-operation-counts")
def test_decode_has_two_products_and_prefill_two_for_each_block_and_passes_it_on() -> None:
    for context in (2048, 8192, 32768):
        for name, ranks in (("single", 8), ("multi", 16)):
            decode, prefill = panel(f"{name}-decode", context), panel(f"{name}-prefill", context)
            assert (number(decode, "gemms"), number(decode, "sends") < 3) == (2, True)
            assert number(prefill, "gemms") == 2 * context / 128
            assert number(prefill, "sends") == 2 * (ranks - 1) * context / ranks / 128


@concludes("milestone-gqa-llama70b/03-panels-compared")
def test_softmax_takes_as_long_as_products_between_two_published_kernels() -> None:
    for name in ("single-prefill", "multi-prefill"):
        assert number(panel(name), "math_share") == pytest.approx(number(panel(name), "mac_share"), rel=0.05)
        assert 0.35 < number(panel(name), "mac_share") < 740 / 989


@concludes("milestone-gqa-llama70b/04-query-token-cost")
def test_a_token_of_a_prompt_costs_a_quarter_of_the_time_and_a_tenth_of_the_energy() -> None:
    def cost(name: str, figure: str) -> float:
        row = panel(name)
        return number(row, figure) * (number(row, "pes") if figure == "time_ns" else 1) / number(row, "query_tokens")

    for name in ("single", "multi"):
        assert 0.2 < cost(f"{name}-prefill", "time_ns") / cost(f"{name}-decode", "time_ns") < 0.3
        assert 0.05 < cost(f"{name}-prefill", "attention_j") / cost(f"{name}-decode", "attention_j") < 0.15
    for phase in ("prefill", "decode"):
        one, eight = cost(f"single-{phase}", "time_ns"), cost(f"multi-{phase}", "time_ns") / 8  # heads
        assert eight == pytest.approx(one, rel=0.15)


@concludes("milestone-gqa-llama70b/05-queries-per-chunk")
def test_more_than_32_or_128_query_tokens_gain_little() -> None:
    for name, enough in (("single-prefill", 32), ("multi-prefill", 128)):
        some = rows("milestone-gqa-llama70b", part="queries", panel=name)
        each = {int(number(row, "tokens")): number(row, "time_ns") / number(row, "tokens") for row in some}
        assert each[enough] < 0.8 * each[enough // 2]
        assert each[enough * 2] > 0.9 * each[enough]


@concludes("milestone-gqa-llama70b/06-users")
def test_two_users_take_as_long_as_one() -> None:
    for panel in ("multi-prefill", "multi-decode"):
        one, two = sorted(rows("milestone-gqa-llama70b", part="users", panel=panel), key=lambda row: row["users"])
        assert number(two, "time_ns") == number(one, "time_ns")


# ---------------------------------------------------------------------------------------------------------- llm-scaling

SMALL, LARGE = "llama3-8b", "llama2-70b"


def layer(model: str, phase: str, sips: int) -> Row:
    (row,) = rows("llm-scaling", model=model, phase=phase, sips=sips)
    return row


def gain(model: str, phase: str, sips: int, figure: str = "layer_us") -> float:
    """Of so many SIPs over one."""
    return number(layer(model, phase, 1), figure) / number(layer(model, phase, sips), figure)


@concludes("llm-scaling/01-layer-time")
def test_products_shrink_most_and_less_than_the_number_of_sips() -> None:
    for model, share in ((SMALL, 8), (LARGE, 12)):
        assert gain(model, "prefill", 16, "products_us") == pytest.approx(share, abs=0.5)
        assert all(gain(model, "prefill", sips, "attention_us") < 1 for sips in (2, 4, 8, 16))
    for model, phase, four, sixteen in (
        (SMALL, "prefill", 1.4, 1.65),
        (LARGE, "prefill", 2.0, 2.7),
        (SMALL, "decode", 1.9, 2.3),
        (LARGE, "decode", 2.2, 3.8),
    ):
        assert (gain(model, phase, 4), gain(model, phase, 16)) == pytest.approx((four, sixteen), abs=0.05)


@concludes("llm-scaling/02-tokens-per-second")
def test_no_model_comes_near_linear() -> None:
    for model in (SMALL, LARGE):
        for phase in ("prefill", "decode"):
            assert all(gain(model, phase, sips) < 0.8 * sips for sips in (2, 4, 8, 16))
    assert all(gain(SMALL, phase, 2) < 1.5 for phase in ("prefill", "decode"))  # two copies have 2


@concludes("llm-scaling/03-communication-and-energy")
def test_all_reduces_take_two_fifths_of_a_prefill_on_four_sips_and_energy_grows() -> None:
    for sips, share in ((4, 0.4), (16, 0.66)):
        for model in (SMALL, LARGE):
            row = layer(model, "prefill", sips)
            assert number(row, "communication_us") / number(row, "layer_us") == pytest.approx(share, abs=0.05)
    for model in (SMALL, LARGE):
        for phase in ("prefill", "decode"):
            energy = [number(layer(model, phase, sips), "energy_per_token_mj") for sips in (1, 2, 4, 8, 16)]
            assert energy == sorted(energy)
    assert 1 / gain(SMALL, "prefill", 16, "energy_per_token_mj") == pytest.approx(1.6, rel=0.05)
    assert 1 / gain(SMALL, "decode", 16, "energy_per_token_mj") == pytest.approx(1.4, rel=0.05)


@concludes("llm-scaling/04-next-wall")
def test_walls_move_from_macs_to_links_and_from_hbm_to_exchanges() -> None:
    def share(row: Row, name: str) -> float:
        return number(row, name) / number(row, "layer_us")

    for model in (SMALL, LARGE):
        first, last = layer(model, "prefill", 1), layer(model, "prefill", 16)
        assert share(first, "bound_compute_us") > 0.8
        assert share(last, "bound_collective_us") > 0.6
        over = {}
        for sips in (1, 2, 4, 8, 16):
            row = layer(model, "decode", sips)
            assert row["bound_HBM_us" if sips <= 4 else "bound_collective_us"] == row["one_launch_us"]
            over[sips] = 1 / share(row, "layer_mapping_bound_us")
        assert (over[1], over[2]) == pytest.approx((1.2, 1.7), abs=0.05)
        assert all(2.15 < over[sips] < 3.15 for sips in (4, 8, 16))


# --------------------------------------------------------------------------------------------------------- design-space

SHIPPED = {"ucie": 4.0, "tcm": 2.0, "macs": 4096.0, "hbm": 32.0}


def built(phase: str, **changed: float) -> Row:
    """A machine that differs from the shipped one in so much."""
    (row,) = rows("design-space", phase=phase, **{**SHIPPED, **changed})
    return row


def speed(phase: str, **changed: float) -> float:
    return number(built(phase), "layer_us") / number(built(phase, **changed), "layer_us")


@concludes("design-space/01-question-ucie")
def test_two_connections_are_as_good_as_four_for_prefill_and_eight_only_cost() -> None:
    assert speed("prefill", ucie=2.0) > 0.99
    assert speed("decode", ucie=2.0) == pytest.approx(0.95, abs=0.01)
    assert all(speed(phase, ucie=8.0) < 1.01 for phase in ("prefill", "decode"))


@concludes("design-space/02-question-tcm")
def test_half_of_the_tcm_that_kernels_have_costs_prefill_a_tenth_and_decode_7_percent() -> None:
    assert 0.88 < speed("prefill", tcm=1.5) < 0.93
    assert speed("prefill", tcm=1.75) == pytest.approx(speed("prefill", tcm=1.5), rel=0.001)
    energy = [number(built("prefill", tcm=tcm), "energy_per_token_mj") for tcm in (1.5, 2.0)]
    assert energy[0] / energy[1] == pytest.approx(1.3, abs=0.05)
    assert 1 / speed("decode", tcm=1.5) == pytest.approx(1.07, abs=0.005)
    assert 1 / speed("decode", tcm=1.75) == pytest.approx(1.03, abs=0.005)


@concludes("design-space/03-question-macs")
def test_prefill_gains_from_macs_and_decode_loses_with_half() -> None:
    assert speed("prefill", macs=8192.0) == pytest.approx(1.7, abs=0.05)
    assert speed("prefill", macs=16384.0) == pytest.approx(3, abs=0.05)
    assert 1 < speed("decode", macs=16384.0) < 1.015
    assert speed("decode", macs=2048.0) == pytest.approx(5 / 6, abs=0.01)
    half, twice = (speed("decode", macs=macs, hbm=64.0) / speed("decode", hbm=64.0) for macs in (2048.0, 8192.0))
    assert (half, twice) == (pytest.approx(0.7, abs=0.01), pytest.approx(1.22, abs=0.01))


def front(phase: str, objective: str) -> list[Row]:
    return pareto(rows("design-space", phase=phase), objective)


@concludes("design-space/04-front-cost")
def test_the_steps_to_take() -> None:
    prefill, decode = front("prefill", "cost"), front("decode", "cost")
    assert built("prefill") in prefill
    after = prefill[prefill.index(built("prefill")) + 1 :]
    steps = [(row["macs"], row["hbm"]) for row in after if row["ucie"] == 4.0]
    assert steps == [(4096.0, 64.0), (8192.0, 32.0), (8192.0, 64.0), (16384.0, 32.0)]
    assert speed("prefill", hbm=64.0) == pytest.approx(1.02, abs=0.005)
    assert speed("prefill", macs=8192.0, hbm=64.0) / speed("prefill", macs=8192.0) == pytest.approx(1.11, abs=0.01)
    assert [(row["macs"], row["hbm"]) for row in decode[decode.index(built("decode")) + 1 :]] == [
        (4096.0, 64.0),
        (8192.0, 64.0),
    ]
    assert speed("decode", hbm=64.0) == pytest.approx(1.3, abs=0.05)
    assert speed("decode", macs=8192.0, hbm=64.0) == pytest.approx(1.6, abs=0.05)


@concludes("design-space/05-front-energy")
def test_energy_of_decode_is_its_bytes_and_of_prefill_its_tiles() -> None:
    decode = column(rows("design-space", phase="decode"), "energy_per_token_mj")
    assert max(decode) < 1.02 * min(decode)
    base = number(built("prefill"), "energy_per_token_mj")
    for macs, hbm, factor in ((4096.0, 64.0, 1.5), (2048.0, 32.0, 1.5), (8192.0, 32.0, 0.7), (16384.0, 32.0, 0.5)):
        found = number(built("prefill", macs=macs, hbm=hbm), "energy_per_token_mj")
        assert found / base == pytest.approx(factor, abs=0.05)


@concludes("design-space/06-front-area")
def test_macs_are_cheap_in_area_and_hbm_bandwidth_is_not() -> None:
    prefill, decode = built("prefill"), built("decode")
    macs, hbm = built("prefill", macs=8192.0), built("decode", hbm=64.0)
    assert number(macs, "area_mm2") / number(prefill, "area_mm2") == pytest.approx(1.07, abs=0.005)
    assert number(prefill, "layer_us") / number(macs, "layer_us") == pytest.approx(1.7, abs=0.01)
    most = built("prefill", macs=16384.0)
    assert number(most, "area_mm2") / number(prefill, "area_mm2") == pytest.approx(1.2, abs=0.005)
    assert number(prefill, "layer_us") / number(most, "layer_us") == pytest.approx(3, abs=0.05)
    assert number(hbm, "area_mm2") / number(decode, "area_mm2") == pytest.approx(1.60, abs=0.01)
    assert number(decode, "layer_us") / number(hbm, "layer_us") == pytest.approx(1.3, abs=0.01)


# ------------------------------------------------------------------------------------------------------------ ccl-auto


@concludes("ccl-auto/01-auto")
@pytest.mark.needs("n_to_one", reason="the rows are of machines that the tables were measured on")
def test_auto_is_within_10_percent_of_the_fastest_algorithm() -> None:
    for mesh in (SMALL_MESH, SHIPPED_MESH):
        assert max(ratios(rows("ccl-auto"), mesh).values()) <= 1.1


@concludes("ccl-auto/02-times")
def test_one_round_is_the_fastest_for_small_messages_and_relays_for_larger_broadcasts_and_reduces() -> None:
    for row in rows("ccl-auto", sips=8):
        collective, nbytes = str(row["collective"]), int(number(row, "size_bytes"))
        here = rows("ccl-auto", sips=8, collective=collective, size_bytes=nbytes)
        best = min(here, key=lambda each: number(each, "time_ns"))["algorithm"]
        if nbytes <= 4096:
            assert best == ("hierarchical_all_pes" if collective == "all_reduce" else "direct")
        elif collective in ("broadcast", "reduce"):
            assert best == "two_rounds"
    large = rows("ccl-auto", sips=8, size_bytes=262144)
    for collective in {str(row["collective"]) for row in large}:
        assert max(number(row, "busbw_gbs") for row in large if row["collective"] == collective) >= 128 / 1.6


# ----------------------------------------------------------------------------------------------------------- llmcompass


def relative(study: str, phase: str) -> tuple[dict[str, float], dict[str, float]]:
    """Times of a layer by place, relative to the paper's baseline: ours, and published."""
    times = times_of(_all("llmcompass"), study, phase)
    return {place: ours for place, (ours, _) in times.items()}, {place: theirs for place, (_, theirs) in times.items()}


@concludes("llmcompass/01-cores")
def test_prefill_wants_macs_in_small_arrays_and_decode_does_not_care() -> None:
    for times, slower in zip(relative("cores", "prefill"), (0.25, 0.15), strict=True):
        assert 3.4 < times["A"] < 3.7  # a quarter of the MACs
        assert 1 == times["B"] == min(times.values())
        assert times["E"] == max(times[design] for design in "BCDE") < 1 + slower
        assert all(times[design] < 1.1 for design in "CD")
    ours, theirs = relative("cores", "decode")
    assert all(abs(ours[design] - 1) < 0.04 for design in "ABCD")
    assert all(abs(theirs[design] - 1) < 0.03 for design in "ABCDE")
    assert 1.15 < ours["E"] < 1.2


@concludes("llmcompass/02-bandwidth")
def test_decode_scales_with_bandwidth_and_prefill_hardly_beyond_1200() -> None:
    for times in relative("bandwidth", "prefill"):
        assert list(times.values()) == sorted(times.values(), reverse=True)
        assert 1.35 < times["400"] < 1.5
        assert 1.08 < times["800"] < 1.2
        assert times["1200"] < 1.08
        assert times["3200"] > 0.95
    for times in relative("bandwidth", "decode"):
        assert 3.5 < times["400"] < 4
        assert 1.9 < times["800"] < 2.1
        assert times["3200"] < 0.78


@concludes("llmcompass/03-buffer")
def test_a_larger_local_buffer_helps_prefill_up_to_192_kb_and_decode_not() -> None:
    for times in relative("buffer", "prefill"):
        assert 1.1 < times["64"] < 1.25
        assert 1.05 < times["128"] < 1.1
        assert times["1024"] > 0.95
    for times in relative("buffer", "decode"):
        assert all(abs(time - 1) < 0.02 for time in times.values())
