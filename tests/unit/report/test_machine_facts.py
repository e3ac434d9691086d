"""Figures of a machine, worked out by hand or by looking at every pair."""

from itertools import pairwise, product

import pytest

from kernbench.common.ids import HOST, CubeId, PeId
from kernbench.policy.routing.router import PathRouter
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.machine_facts_text import machine_facts_as_text
from kernbench.topology import load_topology

GIB, MIB = 1 << 30, 1 << 20


def test_the_shipped_machine_adds_up() -> None:
    summary = machine_facts_of(load_topology())
    assert summary.name == "default"
    counts = summary.counts
    assert (counts["sips"], counts["cubes"], counts["pes"]) == (2, 32, 256)
    assert counts["routers"] == 32 * (6 * 6 - 2 * 2)
    assert counts["hbm_pseudo_channels"] == 256 * 8
    memory = summary.memory
    assert memory["hbm_bytes_per_pe"] == 48 * GIB // 8
    assert memory["hbm_bytes"] == 32 * 48 * GIB
    assert memory["sram_bytes"] == 32 * 32 * MIB
    assert memory["tcm_bytes"] == 256 * 2 * MIB
    gbs = summary.bandwidth_gbs
    assert gbs["hbm_per_pe"] == 8 * 32
    assert gbs["hbm_per_cube"] == 8 * 8 * 32
    assert gbs["hbm_per_sip"] == 16 * 8 * 8 * 32
    assert gbs["ucie_port"] == 4 * 128
    assert gbs["noc_bisection"] == 4 * 256  # six rows or columns, less the two of the HBM
    assert gbs["sip_bisection"] == 4 * 512
    assert gbs["tray_bisection"] == 128


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_the_farthest_slice_of_a_cube_is_across_the_die() -> None:
    # PE 0 stands at (1.5, 1.5), PE 7 at (12.5, 12.5): 11 + 11 mm, at 0.1 ns/mm, over 11 routers of 2 ns
    worst = machine_facts_of(load_topology()).worst_paths[0]
    assert worst.distance_mm == 22.0
    assert worst.latency_ns == pytest.approx(11 * 2 + 2.2, abs=1e-4)
    assert worst.hops == 12


def test_ports_narrower_than_their_link_set_the_bandwidth() -> None:
    gbs = machine_facts_of(load_topology(overrides={"cube.ucie.n_connections": 2})).bandwidth_gbs
    assert gbs["ucie_port"] == gbs["io_port"] == 2 * 128
    assert gbs["sip_bisection"] == 4 * 2 * 128  # four ports across the middle
    gbs = machine_facts_of(load_topology(overrides={"io_chiplet.n_connections": 1})).bandwidth_gbs
    assert (gbs["io_port"], gbs["ucie_port"]) == (128, 4 * 128)
    gbs = machine_facts_of(load_topology(overrides={"sip.links.cube_to_cube.bw_gbs": 100})).bandwidth_gbs
    assert (gbs["ucie_port"], gbs["sip_bisection"], gbs["io_port"]) == (100, 4 * 100, 512)


def test_one_of_everything_has_no_bisection_and_no_other_sip() -> None:
    graph = load_topology(overrides={"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}})
    summary = machine_facts_of(graph)
    assert summary.bandwidth_gbs["sip_bisection"] is None
    assert summary.bandwidth_gbs["tray_bisection"] is None
    assert [way.name for way in summary.worst_paths] == ["PE to HBM, same cube", "host to HBM"]


SMALL = {"cube.pe_layout.pe_per_corner": 1}
SHAPES: dict[str, dict[str, object]] = {
    "3 x 2 cubes": {**SMALL, "sip.cube_mesh": {"w": 3, "h": 2}},
    "3 x 1 cubes": {**SMALL, "sip.cube_mesh": {"w": 3, "h": 1}},
    "chiplets west and south": {
        **SMALL,
        "sip.cube_mesh": {"w": 2, "h": 3},
        "sip.io_chiplets": [{"id": "io0", "side": "W"}, {"id": "io1", "side": "S"}],
    },
    "torus": {**SMALL, "sip.cube_mesh": {"w": 3, "h": 3, "wrap": "xy"}},
    "rows closed": {**SMALL, "sip.cube_mesh": {"w": 4, "h": 2, "wrap": "x"}},
    "trays": {
        **SMALL,
        "sip.cube_mesh": {"w": 2, "h": 1},
        "system.sips.count": 4,
        "system.switch_levels": {"tray": {"count": 2, "bw_gbs": 64.0, "distance_mm": 2000.0}},
    },
    "ring of direct links": {
        **SMALL,
        "sip.cube_mesh": {"w": 2, "h": 1},
        "system.sips.count": 4,
        "system.sips.links": {"bw_gbs": 50.0, "distance_mm": 100.0},
    },
}


@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES.keys())
def test_no_pair_is_farther_than_the_worst(overrides: dict[str, object]) -> None:
    graph = load_topology(overrides=overrides)
    router, spec = PathRouter(graph), graph.spec
    cubes, pes = range(spec.sip.n_cubes), range(spec.cube.n_pes)

    def mm(path: list[str]) -> float:
        return sum(graph.edge(a, b).distance_mm for a, b in pairwise(path))

    def farthest(sip: int, same_cube: bool = False) -> float:
        places = list(product(cubes, pes))
        pairs = [(a, b) for a, b in product(places, places) if not same_cube or a[0] == b[0]]
        return max(mm(router.find_path(str(PeId(0, *a)), CubeId(sip, b[0]).hbm_ctrl(b[1]))) for a, b in pairs)

    host = max(mm(router.find_memory_path(HOST, CubeId(0, c).hbm_ctrl(p))) for c, p in product(cubes, pes))
    worst = {way.name: way.distance_mm for way in machine_facts_of(graph).worst_paths}
    assert worst == {
        "PE to HBM, same cube": farthest(0, same_cube=True),
        "PE to HBM, same SIP": farthest(0),
        "PE to HBM, other SIP": max(farthest(sip) for sip in range(1, spec.n_sips)),
        "host to HBM": host,
    }


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_the_text_names_every_figure_and_fits_a_terminal() -> None:
    graph = load_topology()
    text = machine_facts_as_text(machine_facts_of(graph), graph.spec)
    assert "  PEs                   256  8 per cube" in text.splitlines()
    assert "  HBM per cube                 2,048" in text.splitlines()
    assert "  SIPs                    2  logical ring_1d; every SIP is on one switch" in text.splitlines()
    assert " in all" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
