"""Random kernels on random PEs: none hangs, none beats its bounds, and more reads at a time do not cost time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.dtypes import dtype_of
from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

PE = "cube.pe_template"
PARTS = f"{PE}.components"
HERE, FAR = DPPolicy(num_cubes=1, num_pes=1), DPPolicy(cube="row_wise", num_pes=1)
MACS_PER_NS, DMA_GBS = 4096.0, 256.0


def machine(settings_: dict[str, object]):
    return load_topology(None, {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, **settings_})


@st.composite
def pes(draw) -> dict[str, object]:
    """What a PE is made of: queues, places in the DMA, registers, TCM and its ports."""
    return {
        f"{PARTS}.pe_dma.attrs.queue_depth": draw(st.integers(1, 6)),
        f"{PARTS}.pe_dma.attrs.outstanding": draw(st.integers(1, 4)),
        f"{PARTS}.pe_dma.attrs.engines_per_direction": draw(st.integers(1, 2)),
        f"{PARTS}.pe_fetch_store.attrs.queue_depth": draw(st.integers(1, 4)),
        f"{PARTS}.pe_fetch_store.attrs.register_file_bytes": draw(st.sampled_from([12288, 16384, 24576, 65536])),
        f"{PE}.links.tcm_read_bw_gbs": draw(st.sampled_from([64.0, 512.0])),
        f"{PE}.links.tcm_write_bw_gbs": draw(st.sampled_from([64.0, 512.0])),
        "cube.memory_map.tcm_scheduler_reserved_mb": draw(st.sampled_from([0.03125, 0.0625, 1.0])),
    }


@st.composite
def programs(draw, places=("near", "far")) -> list[dict[str, object]]:
    """Composites, issued without waiting: sizes, where operands lie, and what follows."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "m": st.sampled_from([8, 32, 70]),
                    "k": st.sampled_from([16, 64, 200]),
                    "n": st.sampled_from([16, 32, 90]),
                    "a": st.sampled_from([*places, "tcm"]),
                    "b": st.sampled_from(places),
                    "bias": st.sampled_from([None, *places]),
                    "relu": st.sampled_from([None, "output_tile", "kernel"]),
                }
            ),
            min_size=1,
            max_size=3,
        )
    )


def run(graph, program, *, writes: bool = True) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """Time on PE 0, the results, and what they should be. `far` tensors lie in the other cube. Without `writes` results
    stay in TCM.
    """
    rng = np.random.default_rng(0)
    wanted = []
    with RuntimeContext(GraphEngine(graph)) as torch:

        def tensor(shape, place):
            array = rng.integers(-3, 4, shape).astype(np.float16)
            rows = np.concatenate([array, array]) if place == "far" else array  # the second half is in cube 1
            return array, torch.from_numpy(rows, dp=FAR if place == "far" else HERE)

        args, shapes = [], []
        for step in program:
            m, k, n = step["m"], step["k"], step["n"]
            (a, held_a), (b, held_b) = tensor((m, k), step["a"]), tensor((k, n), step["b"])
            bias, held_bias = tensor((n,), step["bias"] or "near")
            out = torch.empty(m, n, dp=HERE)
            args += [held_a, held_b, held_bias, out]
            total = a.astype(np.float64) @ b + (bias if step["bias"] else 0)
            wanted.append(np.maximum(total, 0) if step["relu"] else total)
            shapes.append(out)

        def kernel(*given, tl):
            def second(x, place, nbytes):
                return x + nbytes if place == "far" else x

            kept = []
            for at, step in enumerate(program):
                a, b, bias, out = given[4 * at : 4 * at + 4]
                m, k, n = step["m"], step["k"], step["n"]
                left = second(a, step["a"], 2 * m * k)
                left = tl.load(left, (m, k)) if step["a"] == "tcm" else tl.ref(left, (m, k))
                steps = []
                if step["bias"]:
                    place = second(bias, step["bias"], 2 * n)
                    steps.append({"op": "bias", "bias": tl.ref(place, (n,))})
                if step["relu"]:
                    steps.append({"op": "relu", "scope": step["relu"]})
                right, target = tl.ref(second(b, step["b"], 2 * k * n), (k, n)), out if writes else None
                kept.append(tl.composite("gemm", left, right, target, epilogue=steps))
            tl.wait()

        launch = torch.launch("k", kernel, *args, target_cubes=0, target_pes=0)
        return launch.pe_exec_ns_max, [out.numpy() for out in shapes] if writes else [], wanted


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@settings(max_examples=15, deadline=None)
@given(pes(), programs())
def test_every_program_ends_with_the_right_numbers_and_no_sooner_than_its_work_allows(pe, program):
    ns, results, wanted = run(machine(pe), program)
    for result, right in zip(results, wanted, strict=True):
        assert np.allclose(result, right.astype(np.float16), rtol=dtype_of("f16").rtol, atol=dtype_of("f16").atol)
    macs = sum(step["m"] * step["k"] * step["n"] for step in program)
    read = sum(2 * (step["m"] * step["k"] + step["k"] * step["n"]) for step in program)
    assert ns >= macs / MACS_PER_NS
    assert ns >= read / DMA_GBS


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@settings(max_examples=8, deadline=None, derandomize=True)  # a margin that was measured, not a law: the same every time
@given(pes(), programs(), st.sampled_from(["outstanding", "engines_per_direction"]), st.booleans())
def test_more_requests_at_a_time_are_not_slower_but_for_what_overtakes_on_a_shared_link_or_channel(
    pe, program, attr, writes
):
    """Requests depart in order. Still a later one can be ahead of an earlier one where they meet: a near read of a far
    one on the last link, a short read of a long one on a memory channel that is free: a hundredth of the time at most.
    """
    key = f"{PARTS}.pe_dma.attrs.{attr}"
    one, two, four = (run(machine({**pe, key: n}), program, writes=writes)[0] for n in (1, 2, 4))
    assert two <= 1.01 * one
    assert four <= 1.01 * two


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@pytest.mark.parametrize("attr", ["outstanding", "engines_per_direction"])
def test_two_reads_at_a_time_of_operands_at_different_distances_end(attr):
    """Tiles overtake each other in the DMA: the far operand of the first is later than the near one of the second."""
    step = {"m": 70, "k": 200, "n": 90, "a": "far", "b": "near", "bias": "far", "relu": None}
    graph = machine({f"{PARTS}.pe_dma.attrs.{attr}": 2, f"{PARTS}.pe_fetch_store.attrs.register_file_bytes": 12288})
    ns, (result,), (right,) = run(graph, [step])
    assert np.allclose(result, right, rtol=1e-2, atol=1e-2)
    slower = machine({f"{PARTS}.pe_fetch_store.attrs.register_file_bytes": 12288})
    assert ns < run(slower, [step])[0]


# ---- the channel for communication, and who hears of a write


def far_write(engine: GraphEngine, nbytes: int, **options: object):
    target = PhysAddr.pe_hbm_addr(0, 1, 0, 0, engine.graph.spec.cube.hbm_slice_bytes)
    return engine.submit(PeDmaMsg(0, 0, 0, target.encode(), nbytes, is_write=True, **options))


def end_of(engine: GraphEngine, handle) -> float:
    engine.wait(handle)
    return engine.get_completion(handle)[1]["end_ns"]


def test_communication_does_not_wait_behind_the_write_channel():
    def ends(channel: str) -> list[float]:
        engine = GraphEngine(machine({}))
        handles = [far_write(engine, 256), far_write(engine, 256, channel=channel)]
        return [end_of(engine, handle) for handle in handles]

    (first, queued), (same, beside) = ends("compute"), ends("communication")
    assert first == same
    assert queued == 2 * first  # the only place is held until the acknowledgement
    assert beside == first + 8.0  # it only waits for its channel, which has the same burst to write


@pytest.mark.parametrize("cube", [0, 1])
def test_a_listener_at_a_memory_is_called_when_the_last_byte_of_a_write_is_there(cube):
    """Before the writer does: the acknowledgement has yet to travel back."""
    engine = GraphEngine(machine({}))
    node, heard = f"sip0.cube{cube}.hbm_ctrl.pe0", []
    stop = engine.listen(node, 1024, 512, lambda landed: heard.append((engine.now_ns, landed.address, landed.nbytes)))
    slice_bytes = engine.graph.spec.cube.hbm_slice_bytes

    def write(offset: int) -> float:
        address = PhysAddr.pe_hbm_addr(0, cube, 0, offset, slice_bytes).encode()
        return end_of(engine, engine.submit(PeDmaMsg(0, 0, 0, address, 256, is_write=True)))

    write(0)
    assert heard == []
    acknowledged = write(1024)
    ((at_ns, address, nbytes),) = heard
    path = engine.router.find_path("sip0.cube0.pe0", node)
    assert (address, nbytes) == (1024, 256)
    assert at_ns == acknowledged - engine.latency_ns(tuple(path)[::-1])
    stop()
    write(1280)
    assert len(heard) == 1


def test_a_kernels_store_is_heard_too():
    with RuntimeContext(GraphEngine(machine({}))) as torch:
        x = torch.zeros(256, dtype="f32")
        heard = []
        torch.engine.listen("sip0.cube0.hbm_ctrl.pe0", 0, 1 << 20, lambda landed: heard.append(landed.nbytes))
        torch.launch("k", lambda x, tl: tl.store(x + 512, tl.zeros((32,), "f32")), x)
        assert heard == [128]


@pytest.mark.parametrize("tile", [(64, 64, 64), (96, 32, 96), (128, 64, 64)])
def test_tiles_without_reads_do_not_overtake_one_whose_bias_is_still_on_its_way(tile):
    """Both matrices are pinned: only the last tile of a K loop reads; those of the next would take its registers."""

    def kernel(a, b, bias, c, tl):
        steps = [{"op": "bias", "bias": tl.ref(bias)}]
        tl.wait(tl.composite("gemm", tl.load(a), tl.load(b), out_ptr=c, epilogue=steps, tile_shape=tile))

    ones = np.ones((256, 256), np.float16)
    arrays, _ = run_kernel(kernel, ones, ones, np.ones(256, np.float16), 0 * ones)
    assert (arrays[3] == 257).all()
