"""Collectives on SIPs in several trays: numbers are right, fast paths change nothing, a farther tray takes longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench

SMALL = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2}}
LEVEL = {"count": 2, "bw_gbs": 32.0, "distance_mm": 2000.0}
TRAYS = {**SMALL, "system.sips.count": 4, "system.switch_levels": {"tray": LEVEL}}
BUFFERS = {**TRAYS, "fabric.buffers": {"slots": 2, "credit_ns": 8.0}}
PACKETS = {**TRAYS, "system.switch_levels": {"tray": {**LEVEL, "header_bytes": 20, "payload_bytes": 236}}}


def collectives(torch: Any) -> None:
    def worker(rank: int) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm")
        groups = [(pair, dist.new_group(list(pair))) for pair in ((0, 1), (2, 3), (1, 2), (0, 3))]
        for _ in range(2):
            total = torch.full((4096,), float(rank + 1))
            dist.all_reduce(total)
            np.testing.assert_array_equal(total.numpy(), np.full(4096, 10.0))
        for pair, group in groups:  # within a tray, and across both
            if rank in pair:
                both = torch.full((2048,), float(rank))
                dist.all_reduce(both, group=group)
                np.testing.assert_array_equal(both.numpy(), np.full(2048, float(sum(pair))))
        swapped = torch.zeros(4096)
        dist.all_to_all_single(swapped, torch.full((4096,), float(rank)))
        np.testing.assert_array_equal(swapped.numpy(), np.repeat(np.arange(4.0), 1024))

    torch.multiprocessing.spawn(worker, nprocs=4)


@pytest.mark.parametrize("machine", [TRAYS, PACKETS, BUFFERS], ids=["trays", "packets", "finite buffers"])
def test_collectives_are_right_and_the_fast_paths_change_nothing(machine: dict[str, object]) -> None:
    assert kernbench.run(collectives, overrides=machine, device="whole", check_fast=True).ok


def sent_ns(machine: dict[str, object], rank: int) -> float:
    """How long a tensor of one flit takes from SIP 0 to another."""

    def program(torch: Any) -> None:
        def worker(own: int) -> None:
            torch.distributed.init_process_group("ahbm")
            tensor = torch.full((64,), float(own), dtype="f32")
            if own == 0:
                torch.distributed.send(tensor, rank)
            elif own == rank:
                torch.distributed.recv(tensor, 0)
                np.testing.assert_array_equal(tensor.numpy(), np.zeros(64))

        torch.multiprocessing.spawn(worker, nprocs=4)

    return float(kernbench.run(program, overrides=machine, device="whole").total_ns)


def test_another_tray_is_farther_by_two_switches_and_two_links() -> None:
    """Each link takes 256 bytes / 32 GB/s = 8 ns, and 2,000 mm of wire 200 ns; each switch 5 ns. The credit comes after
    the end of the run.
    """
    assert sent_ns(TRAYS, 2) - sent_ns(TRAYS, 1) == pytest.approx(2 * (8.0 + 200.0 + 5.0))


def gathered_ns(algorithm: str) -> tuple[str, float]:
    """An all-gather of 32 KiB over two trays: the algorithm that was taken, and the time of its slowest rank."""

    def program(torch: Any) -> None:
        def worker(rank: int) -> None:
            torch.distributed.init_process_group("ahbm", ccl={"collectives": {"all_gather": algorithm}})
            own, all_of = torch.full((4096,), float(rank), dtype="f16"), torch.zeros(4 * 4096, dtype="f16")
            torch.distributed.all_gather_into_tensor(all_of, own)
            np.testing.assert_array_equal(all_of.numpy(), np.repeat(np.arange(4.0), 4096))

        torch.multiprocessing.spawn(worker, nprocs=4)

    result = kernbench.run(program, overrides=TRAYS, device="whole", check_fast=True)
    launches = [launch for launch in result.launches if launch.name.startswith("all_gather")]
    return launches[0].name.rpartition(".")[2], max(launch.exec_ns for launch in launches)


def test_auto_takes_a_ring_where_the_link_of_a_tray_is_slow() -> None:
    """Around a ring, 3 / 4 of 32 KiB leave a tray; all with all, its two ranks send their 8 KiB to two others each."""
    (name, auto_ns), (_, ring_ns), (_, direct_ns) = map(gathered_ns, ("auto", "ring_all_gather", "direct"))
    assert name == "ring_all_gather"
    assert auto_ns == ring_ns < direct_ns
