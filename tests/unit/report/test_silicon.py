"""Area, edge, static power and price of machines, worked out by hand; ranges; limits that a design exceeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.report.compare import column_of
from kernbench.report.feasible import feasibility_of
from kernbench.report.price import dies_per_wafer, price_of, yield_of
from kernbench.report.ranges import FigureRange, exactly, total
from kernbench.report.silicon import area_of, dies_of, static_w
from kernbench.topology import load_topology
from kernbench.topology.coefficients import shipped_coefficients
from kernbench.topology.graph import TopologyGraph

MACHINES = Path(__file__).parents[3] / "examples/machines"
ONE_CUBE = {"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}}
OWN = {
    "area.um2_per_mac.f16": 500,
    "area.um2_per_lane.f16": 1000,
    "area.mm2_per_mib": {"tcm": 0.5, "sram": 0.25},
    "area.mm2_per_gbs": {
        "hbm": 0.01,
        "ucie": 0.002,
        "pcie": 0.1,
        "noc": 0.001,
        "router": 0.0001,
        "tcm": 0.0002,
        "sram": 0.0004,
    },
    "area.mm_per_gbs": {"hbm": 0.005, "ucie": 0.002, "pcie": 0.05},
    "area.unattributed_share": 0.2,
    "power.static_w_per_mm2": 0.1,
}


# 96 links between routers of a 6 x 6 mesh without the 2 x 2 of HBM's controllers; from routers to 8 PEs, 8 slices, the
# SRAM, the M_CPU and 16 connections of UCIe ports.
ROUTERS_GBS = 2 * (2 * 6 * 5 - 4 - 8) * 256 + 8 * 256 + 8 * 256 + 128 + 128 + 16 * 128


def machine(**changed: object) -> TopologyGraph:
    return load_topology(None, ONE_CUBE | OWN | {key.replace("__", "."): value for key, value in changed.items()})


def test_the_blocks_of_a_cube_are_amounts_times_coefficients() -> None:
    cube, io = dies_of(machine())
    expected = {
        "macs": 8 * 4096 * 500e-6,
        "lanes": 8 * 256 * 1000e-6,
        "tcm": 8 * (2 * 0.5 + (512 + 512) * 0.0002),
        "buffers": 8 * 0.0625 * 0.5,  # register files of 64 KiB
        "sram": 32 * 0.25 + 2 * 128 * 0.0004,
        "hbm_phy": 64 * 32 * 0.01,
        "ucie_phy": 512 * 0.002,  # to the IO chiplet: there is no other cube
        "noc": 8 * 256 * 0.001 + ROUTERS_GBS * 0.0001,
    }
    named = sum(expected.values())
    assert {name: area.value for name, area in cube.blocks_mm2.items()} == pytest.approx(
        expected | {"unattributed": named * 0.2 / 0.8}
    )
    assert cube.area_mm2.value == pytest.approx(named / 0.8)
    assert io.blocks_mm2["pcie_phy"].value == pytest.approx(128 * 0.1)
    assert io.blocks_mm2["ucie_phy"].value == pytest.approx(512 * 0.002)  # one PHY, for the one cube
    assert io.blocks_mm2["noc"].value == pytest.approx((256 + 4 * 128) * 0.0001)  # to the endpoint, to connections


def test_a_cube_has_phys_for_the_links_that_one_of_its_kind_needs() -> None:
    """In a row of two, one side and the IO chiplet's; in a row of three, two sides and the IO chiplet's."""
    for width, links in ((1, 1), (2, 2), (3, 3)):
        cube = dies_of(machine(sip__cube_mesh={"w": width, "h": 1}))[0]
        assert cube.blocks_mm2["ucie_phy"].value == pytest.approx(links * 512 * 0.002), width


def test_cubes_of_a_sip_may_be_one_die() -> None:
    """Of two cubes: twice the blocks, PHYs to IO chiplets only, one outline of 28 x 14 mm."""
    two = {"sip__cube_mesh": {"w": 2, "h": 1}, "system__sips__count": 3}
    apart, one = dies_of(machine(**two))[0], dies_of(machine(area__die="sip", **two))[0]
    assert (one.name, one.count, one.geometry_mm2, one.edge_has_mm) == ("sip", 3, 2 * 196, 2 * (28 + 14))
    assert one.blocks_mm2["macs"].value == pytest.approx(2 * apart.blocks_mm2["macs"].value)
    assert one.blocks_mm2["ucie_phy"].value == pytest.approx(2 * 512 * 0.002)
    assert price_of(machine(area__die="sip", **two)).yields["sip"].value < price_of(machine(**two)).yields["cube"].value


def test_hbm_that_stands_for_sram_is_silicon_and_has_no_price_per_gb() -> None:
    hbm, sram = machine(), machine(area__hbm_place="sram")
    cube = dies_of(sram)[0]
    assert "hbm_phy" not in cube.blocks_mm2
    more = 48 * 1024 * 0.25 + 64 * 32 * 0.0004
    assert cube.blocks_mm2["sram"].value == pytest.approx(dies_of(hbm)[0].blocks_mm2["sram"].value + more)
    assert price_of(sram).usd["memory"] == exactly(0.0)
    assert price_of(hbm).usd["memory"].value > 0


def test_a_direct_link_between_sips_has_a_phy_like_pcie() -> None:
    """A ring: two ports of 50 GB/s."""
    ring = {"system__sips": {"count": 4, "topology": "ring_1d", "links": {"bw_gbs": 50.0, "distance_mm": 1.0}}}
    io, plain = dies_of(machine(**ring))[-1], dies_of(machine(system__sips__count=4))[-1]
    assert io.blocks_mm2["sip_phy"].value == pytest.approx(2 * 50 * 0.1)
    assert total(io.edge_mm.values()).value - total(plain.edge_mm.values()).value == pytest.approx(2 * 50 * 0.05)


def test_local_buffers_of_cores_are_memory() -> None:
    """Eight PEs with register files of 64 KiB and 8 cores of 64 KiB each."""
    cores = {"cores": 8, "arrays": 2, "rows": 16, "columns": 16, "local_kb": 64, "feed_gbs": 512.0}
    grouped = {"impl": "builtin.core_group", "attrs": {**cores, "macs_per_ns": 4096.0}}
    cube = dies_of(machine(cube__pe_template__components={"pe_gemm": grouped}))[0]
    assert cube.blocks_mm2["buffers"].value == pytest.approx(8 * (0.0625 + 8 * 64 / 1024) * 0.5)


def test_mac_units_are_macs_per_ns_over_the_clock() -> None:
    slow, fast = machine(), machine(cube__pe_template__components__pe_gemm__attrs__clock_ghz=2.0)
    assert dies_of(fast)[0].blocks_mm2["macs"].value == dies_of(slow)[0].blocks_mm2["macs"].value / 2


def test_an_area_by_kind_of_block_replaces_the_coefficient() -> None:
    cube, _ = dies_of(machine(area__mm2={"pe_gemm": 1.5, "m_cpu": 2.0}))
    assert "macs" not in cube.blocks_mm2
    assert cube.blocks_mm2["pe_gemm"] == exactly(8 * 1.5)
    assert cube.blocks_mm2["m_cpu"] == exactly(2.0)


def test_hbm_takes_an_edge_only_where_it_stands_beside_the_die() -> None:
    stacked, beside = machine(), machine(area__hbm_place="edge")
    assert dies_of(stacked)[0].edge_share.value == pytest.approx(512 * 0.002 / 56)
    assert dies_of(beside)[0].edge_share.value == pytest.approx((512 * 0.002 + 2048 * 0.005) / 56)


STACKS = {"gb": 16, "channels": 32, "channel_bw_gbs": 32.0, "links": 2, "link_bw_gbs": 512.0}
SHARED = {"cube.memory_map.hbm_mapping_mode": "n_to_one", "system.address_model": "va"}


@pytest.mark.parametrize(("given", "hbm"), [(None, 3 * 1024.0), ("edge", 3 * 1024.0), ("stacked", 0.0)])
def test_stacks_at_sides_take_the_edge_unless_it_is_said_that_they_do_not(given: str | None, hbm: float) -> None:
    """Three stacks of 1,024 GB/s at one die; a limit that they exceed."""
    places = [{"id": f"s{n}", "side": "WE"[n // 2], "at": (0.25, 0.75)[n % 2]} for n in range(3)]
    graph = load_topology(
        None,
        ONE_CUBE | OWN | SHARED
        | {"sip.hbm_stacks": {**STACKS, "places": places}, "area.hbm_place": given, "limits.edge_share": 0.25},
    )  # fmt: skip
    assert dies_of(graph)[0].edge_share.value == pytest.approx((512 * 0.002 + hbm * 0.005) / 56)
    of_cubes = [text for text in feasibility_of(graph).infeasible if "of a die of kind cube" in text]
    assert [text.partition(" %")[0] for text in of_cubes] == (["PHYs take 29"] if hbm else [])


def test_all_cubes_have_the_phys_of_the_one_with_most_stacks() -> None:
    """Cubes of a type are one die: two stacks at the first of three, none at the second, one at the last."""
    places = [{"id": "s0", "side": "W", "at": 0.2}, {"id": "s1", "side": "W", "at": 0.8}]
    places.append({"id": "s2", "cube": 2, "side": "E"})
    row = {"sip.cube_mesh": {"w": 3, "h": 1}, "sip.hbm_stacks": {**STACKS, "places": places}}
    cube, _ = dies_of(load_topology(None, ONE_CUBE | OWN | SHARED | row))
    assert cube.edge_mm["hbm"].value == pytest.approx(2 * 1024 * 0.005)
    assert cube.blocks_mm2["hbm_phy"].value == pytest.approx(2 * 1024 * 0.01)
    whole, _ = dies_of(load_topology(None, ONE_CUBE | OWN | SHARED | row | {"area.die": "sip"}))
    assert whole.edge_mm["hbm"].value == pytest.approx(3 * 1024 * 0.005)


FAR = {"gb": 512, "bw_gbs": 64.0, "distance_mm": 300.0, "channels": 4, "channel_bw_gbs": 32.0}
FAR_MM2 = (64 * 0.2 + 64 * 0.0001) / 0.8
FAR_OWN = {
    "area.mm2_per_gbs.far": 0.2,
    "area.mm_per_gbs.far": 0.03,
    "power.far_w_per_gb": 0.05,
    "cost.far_usd_per_gb": 4.0,
}


def far_machine(at: str, **changed: object) -> TopologyGraph:
    return machine(system__far_memory=FAR | {"at": at}, **FAR_OWN, **changed)


def test_the_link_to_far_memory_has_a_phy_on_the_io_chiplet() -> None:
    """64 GB/s: 12.8 mm2 and 1.92 mm of edge, 0.0064 mm2 of the link there, and a quarter of both for what is no
    named block (share 0.2).
    """
    base, io = dies_of(machine())[-1], dies_of(far_machine("sip"))[-1]
    assert io.blocks_mm2["far_phy"].value == pytest.approx(12.8)
    assert io.area_mm2.value - base.area_mm2.value == pytest.approx(FAR_MM2)
    assert total(io.edge_mm.values()).value - total(base.edge_mm.values()).value == pytest.approx(1.92)
    assert dies_of(far_machine("switch"))[-1] == base  # no die of the package has that link


def test_one_of_two_io_chiplets_has_that_phy() -> None:
    two = {"sip__io_chiplets": [{"id": "io0", "side": "N"}, {"id": "io1", "side": "S"}]}
    graph = machine(system__far_memory=FAR | {"io": "io1"}, **two, **FAR_OWN)
    _, plain, far = dies_of(graph)
    assert [(die.name, die.count) for die in (plain, far)] == [("io_chiplet", 1), ("io_chiplet far", 1)]
    assert far.area_mm2.value - plain.area_mm2.value == pytest.approx(FAR_MM2)
    assert list(feasibility_of(graph).price.yields) == ["cube", "io_chiplet", "io_chiplet far"]


@pytest.mark.parametrize(("at", "nodes"), [("sip", 2), ("switch", 1)])
def test_far_memory_costs_its_price_and_its_idle_power(at: str, nodes: int) -> None:
    two = {"system__sips__count": 2}
    found, base = feasibility_of(far_machine(at, **two)), feasibility_of(machine(**two))
    assert found.price.usd["far_memory"] == exactly(nodes * 512 * 4.0)
    assert found.far_w == exactly(nodes * 512 * 0.05)
    phys_w = 0.1 * 2 * FAR_MM2 if at == "sip" else 0.0  # of the dies, by area
    assert found.static_w.value - base.static_w.value == pytest.approx(nodes * 25.6 + phys_w)
    assert found.sip_w.value - base.sip_w.value == pytest.approx((nodes * 25.6 + phys_w) / 2)
    assert "far_memory" not in base.price.usd
    assert found.as_json()["far_w"] == exactly(nodes * 25.6).as_json()


def test_the_idle_power_of_far_memory_is_that_of_its_data_sheet() -> None:
    """mA at 1.2 V in a device of 1 GB, nine for eight: standby, and refresh for 560 of 12,480 cycles."""
    shipped = shipped_coefficients()["power.far_w_per_gb"]
    share = 560 / 12480
    assert shipped.value == pytest.approx(9 / 8 * 1.2e-3 * (37 + (250 - 37) * share), rel=0.01)
    assert shipped.low == pytest.approx(9 / 8 * 1.2e-3 * 30, rel=0.01)
    assert shipped.high == pytest.approx(9 / 8 * 1.2e-3 * (52 + (250 - 52) * share), rel=0.01)


def test_static_power_follows_the_area_of_all_dies() -> None:
    graph = machine()
    assert static_w(graph).value == pytest.approx(0.1 * area_of(graph).counted_mm2)


def test_a_range_has_all_coefficients_at_one_end() -> None:
    shipped, area = shipped_coefficients(), area_of(load_topology(None, ONE_CUBE)).blocks
    macs = shipped["area.um2_per_mac.f16"]
    assert area["macs"] == FigureRange(*(8 * 4096 * um2 * 1e-6 for um2 in (macs.low, macs.value, macs.high)))
    assert total([FigureRange(1, 2, 3), FigureRange(10, 20, 30)]) == FigureRange(11, 22, 33)


def test_the_shipped_cube_fills_its_die() -> None:
    cube, _ = dies_of(load_topology())
    assert 0.9 * cube.geometry_mm2 < cube.area_mm2.value < cube.geometry_mm2
    assert cube.area_mm2.low < cube.area_mm2.value < cube.area_mm2.high


def test_the_range_of_a_gpu_like_die_holds_the_size_of_ga100() -> None:
    """128 SMs of 1,024 f16 MACs and 128 f16 lanes per cycle, 192 KiB of L1 and 256 KiB of registers; 48 MB of L2; six
    stacks of HBM2E: 826 mm2 (NVIDIA A100 white paper, 2020). Modelled as 16 PEs of eight SMs.
    """
    pe = {
        "cube.pe_template.components": {
            "pe_gemm": {"attrs": {"macs_per_ns": 8 * 1024 * 1.41, "clock_ghz": 1.41}},
            "pe_math": {"attrs": {"lanes_per_ns": 8 * 128 * 1.41, "clock_ghz": 1.41}},
        }
    }
    memory = {"hbm_channels_per_pe": 8, "hbm_channel_bw_gbs": 6 * 410 / 128, "sram_mb_per_cube": 48}
    ga100 = load_topology(
        None,
        ONE_CUBE
        | pe
        | {
            "cube.pe_layout.pe_per_corner": 4,
            "cube.memory_map": {**memory, "tcm_mb_per_pe": 8 * 448 / 1024},
            "cube.links.pe_dma_to_router_bw_gbs": 8 * 90,
        },
    )
    cube, _ = dies_of(ga100)
    assert (round(cube.area_mm2.low), round(cube.area_mm2.high)) == (208, 969)  # as ADR 86 and the fidelity page state
    assert cube.area_mm2.low < 826 < cube.area_mm2.high
    assert cube.area_mm2.value == pytest.approx(515, abs=1)  # no graphics, no L1 tags, half the control


def test_dies_per_wafer_and_yield_by_hand() -> None:
    # pi x 150**2 / 100 = 706.9, less pi x 300 / sqrt(200) = 66.6
    assert dies_per_wafer(100, 300) == pytest.approx(640.2, abs=0.1)
    assert dies_per_wafer(45000, 300) == 1.0  # the square in the circle
    assert dies_per_wafer(45001, 300) == 0.0
    assert yield_of(100, 0.3, 3.0) == pytest.approx(1.1**-3)  # one cm2: 0.3 defects


def test_the_price_is_dies_package_and_memory() -> None:
    cost = {"cost": {"wafer_usd": 1000, "defects_per_cm2": 0.0, "package_usd_per_mm2": 2.0, "memory_usd_per_gb": 10.0}}
    graph = machine(**cost)
    cube, io = dies_of(graph)
    price = price_of(graph)
    assert price.usd["memory"] == exactly(48 * 10.0)
    assert price.usd["package"].value == pytest.approx(2 * (cube.area_mm2.value + io.area_mm2.value))
    assert price.usd["cube"].value == pytest.approx(1000 / dies_per_wafer(cube.area_mm2.value, 300))
    assert price.yields["cube"] == exactly(1.0)
    assert price.total_usd.value == pytest.approx(sum(part.value for part in price.usd.values()))


LINK = {"bw_gbs": 12.5, "distance_mm": 1.0}
MORE: dict[str, object] = {
    "cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192.0,
    "cube.pe_template.components.pe_math.attrs.lanes_per_ns": 512.0,
    "cube.pe_template.components.pe_fetch_store.attrs.register_file_bytes": 262144,
    "cube.pe_template.links.tcm_read_bw_gbs": 1024.0,
    "cube.pe_template.links.tcm_write_bw_gbs": 1024.0,
    "cube.memory_map.hbm_channel_bw_gbs": 64.0,
    "cube.memory_map.hbm_total_gb_per_cube": 96,
    "cube.memory_map.tcm_mb_per_pe": 4,
    "cube.memory_map.sram_mb_per_cube": 64,
    "cube.ucie.n_connections": 8,
    "cube.ucie.per_connection_bw_gbs": 256.0,
    "cube.links.pe_dma_to_router_bw_gbs": 512.0,
    "cube.links.router_bw_gbs": 512.0,
    "cube.links.sram_to_router_bw_gbs": 256.0,
    "sip.links.cube_to_cube.bw_gbs": 1024.0,
    "system.sips.links.bw_gbs": 25.0,
    "system.links.io_ep_to_switch.bw_gbs": 256.0,
    "io_chiplet.links.pcie_ep_to_noc_bw_gbs": 512.0,
    "io_chiplet.links.per_connection_bw_gbs": 256.0,
}


@pytest.mark.parametrize("key", MORE)
def test_more_of_anything_costs_more_silicon_power_and_money(key: str) -> None:
    """Each end of each range, strictly: nothing that makes a machine faster is free."""
    small = {"sip.cube_mesh": {"w": 2, "h": 1}, "system.sips": {"count": 2, "topology": "ring_1d", "links": LINK}}
    base, more = load_topology(None, small), load_topology(None, small | {key: MORE[key]})
    pairs = [(price_of(base).total_usd, price_of(more).total_usd)]
    if not key.endswith("hbm_total_gb_per_cube"):  # which is not silicon of these dies
        pairs += [(area_of(base).counted, area_of(more).counted), (static_w(base), static_w(more))]
    for less, found in pairs:
        assert (found.low > less.low, found.value > less.value, found.high > less.high) == (True, True, True)


def test_limits_name_the_figure_its_range_and_the_key() -> None:
    over = {"limits": {"sip_w": 10, "die_mm2": 150, "edge_share": 0.3, "cost_usd": 100}}
    found = feasibility_of(load_topology(None, ONE_CUBE | over)).infeasible
    assert found[0].startswith("a SIP draws 30 W (8 to 64), more than 10 (limits.sip_w)")
    assert found[1] == "a die of kind cube has 189 mm2 (86 to 380), more than 150 (limits.die_mm2)"
    assert found[2].startswith("PHYs take 39 % of the edge of a die of kind io_chiplet")
    assert found[3].startswith("the machine costs ")
    assert len(found) == 4


def test_a_design_within_its_limits_is_feasible() -> None:
    within = {"limits": {"sip_w": 1000, "die_mm2": 858, "edge_share": 1.0, "cost_usd": 10_000}}
    assert feasibility_of(load_topology(None, ONE_CUBE | within)).infeasible == ()
    assert feasibility_of(load_topology()).infeasible == ()


def test_the_wafer_like_machine_is_sram_on_one_wafer() -> None:
    """32 GiB at 0.64 mm2 per MiB are half of its die, and the die is a wafer of 9,346 USD; nothing is paid per GB."""
    graph = load_topology(str(MACHINES / "wafer-like.yaml"))
    wafer, price = dies_of(graph)[0], price_of(graph)
    assert (wafer.name, wafer.count) == ("sip", 1)
    assert wafer.blocks_mm2["sram"].value == pytest.approx(32 * 1024 * 0.64, rel=0.01)
    assert wafer.area_mm2.value == pytest.approx(wafer.geometry_mm2, rel=0.01)
    assert wafer.geometry_mm2 == pytest.approx(46_225, rel=0.01)  # WSE-2
    assert price.usd["memory"] == exactly(0.0)
    assert price.usd["sip"].value == pytest.approx(9346)
    assert column_of("wafer", graph).totals["HBM GB"] == 0.0


@pytest.mark.parametrize(("name", "dies"), [("one-die-64", 1), ("gpu-like", 2 * 8)])
def test_machines_with_hbm_fit_their_dies_edges_and_reticle(name: str, dies: int) -> None:
    die = dies_of(load_topology(str(MACHINES / f"{name}.yaml")))[0]
    assert die.count == dies
    assert 600 < die.area_mm2.value < 1.01 * 858  # a reticle; one-die-64 is at its limit
    assert die.edge_share.value < 1
