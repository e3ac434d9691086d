"""Energy and area: bytes, MACs and vector ops times their coefficients, and what has none is named."""

import pytest

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.energy import Energy, energy_of
from kernbench.report.silicon import area_of
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.topology import load_topology
from kernbench.topology.coefficients import coefficient_of, shipped_coefficients

ONE_CUBE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
OWN = {
    "energy.pj_per_mac.f16": 1.0,
    "energy.pj_per_vector_op.f16": 2.0,
    "energy.pj_per_byte.noc": 3.0,
    "energy.pj_per_byte.hbm": 5.0,
    "energy.pj_per_byte.tcm": 7.0,
    "energy.pj_per_byte.pcie": 0.0,
    "energy.pj_per_byte.ucie": 0.0,
}


def product(a, b, c, tl):
    left, right = tl.load(a, (32, 64)), tl.load(b, (64, 32))
    tl.store(c, tl.exp(tl.dot(left, right)))


def bench(torch):
    dp = DPPolicy(cube="replicate", pe="replicate", num_pes=1, num_cubes=1)
    a = torch.zeros((32, 64), dtype="f16", dp=dp, name="a")
    b = torch.zeros((64, 32), dtype="f16", dp=dp, name="b")
    c = torch.empty((32, 32), dtype="f16", dp=dp, name="c")
    torch.launch("product", product, a, b, c)


def composite(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.ref(a, (256, 256)), tl.ref(b, (256, 256)), out_ptr=c))


def composite_bench(torch):
    dp = DPPolicy(cube="replicate", pe="replicate", num_pes=1, num_cubes=1)
    a, b, c = (torch.zeros((256, 256), dtype="f16", dp=dp, name=name) for name in "abc")
    torch.launch("composite", composite, a, b, c)


def run(function, settings, **options) -> BenchResult:
    return kernbench.run(function, topology=load_topology(None, ONE_CUBE | settings), **options)


def picojoules(energy: Energy) -> dict[str, float]:
    return {block: round(j * 1e12, 3) for block, j in energy.joules.items()}


def test_a_launch_costs_its_macs_vector_ops_and_bytes_times_their_coefficients() -> None:
    (launch,) = energy_of(run(bench, OWN)).launches
    read, written = 2 * (32 * 64 + 64 * 32), 2 * 32 * 32
    assert picojoules(launch) == {
        "macs": 32 * 64 * 32 * 1.0,
        "vector_ops": 32 * 32 * 2.0,
        "hbm": (read + written) * 5.0,
        "noc": 2 * (read + written) * 3.0,  # the memory's port and the PE's: PE 0 is next to its slice
        "tcm": (read + written) * 7.0,  # simple commands take their operands from TCM in the engine's own time
    }


def far(x, tl):
    """PE 0 of cube 1 takes the part of cube 0."""
    if tl.program_id(1) == 1:
        tl.load(x, (64, 64))


def kept(x, tl):
    tl.store(x, tl.load(x, (64, 64)))


def test_a_byte_pays_for_the_way_from_die_to_die_once_for_each_crossing() -> None:
    def script(torch):
        x = torch.zeros((64, 64), dtype="f16", dp=DPPolicy(cube="replicate", pe="replicate", num_pes=1, num_cubes=1))
        torch.launch("far", far, x, target_cubes=(0, 1), target_pes=(0,))

    two = {"sip.cube_mesh.w": 2, "energy.pj_per_byte.ucie": 11.0}
    (launch,) = energy_of(run(script, OWN | two)).launches
    assert picojoules(launch)["ucie"] == 64 * 64 * 2 * 11.0  # what the request weighs is nothing
    assert picojoules(launch)["hbm"] == 64 * 64 * 2 * 5.0


def test_bytes_of_sram_pay_for_it_and_for_no_hbm() -> None:
    def script(torch):
        dp = DPPolicy(cube="replicate", pe="replicate", num_pes=1, num_cubes=1)
        x = torch.zeros((64, 64), dtype="f16", dp=dp, space="sram")
        torch.launch("kept", kept, x, target_pes=(0,))

    (launch,) = energy_of(run(script, OWN | {"energy.pj_per_byte.sram": 13.0})).launches
    assert picojoules(launch)["sram"] == 2 * 64 * 64 * 2 * 13.0  # read, and written
    assert "hbm" not in launch.joules


def test_the_run_counts_what_the_host_moved_too() -> None:
    found = energy_of(run(bench, OWN))
    (launch,) = found.launches
    assert picojoules(found.run)["hbm"] >= picojoules(launch)["hbm"]
    assert found.run.joules["macs"] == launch.joules["macs"]
    assert launch.average_w == pytest.approx(launch.total_j / (launch.span_ns * 1e-9))
    assert found.peak_w == max(found.run.average_w, launch.average_w)


def test_energy_is_the_same_over_fast_paths() -> None:
    fast, tiles = (energy_of(run(composite_bench, OWN, fast=fast)) for fast in (True, False))
    assert fast == tiles
    assert picojoules(fast.launches[0])["macs"] == 256.0**3


def test_static_power_is_drawn_by_every_block_all_the_time() -> None:
    result = run(bench, OWN | {"energy.static_w.pe_gemm": 0.5})
    assert energy_of(result).run.joules["static"] == pytest.approx(8 * 0.5 * result.total_ns * 1e-9)


def test_work_without_a_coefficient_is_named_and_not_counted() -> None:
    found = energy_of(run(bench, {})).run
    assert found.not_counted == ("energy.static_w",)
    assert "static" not in found.joules


def test_a_hop_has_a_shipped_coefficient() -> None:
    """11.16 pJ for 8 bytes over a router and its wire, as measured on Piton."""
    (launch,), (by_own,) = energy_of(run(bench, {})).launches, energy_of(run(bench, OWN)).launches
    assert launch.joules["noc"] == pytest.approx(by_own.joules["noc"] / 3.0 * 11.16 / 8, rel=0.01)


def test_hbm_that_stands_for_sram_takes_its_energy() -> None:
    (launch,) = energy_of(run(bench, OWN | {"area.hbm_place": "sram", "energy.pj_per_byte.hbm": None})).launches
    read, written = 2 * (32 * 64 + 64 * 32), 2 * 32 * 32
    assert launch.joules["sram"] == pytest.approx((read + written) * 14e-12 / 8)
    assert "hbm" not in launch.joules


def test_the_area_is_that_of_the_dies_and_of_their_blocks() -> None:
    area = area_of(
        load_topology(
            None, ONE_CUBE | {"area.mm2.pe_gemm": 0.25, "area.mm2_per_mib.tcm": 0.5, "area.mm2_per_gbs.tcm": 0.0}
        )
    )
    assert area.dies_mm2 == 14 * 14 + 10 * 4
    assert area.blocks_mm2["pe_gemm"] == 8 * 0.25
    assert area.blocks_mm2["tcm"] == 8 * 2 * 0.5
    assert "area.mm2.m_cpu" in area.not_counted
    assert "area.mm2.pe_gemm" not in area.not_counted


def test_the_range_of_energy_takes_every_coefficient_at_its_end() -> None:
    found = energy_of(run(bench, {})).run
    assert found.low_j < found.total_j < found.high_j
    exact = energy_of(run(bench, OWN)).run
    assert exact.low_j == pytest.approx(exact.total_j)
    assert exact.high_j == pytest.approx(exact.total_j)


def test_every_shipped_coefficient_has_a_source_and_lies_in_its_range_and_is_a_key_of_the_machine() -> None:
    spec = load_topology().spec
    for key, shipped in shipped_coefficients().items():
        assert shipped.low <= shipped.value <= shipped.high
        assert shipped.source
        assert shipped.how
        assert shipped.node
        assert coefficient_of(spec, key) == shipped


def test_a_machines_own_coefficient_wins_over_the_shipped_one() -> None:
    own = coefficient_of(load_topology(None, {"energy.pj_per_byte.hbm": 20.0}).spec, "energy.pj_per_byte.hbm")
    assert own is not None
    assert (own.value, own.source) == (20.0, "the machine's description")
