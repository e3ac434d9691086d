"""Observers of accesses: several at a time, in order, each added and removed on its own."""

from __future__ import annotations

from kernbench.common.access_observers import AccessObservers
from kernbench.common.writers import Writers


def test_all_observers_are_called_in_the_order_in_which_they_were_added() -> None:
    observers, seen = AccessObservers(), list[tuple[str, int]]()
    observers.add(lambda address: seen.append(("a", address)))
    observers.add(lambda address: seen.append(("b", address)))
    observers.notify(64)
    assert seen == [("a", 64), ("b", 64)]


def test_an_observer_may_remove_itself_and_the_next_while_it_is_called() -> None:
    observers, seen = AccessObservers(), list[str]()

    def first() -> None:
        seen.append("first")
        observers.remove(first)
        observers.remove(second)

    def second() -> None:
        seen.append("second")

    observers.add(first)
    observers.add(second)
    observers.notify()
    assert seen == ["first"]
    assert not observers


def test_a_second_observer_does_not_replace_the_first() -> None:
    writers, seen = Writers(), list[tuple[str, int]]()
    writers.access_observers.add(lambda address: seen.append(("replay", address)))
    writers.access_observers.add(lambda address: seen.append(("trace", address)))
    writers.note(128, 16, op=1)
    assert seen == [("replay", 128), ("trace", 128)]
