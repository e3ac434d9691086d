"""The compiled loop for flits that contend: same times and counters, whatever it is given. Random traffic is tried in
tests/oracle/test_fabric_against_naive.py; here is what that does not reach."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.sim_engine.fabric import Fabric, Network
from kernbench.sim_engine.fabric.fabric import MANY_EVENTS

KIB = 1024


def hotspot(sources: int) -> Network:
    """Sources that meet on one link to a memory."""
    network = Network()
    for name in (*range(sources), "m", "z"):
        network.add_node(name, 2.0)
    for source in range(sources):
        network.add_link(source, "m", 256.0, 1.0 + source / 8)
    network.add_link("m", "z", 256.0)
    network.add_link("z", "m", 256.0)
    for source in range(sources):
        network.add_link("m", source, 128.0)
    network.add_channels("z", 8, 256, 8.0)
    return network


class Run:
    """Transfers on a fabric, moved to the end; with `step_ns`, from moment to moment."""

    def __init__(self, network: Network, sends: list[tuple[Any, ...]], step_ns: float = 0.0, **options: Any) -> None:
        self.fabric = Fabric(network, **options)
        self.transfers = [self.fabric.inject(path, nbytes, at, **more) for path, nbytes, at, more in sends]
        while step_ns and self.fabric.next_time() < float("inf"):
            self.fabric.run(self.fabric.now + step_ns)
        self.fabric.run()

    @property
    def is_compiled(self) -> bool:
        return self.fabric.engine.queues is not None

    def observed(self, memory: str = "z") -> tuple[Any, ...]:
        ends = [transfer.done_ns for transfer in self.transfers]
        return ends, self.fabric.all_link_counters(), self.fabric.channel_counters(memory)


@pytest.mark.parametrize("compile_after", [0, 100, 3000])
def test_it_may_take_over_at_any_moment(compile_after: int) -> None:
    network = hotspot(12)
    sends = [((s, "m", "z"), 40 * KIB + 300 * s, 100.0 * s, {"write_to": 4096 * s}) for s in range(12)]
    sends += [(("z", "m", s), 24 * KIB, 150.0 * s, {"read_from": 512 * s}) for s in range(12)]
    compiled = Run(network, sends, compile_after=compile_after)
    assert compiled.is_compiled
    assert compiled.observed() == Run(network, sends).observed() == Run(network, sends, mode="flits").observed()


def test_more_flits_and_flows_than_there_was_room_for() -> None:
    sources = 40
    network = hotspot(sources)
    sends = [((s, "m", "z"), 128 * KIB, 10.0 * (s % 7), {}) for s in range(sources) for _ in range(20)]
    compiled = Run(network, sends, compile_after=0)
    assert compiled.is_compiled
    assert compiled.observed() == Run(network, sends).observed()


def test_what_is_alone_again_becomes_a_train() -> None:
    """A large transfer meets a small one at its beginning."""
    network = hotspot(2)
    sends: list[tuple[Any, ...]] = [((0, "m", "z"), 2048 * KIB, 0.0, {}), ((1, "m", "z"), 8 * KIB, 50.0, {})]
    compiled = Run(network, sends, compile_after=0)
    assert compiled.fabric.replanned == 1
    assert compiled.fabric.events < 2000
    assert compiled.observed() == Run(network, sends, mode="flits").observed()


def test_a_watched_run_and_a_small_one_do_without() -> None:
    network = hotspot(2)
    sends = [((s, "m", "z"), 8 * KIB, 0.0, {}) for s in range(2)]
    assert Run(network, sends, record=True, compile_after=0).fabric.engine.queues is None
    assert Run(network, sends, compile_after=MANY_EVENTS).fabric.engine.queues is None


def test_without_numba_all_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    find = builtins.__import__

    def no_numba(name: str, *args: Any, **options: Any) -> Any:
        if name.endswith("flit_queues"):
            raise ImportError("No module named 'numba'", name="numba")
        return find(name, *args, **options)

    network = hotspot(2)
    sends = [((s, "m", "z"), 8 * KIB, 0.0, {}) for s in range(2)]
    expected = Run(network, sends).observed()
    monkeypatch.setattr(builtins, "__import__", no_numba)
    plain = Run(network, sends, compile_after=0)
    assert plain.fabric.engine.queues is None
    assert plain.observed() == expected


def test_flits_of_a_split_train_that_wait_in_a_schedule_are_left_out() -> None:
    """A long train is split in the middle: some of its flits are in the agenda, those behind them are not."""
    network = Network()
    for name in "abcdefx":
        network.add_node(name, 40.0)
    for src, dst in ("ab", "bc", "cd", "de", "ef", "xc"):
        network.add_link(src, dst, 128.0, 100.0)
    network.add_channels("f", 8, 256, 8.0)
    sends: list[tuple[Any, ...]] = [("abcdef", 512 * KIB, 0.0, {"write_to": 0}), ("xcdef", 64 * KIB, 500.0, {})]
    expected = Run(network, sends, mode="flits").observed("f")
    for compile_after in range(50, 2500, 100):
        compiled = Run(network, sends, step_ns=8.0, compile_after=compile_after)
        assert compiled.is_compiled
        assert compiled.observed("f") == expected, compile_after


def test_there_is_room_for_every_last_flit_that_may_end_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are noted on their last hop, which is quicker than the others, long after their room was made."""
    monkeypatch.setattr("kernbench.sim_engine.fabric.flit_queues.TRANSFERS", 4)
    network, flows = Network(), 50
    for flow in range(flows):
        for place in "abcd":
            network.add_node((place, flow), 0.0)
        for (a, b), wire_ns in zip(("ab", "bc", "cd"), (50.0, 50.0, 0.0), strict=True):
            network.add_link((a, flow), (b, flow), 256.0, wire_ns)
    sends = [(tuple((place, flow) for place in "abcd"), 512, flow / 4096, {}) for flow in range(flows)]
    run = Run(network, sends, compile_after=0, mode="flits")
    queues = run.fabric.engine.queues
    assert queues is not None
    assert len(queues._state.quick_ns) >= 2 * flows
    ends = [transfer.done_ns for transfer in run.transfers]
    assert ends == [transfer.done_ns for transfer in Run(network, sends, mode="flits").transfers]


def test_a_plain_network_loads_it_by_the_rule_of_a_machine() -> None:
    """16 sources of 2,500 KiB meet in one instant of `run`: 16 x 10,000 flits wait for the last link, an event each."""
    network = hotspot(16)
    sends = [((s, "m", "z"), 2500 * KIB, 0.0, {}) for s in range(16)]
    assert Run(network, sends, mode="flits").is_compiled
    assert not Run(network, sends[:2], mode="flits").is_compiled
    assert not Run(network, sends, mode="flits", compile_after=float("inf")).is_compiled


@pytest.mark.parametrize("sends", [1, 300])  # the second time most arrays are longer ones
def test_compiled_code_finds_every_array_where_python_has_it(sends: int) -> None:
    pytest.importorskip("numba")
    from kernbench.sim_engine.fabric import loop_state

    fabric = Fabric(hotspot(4))
    fabric.engine.compile()
    queues = fabric.engine.queues
    assert queues is not None
    for at in range(sends):
        fabric.inject((at % 4, "m", "z"), 64 * KIB, 0.0)
    fabric.run(1000.0)
    there = loop_state.state_at(queues.addresses)
    for name, ours, theirs in zip(loop_state.LoopState._fields, queues.state, there, strict=True):
        a, b = ours.__array_interface__, theirs.__array_interface__
        assert (a["data"][0], a["shape"], a["typestr"]) == (b["data"][0], b["shape"], b["typestr"]), name
