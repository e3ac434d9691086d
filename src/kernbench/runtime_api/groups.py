"""Process groups as a program sees them: created, queried and destroyed.

A main program creates the world for all ranks that it then spawns; or every spawned rank creates it for itself, as in
PyTorch, and those of one team share one world. A rank that leaves (`destroy_process_group`) may create a new world with
the other ranks that do. When all ranks of a team have ended, their worlds are destroyed; after a failure also that of
the main program, since its ranks stopped in the middle of a collective or message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from kernbench.ccl.install import check_received
from kernbench.common.errors import (
    CollectiveMismatchError,
    DistributedError,
    DistributedTypeError,
    ProcessGroupError,
)
from kernbench.common.ipcq import Unreceived
from kernbench.runtime_api.ccl_backend import Backend
from kernbench.runtime_api.collective_host import CollectiveHost
from kernbench.runtime_api.group_args import check_rank, checked_ranks, checked_size
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.process_group import NonMember, ProcessGroup, World
from kernbench.runtime_api.ranks import Ranks
from kernbench.runtime_api.work import UnmatchedMessage
from kernbench.runtime_api.workers import Team, Worker, Workers

if TYPE_CHECKING:
    from kernbench.ccl.config import CclSource

BACKEND = "ahbm"
GroupArg = ProcessGroup | NonMember | None
NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."  # as in PyTorch
)


class GroupNames:
    """`torch.distributed.group` and `GroupMember`: names for the world, and for what `new_group` returns to
    non-members.
    """

    NON_GROUP_MEMBER: Literal[NonMember.NON_GROUP_MEMBER] = NonMember.NON_GROUP_MEMBER

    def __init__(self, world: Callable[[], ProcessGroup | None]) -> None:
        self._world = world

    @property
    def WORLD(self) -> ProcessGroup | None:  # noqa: N802  # PyTorch's name
        """The group of all ranks; None where there is none."""
        return self._world()


class ProcessGroups:
    """The part of `torch.distributed` that creates and describes groups."""

    def __init__(
        self,
        host: CollectiveHost,
        ranks: Ranks,
        workers: Workers,
        n_sips: int,
        make_backend: Callable[[CclSource], Backend],
    ) -> None:
        self._host = host
        self._ranks = ranks
        self._workers = workers
        self._n_sips = n_sips
        self._make_backend = make_backend
        self._main: World | None = None  # created by a main program
        self._started: Team | None = None  # its ranks
        self._own: WeakKeyDictionary[Worker, World] = WeakKeyDictionary()  # created by ranks that have not left
        self._times: WeakKeyDictionary[Worker, int] = WeakKeyDictionary()  # how many worlds a rank has created
        self._by_team: dict[tuple[Team, int], World] = {}  # by team, and number among its worlds
        self._unmatched: list[UnmatchedMessage] = []  # messages that waited for their other end and are not done
        self.group = self.GroupMember = GroupNames(lambda: self._world_group())
        ranks.unmatched.append(lambda: [*self._open_calls()])

    # ---- creating and destroying

    def is_available(self) -> bool:
        """Whether there are process groups: always."""
        return True

    def init_process_group(
        self,
        backend: str | None = BACKEND,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: object = None,
        group_name: str = "",
        pg_options: object = None,
        device_id: object = None,
        *,
        ccl: CclSource = None,
    ) -> None:
        """Create the group of all ranks: once in the main program before it spawns, or once in every rank.

        The world has a rank for each SIP, or for each spawned rank. `init_method`, `timeout`, `store`, `group_name`,
        `pg_options` and `device_id` are accepted for compatibility: ranks are programs of one process, which need no
        rendezvous, a wait that cannot end is reported at once, and rank r is on SIP r. `ccl` is an extension of
        PyTorch: the configuration of collectives, as the path of a ccl.yaml or as a mapping; the first rank's applies,
        and others may leave it out.

        Raises ProcessGroupError for a second world, CollectiveMismatchError for another `ccl` than the first rank's. A
        `world_size` or `rank` other than the caller's is ignored with a KernBenchWarning, since machine and launcher
        define them.
        """
        if backend not in (BACKEND, None):
            raise DistributedError(f"Unsupported backend {backend!r}", hint=f"use '{BACKEND}'")
        if init_method is not None and not isinstance(init_method, str):
            raise DistributedTypeError(f"init_method is {init_method!r}", hint="leave it out")
        if timeout is not None and not isinstance(timeout, timedelta):
            raise DistributedTypeError(f"timeout is {timeout!r}", hint="leave it out, or give a datetime.timedelta")
        worker = self._workers.current()
        if self._world() is not None:
            raise ProcessGroupError(
                "trying to initialize the default process group twice!",
                hint="call it once in the main program, for all ranks, or once in every rank; or "
                "destroy_process_group() first",
            )
        if worker is None:
            size = checked_size(world_size, range(1, self._n_sips + 1), self._n_sips)
            check_rank(rank, 0)
            self._main = self._new_world(size, None, ccl)
            return
        size = checked_size(world_size, range(worker.team.size, worker.team.size + 1), worker.team.size)
        check_rank(rank, worker.rank)
        times = self._times.get(worker, 0)
        world = self._by_team.get((worker.team, times))
        if world is None:
            world = self._by_team[worker.team, times] = self._new_world(size, worker.team, ccl)
        elif ccl is not None and ccl != world.ccl:
            raise CollectiveMismatchError(
                f"ranks make different process groups: rank {worker.rank} gives ccl={ccl!r}, the first rank gave "
                f"{world.ccl!r}",
                where=f"rank {worker.rank} at {host_line()}; the first rank at {world.made_at}",
                hint="give the same on every rank, or only in the main program",
            )
        self._own[worker] = world
        self._times[worker] = times + 1

    def destroy_process_group(self, group: GroupArg = None) -> None:
        """Destroy a group, or by default all groups, for the caller, after everything it issued is done.

        A main program destroys groups for all ranks. When the last rank has left, UnreceivedError is raised for
        messages that kernels of collectives have sent and none has received.
        """
        world, rank = self._here()
        self._host.wait_all()
        chosen = self._chosen(world, group)
        for each in world.groups if chosen is world.default else [chosen]:
            world.leave(each, rank)
        if chosen is world.default:
            worker = self._workers.current()
            if worker is not None:
                self._own.pop(worker, None)
            if len(world.default.left) == world.size:
                self._drop(world)
        check_received(world.take_unreceived())

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        timeout: timedelta | None = None,
        backend: str | None = None,
        pg_options: object = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        device_id: object = None,
    ) -> ProcessGroup | NonMember:
        """A group of some ranks of the world, all by default, in the order of their numbers. The arguments after
        `backend` are accepted for compatibility.

        Every rank of the world calls it, in the same order; ranks that are not members get NON_GROUP_MEMBER. A main
        program that has created the world may create groups for its ranks, too.
        """
        world, rank = self._here()
        if backend not in (BACKEND, None):
            raise DistributedError(f"Unsupported backend {backend!r}", hint=f"use '{BACKEND}'")
        if timeout is not None and not isinstance(timeout, timedelta):
            raise DistributedTypeError(f"timeout is {timeout!r}", hint="leave it out, or give a datetime.timedelta")
        group = world.new_group(checked_ranks(ranks, world.size), rank)
        return group if rank is None or rank in group.ranks else NonMember.NON_GROUP_MEMBER

    def new_subgroups(
        self,
        group_size: int | None = None,
        group: GroupArg = None,
        timeout: timedelta | None = None,
        backend: str | None = None,
        pg_options: object = None,
        group_desc: str | None = None,
    ) -> tuple[ProcessGroup | NonMember, list[ProcessGroup | NonMember]]:
        """Groups of `group_size` ranks each, in the order of their numbers; the caller's own, and all of them."""
        ranks = self._chosen(self._here()[0], group).ranks
        size = len(ranks) if group_size is None else group_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or len(ranks) % size:
            raise DistributedError(
                f"new_subgroups: {len(ranks)} ranks in groups of {group_size!r}", hint=f"use a divisor of {len(ranks)}"
            )
        lists = [ranks[at : at + size] for at in range(0, len(ranks), size)]
        return self.new_subgroups_by_enumeration(lists, timeout, backend)

    def new_subgroups_by_enumeration(
        self,
        ranks_per_subgroup_list: Sequence[Sequence[int]],
        timeout: timedelta | None = None,
        backend: str | None = None,
        pg_options: object = None,
        group_desc: str | None = None,
    ) -> tuple[ProcessGroup | NonMember, list[ProcessGroup | NonMember]]:
        """A group for each list of ranks, none of which is in two; the caller's own, and all of them."""
        every = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
        if len(set(every)) != len(every):
            raise DistributedError(f"new_subgroups: {sorted(every)} name a rank twice", hint="let groups share no rank")
        rank = self._here()[1]
        made = [self.new_group(list(ranks), timeout, backend) for ranks in ranks_per_subgroup_list]
        own = [group for group, ranks in zip(made, ranks_per_subgroup_list, strict=True) if rank in ranks]
        return (own[0] if own else NonMember.NON_GROUP_MEMBER), made

    # ---- queries

    def get_node_local_rank(self, fallback_rank: int | None = None) -> int:
        """The caller's rank: all ranks are on one tray."""
        return self.get_rank()

    def is_initialized(self) -> bool:
        """Whether the caller is in a process group."""
        return self._world() is not None

    def get_backend(self, group: GroupArg = None) -> str:
        """The name of the backend of a group: `ahbm`. Raises ProcessGroupError where there is none."""
        self._chosen(self._here()[0], group)
        return BACKEND

    def get_rank(self, group: GroupArg = None) -> int:
        """The caller's rank in a group, -1 if it is not a member; 0 for a main program."""
        world, rank = self._here()
        if group is NonMember.NON_GROUP_MEMBER:
            return -1
        return self._chosen(world, group).rank_of(rank or 0)

    def get_world_size(self, group: GroupArg = None) -> int:
        """The size of a group; -1 if the caller is not a member."""
        world, rank = self._here()
        if group is NonMember.NON_GROUP_MEMBER:
            return -1
        chosen = self._chosen(world, group)
        return chosen.size() if rank is None or rank in chosen.ranks else -1

    def get_process_group_ranks(self, group: GroupArg = None) -> list[int]:
        """The global ranks of a group's members, by group rank."""
        return list(self._chosen(self._here()[0], group).ranks)

    def get_group_rank(self, group: GroupArg, global_rank: int) -> int:
        """The group rank of a global rank."""
        chosen = self._chosen(self._here()[0], group)
        if global_rank not in chosen.ranks:
            raise DistributedError(
                f"Global rank {global_rank} is not part of {chosen.title}", hint=f"it has ranks {list(chosen.ranks)}"
            )
        return chosen.rank_of(global_rank)

    def get_global_rank(self, group: GroupArg, group_rank: int) -> int:
        """The global rank of a group rank."""
        chosen = self._chosen(self._here()[0], group)
        if isinstance(group_rank, bool) or not isinstance(group_rank, int) or not 0 <= group_rank < chosen.size():
            raise DistributedError(
                f"Group rank {group_rank!r} is not part of {chosen.title}",
                hint=f"it has ranks 0 to {chosen.size() - 1}",
            )
        return chosen.ranks[group_rank]

    # ---- teams of ranks

    def team_starts(self, team: Team) -> None:
        """Called before ranks are started; raises ProcessGroupError if the main program's world has another size."""
        if self._main is not None and self._main.size != team.size:
            raise ProcessGroupError(
                f"spawn starts {team.size} ranks, and the process group has {self._main.size}",
                hint=f"spawn(..., nprocs={self._main.size}); or init_process_group(world_size={team.size}) before, or "
                "let every rank call it",
            )
        self._started = team

    def team_ends(self, team: Team, *, failed: bool) -> None:
        """Called when all ranks of a team have ended; raises CollectiveMismatchError for calls that only some made."""
        self._started = None
        self._unmatched = []
        incomplete: list[str] = []
        unreceived: list[Unreceived] = []
        for world in [*self._worlds()]:
            if world.team in (None, team):
                open_calls = [*world.open_calls(team.ended)]
                incomplete += open_calls
                if failed or open_calls or world.default.left or world.team is team:
                    self._drop(world)
                    unreceived += world.take_unreceived()
        if incomplete and not failed:
            raise CollectiveMismatchError(
                "all ranks have ended, and some never called what others did",
                where="; ".join(incomplete),
                hint="let every rank of a group call the same collectives, and receive what is sent",
            )
        if not failed:
            check_received(unreceived)

    # ---- inside

    def _world(self) -> World | None:
        """The caller's world."""
        worker = self._workers.current()
        if worker is None or self._main is None:
            return self._main if worker is None else self._own.get(worker)
        return self._own.get(worker, None if worker.rank in self._main.default.left else self._main)

    def _here(self) -> tuple[World, int | None]:
        """The caller's world and global rank, None for a main program; raises ProcessGroupError if
        there is no world.
        """
        world, worker = self._world(), self._workers.current()
        if world is None:
            raise ProcessGroupError(
                NOT_INITIALIZED,
                hint=f"torch.distributed.init_process_group('{BACKEND}') before spawn, or in every rank",
            )
        return world, None if worker is None else worker.rank

    def _calling_rank(self) -> int:
        worker = self._workers.current()
        return 0 if worker is None else worker.rank

    def _world_group(self) -> ProcessGroup | None:
        world = self._world()
        return None if world is None else world.default

    def _chosen(self, world: World, group: object) -> ProcessGroup:
        """The group of an argument, the world by default; raises an error for one that cannot be used."""
        if group is None:
            return world.default
        if group is NonMember.NON_GROUP_MEMBER:
            raise ProcessGroupError(
                "the caller is not in this group: new_group gave it NON_GROUP_MEMBER",
                hint="let only members call: if torch.distributed.get_rank() in ranks",
            )
        if not isinstance(group, ProcessGroup):
            raise DistributedTypeError(f"group is {group!r}", hint="give what new_group returned, or leave it out")
        if group not in world.groups or self._calling_rank() in group.left:
            raise ProcessGroupError(
                f"{group.title} has been destroyed, or is of another world", hint="make it again with new_group"
            )
        return group

    def _new_world(self, size: int, team: Team | None, ccl: CclSource) -> World:
        taken = [world.default.name for world in self._worlds()]
        name = next(name for n in range(1, len(taken) + 2) if (name := f"world#{n}" if n > 1 else "world") not in taken)
        return World(name, size, self._make_backend(ccl), self._calling_rank, team, ccl)

    def _worlds(self) -> Iterator[World]:
        if self._main is not None:
            yield self._main
        yield from self._by_team.values()

    def _drop(self, world: World) -> None:
        """Destroy a world for all ranks."""
        if world is self._main:
            self._main = None
        self._by_team = {key: other for key, other in self._by_team.items() if other is not world}
        for worker in [worker for worker, other in self._own.items() if other is world]:
            del self._own[worker]
        world.close()

    def _open_calls(self) -> Iterator[str]:
        for world in self._worlds():
            team = world.team or self._started
            ended = () if team is None else tuple(team.ended)
            yield from world.open_calls(ended)
