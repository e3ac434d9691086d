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
from kernbench.topology import load_topology


def failure(kind: str, message: str = "no room") -> KernelFailure:
    return KernelFailure(kind, message, "f.py", 1, "", 0, 0, 0)


HOME, HBM = "cube.memory_map.tcm_home_mb_per_pe", "cube.memory_map.hbm_total_gb_per_cube"


def fault(key: str, *, is_lack: bool = False) -> Fault:
    return Fault("no room", "m.yaml:1", key, "keep less", is_lack)


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
        (TopologyError([fault("cube.memory_map.tcm_mb_per_pe", is_lack=True)]), "no room"),
        (TopologyError([fault("cube.memory_map.tcm_mb_per_pe", is_lack=True), fault("system")]), None),
        (LaunchError("a kernel failed", [failure("KernelError")]), None),
        (SpawnException("a rank failed", {1: ValueError("no")}), None),
        (KernelError("no"), None),
        (UsageError("no"), None),
    ],
)
def test_what_does_not_fit_a_memory_has_a_reason(error: Exception, reason: str | None) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("changes", "is_lack"),
    [
        ({HOME: 1.5, HBM: 0}, True),
        ({"cube.memory_map.tcm_mb_per_pe": 1}, True),
        ({HOME: 0.5}, False),  # and HBM
        ({HOME: -1, HBM: 0}, False),
    ],
)
def test_a_tcm_that_leaves_kernels_nothing_is_a_lack_and_a_contradiction_is_none(
    changes: dict[str, object], is_lack: bool
) -> None:
    with pytest.raises(TopologyError) as refused:
        load_topology(None, changes)
    assert (reason_of(refused.value) is not None) == is_lack
