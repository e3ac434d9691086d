"""Collectives on SIPs that are joined directly: numbers are right, fast paths change nothing, neighbours are near."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench

ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1}}
PACKETS = {"header_bytes": 298, "payload_bytes": 6144}
PORT = {"kind": "sip_port", "impl": "builtin.sip_port", "attrs": {"overhead_ns": 250.0}}
SLOTS = {**PORT, "attrs": {"overhead_ns": 250.0, "slots": 1, "credit_ns": 300.0}}
CUT_THROUGH = {**PORT, "impl": "builtin.forwarding"}
LINKS = {"bw_gbs": 12.5, "distance_mm": 0.0, "port": PORT}
RING = {**ONE_CUBE, "system.sips.count": 4, "system.sips.links": {**LINKS, **PACKETS}}
LINE = {**RING, "system.sips.topology": "mesh_2d_no_wrap", "system.sips.w": 4, "system.sips.h": 1}

BUFFERS = {**RING, "fabric.buffers": {"slots": 2, "credit_ns": 8.0}}


def collectives(torch: Any, *, n: int) -> None:
    def worker(rank: int) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm")
        for _ in range(3):
            total = torch.full((n,), float(rank + 1))
            dist.all_reduce(total)
            np.testing.assert_array_equal(total.numpy(), np.full(n, 10.0))
        parts = torch.zeros(n)
        dist.all_gather_into_tensor(parts, torch.full((n // 4,), float(rank)))
        np.testing.assert_array_equal(parts.numpy(), np.repeat(np.arange(4.0), n // 4))
        own = torch.zeros(n // 4)
        dist.reduce_scatter_tensor(own, torch.full((n,), float(rank)))
        np.testing.assert_array_equal(own.numpy(), np.full(n // 4, 6.0))
        swapped = torch.zeros(n)
        dist.all_to_all_single(swapped, torch.full((n,), float(rank)))
        np.testing.assert_array_equal(swapped.numpy(), np.repeat(np.arange(4.0), n // 4))

    torch.multiprocessing.spawn(worker, nprocs=4)


def with_port(machine: dict[str, object], port: dict[str, object]) -> dict[str, object]:
    return {**machine, "system.sips.links": {**LINKS, **PACKETS, "port": port}}


@pytest.mark.parametrize(
    ("machine", "n"),
    [(RING, 2048), (LINE, 2048), (with_port(RING, CUT_THROUGH), 2048), (with_port(LINE, SLOTS), 2048), (BUFFERS, 512)],
    ids=["ring", "line", "flits are passed on", "one slot", "finite buffers"],
)
def test_collectives_are_right_and_the_fast_paths_change_nothing(machine: dict[str, object], n: int) -> None:
    assert kernbench.run(collectives, overrides=machine, params={"n": n}, device="whole", check_fast=True).ok


def copy_from(rank: int) -> Any:
    """SIP 0 sends a tensor to another one."""

    def program(torch: Any) -> None:
        def worker(own: int) -> None:
            torch.distributed.init_process_group("ahbm")
            tensor = torch.full((8192,), float(own))
            if own == 0:
                torch.distributed.send(tensor, rank)
            elif own == rank:
                torch.distributed.recv(tensor, 0)
                np.testing.assert_array_equal(tensor.numpy(), np.zeros(8192))

        torch.multiprocessing.spawn(worker, nprocs=4)

    return program


def total_ns(machine: dict[str, object], rank: int) -> float:
    return float(kernbench.run(copy_from(rank), overrides=machine, device="whole").total_ns)


def test_a_sip_that_is_farther_away_takes_longer_by_what_the_hops_take() -> None:
    near, middle, far = (total_ns(LINE, rank) for rank in (1, 2, 3))
    assert near < middle < far
    assert far - middle == pytest.approx(middle - near, rel=0.05)
    assert total_ns(RING, 3) == pytest.approx(total_ns(RING, 1), rel=0.02)  # the other way round


def test_headers_of_packets_take_their_share_of_a_link() -> None:
    bare = {**LINE, "system.sips.links": LINKS}
    assert total_ns(bare, 1) < total_ns(LINE, 1) < 1.06 * total_ns(bare, 1)


def test_a_port_that_stores_packets_is_slower_than_one_that_passes_flits_on() -> None:
    assert total_ns(with_port(LINE, CUT_THROUGH), 3) < total_ns(LINE, 3)


def test_few_slots_at_the_far_end_slow_a_link_down() -> None:
    """Messages of 4 KiB, one slot: the next one departs when the one before has left the far end, and 300 ns later."""
    free, one = total_ns(LINE, 1), total_ns(with_port(LINE, SLOTS), 1)
    wire_ns = 4096 * (6144 + 298) / 6144 / 12.5
    messages = 8192 * 2 // 4096
    assert one - free > (messages - 1) * (300.0 + 250.0)  # credit and the overhead of the far port, each time
    assert one < messages * (wire_ns + 2 * 250.0 + 300.0 + 100.0) + free
