"""Every misuse is a FabricError that says what and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Fabric, Network

NAN = float("nan")


def network() -> Network:
    net = Network()
    net.add_node("a", 1.0)
    net.add_node("b", 1.0)
    net.add_node("hbm")
    net.add_link("a", "b", 256.0)
    net.add_link("b", "hbm", 256.0)
    net.add_link("hbm", "b", None)
    net.add_channels("hbm", 4, 8.0)
    return net


BUILD: list[tuple[str, Callable[[Network], object]]] = [
    ("is there already", lambda net: net.add_node("a")),
    ("overhead", lambda net: net.add_node("c", -1.0)),
    ("overhead", lambda net: net.add_node("c", NAN)),
    ("overhead", lambda net: net.add_node("c", float("inf"))),
    ("no node", lambda net: net.add_link("a", "nowhere", 1.0)),
    ("is there already", lambda net: net.add_link("a", "b", 1.0)),
    ("GB/s", lambda net: net.add_link("b", "a", 0.0)),
    ("GB/s", lambda net: net.add_link("b", "a", -3.0)),
    ("GB/s", lambda net: net.add_link("b", "a", NAN)),
    ("GB/s", lambda net: net.add_link("b", "a", 1e-300)),
    ("takes", lambda net: net.add_link("b", "a", 1.0, -0.5)),
    ("no node", lambda net: net.add_channels("nowhere", 4, 8.0)),
    ("already", lambda net: net.add_channels("hbm", 4, 8.0)),
    ("channels", lambda net: net.add_channels("b", 3, 8.0)),
    ("bursts", lambda net: net.add_channels("b", 4, 0.0)),
    ("penalty", lambda net: net.add_channels("b", 4, 8.0, -1.0)),
    ("flit", lambda _: Network(0)),
    ("powers of two", lambda _: _odd_flits()),
]


def _odd_flits() -> None:
    net = Network(100)
    net.add_node("a")
    net.add_channels("a", 4, 8.0)


INJECT: list[tuple[str, Callable[[Fabric], object]]] = [
    ("no node", lambda f: f.inject("ax", 1)),
    ("no link", lambda f: f.inject("ba", 1)),
    ("path of 1 nodes", lambda f: f.inject("a", 1)),
    ("path of 0 nodes", lambda f: f.inject("", 1)),
    ("bytes", lambda f: f.inject("ab", -1)),
    ("header", lambda f: f.inject("ab", 1, header_bytes=-1)),
    ("clock", lambda f: f.inject("ab", 1, -1.0)),
    ("clock", lambda f: f.inject("ab", 1, NAN)),
    ("clock", lambda f: f.inject("ab", 1, 2.0**33)),
    ("control only", lambda f: f.inject(("hbm", "b"), 1)),
    ("no memory", lambda f: f.inject("ab", 1, write_to=0)),
    ("no memory", lambda f: f.inject("ab", 1, read_from=0)),
    ("header", lambda f: f.inject(("b", "hbm"), 1, write_to=0, header_bytes=4)),
    ("address", lambda f: f.inject(("b", "hbm"), 1, write_to=-1)),
    ("both", lambda f: f.inject(("hbm", "b", "hbm"), 1, read_from=0, write_to=0)),
    ("no memory", lambda f: f.channel_counters("a")),
    ("no link", lambda f: f.link_counters("b", "a")),
    ("not traced", lambda f: f.hop_times(f.inject("ab", 1))),
    ("in use", lambda f: f.network.add_node("late")),
    ("in use", lambda f: f.network.add_link("b", "a", 1.0)),
    ("in use", lambda f: f.network.add_channels("a", 4, 1.0)),
    ("mode", lambda f: Fabric(f.network, mode="trains")),  # type: ignore[arg-type]  # what a user may write
]


@pytest.mark.parametrize(("what", "misuse"), BUILD)
def test_a_network_refuses_what_cannot_be_built(what: str, misuse: Callable[[Network], object]) -> None:
    with pytest.raises(FabricError, match=what) as error:
        misuse(network())
    assert error.value.hint


@pytest.mark.parametrize(("what", "misuse"), INJECT)
def test_a_fabric_refuses_what_it_cannot_carry(what: str, misuse: Callable[[Fabric], object]) -> None:
    with pytest.raises(FabricError, match=what) as error:
        misuse(Fabric(network()))
    assert error.value.hint


def test_time_does_not_go_back() -> None:
    fabric = Fabric(network())
    fabric.run(until=10.0)
    with pytest.raises(FabricError, match=r"clock stands at 10\.0"):
        fabric.inject("ab", 1, 9.0)


@pytest.mark.parametrize("delay", [-1.0, NAN, float("inf"), None, "2"])
def test_a_delay_rule_must_answer_a_time(delay: Any) -> None:
    net = Network()
    net.add_node("a")
    net.add_node("b", 0.0, lambda _: delay)
    net.add_link("a", "b", 1.0)
    fabric = Fabric(net)
    fabric.inject("ab", 1)
    with pytest.raises(FabricError, match="delay rule of 'b'"):
        fabric.run()


def test_a_transfer_past_the_end_of_exact_time_is_refused() -> None:
    net = Network()
    net.add_node("a")
    net.add_node("b")
    net.add_link("a", "b", 1.0)
    fabric = Fabric(net)
    fabric.inject("ab", 1 << 34)
    with pytest.raises(FabricError, match="would end at"):
        fabric.run()
