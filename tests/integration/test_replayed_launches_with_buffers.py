"""Launches on a machine with finite buffers are recorded and replayed where all slots are credited: at their begin, at
their end, and when an access interferes, everything is as if they had been simulated."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.integration.test_replayed_launches import (
    INTERFERING,
    Run,
    across,
    everything,
    instants,
    same,
    uneven,
    with_interference,
)

from kernbench.topology import TopologyGraph, load_topology

SMALL = {"system.name": "known", "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
DEEP = {"slots": 64, "credit_ns": 4.0}
TINY = {"slots": 1, "credit_ns": 8.0}
QUEUES = {"slots": 2, "credit_ns": 8.0, "order": "voq"}
PACKETS = {"slots": 2, "credit_ns": 4.0, "channels": 2, "ownership": "packet"}
TURNS = {**PACKETS, "arbitration": "round_robin"}
LATE = {"slots": 64, "credit_ns": 5000.0}


@cache
def machine(name: str) -> TopologyGraph:
    buffers = {"deep": DEEP, "tiny": TINY, "queues": QUEUES, "packets": PACKETS, "turns": TURNS, "late": LATE}[name]
    return load_topology(None, {**SMALL, "fabric.buffers": buffers})


def again(run: Run) -> None:
    """The same launches on two SIPs, some of which leave their cubes."""
    for kernel in (uneven, across):
        for sip in (0, 1, 0):
            x, y = run.tensors(sip)
            run.launch(kernel, x, y, sips=(sip,))


@pytest.mark.parametrize("name", ["deep", "tiny", "queues", "packets", "turns"])
def test_launches_are_replayed_by_whole_sips(name: str) -> None:
    assert same(again, machine(name)) == 6


def test_a_launch_that_comes_before_all_slots_are_credited_interrupts_the_one_before() -> None:
    assert same(again, machine("late")) < 6


def test_random_kernels_one_after_the_other() -> None:
    def program(run: Run) -> None:
        x, y, z = run.tensors(count=3, shape=(256, 256))
        for seed in (1, 2, 1, 3, 2, 4):
            x, y, z = y, z, x
            run.launch(everything, x, y, seed)

    assert same(program, machine("tiny")) == 6


@pytest.mark.parametrize("access", INTERFERING[:3], ids=lambda access: access.__name__)
def test_kernels_go_on_as_they_would_have_when_an_access_interferes(access: Any) -> None:
    times = instants()
    for number, at in enumerate((*times[1::13], times[0], times[-1])):
        same(with_interference(access, at), machine(("tiny", "queues", "packets", "turns")[number % 4]))
