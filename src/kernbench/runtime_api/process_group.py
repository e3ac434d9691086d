"""Process groups: ranks that call collectives together, and the world of all of them.

Rank r of the world is on SIP r. One ProcessGroup object serves all its ranks, which are programs of one process; what
differs between them, each one's own number, follows from who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from kernbench.ccl.calls import CallGroup
from kernbench.common.errors import CollectiveMismatchError
from kernbench.common.ipcq import Unreceived
from kernbench.runtime_api.ccl_backend import Backend
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.matching import CallOrder, MessageOrder
from kernbench.runtime_api.workers import Team

if TYPE_CHECKING:
    from kernbench.ccl.config import CclSource

WhoAsks = Callable[[], int]


class NonMember(Enum):
    """What `new_group` returns to ranks that are not in the group."""

    NON_GROUP_MEMBER = "NON_GROUP_MEMBER"

    def __repr__(self) -> str:
        return self.value


class ProcessGroup:
    """Some ranks of a world. `ranks` are their numbers there, in the order of their numbers here."""

    def __init__(self, name: str, ranks: Sequence[int], who_asks: WhoAsks) -> None:
        self.ranks = tuple(ranks)
        self.placed = CallGroup(name, self.ranks)
        self._who_asks = who_asks
        self.calls = CallOrder(self.title, self.ranks)
        self.messages = MessageOrder(self.title, self.ranks)
        self.left: list[int] = []  # ranks of the world that have destroyed it for themselves

    @property
    def name(self) -> str:
        return self.placed.name

    @property
    def title(self) -> str:
        return f"group '{self.name}'"

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        """The caller's number in the group; -1 for one that is not a member."""
        return self.rank_of(self._who_asks())

    def rank_of(self, world_rank: int) -> int:
        """The number in the group of a rank of the world; -1 for one that is not a member."""
        return self.ranks.index(world_rank) if world_rank in self.ranks else -1

    def __repr__(self) -> str:
        return f"ProcessGroup({self.name!r}, ranks {list(self.ranks)})"


class World:
    """All ranks, and the groups among them. `team` are the programs that made it, None for a main program's; `ccl` is
    how its collectives run, as the first of them said, and `made_at` that one's line.
    """

    def __init__(
        self,
        name: str,
        size: int,
        backend: Backend,
        who_asks: WhoAsks,
        team: Team | None,
        ccl: CclSource = None,
    ) -> None:
        self.backend = backend
        self.team = team
        self.ccl = ccl
        self.made_at = host_line()
        self.joined: list[int] = []  # ranks that have called init_process_group themselves
        self._who_asks = who_asks
        self.default = ProcessGroup(name, range(size), who_asks)
        self.groups = [self.default]
        self._made = [0] * size  # calls of new_group by each rank so far
        self._by_number: list[tuple[ProcessGroup, str]] = []  # what the n-th call of each rank makes, and its line
        self._unreceived: list[Unreceived] = []  # in groups that are closed, and not reported
        backend.open(self.default.placed)

    @property
    def size(self) -> int:
        return self.default.size()

    def new_group(self, ranks: Sequence[int], caller: int | None) -> ProcessGroup:
        """The group that a rank's next call of new_group makes; a main program (None) makes one for all at once.

        Raises CollectiveMismatchError when another rank's call with that number was for other ranks.
        """
        if caller is None:
            return self._make(ranks)
        number = self._made[caller]
        if number == len(self._by_number):
            self._by_number.append((self._make(ranks), host_line()))
        group, line = self._by_number[number]
        if group.ranks != tuple(ranks):
            raise CollectiveMismatchError(
                f"ranks make different groups: in its call {number + 1} of new_group, rank {caller} calls "
                f"new_group({list(ranks)}), another rank called new_group({list(group.ranks)})",
                where=f"rank {caller} at {host_line()}; another rank at {line}",
                hint="let every rank of the world, members or not, make the same groups in the same order",
            )
        self._made[caller] += 1
        return group

    def _make(self, ranks: Sequence[int]) -> ProcessGroup:
        group = ProcessGroup(f"{self.default.name}/{len(self.groups)}", ranks, self._who_asks)
        self.backend.open(group.placed)
        self.groups.append(group)
        return group

    def leave(self, group: ProcessGroup, rank: int | None) -> None:
        """A rank, or a main program for all of them, destroys a group; with the last of its ranks it is closed."""
        gone = list(group.ranks) if rank is None else [rank]
        was_open = len(group.left) < group.size()
        group.left += [each for each in gone if each in group.ranks and each not in group.left]
        if was_open and len(group.left) == group.size():
            self._unreceived += self.backend.unreceived(group.placed)
            self.backend.close(group.placed)

    def close(self) -> None:
        """All groups are destroyed for all ranks."""
        for group in self.groups:
            self.leave(group, None)

    def take_unreceived(self) -> list[Unreceived]:
        """Messages that closed groups have left in rings, once."""
        found, self._unreceived = self._unreceived, []
        return found

    def open_calls(self, ended: Sequence[int]) -> Iterator[str]:
        """What some ranks have called and others never did. `ended` are ranks whose program has returned."""
        for group in self.groups:
            yield from group.calls.open_calls(ended)
            yield from group.messages.open_calls()
