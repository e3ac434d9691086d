"""What happens at one instant has an order that does not depend on what is replayed: ranks, PEs and counters are the
same with and without recorded launches.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_launches import COPY_PER_CUBE, CUBES, SPLIT, Program, Run, across, machine, same

from kernbench import repeatable
from kernbench.topology import TopologyGraph

PE = "cube.pe_template.components"
SHORT, LONG = 100, 4000  # cycles of 1 ns


def without_wires() -> TopologyGraph:
    """Distances take no time, so that PEs and cubes that are not alike end at one instant."""
    return machine(**{"system.ns_per_mm": 0.0, "cube.components.router.attrs.overhead_ns": 0.0})


@repeatable
def recorded(x: Any, cycles: int, tl: Any) -> None:
    tl.cycles(int(cycles))


def plain(x: Any, cycles: int, tl: Any) -> None:
    tl.cycles(int(cycles))


@repeatable
def reads_one_part(x: Any, y: Any, tl: Any) -> None:
    """Its calls are the same on all PEs of a cube, so that only their order tells one recording from another."""
    tl.load(x, (8, 64))


def shared_jobs(first: dict[int, list[tuple[Any, int]]], taken: list[int]) -> Program:
    """Ranks, by SIP in the order of their first launch, do what is their own, and then take jobs from one list. The one
    that is first at it takes the long job, and SIP 1 has another long launch to make at the end.
    """

    def program(run: Run) -> None:
        xs = {sip: run.tensors(sip, 1)[0] for sip in first}
        jobs = [LONG, SHORT]
        taken.clear()

        def rank(sip: int) -> None:
            for kernel, cycles in first[sip]:
                run.launch(kernel, xs[sip], cycles, sips=(sip,))
            while jobs:
                taken.append(sip)
                run.launch(recorded, xs[sip], jobs.pop(0), sips=(sip,))
            if sip == 1:
                run.launch(recorded, xs[sip], LONG, sips=(sip,))

        run.torch.ranks.run([lambda sip=sip: rank(sip) for sip in first])

    return program


@pytest.mark.parametrize("sips", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kernels", [(recorded, recorded), (recorded, plain), (plain, recorded), (plain, plain)])
def test_ranks_whose_launches_end_together_go_on_in_the_order_of_launch(sips: tuple[int, ...], kernels: Any) -> None:
    taken: list[int] = []
    first = {sip: [(kernel, SHORT)] for sip, kernel in zip(sips, kernels, strict=True)}
    assert same(shared_jobs(first, taken)) > 0
    assert taken == list(sips)


@pytest.mark.parametrize("sips", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kernels", [(recorded, recorded), (recorded, plain), (plain, recorded)])
def test_ranks_whose_launches_began_at_other_instants_and_end_together(sips: tuple[int, ...], kernels: Any) -> None:
    """Two launches of a rank take a time that one of the other rank takes at once: of the two that end together, the
    one that was submitted first is first.
    """
    graph = without_wires()
    times: list[float] = []

    def two(run: Run) -> None:
        x, _ = run.tensors()
        times[:] = [run.launch(plain, x, SHORT).end_ns or 0.0 for _ in range(2)]

    same(two, graph)
    gap = round(times[1] - times[0])
    assert gap == times[1] - times[0]
    taken: list[int] = []
    one, other = sips
    first = {one: [(kernels[0], SHORT)] * 2, other: [(kernels[1], SHORT + gap)]}
    assert same(shared_jobs(first, taken), graph) > 0
    assert taken == [other, one]


@pytest.mark.needs("addresses", reason="one pointer is for all PEs, which decides what is replayed")
@pytest.mark.parametrize("cubes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("pes", [(1, 0), (3, 1, 2, 0)])
@pytest.mark.parametrize("kernel", [across, reads_one_part])
def test_pes_that_have_a_launch_at_one_instant_start_in_the_order_of_its_targets(
    kernel: Any, pes: tuple[int, ...], cubes: tuple[int, ...]
) -> None:
    """All of them read one part at one instant, and the order of starts decides which is first there. Four launches are
    replayed, as a whole where kernels leave their cubes, and else cube by cube.
    """

    def program(run: Run) -> None:
        x, y = run.tensors(dp=SPLIT if kernel is across else COPY_PER_CUBE)
        for targets in (pes, tuple(sorted(pes))):
            for _ in range(2):
                run.launch(kernel, x, y, target_pes=targets, target_cubes=cubes)

    assert same(program, without_wires()) == (4 if kernel is across else 4 * CUBES)


def test_counters_that_are_read_while_kernels_run() -> None:
    def program(run: Run) -> None:
        x, y = run.tensors(shape=(512, 256))
        begin = run.engine.now_ns
        for after_ns in (200.0, 230.25, 251.0, 300.0, 2000.0):
            run.happens(after_ns, lambda: run.notes.append((run.engine.link_counters(), run.engine.hbm_bytes(0))))
        for _ in range(3):
            run.launch(across, x, y)
        assert run.engine.now_ns > begin + 300.0

    assert same(program) > 0
