"""`torch.multiprocessing`: `spawn` runs a function once for each rank, all of them concurrently on one clock.

The signature is PyTorch's, the execution is not: ranks are coroutines of one process, which switch when they wait for
the device (`ranks.py`). They share Python's memory, and host code takes no simulated time. A rank's current device is
the SIP of its number until it selects another with `torch.ahbm.set_device`.

If one rank fails, all are ended, and the launches that they have running on devices are stopped.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, NoReturn, Protocol

from greenlet import getcurrent, greenlet

from kernbench.common.errors import KernBenchError, SpawnException, UsageError
from kernbench.runtime_api.current import bind_context
from kernbench.runtime_api.device import AhbmNamespace
from kernbench.runtime_api.host_line import at_host_line
from kernbench.runtime_api.matching import ranks_named
from kernbench.runtime_api.not_modelled import PROCESS_NAMES, refuse_name
from kernbench.runtime_api.ranks import Ranks
from kernbench.runtime_api.workers import Team, Worker, Workers
from kernbench.triton_emu.binding import name_of

__all__ = ["MultiprocessingNamespace", "SpawnException"]

RankFunction = Callable[..., object]
# Ranks that fail in the same way, each with its own number in the text or on its own SIP, are one entry of the report.
_ON_ITS_SIP = re.compile(r"failed on sip \d+,").sub


class TeamHost(Protocol):
    """The part of the context that starting and ending ranks needs."""

    def wait_all(self) -> None:
        """Return when everything that the calling program issued is done."""

    def team_finishes(self) -> None:
        """Return when all messages between ranks with both ends posted are done."""

    def stop_launches(self, programs: Collection[greenlet]) -> None:
        """Stop the launches of these programs, which have ended."""

    def team_starts(self, team: Team) -> None:
        """Called before ranks are started; raises UsageError if they cannot be."""

    def team_ends(self, team: Team, *, failed: bool) -> None:
        """Called when all ranks of a team have ended; raises an error for incomplete calls, unless a rank failed."""


class MultiprocessingNamespace:
    """`torch.multiprocessing`."""

    def __init__(self, host: TeamHost, ranks: Ranks, ahbm: AhbmNamespace, workers: Workers) -> None:
        self._host = host
        self._ranks = ranks
        self._ahbm = ahbm
        self._workers = workers

    SpawnException = SpawnException

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names what to use instead."""
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("torch.multiprocessing", name, PROCESS_NAMES.get(name), dir(type(self)))

    def spawn(
        self,
        fn: RankFunction,
        args: Sequence[object] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        """Run `fn(rank, *args)` for ranks 0 to nprocs - 1, and return when all of them, and all they issued, are done.
        A function that has a further parameter `torch` gets the context for it.

        Raises SpawnException when ranks fail: it lists every one that did, with the reason. Raises DeadlockError when
        ranks wait and no event is left. `daemon` and `start_method` are accepted for compatibility: ranks are programs
        of one process.
        """
        self._check(fn, args, nprocs, join)
        if _takes_context(fn, args):
            fn = partial(fn, torch=self._host)
        team = Team(nprocs)
        self._host.team_starts(team)
        programs: list[greenlet] = []
        bodies = [partial(self._work, Worker(team, rank), fn, tuple(args), programs) for rank in range(nprocs)]
        failed = True
        try:
            outcome = self._ranks.run_all(bodies, [f"rank {rank}" for rank in range(nprocs)])
            failed = bool(outcome.errors)
        finally:
            if failed:
                self._host.stop_launches(programs)
            self._host.team_ends(team, failed=failed)
        if outcome.errors:
            _raise(outcome.errors, nprocs)

    def _work(self, worker: Worker, fn: RankFunction, args: tuple[object, ...], programs: list[greenlet]) -> None:
        """The body of a rank's program."""
        programs.append(getcurrent())
        self._workers.bind(worker)
        bind_context(self._host)
        self._ahbm.set_device(worker.rank)
        try:
            fn(worker.rank, *args)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
        except KernBenchError as error:
            at_host_line(error)
            raise
        worker.team.ended.append(worker.rank)
        self._host.wait_all()
        if len(worker.team.ended) == worker.team.size:
            self._host.team_finishes()

    def _check(self, fn: object, args: object, nprocs: object, join: object) -> None:
        if not callable(fn):
            raise UsageError(
                f"spawn: fn is {fn!r}", hint="give a function: spawn(fn, args, nprocs) calls fn(rank, *args)"
            )
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise UsageError(f"spawn: args is {args!r}", hint=f"give a tuple: args=({args!r},)")
        _check_call(fn, args)
        most = self._ahbm.device_count()
        if isinstance(nprocs, bool) or not isinstance(nprocs, int) or not 1 <= nprocs <= most:
            raise UsageError(
                f"spawn: nprocs is {nprocs!r}, and the machine has {most} SIPs, one for each rank",
                hint=f"use 1 to {most}, or a machine with more: --set system.sips.count=N",
            )
        if join is not True:
            raise UsageError(
                f"spawn: join is {join!r}, and ranks run only while the program that spawned them waits",
                hint="leave join out; what is to run beside the ranks goes into one of them",
            )
        if self._workers.current() is not None:
            raise UsageError(
                "spawn is called by a program that is a rank itself",
                hint='call it in the main program; a bench that spawns runs with device="whole" (--device whole)',
            )


def _takes_context(fn: Callable[..., object], args: Sequence[object]) -> bool:
    """Whether a function needs, after a rank and these arguments, `torch`."""
    try:
        found = signature(fn)
        needed = (
            found.parameters["torch"].default is Parameter.empty
            and "torch" not in found.bind_partial(0, *args).arguments
        )
    except (KeyError, TypeError, ValueError):  # it has no such parameter, or no signature
        return False
    return needed


def _check_call(fn: Callable[..., object], args: Sequence[object]) -> None:
    """Raise UsageError for a function that does not take a rank and these arguments."""
    if _takes_context(fn, args):
        fn = partial(fn, torch=None)
    try:
        found = signature(fn)
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    try:
        found.bind(0, *args)
    except TypeError as error:
        given = "a rank" if not args else f"a rank and {len(args)} further argument{'s' * (len(args) > 1)}"
        raise UsageError(
            f"spawn: {name_of(fn)}{found} cannot be called with {given}: {error}",
            hint="spawn(fn, args) calls fn(rank, *args): worker(rank, torch) needs args=(torch,)",
        ) from None


def _raise(errors: Mapping[int, BaseException], nprocs: int) -> None:
    """Raise the errors of several ranks as one, equal ones listed once; an interrupt (Ctrl-C) is raised as it is."""
    for error in errors.values():
        if not isinstance(error, Exception | SystemExit):
            raise error
    first = next(iter(errors.values()))
    ranks = sorted(errors)
    by_reason: dict[str, list[int]] = {}
    for rank in ranks:
        reason = _reason(errors[rank])
        if isinstance(errors[rank], KernBenchError):
            reason = re.sub(rf"\brank {rank}\b", "this rank", _ON_ITS_SIP("failed on its SIP,", reason))
        by_reason.setdefault(reason, []).append(rank)
    texts = [(same, reason if len(same) > 1 else _reason(errors[same[0]])) for reason, same in by_reason.items()]
    reasons = "\n".join(f"  {ranks_named(same)}: {reason}" for same, reason in texts)
    what = f"{ranks_named(ranks)} of {nprocs} failed; the others were ended\n{reasons}"
    if len(ranks) == nprocs:
        what = f"all {nprocs} ranks failed\n{reasons}"
        if len(texts) == 1:  # the first line says why: lists of failures show it
            what = f"{'the only rank' if nprocs == 1 else f'all {nprocs} ranks'} failed: {texts[0][1]}"
    raise SpawnException(what, errors) from first


def _reason(error: BaseException) -> str:
    """A rank's error, and where it was raised."""
    text = f"{type(error).__name__}: {error}".replace("\n", "\n  ")
    if not isinstance(error, KernBenchError):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text += f"\n    where: {frame.filename}:{frame.lineno}  {frame.line}"
    return text
