"""The compiled loop for flits that meet: same times and counters, whatever it is given. Random traffic is tried in
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


def run(network: Network, sends: list[tuple[Any, ...]], **options: Any) -> Fabric:
    fabric = Fabric(network, **options)
    fabric.ends = [  # type: ignore[attr-defined]
        fabric.inject(path, nbytes, at, **more) for path, nbytes, at, more in sends
    ]
    fabric.run()
    return fabric


def told(fabric: Fabric, memory: str = "z") -> tuple[Any, ...]:
    ends = [transfer.done_ns for transfer in fabric.ends]  # type: ignore[attr-defined]
    return ends, fabric.all_link_counters(), fabric.channel_counters(memory)


@pytest.mark.parametrize("compile_after", [0, 100, 3000])
def test_it_may_take_over_at_any_moment(compile_after: int) -> None:
    network = hotspot(12)
    sends = [((s, "m", "z"), 40 * KIB + 300 * s, 100.0 * s, {"write_to": 4096 * s}) for s in range(12)]
    sends += [(("z", "m", s), 24 * KIB, 150.0 * s, {"read_from": 512 * s}) for s in range(12)]
    compiled = run(network, sends, compile_after=compile_after)
    assert compiled.engine.queues is not None
    assert told(compiled) == told(run(network, sends)) == told(run(network, sends, mode="flits"))


def test_more_flits_and_flows_than_there_was_room_for() -> None:
    sources = 40
    network = hotspot(sources)
    sends = [((s, "m", "z"), 128 * KIB, 10.0 * (s % 7), {}) for s in range(sources) for _ in range(30)]
    compiled = run(network, sends, compile_after=0)
    assert compiled.engine.queues is not None
    assert told(compiled) == told(run(network, sends))


def test_what_is_alone_again_becomes_a_train() -> None:
    """A large transfer meets a small one at its beginning."""
    network = hotspot(2)
    sends: list[tuple[Any, ...]] = [((0, "m", "z"), 4096 * KIB, 0.0, {}), ((1, "m", "z"), 8 * KIB, 50.0, {})]
    compiled = run(network, sends, compile_after=0)
    assert compiled.replanned == 1
    assert compiled.events < 2000
    assert told(compiled) == told(run(network, sends, mode="flits"))


def test_a_watched_run_and_a_small_one_do_without() -> None:
    network = hotspot(2)
    sends = [((s, "m", "z"), 8 * KIB, 0.0, {}) for s in range(2)]
    assert run(network, sends, record=True, compile_after=0).engine.queues is None
    assert run(network, sends, compile_after=MANY_EVENTS).engine.queues is None


def test_without_numba_all_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    find = builtins.__import__

    def no_numba(name: str, *args: Any, **options: Any) -> Any:
        if name.endswith("flit_queues"):
            raise ImportError("No module named 'numba'", name="numba")
        return find(name, *args, **options)

    network = hotspot(2)
    sends = [((s, "m", "z"), 8 * KIB, 0.0, {}) for s in range(2)]
    expected = told(run(network, sends))
    monkeypatch.setattr(builtins, "__import__", no_numba)
    plain = run(network, sends, compile_after=0)
    assert plain.engine.queues is None
    assert told(plain) == expected


def test_flits_of_a_split_train_that_wait_in_a_schedule_are_left_out() -> None:
    """A long train is split in the middle: some of its flits are in the agenda, those behind them are not."""
    network = Network()
    for name in "abcdefx":
        network.add_node(name, 40.0)
    for src, dst in ("ab", "bc", "cd", "de", "ef", "xc"):
        network.add_link(src, dst, 128.0, 100.0)
    network.add_channels("f", 8, 256, 8.0)
    sends: list[tuple[Any, ...]] = [("abcdef", 512 * KIB, 0.0, {"write_to": 0}), ("xcdef", 64 * KIB, 500.0, {})]
    for compile_after in range(20, 900, 40):
        fabrics = [run(network, sends, compile_after=compile_after), run(network, sends, mode="flits")]
        assert fabrics[0].engine.queues is not None
        compiled, plain = [(*told(fabric, "f"),) for fabric in fabrics]
        assert compiled == plain, compile_after
