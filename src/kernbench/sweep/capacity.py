"""Errors that say that work does not fit the memories of a machine: such a point is infeasible, and has not failed."""

from __future__ import annotations

from kernbench.common.errors import (
    AllocationError,
    CapacityError,
    KernelCapacityError,
    LaunchError,
    SpawnException,
    StoppedMessagesError,
    TopologyError,
)

MARK = f"{KernelCapacityError.__name__}: "  # of the cause, in what a kernel reports that was stopped by another one


def reason_of(error: BaseException) -> str | None:
    """What does not fit, of an error that says so; of kernels and ranks that failed, of the first one. None for any
    other error.
    """
    if isinstance(error, AllocationError | CapacityError):
        return error.what
    if isinstance(error, TopologyError):
        return error.what if all(fault.is_lack for fault in error.faults) else None
    if isinstance(error, LaunchError):
        kinds = [(getattr(each, "kind", ""), getattr(each, "message", "")) for each in error.failures]
        own = [message for kind, message in kinds if kind == KernelCapacityError.__name__]
        of_others = [message.partition(MARK)[2] for kind, message in kinds if kind == StoppedMessagesError.__name__]
        return next(filter(None, [*own, *of_others]), None)
    if isinstance(error, SpawnException):
        return next(filter(None, map(reason_of, error.errors.values())), None)
    return None
