"""The evaluation of finite buffers: its points, one of them, and the depth that it recommends."""

import kernbench
from kernbench.benches.milestones.buffers import SCHEMES, UNLIMITED, point, points, recommendation
from kernbench.topology import load_topology

ONE_CUBE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


def test_every_scheme_is_measured_at_every_depth_and_without_a_limit():
    found = points(load_topology(), min_depth=8, max_depth=16)
    assert [setting["scheme"] for setting in found] == [UNLIMITED, *(s for s in SCHEMES for _ in (8, 16))]
    wormhole = next(setting for setting in found if setting["scheme"] == "wormhole, 2 channels")
    assert wormhole["machine:fabric.buffers.slots"] == 4  # half of 8 for each of two channels


def test_a_point_measures_bandwidth_and_the_latency_of_a_lone_read():
    measured = []

    def bench(torch):
        measured.append(point(torch, scheme="fifo", depth=1, accesses=1))

    for overrides in (ONE_CUBE, {**ONE_CUBE, "fabric.buffers.slots": 1, "fabric.buffers.credit_ns": 50.0}):
        kernbench.run(bench, overrides=overrides, device=0, data=False)
    unlimited, tiny = measured
    assert unlimited["gbs"] > tiny["gbs"]
    assert unlimited["lone_ns"] < tiny["lone_ns"]


def test_the_least_depth_that_is_enough_is_recommended():
    rows = [{"scheme": UNLIMITED, "depth": 0, "gbs": 100.0}]
    rows += [{"scheme": "fifo", "depth": depth, "gbs": gbs} for depth, gbs in ((8, 60.0), (16, 96.0), (32, 99.0))]
    said = recommendation(rows)
    assert "fifo 16 flits" in said
    assert "one queue per output more than was tried" in said
