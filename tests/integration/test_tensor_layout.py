"""`layout=`: rows of a composite's tile are runs of their own where a tensor is row-major."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

ONE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
M, K, N = 64, 512, 128


def stage_ns(kernel, layout, changes=None) -> list[tuple[str, float]]:
    """What PE_DMA has done, op by op."""
    log = OpLog()
    with RuntimeContext(GraphEngine(load_topology(None, {**ONE, **(changes or {})}), op_log=log)) as torch:
        a = torch.zeros(M, K, layout=layout, preset=True)
        b = torch.zeros(K, N, layout=layout, preset=True)
        torch.launch("k", kernel, a, b, torch.empty(M, N, layout=layout))
    return [(each.op_name, each.t_end - each.t_start) for each in log.records if each.component_id.endswith("pe_dma")]


def one_tile(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.ref(a, (M, K)), tl.ref(b, (K, N)), out_ptr=c, tile_shape=(32, 64, 32)))


def by_hand(a, b, c, tl):
    """The operands and the result of the first tile."""
    tl.load(a, (32, 64), strides=(K, 1))
    tl.load(b, (64, 32), strides=(N, 1))
    tl.store(c, tl.zeros((32, 32), "f16"), strides=(N, 1))


@pytest.mark.needs("n_to_one", reason="it has figures of the shipped machine")
@pytest.mark.parametrize("changes", [{}, {"hbm.granule_bytes": 64}, {"hbm.model": "closed", "hbm.preset": "hbm2"}])
def test_a_tile_of_a_row_major_tensor_costs_what_its_rows_cost_by_hand(changes):
    (_, read_a), (_, read_b), *others = stage_ns(one_tile, "row_major", changes)
    hand = [ns for _, ns in stage_ns(by_hand, "row_major", changes)]
    assert [read_a, read_b] == hand[:2]
    (name, written) = others[-1]  # of the last tile: no reads are in its way
    drained_ns = 24.0 if "hbm.model" in changes else 0.0  # it fills a batch of writes: its channels are turned
    assert (name, written) == ("TileToken/DMA_WRITE", hand[2] + drained_ns)


@pytest.mark.needs("n_to_one", reason="it has figures of the shipped machine")
def test_the_rows_of_a_tile_in_one_channel():
    """1,024 B from row to row: 32 rows of 128 B are on 2 of 8 channels, 16 bursts of 8 ns each; one run is 16 bursts.
    A router costs 2 ns each way, a flit of 128 B 0.5 ns on each of two links, on one of them behind another.
    """
    (_, rows), *_ = stage_ns(one_tile, "row_major")
    (_, tiled), *_ = stage_ns(one_tile, "tiled")
    assert stage_ns(one_tile, None) == stage_ns(one_tile, "tiled")
    assert rows == 4 + 16 * 8 + 3 * 0.5
    assert tiled == 4 + 8 + 16 + 1


def test_equal_launches_of_other_layouts_are_not_taken_for_one_another():
    def kernel(a, b, c, tl):
        tl.wait(tl.composite("gemm", tl.ref(a, (M, K)), tl.ref(b, (K, N)), out_ptr=c, tile_shape="auto"))

    times = []

    def program(torch):
        for layout in ("tiled", "row_major", "tiled", "row_major"):
            a = torch.zeros(M, K, layout=layout, preset=True)
            b = torch.zeros(K, N, layout=layout, preset=True)
            c = torch.empty(M, N, layout=layout)
            begin = torch.engine.now_ns
            torch.launch("k", kernel, a, b, c)
            torch.wait_all()
            times.append(torch.engine.now_ns - begin)
            del a, b, c

    check = kernbench.run(program, overrides=ONE, check_fast=True).fast_check
    assert check is not None
    assert check.ok, check.as_text()
    assert times[0] == times[2] < times[1] == times[3]


def test_views_and_tensors_like_it_have_the_layout_of_a_tensor():
    with RuntimeContext(GraphEngine(load_topology(None, ONE))) as torch:
        x = torch.from_numpy(np.zeros((64, 128), np.float16), layout="row_major")
        assert x[:32].as_arg().layout == torch.zeros_like(x).as_arg().layout == "row_major"
        assert torch.empty(64, 128, layout="torch.strided").as_arg().layout == "tiled"


@pytest.mark.parametrize(
    ("size", "given", "message"),
    [
        ((64, 64), {"layout": "diagonal"}, "layout is 'diagonal'"),
        ((64,), {"layout": "row_major"}, "a tensor of 1 axes, where it means nothing"),
        ((64, 64), {"layout": "tiled", "space": "sram"}, "a tensor in SRAM, where it means nothing"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(size, given, message):
    with RuntimeContext(GraphEngine(load_topology(None, ONE))) as torch, pytest.raises(UsageError, match=message):
        torch.empty(*size, **given)
