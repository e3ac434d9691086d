"""The bench `pe2pe`: what messages cost against plain DMA, near and far."""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.benches.pe2pe import point
from kernbench.benches.registry import resolve
from kernbench.common.errors import UsageError
from kernbench.report.run_figures import rows_of
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.topology import load_topology

HOPS = ["same cube", "same cube, vertical", "next cube", "next cube, vertical", "far cube", "other SIP"]
Row = dict[str, float]


@cache
def rows(n_slots: int = 4, buffer_kind: str = "tcm", credit: str = "posted") -> dict[tuple[str, int], Row]:
    params = {"n_slots": n_slots, "buffer_kind": buffer_kind, "factor": 16}
    options = RunOptions(device="whole", verify_data=True)
    machine = load_topology(None, {"cube.pe_template.components.pe_ipcq.attrs.credit": credit})
    result = run_bench(resolve("pe2pe").run, machine, options, name="pe2pe", params=params)
    assert result.ok
    assert len(result.data) == 2 * len(HOPS) * 3  # messages and DMA, of 256 bytes, 4 KiB and 64 KiB
    found = rows_of(result)
    return {(str(row["hop"]), int(str(row["size_bytes"]))): row for row in found}  # type: ignore[misc]  # rows of a bench are plain dicts


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
def test_a_row_for_each_hop_and_size() -> None:
    assert list(rows()) == [(hop, nbytes) for hop in HOPS for nbytes in (256, 4096, 65536)]


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
@pytest.mark.parametrize("hop", HOPS)
def test_a_small_message_is_there_before_a_store_is_acknowledged(hop: str) -> None:
    row = rows()[hop, 256]
    assert row["send_ns"] < row["store_ns"]
    assert row["send_recv_ns"] < row["store_load_ns"]


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
@pytest.mark.parametrize("hop", HOPS)
def test_reading_the_slot_is_what_consumption_adds_to_a_message_of_one_slot(hop: str) -> None:
    # 256 bytes at 512 GB/s are 0.5 ns, 4 KiB are 8 ns.
    for nbytes, slot_ns in ((256, 0.5), (4096, 8.0)):
        row = rows()[hop, nbytes]
        assert row["send_recv_ns"] - row["send_ns"] == pytest.approx(slot_ns)


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
@pytest.mark.parametrize("hop", HOPS[:-1])
def test_with_blocking_credits_a_message_costs_at_least_as_much_as_a_store(hop: str) -> None:
    """A receive waits for its credit as a store does for its acknowledgement, over the same path, and it wakes."""
    for nbytes in (256, 4096, 65536):
        blocking, posted = rows(credit="blocking")[hop, nbytes], rows()[hop, nbytes]
        assert blocking["send_ns"] >= blocking["store_ns"] == posted["store_ns"]
        assert blocking["send_ns"] > posted["send_ns"]


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
def test_far_away_four_slots_are_too_few_to_keep_the_way_full() -> None:
    # Over 6 cubes a credit comes back later than 4 slots of 4 KiB take to leave at 128 GB/s: DMA, which has no slots,
    # is faster, and so are messages with 32 slots.
    assert rows()["far cube", 65536]["send_ns"] > 1.5 * rows()["far cube", 65536]["store_ns"]
    assert rows(32)["far cube", 65536]["send_ns"] < rows()["far cube", 65536]["send_ns"] / 1.5
    assert rows(32)["same cube", 65536]["send_ns"] == pytest.approx(rows()["same cube", 65536]["send_ns"], rel=0.05)


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
def test_rings_elsewhere_than_in_tcm_are_slower() -> None:
    for hop in HOPS:
        assert rows(buffer_kind="sram")[hop, 4096]["send_recv_ns"] > rows()[hop, 4096]["send_recv_ns"]


def test_physical_addresses_reach_no_other_pe() -> None:
    graph = load_topology(None, {"system.address_model": "pa", "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
    with pytest.raises(UsageError, match="needs virtual or logical addresses"):
        run_bench(resolve("pe2pe").run, graph, RunOptions(device="whole"), name="pe2pe")


@pytest.mark.needs("addresses", reason="it stores to the memories of other PEs")
@pytest.mark.parametrize("mode", ["n_to_one", "one_to_one"])
@pytest.mark.parametrize("hop", ["next cube", "other SIP"])
def test_bytes_of_rings_in_hbm_are_the_launchs_that_sends_them_also_when_they_land_after_its_end(
    hop: str, mode: str
) -> None:
    """64 KiB: sent they are written once; received they are read too; stored they are written again. With one_to_one a
    kernel ends while some of the eight requests of a chunk have landed.
    """
    changes = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.memory_map.hbm_mapping_mode": mode}
    machine = load_topology(None, changes)
    params = {"hop": hop, "size_bytes": 65536, "buffer_kind": "hbm"}
    result = run_bench(point, machine, RunOptions(device="whole"), params=params)
    moved = {launch.name: launch.bytes_hbm for launch in result.launches}
    assert moved == {"send": 65536, "send_recv": 2 * 65536, "send_recv_store": 3 * 65536, "store": 65536, "load": 65536}
    assert all(launch.bytes_hbm_requested == launch.bytes_hbm for launch in result.launches)
    senders = {launch.name: launch.pes[0].bytes_hbm for launch in result.launches}  # nothing that landed later
    assert senders == {"send": 65536, "send_recv": 65536, "send_recv_store": 65536, "store": 65536, "load": 65536}
