"""Process groups: ranks that call collectives together, and the world of all ranks.

Global rank r is on SIP r. One ProcessGroup object serves all its ranks, which are programs of one process; `rank()`
depends on which of them calls it.
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

CallingRank = Callable[[], int]  # the global rank of the program that calls


class NonMember(Enum):
    """What `new_group` returns to ranks that are not in the group."""

    NON_GROUP_MEMBER = "NON_GROUP_MEMBER"

    def __repr__(self) -> str:
        return self.value


class ProcessGroup:
    """Some ranks of a world. `ranks` are their global ranks, in the order of their group ranks."""

    def __init__(self, name: str, ranks: Sequence[int], calling_rank: CallingRank) -> None:
        self.ranks = tuple(ranks)
        self.placed = CallGroup(name, self.ranks)
        self._calling_rank = calling_rank
        self.calls = CallOrder(self.title, self.ranks)
        self.messages = MessageOrder(self.title, self.ranks)
        self.left: list[int] = []  # global ranks that have destroyed it for themselves

    @property
    def name(self) -> str:
        return self.placed.name

    @property
    def title(self) -> str:
        return f"group '{self.name}'"

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        """The caller's rank in the group; -1 if it is not a member."""
        return self.rank_of(self._calling_rank())

    def rank_of(self, global_rank: int) -> int:
        """The group rank of a global rank; -1 if it is not a member."""
        return self.ranks.index(global_rank) if global_rank in self.ranks else -1

    def __repr__(self) -> str:
        return f"ProcessGroup({self.name!r}, ranks {list(self.ranks)})"


class World:
    """All ranks, and their groups. `team` has the programs that created it, None if a main program did; `ccl` is the
    configuration of its collectives that the first of them passed, and `made_at` the line of that call.
    """

    def __init__(
        self,
        name: str,
        size: int,
        backend: Backend,
        calling_rank: CallingRank,
        team: Team | None,
        ccl: CclSource = None,
    ) -> None:
        self.backend = backend
        self.team = team
        self.ccl = ccl
        self.made_at = host_line()
        self.joined: list[int] = []  # ranks that have called init_process_group themselves
        self._calling_rank = calling_rank
        self.default = ProcessGroup(name, range(size), calling_rank)
        self.groups = [self.default]
        self._made = [0] * size  # calls of new_group by each rank so far
        self._by_number: list[tuple[ProcessGroup, str]] = []  # the n-th group that every rank creates, and its line
        self._unreceived: list[Unreceived] = []  # in closed groups, not reported yet
        backend.open(self.default.placed)

    @property
    def size(self) -> int:
        return self.default.size()

    def new_group(self, ranks: Sequence[int], caller: int | None) -> ProcessGroup:
        """The group that a rank's next call of new_group creates; a main program (None) creates it for all ranks.

        Raises CollectiveMismatchError if another rank's n-th call was for other members.
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
        group = ProcessGroup(f"{self.default.name}/{len(self.groups)}", ranks, self._calling_rank)
        self.backend.open(group.placed)
        self.groups.append(group)
        return group

    def leave(self, group: ProcessGroup, rank: int | None) -> None:
        """Destroy a group for one rank, or for all of them (None); after its last rank has left it is closed."""
        gone = list(group.ranks) if rank is None else [rank]
        was_open = len(group.left) < group.size()
        group.left += [each for each in gone if each in group.ranks and each not in group.left]
        if was_open and len(group.left) == group.size():
            self._unreceived += self.backend.unreceived(group.placed)
            self.backend.close(group.placed)

    def close(self) -> None:
        """Destroy all groups for all ranks."""
        for group in self.groups:
            self.leave(group, None)

    def take_unreceived(self) -> list[Unreceived]:
        """Take the messages that closed groups have left in rings: each is returned once."""
        found, self._unreceived = self._unreceived, []
        return found

    def open_calls(self, ended: Sequence[int]) -> Iterator[str]:
        """Calls and messages that only some ranks have made, in words. `ended` are ranks whose program has returned."""
        for group in self.groups:
            yield from group.calls.open_calls(ended)
            yield from group.messages.open_calls()
