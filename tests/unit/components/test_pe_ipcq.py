"""Messages between PEs: times by hand, credits, waiting, and what the op log says.

PE 0 and PE 1 of a cube stand at neighbouring routers, and wires take no time. What a message of 4 KiB, one slot, costs:

    leaves PE 0           4096 / 256                                                  16
    last flit to PE 1     2 routers x 2, then 2 links of 256 / 256 and 256 / 512       6.5
    slot is written       4096 / 512                                                   8
    PE 1 wakes            if it was waiting                                           10
    slot is read          4096 / 512                                                   8

A credit is a control message: 2 routers x 2, and no link is occupied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernbench.common.dtypes import DTYPES
from kernbench.common.errors import LaunchError
from kernbench.components.builtin.ipcq_rings import SlotTier, noticed_ns
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.topology import TopologyGraph, load_topology

SLOT = 4096
LEAVES, TRAVELS, WRITTEN, WAKES, READ = 16.0, 6.5, 8.0, 10.0, 8.0
ARRIVES = LEAVES + TRAVELS + WRITTEN  # 30.5
CREDIT = 2 * 2.0


@cache
def machine(**changes: object) -> TopologyGraph:
    quiet = {"system.sips.count": 1, "system.ns_per_mm": 0.0, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
    return load_topology(None, {**quiet, **{key.replace("__", "."): value for key, value in changes.items()}})


IPCQ = "cube__pe_template__components__pe_ipcq__attrs__"
DMA = "cube__pe_template__components__pe_dma__attrs__"


@dataclass
class Run:
    """What a launch left: its log, with times from the start of its kernels."""

    launch: Launch
    log: OpLog
    engine: GraphEngine
    start_ns: float

    def ops(self, name: str, pe: str = "") -> list[OpRecord]:
        return [each for each in self.log.records if each.op_name == name and each.component_id.startswith(pe)]

    def times(self, name: str, pe: str = "") -> list[tuple[float, float]]:
        return [(each.t_start - self.start_ns, each.t_end - self.start_ns) for each in self.ops(name, pe)]

    @property
    def sends(self) -> list[tuple[float, float]]:
        return self.times("ipcq_send")

    @property
    def recvs(self) -> list[tuple[float, float]]:
        return self.times("ipcq_recv")


def run(
    kernel: Callable[..., object],
    *args: object,
    pes: int = 2,
    cubes: Any = 1,
    on: TopologyGraph | None = None,
    **rings: Any,
) -> Run:
    log = OpLog()
    engine = GraphEngine(on or machine(), op_log=log)
    with RuntimeContext(engine) as torch:
        torch.install_ipcq(**rings)
        given = [torch.from_numpy(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        targets = range(cubes) if isinstance(cubes, int) else cubes
        launch = torch.launch(kernel, *given, target_pes=range(pes), target_cubes=targets)
    return Run(launch, log, engine, min(result.start_ns for result in launch.pes))


def tensor(tl: Any, nbytes: int) -> Any:
    return tl.full((nbytes,), 1, "i8")


def one_message(nbytes: int = SLOT, sent_at: int = 0, received_at: int = 0) -> Callable[..., None]:
    """PE 0 to PE 1."""

    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.cycles(sent_at)
            tl.send("intra_E", tensor(tl, nbytes))
        else:
            tl.cycles(received_at)
            tl.recv("intra_W", (nbytes,), "i8")

    return kernel


def messages(count: int, nbytes: int = SLOT, paused: int = 0) -> Callable[..., None]:
    """One after the other from PE 0 to PE 1, which begins to receive after a pause."""

    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            sent = tensor(tl, nbytes)
            for _ in range(count):
                tl.send("intra_E", sent)
        else:
            tl.cycles(paused)
            for _ in range(count):
                tl.recv("intra_W", (nbytes,), "i8")

    return kernel


# ---- one message


def test_a_send_is_over_when_its_last_byte_has_left_and_a_receive_when_its_slot_is_read() -> None:
    one = run(one_message())
    assert one.sends == [(0, LEAVES)]
    assert one.recvs == [(ARRIVES + WAKES, ARRIVES + WAKES + READ)] == [(40.5, 48.5)]


def test_a_send_to_another_sip_is_over_when_its_last_byte_has_left_the_senders_sip() -> None:
    two = machine(system__sips__count=2, sip__cube_mesh__w=1)

    def took(nbytes: int, slot_size: int) -> tuple[float, GraphEngine]:
        def kernel(tl: Any) -> None:
            if tl.physical_id(2) == 0:
                tl.send("rank_1", tensor(tl, nbytes))
            else:
                tl.recv("rank_0", (nbytes,), "i8")

        log = OpLog()
        engine = GraphEngine(two, op_log=log)
        with RuntimeContext(engine) as torch:
            torch.install_ipcq(slot_size=slot_size, n_slots=2)
            torch.launch(kernel, sips=(0, 1), target_cubes=(0,), target_pes=(0,))
        sent = next(each for each in log.records if each.op_name == "ipcq_send")
        return sent.t_end - sent.t_start, engine

    # One flit: every link and node up to the endpoint, then the link of 128 GB/s that leaves the SIP.
    one_flit, engine = took(256, 4096)
    network, path = engine.fabric.network, engine.router.find_path("sip0.cube0.pe0", "sip1.cube0.pe0.pe_tcm")
    exit_at = next(at for at, node in enumerate(path) if node.endswith("pcie_ep"))
    inside = network.route(path[: exit_at + 1])
    assert one_flit == sum(network.flit_ns[link] + network.tail_ns[link] for link in inside.links) + 256 / 128

    whole, _ = took(1 << 18, 1 << 17)  # two slots of 128 KiB
    assert whole > (1 << 18) / 128 == 2048


def test_a_message_that_is_here_already_is_read_at_once() -> None:
    assert run(one_message(received_at=100)).recvs == [(100, 108)]
    assert run(one_message(received_at=31)).recvs == [(31, 39)]
    assert run(one_message(received_at=30)).recvs == [(40.5, 48.5)]  # half a nanosecond early: it has to wake


def test_a_message_that_comes_at_the_very_instant_of_asking_was_not_waited_for() -> None:
    # 16 + 6.5 + 8 is half a nanosecond off the cycles: send at a later, odd time instead.
    late = {f"{IPCQ}tcm_gbs": 4096 / 8.5}  # the slot takes 8.5 ns, so that 31 ns are whole cycles
    assert run(one_message(received_at=31), on=machine(**late)).recvs == [(31, 39.5)]


def test_short_messages_take_the_latency() -> None:
    # 64 bytes: 3 links x 64 / 256, 64 / 512, 2 routers x 2; the slot 64 / 512.
    short = run(one_message(64))
    assert short.sends == [(0, 0.25)]
    arrives = 3 * 0.25 + 0.125 + 4 + 0.125
    assert short.recvs == [(arrives + WAKES, arrives + WAKES + 0.125)]


def test_an_empty_message_is_as_long_as_a_credit_and_takes_a_slot() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.full((0, 3), 1, "f16"))
        else:
            assert tl.recv("intra_W", (0, 3), "f16").shape == (0, 3)

    empty = run(kernel)
    assert empty.sends == [(0, 16 / 256)]
    travels = 3 * 16 / 256 + 16 / 512 + 2 * 2  # three links, the port of the TCM, two routers
    assert empty.recvs == [(travels + 16 / 512 + WAKES, travels + 2 * 16 / 512 + WAKES)]
    assert [(op.params["nbytes"], op.params["chunks"]) for op in empty.ops("ipcq_send")] == [(0, 1)]


def test_engines_may_take_time_of_their_own() -> None:
    slow = machine(**{f"{IPCQ}overhead_ns": 3.0, f"{DMA}overhead_ns": 5.0})
    # The send's IPCQ 3, DMA 5, and the DMA engine of PE 1, which its messages pass on the way to its TCM, 5 more.
    at = run(one_message(), on=slow)
    assert at.sends == [(3, 3 + 5 + LEAVES)]
    assert at.recvs[0][0] == 3 + 5 + ARRIVES + 5 + WAKES


def test_a_slot_costs_bytes_over_bandwidth_and_a_latency() -> None:
    assert SlotTier(512.0, 0.0).access_ns(4096) == 8
    assert SlotTier(256.0, 6.0).access_ns(4096) == 22


# ---- the memory that slots lie in


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_slots_in_hbm_pay_their_channels_their_tier_and_the_way_between_memory_and_pe() -> None:
    # There: leaves 16, 2 routers x 2, 2 links x 1, and a burst of 8 on its channel: 30. Written: 4096 / 256 + 6. The
    # notice goes back over one router: 2. Read: the request 2, a burst 8, 16 flits and a router 2, a link 1; then the
    # tier again.
    arrives, tier = 16 + 4 + 2 + 8, 22
    at = arrives + tier + 2 + WAKES
    assert run(one_message(), buffer_kind="hbm").recvs == [(at, at + 2 + 8 + 16 + 2 + 1 + tier)]


def test_slots_in_sram_pay_its_narrow_link_twice() -> None:
    # There: 4 links x 1 and 4 routers x 2 to the SRAM's link, 16 flits of 2 ns, and the SRAM 2. Written: 4096 / 512 and
    # 2. The notice goes back over 5 routers. Read: the request 5 x 2 + 2, 16 flits of 2 ns, 5 routers and 5 links back,
    # and the tier again.
    arrives, tier = 4 + 8 + 32 + 2, 10
    at = arrives + tier + 10 + WAKES
    assert run(one_message(), buffer_kind="sram").recvs == [(at, at + 12 + 32 + 15 + tier)]


@pytest.mark.parametrize("direction", ["intra_E", "E"])
def test_for_large_payloads_tcm_beats_hbm_and_hbm_beats_sram_on_the_default_machine(direction: str) -> None:
    def kernel(tl: Any) -> None:
        back = {"E": "W", "intra_E": "intra_W"}[direction]
        for _ in range(2):
            if tl.physical_id(0) == 0 and tl.physical_id(1) == 0:
                tl.send(direction, tensor(tl, 1 << 18))
            elif tl.peer(back) == (0, 0, 0):
                tl.recv(back, (1 << 18,), "i8")

    default = load_topology(None, {"system.sips.count": 1})
    took = [run(kernel, cubes=2, on=default, buffer_kind=kind).launch.exec_ns for kind in ("tcm", "hbm", "sram")]
    assert took[0] < took[1] < took[2]


def test_hbm_slots_share_the_channels_of_their_slice_with_other_traffic() -> None:
    def kernel(x: Any, is_busy: int, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tensor(tl, SLOT))
        else:
            loaded = tl.load_async(x.local, (1 << 16,), "i8") if is_busy else None  # 256 ns of its own slice
            tl.recv("intra_W", (SLOT,), "i8")
            if loaded is not None:
                tl.wait(loaded)

    log = OpLog()
    with RuntimeContext(GraphEngine(machine(), op_log=log)) as torch:
        torch.install_ipcq(buffer_kind="hbm")
        x = torch.zeros(2, 1 << 16, dtype="i8", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
        for is_busy in (0, 1):
            torch.launch(kernel, x, is_busy)
    alone, busy = [op.t_end - op.t_asked for op in log.records if op.op_name == "ipcq_recv"]
    assert busy > alone


# ---- large messages


@pytest.mark.parametrize(("nbytes", "chunks"), [(1, 1), (4096, 1), (4097, 2), (8192, 2), (65536, 16)])
def test_a_message_is_cut_into_slots(nbytes: int, chunks: int) -> None:
    cut = run(one_message(nbytes))
    assert [op.params["chunks"] for op in (*cut.ops("ipcq_send"), *cut.ops("ipcq_recv"))] == [chunks, chunks]


def test_the_chunks_of_a_message_are_pipelined() -> None:
    # They leave every 16 ns, as fast as the port of the DMA engine is, and are read in 8. Every second one is there
    # before the one before it is read, which took 10 ns to be noticed.
    long = run(one_message(16 * SLOT))
    assert long.sends == [(0, 16 * LEAVES)]
    fifteenth = 14 * LEAVES + ARRIVES + WAKES + READ
    assert long.recvs == [(ARRIVES + WAKES, fifteenth + READ)]
    assert long.recvs[0][1] < 0.4 * 16 * (ARRIVES + WAKES + READ)


def test_the_last_chunk_of_a_message_is_as_long_as_it_is() -> None:
    # 256 bytes more: they leave in 1, and lie there when the first slot has been noticed and read.
    two = run(one_message(SLOT + 256))
    assert two.sends == [(0, LEAVES + 1)]
    assert two.recvs == [(40.5, 48.5 + 0.5)]


def test_a_message_larger_than_its_ring_flows_through_it() -> None:
    through = run(one_message(64 * SLOT), n_slots=2)
    assert through.ops("ipcq_recv")[0].params["chunks"] == 64


def test_slots_of_other_sizes_cut_otherwise() -> None:
    assert run(one_message(SLOT), slot_size=1024).ops("ipcq_send")[0].params["chunks"] == 4
    assert run(one_message(SLOT), slot_size=65536).ops("ipcq_send")[0].params["chunks"] == 1


# ---- credits


def test_with_one_slot_every_message_waits_for_the_credit_of_the_one_before() -> None:
    # At 40.5 the first is noticed, at 48.5 taken; its credit is in 4 later and wakes the sender 10 after that.
    one_by_one = run(messages(3), n_slots=1)
    period = ARRIVES + WAKES + READ + CREDIT + WAKES
    assert one_by_one.sends == [(k * period, k * period + LEAVES) for k in range(3)]
    assert one_by_one.recvs == [(k * period + 40.5, k * period + 48.5) for k in range(3)]


def test_with_two_slots_two_are_under_way() -> None:
    two = run(messages(4), n_slots=2)
    woken = ARRIVES + WAKES + READ + CREDIT + WAKES  # by the first credit; the second, 8 ns later, is in by then
    assert [start for start, _ in two.sends] == [0, LEAVES, woken, woken + LEAVES]
    assert two.recvs[:2] == [(40.5, 48.5), (48.5, 56.5)]
    assert two.recvs[2:] == [(woken + 40.5, woken + 48.5), (woken + 48.5, woken + 56.5)]


def test_with_four_slots_credits_are_back_in_time_and_the_link_is_never_idle() -> None:
    # The fifth chunk would leave at 64: by then two credits are back.
    assert [start for start, _ in run(messages(20), n_slots=4).sends] == [k * LEAVES for k in range(20)]


def test_a_receiver_that_is_late_stalls_the_sender_at_a_full_ring() -> None:
    late = run(messages(6, paused=500), n_slots=4)
    free = 500 + READ + CREDIT + WAKES  # of the first to be read, and noticed
    assert [start for start, _ in late.sends] == [0, 16, 32, 48, free, free + LEAVES]


def test_a_large_message_stalls_in_its_middle() -> None:
    # Two chunks are on their way, the third waits for a credit; the send is over when that has left.
    stalls = run(one_message(3 * SLOT, received_at=500), n_slots=2)
    assert stalls.sends == [(0, 500 + READ + CREDIT + WAKES + LEAVES)]


def test_the_credits_of_two_neighbours_do_not_mix() -> None:
    def kernel(tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            for _ in range(8):
                tl.send_async("intra_E", tensor(tl, SLOT))
            for _ in range(8):
                tl.send_async("intra_2", tensor(tl, SLOT))
        elif me == 1:
            tl.cycles(2000)
            for _ in range(8):
                tl.recv("intra_W", (SLOT,), "i8")
        else:
            for _ in range(8):
                tl.recv("intra_0", (SLOT,), "i8")

    both = run(kernel, pes=3)
    assert max(end for _, end in both.times("ipcq_recv", "sip0.cube0.pe2")) < 1000
    assert min(start for start, _ in both.times("ipcq_recv", "sip0.cube0.pe1")) == 2000


def test_credits_do_not_wait_for_what_their_pe_sends() -> None:
    # PE 1 sends 16 KiB to PE 2 while it takes a message: its credit needs neither the channel nor the link.
    def kernel(tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            tl.send("intra_E", tensor(tl, SLOT))
            tl.send("intra_E", tensor(tl, SLOT))
        elif me == 1:
            tl.cycles(100)
            sending = tl.send_async("intra_2", tensor(tl, 4 * SLOT))
            tl.recv("intra_W", (SLOT,), "i8")
            tl.recv("intra_W", (SLOT,), "i8")
            tl.wait(sending)
        else:
            tl.recv("intra_1", (4 * SLOT,), "i8")

    # Read by 108, while the communication channel of PE 1 has four chunks of 16 ns to send from 100 on.
    stalled = run(kernel, pes=3, n_slots=1)
    second = stalled.times("ipcq_send", "sip0.cube0.pe0")[1][0]
    assert second == 100 + READ + CREDIT + WAKES


def test_with_blocking_credits_a_receive_ends_when_its_credit_has_arrived() -> None:
    blocking = machine(**{f"{IPCQ}credit": "blocking"})
    assert run(one_message(), on=blocking).recvs == [(40.5, 48.5 + CREDIT)]
    # Three chunks: they are read one after the other, and only the credit of the last is waited for.
    three, posted = run(one_message(3 * SLOT), on=blocking), run(one_message(3 * SLOT))
    assert three.recvs == [(start, end + CREDIT) for start, end in posted.recvs]
    assert three.sends == posted.sends


def test_with_blocking_credits_a_sender_that_stalls_is_released_by_the_same_receive() -> None:
    blocking = machine(**{f"{IPCQ}credit": "blocking"})
    stalled = run(messages(2), n_slots=1, on=blocking)
    second, first_receive = stalled.ops("ipcq_send")[1], stalled.ops("ipcq_recv")[0]
    assert (second.release, second.released_by) == ("credit", stalled.log.records.index(first_receive))
    assert second.t_start == first_receive.t_end + WAKES


# ---- waiting


def test_a_poll_looks_every_poll_ns_from_the_start_of_its_wait() -> None:
    assert noticed_ns("poll", 0.0, 30.5, 10.0, 4.0) == 32
    assert noticed_ns("poll", 3.0, 30.5, 10.0, 4.0) == 31
    assert noticed_ns("poll", 3.0, 31.0, 10.0, 4.0) == 31
    assert noticed_ns("sleep", 3.0, 31.0, 10.0, 4.0) == 41


def test_polling_notices_a_message_sooner_than_sleeping_does() -> None:
    assert run(one_message(), backpressure="poll").recvs == [(32, 40)]
    assert run(one_message(received_at=3), backpressure="poll").recvs == [(31, 39)]
    assert run(one_message(), backpressure="sleep").recvs == [(40.5, 48.5)]


def test_senders_poll_for_credits_too() -> None:
    # Taken at 40, the credit is in at 44, when the sender, which looks since 16, looks again. And so on every 44 ns.
    polled = run(messages(3), n_slots=1, backpressure="poll")
    assert [start for start, _ in polled.sends] == [0, 44, 88]


def test_how_long_waking_and_polling_take_is_the_machines() -> None:
    slow = machine(**{f"{IPCQ}wake_ns": 100.0, f"{IPCQ}poll_ns": 50.0})
    assert run(one_message(), on=slow).recvs == [(ARRIVES + 100, ARRIVES + 108)]
    assert run(one_message(), on=slow, backpressure="poll").recvs == [(50, 58)]


# ---- several things at a time


def test_messages_do_not_wait_for_loads_that_are_under_way() -> None:
    def kernel(x: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            loaded = tl.load_async(x, (1 << 18,), "i8")  # 1024 ns of the DMA engine's read channel
            tl.send("intra_E", tensor(tl, SLOT))
            tl.wait(loaded)
        else:
            tl.recv("intra_W", (SLOT,), "i8")

    beside = run(kernel, np.zeros(1 << 18, np.int8))
    assert (beside.sends, beside.recvs) == ([(0, LEAVES)], [(40.5, 48.5)])
    assert beside.launch.exec_ns > 1024


@pytest.mark.needs("addresses", reason="its kernels read and write parts of other PEs")
def test_messages_wait_for_stores_on_links_only() -> None:
    def kernel(x: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0 and tl.physical_id(1) == 0:
            stored = tl.store_async(x, tensor(tl, 1 << 14))  # to the next cube, at 128 GB/s
            tl.cycles(65)  # PE_SCHEDULER 1; then its last byte has left after 64, at 256 GB/s
            tl.send("intra_E", tensor(tl, SLOT))
            tl.wait(stored)
        elif tl.physical_id(1) == 0:
            tl.recv("intra_W", (SLOT,), "i8")

    log = OpLog()
    with RuntimeContext(GraphEngine(machine(), op_log=log)) as torch:
        everywhere = DPPolicy(cube="row_wise", num_cubes=2, num_pes=1)
        x = torch.zeros(2, 1 << 14, dtype="i8", dp=everywhere)
        there = x.as_arg().local_address_for((0, 1, 0))
        assert there is not None

        def shifted(x: Any, tl: Any) -> None:
            kernel(x + (1 << 14), tl)

        torch.install_ipcq()
        launch = torch.launch(shifted, x, target_pes=range(2), target_cubes=0)
    start = launch.pes[0].start_ns
    by = {
        op.op_name: (op.t_start - start, op.t_end - start)
        for op in log.records
        if op.component_id.endswith(("ipcq", "dma"))
    }
    assert by["ipcq_send"] == (65, 65 + LEAVES)
    assert by["ipcq_recv"] == (65 + ARRIVES + WAKES, 65 + ARRIVES + WAKES + READ)
    assert by["dma_write"][1] > by["ipcq_send"][1]  # it was under way all the time


def test_receives_of_one_direction_are_served_in_the_order_of_asking() -> None:
    def kernel(out: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            for number in range(4):
                tl.send("intra_E", tl.full((8,), number, "i32"))
        else:
            handles = [tl.recv_async("intra_W", (8,), "i32") for _ in range(4)]
            for at, handle in reversed(list(enumerate(handles))):
                tl.store(out + 32 * at, tl.wait(handle))

    assert received(kernel, (4, 8)).tolist() == [[number] * 8 for number in range(4)]


def test_a_receive_whose_message_is_here_when_its_turn_comes_does_not_wake() -> None:
    # Both are asked for at 0. The first wakes for its message, at 40.5; the second message came at 46.5 meanwhile.
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tensor(tl, SLOT))
            tl.send("intra_E", tensor(tl, SLOT))
        else:
            first, second = (tl.recv_async("intra_W", (SLOT,), "i8") for _ in range(2))
            tl.wait(first)
            tl.wait(second)

    both = run(kernel)
    assert both.recvs == [(40.5, 48.5), (48.5, 56.5)]
    second = both.ops("ipcq_recv")[1]
    assert (second.release, second.released_by) == ("lane", both.log.records.index(both.ops("ipcq_recv")[0]))


def test_slots_in_tcm_are_read_one_after_the_other() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 1:
            tl.cycles(200)
            for handle in [tl.recv_async(side, (SLOT,), "i8") for side in ("intra_0", "intra_2")]:
                tl.wait(handle)
        else:
            tl.send("intra_1", tensor(tl, SLOT))

    assert run(kernel, pes=3).recvs == [(200, 208), (200, 216)]


# ---- receiving from anywhere


def received(kernel: Callable[..., object], shape: tuple[int, ...], pes: int = 2, **rings: Any) -> np.ndarray:
    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(**rings)
        out = torch.zeros(*shape, dtype="i32")
        torch.launch(kernel, out, target_pes=range(pes), target_cubes=0)
        return out.numpy()


def test_without_a_direction_the_earliest_message_comes_first() -> None:
    def kernel(out: Any, tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            for at in range(3):
                tl.store(out + 4 * at, tl.recv(shape=(1,), dtype="i32"))
        else:
            tl.cycles({1: 300, 2: 100, 3: 200}[me])
            tl.send("intra_0", tl.full((1,), me, "i32"))

    assert received(kernel, (3,), pes=4).tolist() == [2, 3, 1]


def test_of_messages_that_are_here_the_earliest_is_taken() -> None:
    def kernel(out: Any, tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            tl.cycles(1000)
            for at in range(3):
                tl.store(out + 4 * at, tl.recv(shape=(1,), dtype="i32"))
        else:
            tl.cycles({1: 300, 2: 100, 3: 200}[me])
            tl.send("intra_0", tl.full((1,), me, "i32"))

    assert received(kernel, (3,), pes=4).tolist() == [2, 3, 1]


def test_a_receive_from_anywhere_and_one_from_a_direction_are_served_in_the_order_of_asking() -> None:
    def kernel(out: Any, tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            anywhere, named = tl.recv_async(None, (1,), "i32"), tl.recv_async("intra_1", (1,), "i32")
            tl.store(out, tl.wait(anywhere))
            tl.store(out + 4, tl.wait(named))
        elif me == 1:
            tl.send("intra_0", tl.full((1,), 10, "i32"))
            tl.cycles(500)
            tl.send("intra_0", tl.full((1,), 11, "i32"))
        else:
            tl.cycles(5000)

    assert received(kernel, (2,), pes=3).tolist() == [10, 11]


def test_a_receive_from_a_direction_leaves_other_messages_to_the_one_from_anywhere() -> None:
    def kernel(out: Any, tl: Any) -> None:
        me = tl.physical_id(0)
        if me == 0:
            named, anywhere = tl.recv_async("intra_1", (1,), "i32"), tl.recv_async(None, (1,), "i32")
            tl.store(out + 4, tl.wait(anywhere))
            tl.store(out, tl.wait(named))
        else:
            tl.cycles(0 if me == 2 else 500)
            tl.send("intra_0", tl.full((1,), me, "i32"))

    assert received(kernel, (2,), pes=3).tolist() == [1, 2]


# ---- what receives may ask for


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_recv_no_consume_leaves_out_the_reading_of_slots_and_nothing_else() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            for _ in range(3):
                tl.send("intra_E", tensor(tl, SLOT))
        else:
            for _ in range(3):
                tl.recv_no_consume("intra_W", (SLOT,), "i8")

    for kind, arrives in (("tcm", ARRIVES), ("hbm", 54.0)):
        looked = run(kernel, n_slots=1, buffer_kind=kind)
        period = arrives + WAKES + CREDIT + WAKES
        assert looked.recvs == [(k * period + arrives + WAKES,) * 2 for k in range(3)]


def test_what_is_received_can_be_stored_where_it_belongs() -> None:
    def kernel(out: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.full((2, 4), 7, "i32"))
        else:
            there = tl.recv("intra_W", (2, 4), "i32", dst=out + 32)
            assert (there.shape, there.dtype) == ((2, 4), "i32")
            tl.store(out, tl.load(out + 32, (8,), "i32") + 1)

    assert received(kernel, (4, 4)).reshape(-1).tolist() == [8] * 8 + [7] * 8


def test_storing_it_costs_a_write_of_the_dma_engine() -> None:
    def kernel(x: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tensor(tl, SLOT))
        else:
            tl.recv("intra_W", (SLOT,), "i8", dst=x)

    stored = run(kernel, np.zeros(SLOT, np.int8))
    (write,) = stored.ops("dma_write", "sip0.cube0.pe1")
    (recv,) = stored.ops("ipcq_recv")
    assert write.t_start == recv.t_end + 1  # PE_SCHEDULER
    assert write.dependency_ids == (stored.log.records.index(recv),)


@pytest.mark.parametrize("dtype", [each.name for each in DTYPES])
def test_every_dtype_travels(dtype: str) -> None:
    def kernel(out: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.load(out, (3, 5), dtype))
        else:
            tl.store(out + out_bytes, tl.recv("intra_W", (3, 5), dtype))

    with RuntimeContext(GraphEngine(machine())) as torch:
        out = torch.from_numpy(np.arange(30).reshape(2, 15) % 2, dtype=dtype)
        out_bytes = out.nbytes // 2
        torch.launch(kernel, out, target_pes=range(2), target_cubes=0)
        first, second = out.numpy()
        assert first.tobytes() == second.tobytes()


def test_what_is_sent_is_what_the_tensor_held_then() -> None:
    def kernel(out: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            held = tl.load(out, (4,), "i32")
            sending = tl.send_async("intra_E", held)
            tl.store(out, tl.full((4,), 9, "i32"))
            tl.send("intra_E", tl.load(out, (4,), "i32"))
            tl.wait(sending)
        else:
            tl.cycles(3000)
            tl.store(out + 16, tl.recv("intra_W", (4,), "i32"))
            tl.store(out + 32, tl.recv("intra_W", (4,), "i32"))

    assert received(kernel, (3, 4)).tolist() == [[9] * 4, [0] * 4, [9] * 4]


# ---- where a kernel is


def test_a_launch_on_other_cubes_finds_its_own_neighbours() -> None:
    """Cubes 5 to 8 of nine: 5 is above 8, and 6, 7 and 8 are a row."""

    def kernel(out: Any, tl: Any) -> None:
        cube = tl.physical_id(1)
        assert tl.program_id(1) == cube - 5
        assert (tl.physical_id(0), tl.physical_id(2)) == (0, 0)
        for side, back in (("S", "N"), ("E", "W")):
            for here, there in ((5, 8), (6, 7), (7, 8)):
                if cube == here and tl.peer(side) == (0, there, 0):
                    tl.send(side, tl.full((1,), cube, "i32"))
                if cube == there and tl.peer(back) == (0, here, 0):
                    tl.store(out + 4 * here, tl.recv(back, (1,), "i32"))

    nine = load_topology(
        None, {"system.sips.count": 1, "sip.cube_mesh.w": 3, "sip.cube_mesh.h": 3, "cube.pe_layout.pe_per_corner": 1}
    )
    with RuntimeContext(GraphEngine(nine)) as torch:
        out = torch.zeros(9, dtype="i32")
        torch.launch(kernel, out, target_pes=0, target_cubes=range(5, 9))
        assert out.numpy().tolist() == [0, 0, 0, 0, 0, 5, 6, 7, 0]


def test_the_times_of_a_message_do_not_depend_on_which_cubes_a_launch_has() -> None:
    def kernel(tl: Any) -> None:
        if tl.program_id(1) == 0:
            tl.send("E", tensor(tl, SLOT))
        else:
            tl.recv("W", (SLOT,), "i8")

    row = machine(sip__cube_mesh__w=4)
    first, last = run(kernel, pes=1, cubes=(0, 1), on=row), run(kernel, pes=1, cubes=(2, 3), on=row)
    assert (first.sends, first.recvs) == (last.sends, last.recvs)


def test_directions_and_peers_are_those_of_the_pe() -> None:
    seen: dict[int, tuple[str, ...]] = {}

    def kernel(tl: Any) -> None:
        seen[tl.physical_id(1)] = tl.directions()[:2]
        assert tl.peer("N") is None
        assert tl.peer("nowhere") is None
        assert tl.peer("intra_E") == (0, tl.physical_id(1), (tl.physical_id(0) + 1) % 8)

    run(kernel, pes=1, cubes=2)
    assert seen == {0: ("E", "intra_N"), 1: ("W", "intra_N")}


def test_in_a_ring_of_two_the_two_directions_are_two_rings() -> None:
    two = machine(system__sips__count=2)

    def kernel(out: Any, tl: Any) -> None:
        if tl.physical_id(2) == 0:
            tl.send("global_E", tl.full((1,), 1, "i32"))
            tl.send("global_W", tl.full((1,), 2, "i32"))
        else:
            from_east, from_west = tl.recv("global_E", (1,), "i32"), tl.recv("global_W", (1,), "i32")
            tl.send("global_E", from_east)
            tl.send("global_W", from_west)
        if tl.physical_id(2) == 0:
            tl.store(out, tl.recv("global_W", (1,), "i32"))
            tl.store(out + 4, tl.recv("global_E", (1,), "i32"))

    with RuntimeContext(GraphEngine(two)) as torch:
        out = torch.zeros(2, dtype="i32")
        torch.launch(kernel, out, sips=(0, 1), target_pes=0, target_cubes=0)
        # To my east is its west: what I send east comes to it from the west. It answers each to its other side.
        assert out.numpy().tolist() == [2, 1]


# ---- the op log


def test_the_op_log_says_who_sent_what_to_whom() -> None:
    one = run(one_message(3 * SLOT))
    (send,), (recv,) = one.ops("ipcq_send"), one.ops("ipcq_recv")
    assert (send.component_id, recv.component_id) == ("sip0.cube0.pe0.pe_ipcq", "sip0.cube0.pe1.pe_ipcq")
    assert {send.op_kind, recv.op_kind} == {"communication"}
    common = {"nbytes": 3 * SLOT, "shape": (3 * SLOT,), "dtype": "i8", "chunks": 3, "communicator": "world"}
    assert common.items() <= send.params.items()
    assert common.items() <= recv.params.items()
    assert (send.params["direction"], send.params["peer"]) == ("intra_E", "sip0.cube0.pe1")
    assert (recv.params["direction"], recv.params["peer"]) == ("intra_W", "sip0.cube0.pe0")


def test_a_receive_depends_on_its_send_and_a_send_on_what_made_its_tensor() -> None:
    def kernel(x: Any, tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.load(x, (SLOT,), "i8"))
        else:
            tl.send("intra_W", tl.recv("intra_W", (SLOT,), "i8"))
        if tl.physical_id(0) == 0:
            tl.recv("intra_E", (SLOT,), "i8")

    log = run(kernel, np.zeros(SLOT, np.int8)).log.records
    ids = {id(op): number for number, op in enumerate(log)}
    load = next(op for op in log if op.op_name == "dma_read")
    first, second = (op for op in log if op.op_name == "ipcq_send")
    there, back = (op for op in log if op.op_name == "ipcq_recv")
    assert first.dependency_ids == (ids[id(load)],)
    assert there.dependency_ids == (ids[id(first)],)
    assert second.dependency_ids == (ids[id(there)],)
    assert back.dependency_ids == (ids[id(second)],)
    assert first.release == "data"


def test_what_let_an_op_start_is_its_message_its_credit_or_the_kernel() -> None:
    stalled = run(messages(2), n_slots=1)
    names = [(op.op_name, op.release, op.released_by) for op in stalled.log.records if "ipcq" in op.op_name]
    ids = [number for number, op in enumerate(stalled.log.records) if "ipcq" in op.op_name]
    assert names == [
        ("ipcq_send", "launch", None),
        ("ipcq_recv", "message", ids[0]),
        ("ipcq_send", "credit", ids[1]),
        ("ipcq_recv", "message", ids[2]),
    ]
    waited = stalled.ops("ipcq_send")[1]
    assert (waited.t_asked - stalled.start_ns, waited.t_ready - stalled.start_ns) == (LEAVES, LEAVES)


def test_a_long_message_releases_its_receive_though_its_send_goes_on() -> None:
    long = run(one_message(8 * SLOT))
    (recv,) = long.ops("ipcq_recv")
    assert (recv.release, recv.released_by) == ("message", long.log.records.index(long.ops("ipcq_send")[0]))


def test_two_runs_give_the_same_log() -> None:
    first, second = (run(messages(40, 3 * SLOT), n_slots=2, backpressure="poll") for _ in range(2))
    assert first.log.records == second.log.records


def test_without_a_log_the_times_are_the_same() -> None:
    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(n_slots=2)
        plain = torch.launch(messages(9), target_pes=range(2), target_cubes=0)
    assert plain.exec_ns == run(messages(9), n_slots=2).launch.exec_ns


# ---- memory


def used_bytes(engine: GraphEngine) -> list[int]:
    """What is taken of every memory of the machine."""
    spec, found = engine.graph.spec, []
    for cube in range(spec.sip.n_cubes):
        found.append(engine.cube_memory(0, cube).sram.used_bytes)
        for pe in range(spec.cube.n_pes):
            memory = engine.pe_memory(0, cube, pe)
            found += [memory.hbm.used_bytes, memory.tcm.used_bytes]
    return found


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_rings_take_memory_while_they_are_there_and_leave_none_behind(kind: str) -> None:
    engine = GraphEngine(machine())
    before = used_bytes(engine)
    with RuntimeContext(engine) as torch:
        torch.install_ipcq(buffer_kind=kind, n_slots=2)  # type: ignore[arg-type]  # one of three
        torch.launch(messages(3), target_pes=range(2), target_cubes=0)
        during = sum(used_bytes(engine)) - sum(before)
        reserved = (256 + 256) * 1024 * 2 * 8  # of every PE's TCM: for rings, and for collectives
        assert during == reserved + (0 if kind == "tcm" else 2 * SLOT)
        for _ in range(3):
            torch.install_ipcq(buffer_kind=kind, n_slots=2)  # type: ignore[arg-type]  # the same again, in place of it
            torch.launch(messages(3), target_pes=range(2), target_cubes=0)
        assert sum(used_bytes(engine)) - sum(before) == during
    assert used_bytes(engine) == before


def test_rings_are_made_for_directions_that_are_used() -> None:
    # 62 rings of 4 KiB and 62 credit words are room enough: PE 0 has many more directions than it uses.
    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        torch.install_ipcq(n_slots=15)
        torch.launch(messages(3), target_pes=range(2), target_cubes=0)


def test_two_machines_in_one_process_do_not_affect_each_other() -> None:
    log = OpLog()
    alone = run(messages(5), n_slots=1).sends
    with RuntimeContext(GraphEngine(machine())) as other, RuntimeContext(GraphEngine(machine(), op_log=log)) as torch:
        other.install_ipcq(n_slots=4)
        torch.install_ipcq(n_slots=1)
        under_way = other.launch(messages(5), target_pes=range(2), target_cubes=0, wait=False)
        launch = torch.launch(messages(5), target_pes=range(2), target_cubes=0)
        other.wait(under_way)
    start = launch.pes[0].start_ns
    assert [(op.t_start - start, op.t_end - start) for op in log.records if op.op_name == "ipcq_send"] == alone


def test_a_second_program_on_a_machine_finds_it_as_the_first_did() -> None:
    engine = GraphEngine(machine())
    took = []
    for _ in range(2):
        with RuntimeContext(engine) as torch:
            took.append(torch.launch(messages(5), target_pes=range(2), target_cubes=0).exec_ns)
    assert took[0] == took[1]


def test_idle_rings_make_room_for_others() -> None:
    # Rings of 4 slots of 16 KiB: of the 256 KiB that are kept, three fit beside credit words; a PE hears from seven.
    def kernel(tl: Any) -> None:
        pe, x = tl.program_id(0), tl.full((64,), tl.program_id(0), "f32")
        for step in range(1, 8):
            tl.send_async(f"intra_{(pe + step) % 8}", x)
            got = tl.recv(f"intra_{(pe - step) % 8}", (64,), "f32")
            assert float(got[0]) == (pe - step) % 8

    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(slot_size=16384)
        for _ in range(3):
            torch.launch(kernel, target_pes=range(8), target_cubes=0)


def test_rings_in_use_are_not_given_up() -> None:
    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 0:
            for pe in (1, 2, 3):
                tl.recv_async(f"intra_{pe}", (64,), "f32")
        else:
            tl.cycles(100)
            tl.send("intra_0", tl.zeros((64,), "f32"))

    with RuntimeContext(GraphEngine(machine())) as torch:
        torch.install_ipcq(slot_size=32768)
        with pytest.raises(LaunchError, match="TCM for rings overflow"):
            torch.launch(kernel, target_pes=range(4), target_cubes=0)
