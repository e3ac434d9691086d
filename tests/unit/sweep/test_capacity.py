"""Errors that make a point infeasible, and those that are failures."""

from __future__ import annotations

import pytest

from kernbench.common.errors import (
    AllocationError,
    CapacityError,
    Fault,
    KernelCapacityError,
    KernelError,
    LaunchError,
    SpawnException,
    TopologyError,
    UsageError,
)
from kernbench.common.launch import KernelFailure
from kernbench.sweep.capacity import reason_of


def failure(kind: str, message: str = "no room") -> KernelFailure:
    return KernelFailure(kind, message, "f.py", 1, "", 0, 0, 0)


def fault(key: str) -> Fault:
    return Fault("no room", "m.yaml:1", key, "keep less")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AllocationError("no room"), "no room"),
        (CapacityError("no room"), "no room"),
        (KernelCapacityError("no room"), "no room"),
        (LaunchError("a kernel failed", [failure("KernelCapacityError")]), "no room"),
        (
            LaunchError("a kernel failed", [failure("StoppedMessagesError", "no more: KernelCapacityError: no room")]),
            "no room",
        ),
        (LaunchError("a kernel failed", [failure("StoppedMessagesError")]), None),
        (SpawnException("a rank failed", {1: CapacityError("no room")}), "no room"),
        (TopologyError([fault("cube.memory_map.tcm_scheduler_reserved_mb")]), "no room"),
        (TopologyError([fault("cube.memory_map.tcm_scheduler_reserved_mb"), fault("system")]), None),
        (LaunchError("a kernel failed", [failure("KernelError")]), None),
        (SpawnException("a rank failed", {1: ValueError("no")}), None),
        (KernelError("no"), None),
        (UsageError("no"), None),
    ],
)
def test_what_does_not_fit_a_memory_has_a_reason(error: Exception, reason: str | None) -> None:
    assert reason_of(error) == reason
