"""The error tree. Every error says what, where and how to fix it, and keeps those as attributes.

KernBenchError                 anything a user can cause and fix; the command turns it into exit code 2
    TopologyError              a machine description is wrong; carries every fault found, not only the first
    CclConfigError             a configuration of collectives is wrong; carries every fault found
    ScenarioError              a file of workloads is wrong; carries every fault found
    AddressError               an address does not decode, or does not fit its window
    AllocationError            a memory is full, or a free does not match an allocation
    RoutingError               no such node, or no path between two nodes
    FabricError                a transfer the network cannot carry
    MessageError               a request with a field missing or out of range
    ComponentError             an implementation cannot be found, or does not honour its contract
    KernelError                a kernel asks for what cannot be done; `where` is the kernel's own line
        UnknownNameError       `tl` has no such name; an AttributeError too, so that hasattr() works
        KernelCapacityError    what a kernel needs does not fit a memory; a CapacityError too
        StoppedMessagesError   a kernel sends or receives where another one ended early: a consequence of its failure
    LaunchError                a kernel failed on some PEs; carries the failure of each
    DeadlockError              no event is left, and kernels or ranks still wait; carries every blocked kernel
    TimeLimitError             simulated time has reached the limit of the run; carries where every kernel stands
    UnreceivedError            a launch or a run has ended with messages that were not received; carries each of them
    RaceError                  kernels touch the same bytes in no order; carries every race found
    FastCheckError             a checked program fails in one way with fast paths, in another without; exit code 1
    DataError                  tensors whose shape or dtype do not fit, or bytes that were never written
    UsageError                 a wrong argument on the command line or in a call
        CapacityError          what is asked for does not fit a memory of the machine; of a sweep's point, infeasible
        NotModelledError       a name of PyTorch's that is not there; an AttributeError too, so that hasattr() works
        TensorError            shapes, views or dtypes of tensors that do not fit; a RuntimeError and a ValueError too
            TensorTypeError        an operand that is no tensor where one is needed; a TypeError too
            TensorIndexError       an index or an axis that is not there; an IndexError too
        DistributedTypeError   of `torch.distributed`, an argument that is no tensor, list or op; a TypeError too
        DistributedError       of `torch.distributed`, any other; a ValueError and a RuntimeError too, as in PyTorch
            ProcessGroupError          there is no process group, or one already, or another one
            CollectiveMismatchError    ranks of a group call different things
    SpawnException             ranks that were spawned failed; carries what each of them raised; a RuntimeError too

KernBenchWarning               a program runs, and may not mean what it says; a UserWarning
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernbench.common.blocked import BlockedKernel, causes, report, ring_dump, standing, unmatched_calls, waiting_cycle
from kernbench.common.frozen import frozen
from kernbench.common.units import format_ns


class KernBenchWarning(UserWarning):
    """A program runs, and may not mean what it says; the text names the remedy."""


class KernBenchError(Exception):
    """Something the user can fix: `what` happened, `where`, and how to fix it (`hint`)."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


@frozen
class Fault:
    """One thing wrong with a description. `where` is `file:line`, `key` is the key path. `is_lack`: of memory."""

    what: str
    where: str
    key: str
    hint: str
    is_lack: bool = False

    def __str__(self) -> str:
        place = f"{self.where}  {self.key}" if self.key else self.where
        return f"{self.what}\n  where: {place}\n  hint:  {self.hint}"


class _Faults(KernBenchError):
    """A description of something is wrong. `faults` holds all that was found in one reading."""

    of_what = "the description"

    def __init__(self, faults: Sequence[Fault]) -> None:
        if not faults:
            raise ValueError(f"a {type(self).__name__} needs at least one fault")
        self.faults = tuple(faults)
        first = self.faults[0]
        where = f"{first.where}  {first.key}" if first.key else first.where
        super().__init__(first.what, where=where, hint=first.hint)

    def __str__(self) -> str:
        head = "" if len(self.faults) == 1 else f"{len(self.faults)} faults in {self.of_what}\n"
        return head + "\n".join(str(fault) for fault in self.faults)


class TopologyError(_Faults):
    """A machine description is wrong."""

    of_what = "the machine description"


class CclConfigError(_Faults):
    """A configuration of collectives (`ccl.yaml`) is wrong."""

    of_what = "the configuration of collectives"


class ScenarioError(_Faults):
    """A file of workloads is wrong."""

    of_what = "the scenario"


class AddressError(KernBenchError):
    """An address does not decode, or a field does not fit its window."""


class AllocationError(KernBenchError):
    """A memory has no block of that size, or a free does not match an allocation."""


class RoutingError(KernBenchError):
    """No such node, or no path between two nodes."""


class FabricError(KernBenchError):
    """A transfer the network cannot carry: an unknown path, no bandwidth, a size or time out of range."""


class MessageError(KernBenchError):
    """A request with a field missing or out of range."""


class ComponentError(KernBenchError):
    """A component implementation cannot be found, or does not honour its contract."""


class KernelError(KernBenchError):
    """A kernel asks for what cannot be done. `where` is the kernel's own file and line."""


class UnknownNameError(KernelError, AttributeError):
    """`tl` has no such name. Also an AttributeError, so that hasattr() and getattr() with a default work."""


class StoppedMessagesError(KernelError):
    """A communicator cannot be used any more, since a kernel that used it ended early: a consequence of its failure."""


class LaunchError(KernBenchError):
    """A kernel failed on some PEs. `failures` holds a `KernelFailure` of each, in their order."""

    def __init__(
        self, what: str, failures: Sequence[object], *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.failures = tuple(failures)


class DeadlockError(KernBenchError):
    """No event is left, and kernels or ranks still wait.

    `blocked` holds every kernel that cannot go on, by PE; `cycle` the PEs of a cycle among
    them, where there is one; `unmatched` every collective that some ranks never called.
    """

    def __init__(
        self,
        what: str,
        blocked: Sequence[BlockedKernel] = (),
        *,
        unmatched: Sequence[str] = (),
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.blocked = tuple(blocked)
        self.cycle = waiting_cycle(self.blocked)
        self.unmatched = tuple(unmatched)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        lines += [f"  unmatched: {call}" for call in unmatched_calls(self.unmatched)]
        lines += [f"  blocked: {entry}" for entry in report(self.blocked)]
        lines += [f"  rings of {entry}" for entry in ring_dump(self.blocked)]
        lines += [f"  {cause}" for cause in (() if self.unmatched and not self.cycle else causes(self.blocked))]
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


class TimeLimitError(KernBenchError):
    """Simulated time has reached the limit that the run was given. `kernels` says where every kernel stands."""

    def __init__(self, what: str, kernels: Sequence[BlockedKernel], *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.kernels = tuple(kernels)

    def __str__(self) -> str:
        lines = [self.what, *standing(self.kernels)]
        return "\n".join([*lines, f"  hint:  {self.hint}"] if self.hint else lines)


class StoppedRun(KeyboardInterrupt):
    """A run was interrupted while simulated time passed. `kernels` says where every kernel stands."""

    def __init__(self, now_ns: float, kernels: Sequence[BlockedKernel]) -> None:
        super().__init__()
        self.now_ns = now_ns
        self.kernels = tuple(kernels)

    def __str__(self) -> str:
        return "\n".join([f"stopped at {format_ns(self.now_ns)} of simulated time", *standing(self.kernels)])


class UnreceivedError(KernBenchError):
    """Messages were sent and never received. `messages` holds each of them, as an `Unreceived`."""

    def __init__(
        self, what: str, messages: Sequence[object], *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.messages = tuple(messages)


class RaceError(KernBenchError):
    """Kernels touch the same bytes of memory in no order. `races` holds every pair of lines, as a `Race`."""

    def __init__(
        self, what: str, races: Sequence[object], *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.races = tuple(races)


class FastCheckError(KernBenchError):
    """A checked program fails with fast paths, and in another way without. `usual` and `exact` are what it raised."""

    def __init__(self, what: str, usual: Exception, exact: Exception, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.usual, self.exact = usual, exact


class DataError(KernBenchError):
    """Tensors whose shape or dtype do not fit an operation, or bytes that were never written."""


class UsageError(KernBenchError):
    """A wrong argument on the command line or in a call."""


class CapacityError(UsageError):
    """What is asked for does not fit a memory of the machine. A sweep calls such a point infeasible."""


class KernelCapacityError(KernelError, CapacityError):
    """What a kernel needs does not fit a memory: its tensors or a tile TCM, or its rings."""


class NotModelledError(UsageError, AttributeError):
    """A name of PyTorch's that is not there. Also an AttributeError, so that hasattr() and getattr() with a default
    work.
    """


class TensorError(UsageError, RuntimeError, ValueError):
    """Shapes, views or dtypes of tensors that do not fit an operation. Also what PyTorch raises."""


class TensorTypeError(TensorError, TypeError):
    """An operand of a tensor operation that is no tensor where one is needed. Also a TypeError."""


class TensorIndexError(TensorError, IndexError):
    """An index or an axis that a tensor does not have. Also an IndexError."""


class DistributedTypeError(UsageError, TypeError):
    """An argument of `torch.distributed` that is no tensor, no list of tensors, no op. Also a TypeError."""


class DistributedError(UsageError, ValueError, RuntimeError):
    """A wrong call of `torch.distributed`. Also what PyTorch raises: ValueError from its own checks, RuntimeError from
    those of a backend.
    """


class ProcessGroupError(DistributedError):
    """There is no process group where one is needed, or one already, or the caller is not a member of it."""


class CollectiveMismatchError(DistributedError):
    """Ranks of a group call different things where all must call the same."""


class SpawnException(KernBenchError, RuntimeError):
    """Ranks that were spawned failed. `errors` holds what each of them raised, by rank; ranks that were only ended
    because of them are not in it.
    """

    def __init__(
        self, what: str, errors: Mapping[int, BaseException], *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.errors = dict(errors)
