"""How long collectives take, against the textbook: bytes over the narrowest link for large messages, hops for small
ones, as ratios with stated margins. The narrowest link between SIPs is PCIe: 128 GB/s each way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

import kernbench
from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import EVERY_PE, MeasuredCollective, WantedCollective
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.work import LaunchedWork
from kernbench.topology import load_topology

PCIE_GBS = 128.0
RANKS = 4
FOUR: Mapping[str, Any] = {"system.sips.count": RANKS, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
LONE_PE: Mapping[str, Any] = {
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.corners": ["NW"],
    "cube.pe_layout.pe_per_corner": 1,
}


def time_ns(
    collective: MeasuredCollective,
    nbytes: int,
    machine: Mapping[str, Any],
    algorithm: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> float:
    """Of one collective of so many bytes, of which every PE of every rank has a part."""
    graph = load_topology(None, dict(machine))
    wanted = WantedCollective(collective, nbytes, "f16")
    return measure_alone(graph, wanted, algorithm=algorithm, settings=settings, check=False).time_ns


# -------------------------------------------------------------------------------------------------- large: bandwidth


@cache
def large_ns(collective: MeasuredCollective, nbytes: int, algorithm: str | None) -> float:
    return time_ns(collective, nbytes, FOUR, algorithm)


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize(
    ("collective", "algorithm", "share", "margin"),
    [
        ("all_reduce", "ring_allreduce", 2 * 3 / 4, 1.10),
        ("all_reduce", "hierarchical_all_pes", 2 * 3 / 4, 1.12),
        ("all_gather", None, 3 / 4, 1.20),  # about 0.5 us above the bound, whatever the size
        ("reduce_scatter", None, 3 / 4, 1.20),
        ("all_to_all", None, 3 / 4, 1.25),
        ("gather", None, 3 / 4, 1.20),
        ("scatter", None, 3 / 4, 1.20),
        ("broadcast", None, 1, 1.25),  # three hops to fill the chain
        ("reduce", None, 1, 1.25),
    ],
)
def test_large_messages_approach_the_textbook_bound(
    collective: MeasuredCollective, algorithm: str | None, share: float, margin: float
) -> None:
    """In an all-reduce of n ranks, each sends 2 (n - 1) / n of the bytes over its link, and so on."""
    nbytes = 512 * 1024
    bound_ns = share * nbytes / PCIE_GBS
    assert bound_ns < large_ns(collective, nbytes, algorithm) < margin * bound_ns


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "hierarchical_all_pes"])
def test_what_is_above_the_bound_does_not_grow_with_the_message(algorithm: str) -> None:
    """Time is a + bytes x b, and b is the bound's: doubling the message adds what the bound adds, to 4 %."""
    sizes = (256 * 1024, 512 * 1024)
    small, large = (large_ns("all_reduce", nbytes, algorithm) for nbytes in sizes)
    assert large - small == pytest.approx(1.5 * (sizes[1] - sizes[0]) / PCIE_GBS, rel=0.04)


def test_two_sips_exchange_large_tensors_at_the_speed_of_pcie() -> None:
    """A message each way at once, every PE its own part: within 12 % of bytes / 128 GB/s. One after the other they
    would take twice as long.
    """
    nbytes = 1024 * 1024

    def program(torch: RuntimeContext) -> float:
        def worker(rank: int) -> None:
            dist = torch.distributed
            x, y = (torch.empty(nbytes // 2, dtype="f16", dp=EVERY_PE) for _ in range(2))
            dist.barrier()
            works = [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]
            for work in works:
                work.wait()

        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(worker, nprocs=2)
        pes = [pe for launch in torch.launches if launch.name in ("send.p2p", "recv.p2p") for pe in launch.pes]
        return max(pe.end_ns for pe in pes) - min(pe.start_ns for pe in pes)

    machine = {**FOUR, "system.sips.count": 2}
    (took,) = kernbench.run(program, overrides=machine, device="whole", data=False).returned
    assert isinstance(took, float)
    assert nbytes / PCIE_GBS < took < 1.12 * nbytes / PCIE_GBS


# ------------------------------------------------------------------------------------------------------ small: hops


@cache
def small_ns(algorithm: str, ranks: int, switch_ns: float = 5.0) -> float:
    """An all-reduce of 8 bytes, which is one element for each of a few ranks and one message per step."""
    machine = {**LONE_PE, "system.sips.count": ranks, "system.switch.attrs.overhead_ns": switch_ns}
    return time_ns("all_reduce", 8, machine, algorithm)


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        ("recursive_doubling", 3),  # log2 n
        ("ring_allreduce", 14),  # 2 (n - 1)
        ("tree", 6),  # 2 log2 n: up, and down
        ("lrab_hierarchical_allreduce", 7),  # everybody's value goes once round the ring: n - 1
        ("hierarchical_all_pes", 1),  # all with all, whole: what is larger goes in pieces, there and back
    ],
)
def test_small_messages_cost_one_latency_per_round(algorithm: str, rounds: int) -> None:
    """Every message crosses the switch once: of a switch that is 100 ns slower, eight ranks see 100 ns per round."""
    assert small_ns(algorithm, 8, 105.0) - small_ns(algorithm, 8) == pytest.approx(100.0 * rounds, abs=1.0)


def test_a_round_takes_as_long_in_every_algorithm_and_on_every_number_of_ranks() -> None:
    """Recursive doubling has one round more for twice the ranks, and a ring 2 n more; to 3 %."""
    doubling = [small_ns("recursive_doubling", ranks) for ranks in (2, 4, 8, 16)]
    per_round = doubling[1] - doubling[0]
    assert [b - a for a, b in pairwise(doubling)] == pytest.approx([per_round] * 3, rel=0.03)
    for ranks in (2, 4):
        more = small_ns("ring_allreduce", 2 * ranks) - small_ns("ring_allreduce", ranks)
        assert more / (2 * ranks) == pytest.approx(per_round, rel=0.03)


def test_few_rounds_win_for_small_messages_and_few_bytes_for_large_ones() -> None:
    assert small_ns("recursive_doubling", 8) < 0.3 * small_ns("ring_allreduce", 8)
    large = {name: large_ns("all_reduce", 256 * 1024, name) for name in ("recursive_doubling", "ring_allreduce")}
    assert large["ring_allreduce"] < 0.8 * large["recursive_doubling"]


# -------------------------------------------------------------------------------------------------- addends per cube


@cache
def test_a_burst_of_every_pe_goes_to_all_sips_in_one_round() -> None:
    """8 KiB over the 32 PEs of each of six SIPs, 256 bytes each, are not cut: 5 x 8 KiB leave each SIP in 320 ns. In
    two rounds one SIP would reduce all of them, and send the sums to all.
    """
    machine = {"system.sips.count": 6, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
    assert time_ns("all_reduce", 8192, machine, "hierarchical_all_pes") < 320 + 300


def per_cube_ns(algorithm: str, nbytes: int, **settings: object) -> float:
    """An all-reduce of one tile per cube, on PE 0 of each, over the 4 x 4 cubes of two SIPs: the default machine."""
    ran: list[Any] = []

    def program(torch: RuntimeContext) -> None:
        def worker(rank: int) -> None:
            tiles = torch.empty(16, nbytes // 2, dtype="f16", dp=DPPolicy(cube="row_wise", num_pes=1))
            torch.distributed.barrier()
            work = torch.distributed.all_reduce(tiles, per="cube", async_op=True)
            assert isinstance(work, LaunchedWork)
            work.wait()
            ran.extend(work.launch.pes)

        torch.distributed.init_process_group("ahbm", ccl={"defaults": {"algorithm": algorithm, **settings}})
        torch.multiprocessing.spawn(worker, nprocs=2)

    kernbench.run(program, device="whole", data=False)
    return max(pe.end_ns for pe in ran) - min(pe.start_ns for pe in ran)


@pytest.mark.parametrize("nbytes", [128, 4096])
def test_a_root_in_the_center_beats_one_in_the_corner(nbytes: int) -> None:
    """The longest way in a 4 x 4 mesh is 4 hops to the center and 6 to the corner, there and back."""
    center, corner = (per_cube_ns("lrab_hierarchical_allreduce", nbytes, root=root) for root in ("center", "corner"))
    assert 0.6 < center / corner < 0.85


def test_slots_in_tcm_beat_those_in_hbm_and_those_beat_sram() -> None:
    """A slot in SRAM or HBM is a trip away, and the SRAM's router link has half the bandwidth of an HBM slice's."""
    tcm, hbm, sram = (
        per_cube_ns("lrab_hierarchical_allreduce", 16384, buffer_kind=kind) for kind in ("tcm", "hbm", "sram")
    )
    assert 1.2 * tcm < hbm
    assert 1.05 * hbm < sram


@pytest.mark.needs("addresses", reason="PEs share the work on parts of others")
def test_all_pes_together_beat_one_per_cube_for_large_messages() -> None:
    one, all_of_them = (per_cube_ns(name, 65536) for name in ("lrab_hierarchical_allreduce", "hierarchical_all_pes"))
    assert 2.0 * all_of_them < one
