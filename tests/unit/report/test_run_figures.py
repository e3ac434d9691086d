"""A run in figures and in words: spans, links, long lists, failures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kernbench
from kernbench.report.run_figures import _covered_ns, busiest_links, figures_of, run_as_json
from kernbench.report.run_summary import full_summary
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.data_executor import DataCheck
from kernbench.testing import tiny_machine
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def copy(x: TensorPtr, out: TensorPtr, tl: TLContext) -> None:
    tl.store(out, tl.load(x))


def copies(torch: RuntimeContext, *, times: int = 1) -> None:
    x, out = torch.from_numpy(np.arange(4096, dtype=np.float16)), torch.empty(4096)
    for _ in range(times):
        torch.launch("copy", copy, x, out)


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return kernbench.run(copies, tiny_machine(), params={"times": 15})


@pytest.mark.parametrize(
    ("spans", "covered"),
    [
        ([], 0),
        ([(2, 5)], 3),
        ([(0, 4), (2, 3)], 4),
        ([(4, 6), (0, 2)], 4),
        ([(0, 4), (2, 6), (6, 7)], 7),
    ],
)
def test_time_in_kernels_counts_overlapping_launches_once(spans: list[tuple[float, float]], covered: float) -> None:
    assert _covered_ns(spans) == covered


def test_a_copy_is_bound_by_memory_and_never_faster_than_its_roof(result: BenchResult) -> None:
    figures = figures_of(result)
    for launch, roofline in figures.launches:
        assert launch.bytes_hbm == 2 * 8192
        assert roofline.memory_ns == 2 * 8192 / 256  # one slice, read and written
        assert (roofline.bound, roofline.compute_ns) == ("memory", 0.0)
        assert 0 < roofline.share <= 1
    assert 0 < figures.kernels_ns < result.total_ns


def test_bytes_that_a_kernel_asks_for_are_distinguished_from_whole_bursts() -> None:
    def kernel(x: TensorPtr, out: TensorPtr, tl: TLContext) -> None:
        tl.store(out, tl.load(x, (50,)))  # 100 bytes each way, a burst of 256 each way

    def bench(torch: RuntimeContext) -> None:
        torch.launch("k", kernel, torch.zeros(64), torch.empty(64))

    figures = figures_of(kernbench.run(bench, tiny_machine()))
    ((launch, roofline),) = figures.launches
    assert (launch.bytes_hbm_requested, launch.bytes_hbm) == (200, 512)
    assert roofline.gbs_requested == 200 / launch.exec_ns
    assert roofline.gbs == 512 / launch.exec_ns
    found = run_as_json(figures)
    assert found["totals"] == {"flops": 0, "bytes_hbm": 512, "bytes_hbm_requested": 200, "bytes_sent": 0}
    (as_json,) = found["launches"]  # type: ignore[misc]  # a list
    assert (as_json["bytes_hbm"], as_json["bytes_hbm_requested"]) == (512, 200)
    assert (as_json["roofline"]["gbs"], as_json["roofline"]["gbs_requested"]) == (roofline.gbs, roofline.gbs_requested)
    text = full_summary(figures)
    assert "  HBM: 200 B requested, 512 B moved in whole bursts" in text
    (row,) = (line for line in text.splitlines() if line.startswith("  k "))
    assert f"  {200 / launch.exec_ns:,.1f}  latency  " in row
    assert row.endswith(f"  {roofline.share:.1%} memory")


def test_the_most_tcm_that_a_kernel_took_is_reported_with_its_pe() -> None:
    def kernel(tl: TLContext) -> None:
        first = tl.zeros((1024,), "i8")
        for _ in range(3):  # one at a time
            tl.zeros((1024 * (1 + tl.program_id(0)),), "i8")
        del first

    def bench(torch: RuntimeContext) -> None:
        torch.launch("k", kernel, target_cubes=0, target_pes=(0, 1, 2))

    figures = figures_of(kernbench.run(bench, tiny_machine(4)))
    ((launch, _),) = figures.launches
    assert [pe.tcm_peak_bytes for pe in launch.pes] == [2048, 3072, 4096]
    (as_json,) = run_as_json(figures)["launches"]  # type: ignore[misc]  # a list
    assert [pe["tcm_peak_bytes"] for pe in as_json["per_pe"]] == [2048, 3072, 4096]
    assert as_json["tcm_peak_bytes"] == 4096
    assert "  TCM peak 4 KiB of 1 MiB on sip0.cube0.pe2" in full_summary(figures)


def test_links_of_a_launch_are_those_its_kernel_used(result: BenchResult) -> None:
    launch = result.launches[0]
    (_, first_ns), (_, second_ns) = busiest_links(launch)[:2]
    assert first_ns == second_ns == 8192 / 256
    assert all(src.startswith("sip0.cube0.") for src, _ in launch.links)  # nothing of the host's


def test_a_low_intensity_is_reported_in_three_digits(result: BenchResult) -> None:
    figures = figures_of(result)
    (launch, roofline), *_ = figures.launches
    rare = replace(figures, launches=[(launch, replace(roofline, flops=128))])
    text = full_summary(rare)
    assert "  0.00781 flops per byte; f16 products are compute bound from 32 on" in text  # 128 / 16384; 8192 / 256


def test_a_long_list_of_launches_is_cut_and_counted(result: BenchResult) -> None:
    text = full_summary(figures_of(result))
    assert sum(line.startswith("  copy ") for line in text.splitlines()) == 12
    assert "  and 3 more" in text


def test_wrong_ops_are_listed(result: BenchResult) -> None:
    fine = DataCheck("out", "f16", True, 0.0, 1e-3, 1e-3)
    wrong = DataCheck("%7 dot[2, 2]", "f16", False, 0.5, 1e-3, 1e-3)
    broken = replace(result, data=[fine], ops=[fine, wrong])
    assert not broken.ok
    text = full_summary(figures_of(broken))
    assert "[x] FAIL 2 intermediate ops checked, 1 wrong" in text
    assert "%7 dot[2, 2] f16: off by 0.5" in text
    assert run_as_json(figures_of(broken))["ops"] == {"compared": 2, "wrong": [wrong.as_json()]}


def test_colour_does_not_shift_columns(result: BenchResult) -> None:
    checks = [DataCheck("a", "f16", True, 0.0, 1e-3, 1e-3), DataCheck("long", "f16", False, 2.0, 1e-3, 1e-3)]
    figures = figures_of(replace(result, data=checks))
    painted = full_summary(figures, lambda text, role: f"<{role}>{text}</>")
    bare = painted
    for role in ("title", "pass", "fail"):
        bare = bare.replace(f"<{role}>", "")
    assert bare.replace("</>", "") == full_summary(figures)


def product(a: TensorPtr, b: TensorPtr, c: TensorPtr, auto: bool, tl: TLContext) -> None:
    for _ in range(2):
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, tile_shape="auto" if auto else None))


def products(torch: RuntimeContext, *, m: int = 128, k: int = 256, n: int = 128, auto: bool = False) -> None:
    a, b, c = (torch.from_numpy(np.zeros(shape, np.float16)) for shape in ((m, k), (k, n), (m, n)))
    torch.launch("product", product, a, b, c, auto)


class TestTiles:
    def test_the_summary_names_the_tile_and_what_auto_would_gain(self) -> None:
        native = figures_of(kernbench.run(products, tiny_machine()))
        auto = figures_of(kernbench.run(products, tiny_machine(), params={"auto": True}))
        (use,), (chosen,) = native.tiles[0], auto.tiles[0]
        # Two products of 4 x 4 x 4 tiles.
        assert (use.op, use.tile, use.composites, use.tiles, use.is_native) == ("gemm", (32, 64, 32), 2, 128, True)
        assert (chosen.tile, chosen.is_native, chosen.auto_tile) == (use.auto_tile, False, None)
        took = [figures.launches[0][0].pe_exec_ns_max for figures in (native, auto)]
        assert use.auto_gain == pytest.approx(took[0] / took[1], rel=0.1)
        shape = " x ".join(map(str, chosen.tile))
        text = full_summary(native)
        assert "  product: gemm 32 x 64 x 32 (128 tiles)" in text
        shown = (
            f'    native tile 32 x 64 x 32; tile_shape="auto" would use {shape}, about {use.auto_gain:.1f} times faster'
        )
        assert shown in text
        text = full_summary(auto)
        assert f"  product: gemm {shape} ({chosen.tiles:,} tiles)" in text
        assert "would use" not in text

    def test_a_native_tile_that_is_fast_enough_needs_no_advice(self) -> None:
        figures = figures_of(kernbench.run(products, tiny_machine(), params={"m": 32, "k": 64, "n": 32}))
        assert figures.tiles[0][0].auto_tile is None
        assert "would use" not in full_summary(figures)

    def test_json_has_the_same(self) -> None:
        figures = figures_of(kernbench.run(products, tiny_machine()))
        launches = run_as_json(figures)["launches"]
        assert isinstance(launches, list)
        (shown,) = launches[0]["tiles"]
        assert (shown["op"], shown["tile_shape"], shown["tiles"]) == ("gemm", [32, 64, 32], 128)
        assert shown["auto_tile_shape"] == list(figures.tiles[0][0].auto_tile or ())

    def test_a_launch_without_composites_has_no_tiles(self, result: BenchResult) -> None:
        figures = figures_of(result)
        assert not any(figures.tiles)
        assert "Tiles" not in full_summary(figures)

    def test_the_log_says_the_tile_of_every_composite(self) -> None:
        records = kernbench.run(products, tiny_machine()).engine.log.records  # type: ignore[union-attr]  # a run has a log
        shown = [record.params["tile_shape"] for record in records if record.op_name == "composite_gemm"]
        assert shown == [(32, 64, 32)] * 2


def test_long_names_keep_their_beginning_and_their_end() -> None:
    def bench(torch: RuntimeContext) -> None:
        x, out = torch.from_numpy(np.arange(64, dtype=np.float16)), torch.empty(64)
        for name in ("all_reduce.lrab_hierarchical_allreduce", "a" * 30 + "b" * 30):
            torch.launch(name, copy, x, out)

    launches = full_summary(figures_of(kernbench.run(bench, tiny_machine()))).split("Launches\n")[1].splitlines()
    assert launches[1].startswith("  all_reduce.lrab_hierarchical_allreduce ")
    assert launches[2].startswith("  " + "a" * 21 + "..." + "b" * 20 + " ")  # 44 characters
