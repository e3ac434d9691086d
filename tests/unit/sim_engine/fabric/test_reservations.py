"""Reservations, used from outside by an owner that sends nothing until its reservation is interrupted. The clock is
then rewound, and its transfers are simulated from their beginning.

m has two channels of 4 ns a burst; every link takes 2 ns a flit, every node 1 ns. The owner reads from m to b over a
and writes from b to m; interfering transfers come from c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, LinkCounters, Network, Reservation, Transfer

FLIT = 64
OWN = {"read": "mab", "write": "bam"}
FOREIGN = {"over ab": "cab", "over ba": "bac", "read": "mac", "write": "cam", "elsewhere": "cd", "control": "cab"}


def network(penalty_ns: float = 0.0) -> Network:
    made = Network(FLIT)
    for name in "mabcd":
        made.add_node(name, 1.0)
    for src, dst in ("ca", "ma", "am", "ab", "ba", "ac", "cd"):
        made.add_link(src, dst, FLIT / 2)
    made.add_channels("m", 2, 4.0, penalty_ns)
    return made


@dataclass(frozen=True)
class Send:
    """One transfer: by whom, when and what."""

    own: bool
    at_ns: float
    what: str
    flits: int
    address: int

    @property
    def path(self) -> str:
        return (OWN if self.own else FOREIGN)[self.what]

    @property
    def nbytes(self) -> int:
        return 0 if self.what == "control" else self.flits * FLIT - 7 * (self.flits % 2)

    @property
    def options(self) -> dict[str, int]:
        return {"read": {"read_from": self.address}, "write": {"write_to": self.address}}.get(self.what, {})


@dataclass
class Owner:
    """Reserves its path, and injects its transfers only when the clock is rewound for it."""

    env: FabricEnvironment
    sends: dict[int, Send] = field(default_factory=dict)  # by sequence number
    done: dict[int, float] = field(default_factory=dict)
    interrupted_at: list[float] = field(default_factory=list)
    reservation: Reservation | None = None

    def own(self) -> bool:
        net = self.env.fabric.network
        links = [*net.route("mab").links, *net.route("bam").links]
        self.reservation = self.env.fabric.reserve(links, ["m"], self.give_up)
        return self.reservation is not None

    def give_up(self, now: float) -> None:
        self.interrupted_at.append(now)
        assert self.reservation is not None
        assert not self.reservation.held
        self.env.rewind(0.0, self.send_all)

    def send_all(self) -> None:
        for turn, send in self.sends.items():
            self.env.fabric.inject(
                send.path, send.nbytes, send.at_ns, on_done=self.report(turn), seq=turn, **send.options
            )

    def report(self, turn: int) -> Callable[[Transfer], None]:
        return lambda transfer: self.done.__setitem__(turn, transfer.done_ns)


def counters(fabric: Fabric) -> tuple[dict[Any, LinkCounters], list[LinkCounters], int]:
    return dict(fabric.all_link_counters()), fabric.channel_counters("m"), fabric.channel_bytes("m")


def plain(sends: list[Send], mode: Any, penalty_ns: float = 0.0) -> tuple[list[float], Any]:
    """Everybody injects."""
    fabric = Fabric(network(penalty_ns), mode=mode)
    transfers = [fabric.inject(send.path, send.nbytes, send.at_ns, **send.options) for send in sends]
    fabric.run()
    return [transfer.done_ns for transfer in transfers], counters(fabric)


def with_owner(
    sends: list[Send], penalty_ns: float = 0.0, give_up_ns: float = 1000.0
) -> tuple[list[float], Any, Owner]:
    """The owner sends nothing as long as it has its reservation; at `give_up_ns` it releases it by itself."""
    env = FabricEnvironment(Fabric(network(penalty_ns)))
    owner = Owner(env)
    assert owner.own()
    foreign: dict[int, Transfer] = {}
    for place, send in enumerate(sends):
        if send.own:
            owner.sends[place] = send
        else:
            foreign[place] = env.fabric.inject(send.path, send.nbytes, send.at_ns, seq=place, **send.options)

    def give_up(_: None) -> None:
        assert owner.reservation is not None
        if owner.reservation.held:
            owner.reservation.release()
            owner.give_up(env.now)

    env.at(give_up_ns, give_up, None)
    env.run()
    done = owner.done | {place: transfer.done_ns for place, transfer in foreign.items()}
    return [done[place] for place in range(len(sends))], counters(env.fabric), owner


eighths = st.integers(1, 400).map(lambda n: n / 8)
wholes = st.integers(1, 40).map(float)
times = st.one_of(wholes, eighths)
sizes = st.integers(1, 24)
addresses = st.integers(0, 7).map(lambda n: n * FLIT)
own_sends = st.builds(Send, st.just(True), times, st.sampled_from(list(OWN)), sizes, addresses)
foreign_sends = st.builds(Send, st.just(False), times, st.sampled_from(list(FOREIGN)), sizes, addresses)
traffic = st.lists(st.one_of(own_sends, own_sends, foreign_sends), min_size=1, max_size=10)


@settings(deadline=None)
@given(traffic, st.sampled_from([0.0, 3.0]))
def test_times_and_counters_are_those_of_a_run_without_claims(sends: list[Send], penalty_ns: float) -> None:
    done, counted, _ = with_owner(sends, penalty_ns)
    assert (done, counted) == plain(sends, "flits", penalty_ns)
    assert (done, counted) == plain(sends, "adaptive", penalty_ns)


@settings(deadline=None)
@given(traffic, st.one_of(wholes, eighths))
def test_an_owner_may_give_up_by_itself_at_any_time(sends: list[Send], at_ns: float) -> None:
    done, counted, _ = with_owner(sends, give_up_ns=at_ns)
    assert (done, counted) == plain(sends, "flits")


STREAM = [
    Send(True, 1.0 + 16.0 * n, what, 4 * flits, 0) for n in range(4) for what, flits in (("read", 1), ("write", 2))
]  # reads and writes meet at the channels, and at nothing else


@pytest.mark.parametrize("what", ["over ab", "over ba", "read", "write"])
@pytest.mark.parametrize("eighth", range(1, 8 * 72, 13))
def test_an_interfering_transfer_at_any_stage_finds_the_state_as_it_is(eighth: int, what: str) -> None:
    sends = [*STREAM, Send(False, eighth / 8, what, 6, 0)]
    done, counted, owner = with_owner(sends)
    assert owner.interrupted_at == [eighth / 8]
    assert (done, counted) == plain(sends, "flits")


@pytest.mark.parametrize("what", ["elsewhere", "control"])
def test_a_transfer_elsewhere_does_not_interrupt_a_reservation(what: str) -> None:
    sends = [*STREAM, Send(False, 10.0, what, 6, 0)]
    done, _, owner = with_owner(sends, give_up_ns=1000.0)
    assert owner.interrupted_at == [1000.0]  # it gave up by itself
    assert done == plain(sends, "flits")[0]


# ---- what can be reserved


def never_interrupted(now: float) -> None:
    raise AssertionError(f"interrupted at {now}")


def test_a_link_that_is_in_use_or_owned_is_refused() -> None:
    fabric = Fabric(network())
    over = fabric.network.route("cab").links
    fabric.inject("cab", FLIT)  # on the link to a until 2, ready for the next at 3, there until 5
    assert fabric.reserve(over, [], never_interrupted) is None
    fabric.run(until=2.0)
    assert fabric.reserve(over[:1], [], never_interrupted) is not None
    assert fabric.reserve(over[1:], [], never_interrupted) is None  # it has yet to pass
    fabric.run(until=4.5)
    assert fabric.reserve(over[1:], [], never_interrupted) is None  # it passes
    fabric.run(until=5.0)
    assert fabric.reserve(over[1:], [], never_interrupted) is not None
    assert fabric.reserve(over[1:], [], never_interrupted) is None  # it is reserved already


def test_channels_that_are_in_use_or_owned_are_refused() -> None:
    fabric = Fabric(network())
    fabric.inject("mab", 2 * FLIT, read_from=0)  # both channels until 4
    assert fabric.reserve([], ["m"], never_interrupted) is None
    fabric.run(until=4.0)
    assert fabric.reserve([], ["m"], never_interrupted) is not None
    assert fabric.reserve([], ["m"], never_interrupted) is None
    fabric = Fabric(network())
    fabric.inject("cam", 2 * FLIT, write_to=0)  # planned: bursts from 6 to 12, though none is there yet
    assert fabric.reserve([], ["m"], never_interrupted) is None
    fabric.run(until=12.0)
    assert fabric.reserve([], ["m"], never_interrupted) is not None


def test_a_refused_claim_owns_nothing() -> None:
    fabric = Fabric(network())
    ca, ab = fabric.network.route("cab").links
    first = fabric.reserve([ab], [], never_interrupted)
    assert first is not None
    assert fabric.reserve([ca, ab], ["m"], never_interrupted) is None
    assert fabric.reserve([ca], ["m"], never_interrupted) is not None


def test_a_released_claim_is_over_and_may_be_released_again() -> None:
    fabric = Fabric(network())
    reservation = fabric.reserve(fabric.network.route("cab").links, ["m"], never_interrupted)
    assert reservation is not None
    reservation.release()
    reservation.release()
    assert not reservation.held
    fabric.inject("cab", FLIT)
    fabric.inject("mab", FLIT, read_from=0)
    fabric.run()


@pytest.mark.parametrize("options", [{"mode": "flits"}, {"record": True}])
def test_where_every_flit_is_moved_nothing_can_be_reserved(options: dict[str, Any]) -> None:
    fabric = Fabric(network(), **options)
    assert fabric.reserve([0], [], never_interrupted) is None


def test_a_link_into_a_node_with_a_delay_rule_is_refused() -> None:
    made = Network(FLIT)
    made.add_node("a")
    made.add_node("b", delay=lambda arrival: 1.0)
    there, back = made.add_link("a", "b", 1.0), made.add_link("b", "a", 1.0)
    fabric = Fabric(made)
    assert fabric.reserve([there], [], never_interrupted) is None
    assert fabric.reserve([back], [], never_interrupted) is not None


# ---- who is called, and when


def test_owners_are_called_in_order_of_the_path_then_of_the_channels_and_once() -> None:
    fabric = Fabric(network())
    called: list[tuple[str, float]] = []
    reservations = {}
    for name, links, channels in (("am", "am", ""), ("ca and m", "ca", "m"), ("cd", "cd", "")):
        index = fabric.network.link_index(*links)
        reservations[name] = fabric.reserve([index], channels, lambda now, name=name: called.append((name, now)))
    fabric.inject("cam", FLIT, 7.0, write_to=0)
    fabric.run(until=6.5)
    assert called == []  # what is sent for a later time interrupts then
    fabric.run()
    assert called == [("ca and m", 7.0), ("am", 7.0)]
    assert {name: reservation is not None and reservation.held for name, reservation in reservations.items()} == {
        "am": False,
        "ca and m": False,
        "cd": True,
    }


def test_an_owner_may_release_its_other_reservations_when_one_is_interrupted() -> None:
    fabric = Fabric(network())
    called: list[str] = []
    other = fabric.reserve([fabric.network.link_index("a", "m")], ["m"], never_interrupted)
    assert other is not None

    def give_up(now: float) -> None:
        called.append("interrupted")
        other.release()

    assert fabric.reserve([fabric.network.link_index("c", "a")], [], give_up)
    fabric.inject("cam", FLIT, write_to=0)
    fabric.run()
    assert called == ["interrupted"]


def test_a_claim_may_be_taken_again_once_all_is_idle() -> None:
    env = FabricEnvironment(Fabric(network()))
    owner = Owner(env)
    assert owner.own()
    env.fabric.inject("cab", FLIT)
    assert not owner.own()
    env.run()
    assert owner.own()


# ---- what is refused with a word


def test_claims_that_make_no_sense_are_refused_with_a_hint() -> None:
    fabric = Fabric(network())
    with pytest.raises(FabricError, match="no link 99"):
        fabric.reserve([99], [], never_interrupted)
    with pytest.raises(FabricError, match="no memory channels"):
        fabric.reserve([], ["a"], never_interrupted)
    with pytest.raises(FabricError, match="no node 'z'"):
        fabric.reserve([], ["z"], never_interrupted)


def test_who_owns_since_an_owner_was_called_is_called_next() -> None:
    fabric, called = Fabric(network()), []

    def again(now: float) -> None:
        called.append("first")
        assert fabric.reserve(links, (), lambda _: called.append("second")) is not None

    links = [fabric.network.link_index("c", "a")]
    assert fabric.reserve(links, (), again) is not None
    fabric.inject("cab", FLIT)
    assert called == ["first", "second"]
