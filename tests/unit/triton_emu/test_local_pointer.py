"""`x.local`: a kernel's pointer to what its own PE holds, in either address model, with remainders."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

splits = st.sampled_from(["replicate", "row_wise", "column_wise"])
X = np.arange(7 * 5, dtype=np.float16).reshape(7, 5)


@pytest.mark.parametrize("model", ["va", "pa"])
@pytest.mark.parametrize("split", ["row_wise", "column_wise", "replicate"])
def test_local_is_this_pes_part(model: str, split: str) -> None:
    seen: dict[tuple[int, int], np.ndarray] = {}

    def look(x: TensorPtr, tl: TLContext) -> None:
        part = x.local
        assert part.shape == part.local_shape == x.local_shape
        assert part.local == part  # it is all there is
        seen[tl.program_id(1), tl.program_id(0)] = tl.load(part).numpy()

    def bench(torch: RuntimeContext) -> None:
        policy = DPPolicy(cube="row_wise", pe=split, num_cubes=2, num_pes=3)
        torch.launch("look", look, torch.from_numpy(X, dp=policy))

    machine = load_topology(
        None, {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.address_model": model}
    )
    kernbench.run(bench, machine)
    # 7 rows over 2 cubes are 4 and 3; those over 3 PEs 2, 1, 1 and 1, 1, 1; 5 columns over 3 PEs 2, 2, 1.
    for cube, rows in enumerate((X[:4], X[4:])):
        parts = {
            "row_wise": np.array_split(rows, 3, axis=0),
            "column_wise": np.array_split(rows, 3, axis=1),
            "replicate": [rows] * 3,
        }
        for pe, expected in enumerate(parts[split]):
            np.testing.assert_array_equal(seen[cube, pe], expected)


@cache
def small(model: str) -> TopologyGraph:
    """One SIP of three cubes with four PEs each."""
    shape = {"sip.cube_mesh.w": 3, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return load_topology(None, {"system.sips.count": 1, **shape, "system.address_model": model})


def inc(x: TensorPtr, tl: TLContext) -> None:
    tl.store(x.local, tl.load(x.local) + 1)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.builds(DPPolicy, splits, splits, st.sampled_from([None, 1, 3]), st.sampled_from([None, 2])),
    st.booleans(),
)
def test_a_kernel_on_local_parts_does_every_element_once(shape: list[int], policy: DPPolicy, everywhere: bool) -> None:
    """Also where PEs hold nothing, and in every replica. A tensor that is not split is everybody's, so a launch sent
    beyond its replicas would do them more than once.
    """
    split = bool(policy.split_axes(len(shape)))
    times = []
    for model in ("va", "pa"):
        with RuntimeContext(GraphEngine(small(model))) as torch:
            x = torch.from_numpy(np.zeros(shape, np.float16), dp=policy)
            places = {"target_cubes": "all", "target_pes": "all"} if everywhere and split else {}
            launch = torch.launch("inc", inc, x, **places)
            times.append([(pe.cube, pe.pe, pe.pe_exec_ns) for pe in launch.pes])
            for part in x.host.read_parts(x, range(len(x.placement)), timed=False):
                assert (part == 1).all()
    assert times[0] == times[1]  # a translation takes 0 ns by default


@pytest.mark.parametrize("model", ["va", "pa"])
def test_a_pe_without_a_part_has_an_empty_one_and_takes_no_time(model: str) -> None:
    seen = {}

    def look(x: TensorPtr, y: TensorPtr, tl: TLContext) -> None:
        seen[tl.program_id(1), tl.program_id(0)] = (x.local_shape, tl.load(x).shape, tl.load(y.local).shape)
        inc(x, tl)

    with RuntimeContext(GraphEngine(small(model))) as torch:
        policy = DPPolicy("row_wise", "row_wise")
        x, y = torch.zeros(7, 4, dp=policy), torch.zeros(2, 3)
        launch = torch.launch("look", look, x, y)
        assert (x.numpy() == 1).all()
    # 7 rows over 3 cubes are 3, 2, 2, and one a PE; the launch goes to 3 cubes x 3 PEs. `y` is on one PE: all see it.
    without = [(1, 2), (2, 2)]
    for place, (local, loaded, other) in seen.items():
        assert local == loaded == ((0, 4) if place in without else (1, 4))
        assert other == (2, 3)
    assert len(seen) == 9
    with RuntimeContext(GraphEngine(small(model))) as torch:
        launch = torch.launch("inc", inc, torch.zeros(7, 4, dp=policy))
        assert [(pe.cube, pe.pe) for pe in launch.pes if pe.pe_exec_ns == 0 and pe.bytes_hbm == 0] == without


def test_an_axis_of_one_that_is_split_belongs_to_one_pe() -> None:
    with RuntimeContext(GraphEngine(small("va"))) as torch:
        x = torch.zeros(1, 4, dp=DPPolicy(pe="row_wise", num_cubes=1))
        torch.launch("inc", inc, x, target_pes="all")
        assert (x.numpy() == 1).all()


def test_a_pe_that_holds_nothing_sees_all_of_a_tensor_that_is_elsewhere() -> None:
    seen = []

    def look(x: TensorPtr, tl: TLContext) -> None:
        seen.append(tl.load(x.local).numpy().sum())

    def bench(torch: RuntimeContext) -> None:
        torch.launch("look", look, torch.from_numpy(X), target_pes=(0, 5))

    kernbench.run(bench, device=0)
    assert seen == [X.sum()] * 2


def store_sum(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
    tl.store(o.local, tl.sum(tl.load(x.local), axis=0))  # of no rows: zeros, of which there are some


def load_some(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
    tl.load(o.local, shape=(1, 16))


def refer_to_some(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
    tl.ref(o.local, shape=(1, 16))


def compose(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
    tl.composite("math", tl.full((1, 16), 2.0), math_op="relu", out_ptr=o.local)


def store_further_on(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
    tl.store(o.local + 0, tl.full((1, 16), 2.0))


def six_rows(model: str, kernel: object, pes: object) -> tuple[str, np.ndarray]:
    """Six rows over eight PEs, one each and none for two: how a launch on `pes` fails, and what the rows hold then."""
    one_cube = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.address_model": model}
    with RuntimeContext(GraphEngine(load_topology(None, one_cube))) as torch:
        policy = DPPolicy(pe="row_wise", num_cubes=1)
        x, o = (torch.full((6, 16), 1.0, dp=policy) for _ in "xo")
        with pytest.raises(LaunchError) as failed:
            torch.launch("kernel", kernel, x, o, target_pes=pes)
        return str(failed.value), o.numpy()


@pytest.mark.parametrize("model", ["va", "pa"])
@pytest.mark.parametrize("kernel", [store_sum, load_some, refer_to_some, compose, store_further_on])
def test_a_pe_without_a_part_has_no_place_to_read_or_write(model: str, kernel: object) -> None:
    said, rows = six_rows(model, kernel, (6, 7))
    assert "pe 6: KernelError: " in said
    assert "this PE holds no part of 'o', got 32 bytes" in said
    assert "test_local_pointer.py:" in said
    assert "o.local" in said
    assert "if 0 in o.local_shape: return" in said
    assert (rows == 1).all()  # the parts of other PEs are unchanged


@pytest.mark.parametrize("model", ["va", "pa"])
@pytest.mark.parametrize(
    ("skip", "shape", "expected"),
    [
        (0, (2, 16), "64 bytes at offset 0 run past this PE's part of 'o', which has 32 bytes (32 too many)"),
        (16, (9,), "18 bytes at offset 16 run past this PE's part of 'o', which has 32 bytes (2 too many)"),
        (32, (1,), "2 bytes at offset 32 run past this PE's part of 'o', which has 32 bytes (2 too many)"),
        (-2, (1,), "2 bytes at offset -2 begin before this PE's part of 'o'"),
    ],
)
def test_what_is_counted_from_local_stays_in_the_part(
    model: str, skip: int, shape: tuple[int, ...], expected: str
) -> None:
    def write(x: TensorPtr, o: TensorPtr, tl: TLContext) -> None:
        tl.store(skip // 2 + (o.local + (skip - skip // 2)), tl.full(shape, 2.0))

    said, rows = six_rows(model, write, 2)
    assert expected in said
    assert (rows == 1).all()


def test_between_two_pointers_lies_a_number_of_bytes() -> None:
    x = TensorPtr(4096, "x", (4, 8), (1, 8), "f16", local=4128)
    assert x.local - x == 32
    assert type(x.local - x) is int
    assert (x.local + np.int32(16) - 8).base.local_nbytes == 16  # type: ignore[attr-defined]  # a pointer still, by its type a number
