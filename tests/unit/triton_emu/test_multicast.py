"""`tl.multicast`: one write to the memories of several PEs, over every link of the tree once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError, RaceError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.triton_emu.repeatable import repeatable

ROWS, COLUMNS, PES = 16, 64, 8
PART = ROWS * COLUMNS * 2  # bytes of a PE's rows, in f16
ONE_PER_PE = DPPolicy(pe="row_wise", num_cubes=1)
X = np.arange(PES * ROWS * COLUMNS).reshape(PES * ROWS, COLUMNS).astype(np.float16)
OUT = np.zeros_like(X)


def machine(**overrides: object) -> TopologyGraph:
    return load_topology(None, {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, **overrides})


def run(kernel: Any, graph: TopologyGraph | None = None, **options: Any) -> Any:
    return run_kernel(kernel, X, OUT, topology=graph or machine(), grid=(PES,), dp=ONE_PER_PE, **options)


def to_all_others(x: Any, out: Any, *, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.multicast([out + pe * PART for pe in range(1, PES)], tl.load(x, (ROWS, COLUMNS)))


def store_to(pe: int) -> Any:
    def kernel(x: Any, out: Any, *, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.store(out + pe * PART, tl.load(x, (ROWS, COLUMNS)))

    return kernel


def one_by_one(x: Any, out: Any, *, tl: Any) -> None:
    if tl.program_id(0) == 0:
        value = tl.load(x, (ROWS, COLUMNS))
        for pe in range(1, PES):
            tl.store_async(out + pe * PART, value)
        tl.wait()


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_every_place_has_the_bytes_and_nothing_else_changes() -> None:
    _, out = run(to_all_others).arrays
    assert (out[:ROWS] == 0).all()
    for pe in range(1, PES):
        assert (out[pe * ROWS : (pe + 1) * ROWS] == X[:ROWS]).all()


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_a_lone_multicast_takes_as_long_as_a_store_to_the_farthest_place() -> None:
    alone = [run(store_to(pe)).time_ns for pe in range(1, PES)]
    assert run(to_all_others).time_ns == max(alone)
    # Seven stores send the bytes seven times over the PE's own link of 256 GB/s.
    assert run(one_by_one).time_ns >= max(alone) + 6 * PART / 256 - 1


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_links_that_are_shared_carry_the_bytes_once() -> None:
    def carried(kernel: Any) -> dict[Any, int]:
        engine = GraphEngine(machine(), fast=False)
        with RuntimeContext(engine) as torch:
            x, out = (torch.from_numpy(array, dp=ONE_PER_PE) for array in (X, OUT))
            before = engine.fabric.all_link_counters()
            torch.launch(kernel, x, out, target_cubes=[0], target_pes=range(PES))
            after = engine.fabric.all_link_counters()
        return {link: use.nbytes - (before[link].nbytes if link in before else 0) for link, use in after.items()}

    several, once = carried(one_by_one), carried(to_all_others)
    own = next(link for link in once if link[0] == "sip0.cube0.pe0.pe_dma")
    assert several[own] == 7 * once[own] == 7 * PART
    arrivals = [link for link, nbytes in once.items() if "hbm_ctrl" in link[1] and nbytes]
    assert len(arrivals) == 7
    assert {several[link] for link in arrivals} == {once[link] for link in arrivals} == {PART}
    assert sum(once.values()) < sum(several.values())


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
@pytest.mark.parametrize("repeats", [1, 3])
def test_times_do_not_depend_on_fast_paths(repeats: int) -> None:
    def times(fast: bool, mode: Any) -> list[float]:
        engine = GraphEngine(machine(), data=False, fast=fast, mode=mode)
        with RuntimeContext(engine) as torch:
            x, out = (torch.from_numpy(array, dp=ONE_PER_PE) for array in (X, OUT))
            found = []
            for _ in range(repeats):
                torch.launch(to_all_others, x, out, target_cubes=[0], target_pes=range(PES))
                found.append(engine.env.now)
        return found

    assert times(True, "adaptive") == times(False, "adaptive") == times(False, "flits")


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_the_op_log_has_one_row_that_counts_the_further_places() -> None:
    log = OpLog()
    run(to_all_others, op_log=log)
    rows = [record for record in log.records if record.op_name == "dma_write"]
    assert len(rows) == 1
    assert rows[0].params["copies"] == 6
    assert rows[0].params["nbytes"] == PART


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_a_place_that_another_pe_writes_too_is_a_race() -> None:
    def kernel(x: Any, out: Any, *, tl: Any) -> None:
        value = tl.load(x, (ROWS, COLUMNS))
        if tl.program_id(0) == 0:
            tl.multicast([out + pe * PART for pe in (2, 3)], value)
        elif tl.program_id(0) == 3:
            tl.store(out + 3 * PART, value)

    with pytest.raises(RaceError, match="multicast"):
        run(kernel, check_races=True)


def refused(places: Any, value: Any = None, graph: TopologyGraph | None = None) -> str:
    def kernel(x: Any, out: Any, *, tl: Any) -> None:
        if tl.program_id(0) == 0:
            held = tl.load(x, (ROWS, COLUMNS))
            tl.multicast(places(out), held if value is None else value(held, tl))

    with pytest.raises(LaunchError) as error:
        run(kernel, graph)
    assert "test_multicast.py" in str(error.value)
    return str(error.value)


@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_what_is_no_multicast_is_refused_at_the_kernel_line() -> None:
    assert "two or more" in refused(lambda out: [out])
    assert "two or more" in refused(lambda out: out)
    assert "overlap" in refused(lambda out: [out + PART, out + PART])
    second = refused(lambda out: [out + PART, out + PART + 256])
    assert "overlap" in second or "cross the end of their segment" in second  # with logical addresses
    assert "beginning of a burst" in refused(lambda out: [out + PART + 2, out + 3 * PART + 2], lambda v, tl: v[:8])
    assert "no bytes" in refused(lambda out: [out, out + PART], lambda v, tl: tl.zeros((0, 4), "f16"))


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_a_multicast_with_one_slot_per_link_is_slow_and_right() -> None:
    unlimited, tiny = (
        run(to_all_others),
        run(to_all_others, machine(**{"fabric.buffers": {"slots": 1, "credit_ns": 8}})),
    )
    np.testing.assert_array_equal(tiny.arrays[1], unlimited.arrays[1])
    assert tiny.time_ns > 1.5 * unlimited.time_ns


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
def test_packets_of_a_multicast_have_to_fit_into_a_buffer() -> None:
    packets = {"slots": 2, "credit_ns": 1.0, "ownership": "packet"}
    graph = machine(**{"fabric.buffers": packets})
    assert "a buffer has 2 slots" in refused(lambda out: [out + PART, out + 2 * PART], graph=graph)
    graph = machine(**{"fabric.buffers": {**packets, "packet_bytes": 512}})
    np.testing.assert_array_equal(run(to_all_others, graph).arrays[1], run(to_all_others).arrays[1])


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
@pytest.mark.parametrize("mark", [repeatable, lambda kernel: kernel])
def test_launches_that_repeat_one_another_write_what_they_read(mark: Any) -> None:
    """Replayed or not, each launch multicasts what its operand holds by then."""

    def kernel(x: Any, out: Any, *, tl: Any) -> None:
        to_all_others(x, out, tl=tl)

    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        out = torch.from_numpy(OUT, dp=ONE_PER_PE)
        for number in range(1, 4):
            x = torch.from_numpy(np.full_like(X, number), dp=ONE_PER_PE)
            torch.launch(mark(kernel), x, out, target_cubes=[0], target_pes=range(PES))
            assert (out.numpy()[ROWS:] == number).all()


@pytest.mark.needs("n_to_one", reason="a multicast is one request, and channels with routers have one each")
@pytest.mark.needs("addresses", reason="PE 0 writes to the memories of others")
@pytest.mark.parametrize("wait_cycles", [1, 137, 400])
def test_multicasts_into_the_memory_of_composites_leave_all_times_as_they_are(wait_cycles: int) -> None:
    """Composites are replayed on links that they reserve; a multicast in between interrupts several at once."""

    def kernel(x: Any, out: Any, *, tl: Any) -> None:
        if tl.program_id(0) == 0:
            value = tl.load(out, (ROWS, COLUMNS))
            for _ in range(3):
                tl.cycles(wait_cycles)
                tl.multicast([out + pe * PART for pe in range(1, PES)], value)
        else:
            for _ in range(3):
                left, right = tl.ref(x.local, (64, 256)), tl.ref(x.local + 65536, (256, 64))
                tl.wait(tl.composite("gemm", left, right, x.local + 131072))

    def run_with(fast: bool, mode: Any) -> tuple[float, list[Any]]:
        engine = GraphEngine(machine(), data=False, fast=fast, mode=mode)
        with RuntimeContext(engine) as torch:
            x = torch.zeros(PES * 1024, 128, dp=ONE_PER_PE)
            out = torch.from_numpy(OUT, dp=ONE_PER_PE)
            times = []
            for _ in range(2):
                torch.launch(kernel, x, out, target_cubes=[0], target_pes=range(PES))
                times.append(engine.env.now)
        return engine.env.now, [times, engine.fabric.all_link_counters()]

    assert run_with(True, "adaptive") == run_with(False, "adaptive") == run_with(False, "flits")
