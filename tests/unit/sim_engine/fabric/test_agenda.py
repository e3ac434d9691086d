"""The queue of events against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.sim_engine.fabric.agenda import JUDGE_AFTER, WIDEST, Agenda

Event = tuple[float, int]

gaps = st.integers(0, 400).map(lambda n: n / 8)


@given(st.lists(st.tuples(st.sampled_from(["push", "extend", "take"]), st.lists(gaps, min_size=1, max_size=6))))
def test_events_come_in_order_whatever_is_pushed_between(steps: list[tuple[str, list[float]]]) -> None:
    agenda: Agenda[Event] = Agenda(1.0)
    waiting: list[Event] = []
    now, number = 0.0, 0
    for kind, times in steps:
        if kind == "take":
            assert agenda.next_time() == min(waiting, default=(float("inf"), 0))[0]
            for _ in times:
                if agenda.load():
                    event = agenda.current[0]
                    agenda.drop(1)
                    assert event == min(waiting)
                    waiting.remove(event)
                    now = event[0]
            continue
        events = [(now + gap, number + place) for place, gap in enumerate(sorted(times))]
        number += len(events)
        waiting += events
        if kind == "extend":
            agenda.extend(events)
        else:
            for event in events:
                agenda.push(event)
    assert sorted(agenda) == sorted(waiting)
    assert len(agenda) == len(waiting)


def test_an_event_for_the_bucket_at_hand_is_met_in_the_same_pass() -> None:
    agenda: Agenda[Event] = Agenda(1.0)
    agenda.extend([(0.0, 0), (1.0, 1), (3.0, 2)])
    assert agenda.load()
    met = []
    for event in agenda.current:
        met.append(event)
        if event == (1.0, 1):
            agenda.push((2.0, 3))
    assert met == [(0.0, 0), (1.0, 1), (2.0, 3), (3.0, 2)]


def test_buckets_grow_wider_where_events_are_few_and_narrower_where_they_are_many() -> None:
    agenda: Agenda[Event] = Agenda(1.0)
    agenda.extend([(i * 1000.0, i) for i in range(10 * JUDGE_AFTER)])
    while agenda.load():
        agenda.drop(1)
    assert agenda.width_ns == WIDEST
    agenda.extend([(1e6 + i / 20, i) for i in range(20_000)])
    while agenda.load():
        agenda.drop(len(agenda.current))
    assert agenda.width_ns < WIDEST


def test_unwanted_events_are_dropped_wherever_they_lie() -> None:
    agenda: Agenda[Event] = Agenda(1.0)
    agenda.extend([(float(i), i) for i in range(100)])
    agenda.load()
    agenda.keep(lambda event: event[1] % 3 == 0)
    assert sorted(agenda) == [(float(i), i) for i in range(0, 100, 3)]
    assert agenda.next_time() == 0.0
