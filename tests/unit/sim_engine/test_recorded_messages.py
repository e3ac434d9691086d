"""When a recording of messages may be replayed with another communicator."""

from __future__ import annotations

from kernbench.ccl.topologies import SipGroup, directions_of, peer_of
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Peer, RingConfig
from kernbench.sim_engine.memo.launch_recording import RecordedRings


def ring_of(*sips: int, config: RingConfig | None = None) -> Communicator:
    group = SipGroup(sips, "ring_1d", len(sips), 1, 1, 1, 1)

    def neighbour(pe: PeKey, direction: str) -> Peer | None:
        return peer_of(group, pe, direction)

    def directions(pe: PeKey) -> tuple[str, ...]:
        return directions_of(group, pe)

    return Communicator("ring", config or RingConfig(), neighbour, directions, lambda *_: 0, lambda _: None, sips)


# SIP 0 has sent to its neighbour E, which is SIP 1 on a ring of 0, 1, 2 and SIP 2 on one of 0, 2, 1.
SENT_EAST = RecordedRings(
    RingConfig(), [((0, 0, 0), "global_E", Peer((1, 0, 0), "global_W"))], [((0, 0, 0), "global_E")]
)


def at_the_same_place(pe: PeKey) -> PeKey:
    return pe


def on_the_next_sip(pe: PeKey) -> PeKey:
    return pe[0] + 1, pe[1], pe[2]


def test_the_same_neighbours() -> None:
    assert SENT_EAST.are_alike(ring_of(0, 1, 2), at_the_same_place)
    assert SENT_EAST.are_alike(ring_of(0, 1, 2), on_the_next_sip)


def test_another_neighbour_in_the_same_direction() -> None:
    assert not SENT_EAST.are_alike(ring_of(0, 2, 1), at_the_same_place)
    assert not SENT_EAST.are_alike(ring_of(1, 2), at_the_same_place)  # none at all


def test_another_configuration_or_a_communicator_that_has_failed() -> None:
    assert not SENT_EAST.are_alike(ring_of(0, 1, 2, config=RingConfig(n_slots=7)), at_the_same_place)
    failed = ring_of(0, 1, 2)
    failed.failure = "a kernel failed"
    assert not SENT_EAST.are_alike(failed, at_the_same_place)
    assert not SENT_EAST.are_alike(None, at_the_same_place)
