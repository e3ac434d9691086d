"""The engine's calls: submit, wait, wait_all, get_completion, now_ns; traces and counters; engines side by side.

The machine has two PEs and no wire delay: a read of one flit from a PE's own slice takes 2 + 8 + 1 + 2 + 1 = 14 ns.
"""

from __future__ import annotations

import gc
import json
import weakref
from functools import cache
from typing import Any

import pytest

from kernbench.common.errors import DeadlockError, RoutingError, UsageError
from kernbench.common.messages import Completion, HostMessage, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine, Handle
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology import TopologyGraph, load_topology

SMALL = {
    "system.sips.count": 1,
    "system.ns_per_mm": 0.0,
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.corners": ["NW"],
}


@cache
def machine() -> TopologyGraph:
    return load_topology(None, SMALL)


def dma(pe: int = 0, target: int = 0, offset: int = 0, nbytes: int = 256, write: bool = False) -> PeDmaMsg:
    slice_bytes = machine().spec.cube.hbm_slice_bytes
    pa = PhysAddr.pe_hbm_addr(0, 0, target, offset, slice_bytes).encode()
    return PeDmaMsg(src_sip=0, src_cube=0, src_pe=pe, dst_pa=pa, nbytes=nbytes, is_write=write)


def ends(engine: GraphEngine, *messages: HostMessage) -> list[float]:
    """When each of `messages`, submitted together, is done."""
    handles = [engine.submit(message) for message in messages]
    engine.wait_all()
    return [engine.get_completion(handle)[1]["end_ns"] for handle in handles]


# ---- the five calls


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_submit_takes_no_time_and_wait_stops_at_the_end_of_the_request() -> None:
    engine = GraphEngine(machine())
    short, long = engine.submit(dma(0)), engine.submit(dma(1, target=1, nbytes=4096))
    assert engine.now_ns == 0
    assert engine.wait(short) == Completion(ok=True)
    assert engine.now_ns == 14
    engine.wait(long)
    assert engine.now_ns == 14 + 15


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_waiting_again_changes_nothing() -> None:
    engine = GraphEngine(machine())
    first, second = engine.submit(dma(0)), engine.submit(dma(1, target=1, nbytes=4096))
    engine.wait(second)
    engine.wait(first)
    engine.wait(second)
    engine.wait_all()
    assert engine.now_ns == 29


def test_wait_all_with_nothing_under_way_returns_at_once() -> None:
    engine = GraphEngine(machine())
    engine.wait_all()
    assert engine.now_ns == 0


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_requests_submitted_later_start_later() -> None:
    engine = GraphEngine(machine())
    engine.wait(engine.submit(dma()))
    later = engine.submit(dma())
    engine.wait(later)
    _, trace = engine.get_completion(later)
    assert (trace["start_ns"], trace["end_ns"], trace["total_ns"]) == (14, 28, 14)


def test_completion_of_a_request_under_way_is_refused() -> None:
    engine = GraphEngine(machine())
    handle = engine.submit(dma())
    with pytest.raises(UsageError, match="r0 is not done"):
        engine.get_completion(handle)


def test_handle_of_another_engine_is_refused() -> None:
    ours, theirs = GraphEngine(machine()), GraphEngine(machine())
    ours.submit(dma())
    foreign = theirs.submit(dma())
    theirs.wait(foreign)
    for ask in (ours.wait, ours.get_completion):
        for handle in (foreign, "x", None):
            with pytest.raises(UsageError, match="not one of this engine's"):
                ask(handle)  # type: ignore[arg-type]  # what a user may pass by mistake


def test_envelope_is_filled_in_and_kept_where_given() -> None:
    engine = GraphEngine(machine())
    filled = engine.submit(dma()).request
    assert (filled.correlation_id, filled.request_id, filled.target_device) == ("c0", "r0", "sip:0")
    given = MemoryWriteMsg(
        dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=dma().dst_pa, nbytes=1, correlation_id="job", request_id="a"
    )
    kept = engine.submit(given).request
    assert (kept.correlation_id, kept.request_id, kept.msg_type) == ("job", "a", "MemoryWrite")


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_request_refused_at_the_door_leaves_no_handle_behind() -> None:
    engine = GraphEngine(machine())
    with pytest.raises(RoutingError, match="no node"):
        engine.submit(dma(pe=7))
    handle = engine.submit(dma())
    assert (handle.number, engine.wait(handle).ok, engine.now_ns) == (0, True, 14)


def test_request_that_is_never_answered_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "black_hole.py").write_text(
        "from kernbench.components.base import MemoryComponent\n"
        "class BlackHole(MemoryComponent):\n"
        "    def accept(self, packet):\n"
        "        return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = load_topology(None, {**SMALL, "cube.components.sram.impl": "black_hole:BlackHole"})
    engine = GraphEngine(graph)
    pa = PhysAddr.cube_sram_addr(0, 0, 0).encode()
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=64))
    with pytest.raises(DeadlockError, match="r0 is never answered") as caught:
        engine.wait(handle)
    assert caught.value.where == "sip0.cube0.pe0.pe_dma, PeDmaMsg submitted at 0.0 ns"


# ---- who waits for whom


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_second_read_waits_until_the_dma_channel_is_free() -> None:
    assert ends(GraphEngine(machine()), dma(), dma(offset=256)) == [14, 14 + 14]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_write_does_not_wait_for_a_read() -> None:
    # Another HBM channel and the other direction of both links: the two never meet.
    assert ends(GraphEngine(machine()), dma(), dma(offset=256, write=True)) == [14, 14]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_two_engines_a_direction_share_the_link_instead() -> None:
    graph = load_topology(None, {**SMALL, "cube.pe_template.components.pe_dma.attrs.engines_per_direction": 2})
    # Both bursts are there at 10; the second flit follows the first on the way back.
    assert ends(GraphEngine(graph), dma(), dma(offset=256)) == [14, 15]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_two_pes_wait_for_each_other_at_one_hbm_channel() -> None:
    # pe0's burst arrives at 1 + 2 + 1 = 4 and holds channel 0 until 12. pe1's has one router more, arrives at 7, waits
    # until 12, is in at 20, and its acknowledgement passes two routers.
    assert ends(GraphEngine(machine()), dma(0, write=True), dma(1, write=True)) == [12 + 2, 20 + 4]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_two_pes_on_different_channels_do_not_meet() -> None:
    assert ends(GraphEngine(machine()), dma(0, write=True), dma(1, offset=256, write=True)) == [14, 7 + 8 + 4]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_read_and_write_share_a_channel_and_pay_for_turning_it() -> None:
    graph = load_topology(None, {**SMALL, "cube.components.hbm_ctrl.attrs.switch_penalty_ns": 3.0})
    # The read's burst holds channel 0 from 2 to 10; the write is there at 4, starts at 10 + 3, is in at 21.
    assert ends(GraphEngine(graph), dma(0), dma(0, write=True)) == [14, 21 + 2]


# ---- traces


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("write", [False, True])
def test_hops_are_in_order_and_add_up_to_the_total(write: bool) -> None:
    engine = GraphEngine(machine(), trace_hops=True)
    handle = engine.submit(dma(0, target=1, nbytes=1000, write=write))
    engine.wait(handle)
    _, trace = engine.get_completion(handle)
    legs = trace["hops"]
    assert [leg["nbytes"] for leg in legs] == ([1000, 0] if write else [0, 1000])
    now = trace["start_ns"]
    for leg in legs:
        assert leg["start_ns"] == now
        before: dict[str, float] | None = None
        for hop in leg["nodes"]:
            assert hop["first_arrival_ns"] <= hop["first_departure_ns"] <= hop["last_departure_ns"]
            assert hop["first_arrival_ns"] <= hop["last_arrival_ns"] <= hop["last_departure_ns"]
            if before is not None:
                assert before["first_departure_ns"] == hop["first_arrival_ns"]  # no wire delay on this machine
                assert before["last_departure_ns"] == hop["last_arrival_ns"]
            before = hop
        assert before is not None
        now = before["last_departure_ns"]
        assert leg["end_ns"] == now
    assert now == trace["end_ns"] == trace["start_ns"] + trace["total_ns"]
    assert [hop["node"] for hop in legs[0]["nodes"]] == trace["path"]
    assert [hop["node"] for hop in legs[1]["nodes"]] == trace["path"][::-1]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_hops_of_a_control_message_pay_node_after_node() -> None:
    engine = GraphEngine(machine(), trace_hops=True)
    handle = engine.submit(dma(0, target=1))
    engine.wait(handle)
    request = engine.get_completion(handle)[1]["hops"][0]
    names = [hop["node"].removeprefix("sip0.cube0.") for hop in request["nodes"]]
    assert names == ["pe0.pe_dma", "noc.r0c0", "noc.r0c1", "hbm_ctrl.pe1"]
    assert [hop["first_departure_ns"] for hop in request["nodes"]] == [0, 2, 4, 4]


def test_trace_is_plain_data_and_hops_are_kept_only_when_asked_for() -> None:
    for trace_hops in (False, True):
        engine = GraphEngine(machine(), trace_hops=trace_hops)
        handle = engine.submit(dma())
        engine.wait(handle)
        trace = engine.get_completion(handle)[1]
        assert json.loads(json.dumps(trace)) == trace
        assert set(trace) == {"total_ns", "start_ns", "end_ns", "path"} | ({"hops"} if trace_hops else set())


def test_tracing_changes_no_time() -> None:
    messages = [
        dma(pe, target, nbytes=n, write=w) for pe in (0, 1) for target, n, w in ((0, 3000, True), (1, 900, False))
    ]
    assert ends(GraphEngine(machine(), trace_hops=True), *messages) == ends(GraphEngine(machine()), *messages)


# ---- counters


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_link_counters_tell_bytes_busy_time_and_the_longest_queue() -> None:
    engine = GraphEngine(machine())
    ends(engine, dma(nbytes=32768, write=True))
    counters = engine.link_counters()
    cube = "sip0.cube0."
    first = counters[cube + "pe0.pe_dma", cube + "noc.r0c0"]
    assert (first.nbytes, first.busy_ns) == (32768, 128)
    # All 128 flits are ready at 0: the last one waits for the 127 ahead of it.
    assert (first.longest_queue_ns, first.longest_queue_at_ns, first.longest_queue_bytes) == (127, 0, 127 * 256)
    second = counters[cube + "noc.r0c0", cube + "hbm_ctrl.pe0"]
    assert (second.nbytes, second.busy_ns, second.longest_queue_ns) == (32768, 128, 0)
    assert len(counters) == 2


def test_channel_counters_share_a_transfer_evenly() -> None:
    engine = GraphEngine(machine())
    ends(engine, dma(nbytes=32768))
    channels = engine.channel_counters("sip0.cube0.hbm_ctrl.pe0")
    assert [(channel.nbytes, channel.busy_ns) for channel in channels] == [(16 * 256, 16 * 8)] * 8


# ---- same input, same result


def run_a_mix(engine: GraphEngine) -> list[tuple[float, float]]:
    handles: list[Handle] = []
    for step in range(6):
        for pe in (0, 1):
            nbytes = 100 + 700 * ((step * 3 + pe) % 5)
            handles.append(engine.submit(dma(pe, step % 2, step * 512, nbytes, write=step % 3 == 0)))
        if step % 2:
            engine.wait(handles[-1])
    engine.wait_all()
    traces = [engine.get_completion(handle)[1] for handle in handles]
    return [(trace["start_ns"], trace["end_ns"]) for trace in traces]


@pytest.mark.parametrize("mode", ["adaptive", "flits"])
def test_same_input_same_result_in_every_mode(mode: Mode) -> None:
    assert run_a_mix(GraphEngine(machine(), mode=mode)) == run_a_mix(GraphEngine(machine()))


def test_engines_on_one_machine_do_not_feel_each_other() -> None:
    alone = run_a_mix(GraphEngine(machine()))
    busy, other = GraphEngine(machine()), GraphEngine(machine())
    for _ in range(4):
        busy.submit(dma(nbytes=65536, write=True))
    busy.wait(busy.submit(dma(1)))
    assert run_a_mix(other) == alone
    assert busy.router is other.router


def test_a_sweep_over_machines_does_not_keep_them_all() -> None:
    wiring_of.cache_clear()
    seen = []
    for count in range(1, 9):  # of a name that no other test keeps
        graph = load_topology(None, {**SMALL, "system.sips.count": count, "system.name": "swept"})
        GraphEngine(graph)
        seen.append(weakref.ref(graph))
        del graph
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 4
