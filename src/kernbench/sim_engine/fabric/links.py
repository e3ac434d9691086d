"""The state of every link, shared by all movers of flits: when it is free, and which flits have yet to pass.

Flits take a link one by one (`FlitEngine._move`). A plan *books* it: the link is free again when the plan's last flit
has left. A plan that does not come true *restores* it.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence

from kernbench.common.declared_state import instants, quantities

Booking = tuple[int, float, float, float]  # a link, when first and last flit are ready for it, when it is free again


class Links:
    """By index of the link."""

    STATE = (instants("free"), quantities("users"))
    DERIVED = ("worst", "worst_at")

    __slots__ = ("free", "users", "worst", "worst_at")

    def __init__(self, count: int) -> None:
        self.free: MutableSequence[float] = [0.0] * count  # when the last flit that took it, or is planned to, has left
        self.users: MutableSequence[int] = [0] * count  # transfers moved flit by flit that have yet to pass
        self.worst: MutableSequence[float] = [0.0] * count  # longest wait
        self.worst_at: MutableSequence[float] = [0.0] * count  # when it began

    def are_free(self, bookings: list[Booking], at: float) -> bool:
        """Whether every link is free when the first flit comes, and no transfer is to pass it flit by flit."""
        free, users = self.free, self.users
        for link, first, _, _ in bookings:  # noqa: SIM110  a generator would double the cost
            if users[link] or free[link] > at + first:
                return False
        return True

    def are_unused(self, links: Iterable[int]) -> bool:
        """Whether no transfer is to pass any of them flit by flit."""
        return not any(map(self.users.__getitem__, links))

    def restore(self, link: int, free: float) -> None:
        """What was planned for a link will not be: it is free at `free`."""
        self.free[link] = free

    def note_wait(self, link: int, wait: float, at: float) -> None:
        """A flit waits. Of equally long waits the earliest is kept."""
        worst = self.worst[link]
        if wait > worst or (wait == worst and at < self.worst_at[link]):
            self.worst[link] = wait
            self.worst_at[link] = at

    def take_waits(self) -> list[tuple[int, float, float]]:
        """The longest wait for every link since this was last asked, if there was one, and when it began."""
        waits = [(link, wait, self.worst_at[link]) for link, wait in enumerate(self.worst) if wait]
        for link, _, _ in waits:
            self.worst[link] = self.worst_at[link] = 0.0
        return waits
