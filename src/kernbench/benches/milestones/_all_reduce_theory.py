"""The least time of an all-reduce over the SIPs of a tray, alpha-beta from the machine: alpha is the latency of every
hop that the first byte takes (nodes and wires of the path), beta the bytes that the busiest link carries over its
bandwidth. Wake-up, addition and memory reads are left out, so it is a lower bound.
"""

from __future__ import annotations

from kernbench.ccl.topologies import SipGroup, group_of
from kernbench.common.ids import PeKey
from kernbench.sim_engine.paths import latency_ns, narrowest_gbs
from kernbench.topology.graph import TopologyGraph


def alpha_beta(machine: TopologyGraph, nbytes: int) -> dict[str, float]:
    """The bound of an all-reduce over the cube meshes and between their roots, as `bound_ns`, with its two terms: the
    latencies of the longest path, `alpha_ns`, and the time of the bytes that the busiest link carries, `beta_ns`.
    """
    spec, group = machine.spec, group_of(machine.spec)
    mesh = spec.sip.cube_mesh
    root: PeKey = (0, (mesh.h // 2) * mesh.w + mesh.w // 2, 0)
    rounds = exchange_rounds(group)
    alpha = 0.0
    if spec.sip.n_cubes > 1:
        across = (mesh.w // 2, mesh.h // 2)  # hops to the middle, from the farther side
        beside = [(0, 1, 0) if mesh.w > 1 else None, (0, mesh.w, 0) if mesh.h > 1 else None]
        alpha += 2 * sum(
            hops * latency_ns(machine, (0, 0, 0), place)
            for hops, place in zip(across, beside, strict=True)
            if place is not None
        )
    gbs = narrowest_gbs(machine, (0, 0, 0), (0, 1, 0)) if spec.sip.n_cubes > 1 else float("inf")
    times = [nbytes / gbs]
    if rounds:
        peer: PeKey = (1, root[1], 0)
        alpha += sum(rounds) * latency_ns(machine, root, peer)
        times.append(sum(rounds) * nbytes / narrowest_gbs(machine, root, peer))
    return {"alpha_ns": alpha, "beta_ns": max(times), "bound_ns": alpha + max(times)}


def exchange_rounds(group: SipGroup) -> list[int]:
    """The number of times that a root's addend is sent along each line of the grid of SIPs: around a ring of n SIPs
    n - 1 times, along a mesh as often in both directions.
    """
    lines = [len(group.sips)] if group.kind == "ring_1d" else [group.w, group.h]
    per_step = 2 if group.kind == "mesh_2d_no_wrap" else 1
    return [per_step * (size - 1) for size in lines if size > 1]
