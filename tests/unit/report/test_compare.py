"""Machines side by side without running them."""

from __future__ import annotations

from kernbench.report.compare import column_of, differences
from kernbench.report.ranges import FigureRange
from kernbench.topology import load_topology

ONE = {"system.sips.count": 1, "sip.cube_mesh": {"w": 2, "h": 1}}


def test_totals_are_those_of_the_whole_machine() -> None:
    column = column_of("one", load_topology(None, ONE))
    assert column.totals["PEs"] == 16
    assert column.totals["peak TFLOP/s, f16"] == 2 * 4096 * 16 / 1000
    assert column.totals["memory TB/s"] == 16 * 256 / 1000
    assert column.totals["ridge, flop/byte"] == 2 * 4096 / 256
    assert isinstance(column.totals["price, USD"], FigureRange)
    assert column.infeasible == ()


def test_only_keys_that_differ_are_listed() -> None:
    key = "cube.memory_map.hbm_channel_bw_gbs"
    columns = [column_of("a", load_topology(None, ONE)), column_of("b", load_topology(None, ONE | {key: 64.0}))]
    assert differences(columns) == {key: [32.0, 64.0]}


def test_keys_of_a_type_that_are_those_of_cube_are_not_listed() -> None:
    """One key of the type differs from `cube`; another one differs on both, with the machine."""
    sram, bw = "cube.memory_map.sram_mb_per_cube", "cube.links.router_bw_gbs"
    wide = {"cube_types": {"wide": {"links": {"router_bw_gbs": 512.0}}}, "sip": {"cube_types": {"wide": [1]}}}
    base = {"system": {"sips": {"count": 1}}, "sip": {"cube_mesh": {"w": 2, "h": 1}}}
    plain, typed = (
        load_topology(base),
        load_topology({**base, **wide, "sip": {**base["sip"], **wide["sip"]}}, {sram: 16}),
    )
    found = differences([column_of("a", plain), column_of("b", typed)])
    assert found[sram] == [32, 16]
    assert found["cube_types.wide.links.router_bw_gbs"] == [None, 512.0]
    assert [key for key in found if key.startswith("cube_types")] == ["cube_types.wide.links.router_bw_gbs"]
    assert bw not in found


def test_a_die_larger_than_a_reticle_is_warned_of_without_a_limit() -> None:
    huge = {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 65536.0 * 4}
    column = column_of("huge", load_topology(None, ONE | huge))
    (warning,) = (text for text in column.warnings if "more than 858 (26 x 33 mm" in text)
    assert warning.startswith("a die of kind cube has ")
    assert column.infeasible == ()


def test_bottlenecks_are_warnings() -> None:
    dense = {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 65536.0, "sip.links.cube_to_cube.bw_gbs": 128.0}
    found = column_of("dense", load_topology(None, ONE | dense)).warnings
    assert any("the blocks of a cube need" in text for text in found)
    assert any("less than an eighth" in text for text in found)
    assert any("the ridge is 512 flop/byte" in text for text in found)
    assert column_of("shipped", load_topology(None, ONE)).warnings == ()


def test_limits_are_checked_before_anything_runs() -> None:
    column = column_of("small", load_topology(None, ONE | {"limits.die_mm2": 100}))
    assert column.infeasible == ("a die of kind cube has 191 mm2 (87 to 388), more than 100 (limits.die_mm2)",)
