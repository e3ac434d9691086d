"""`DPPolicy` that deals rows to PEs: pages in turn, and parts that begin where they are said to."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

PAGES = DPPolicy(cube="interleave", pe="interleave")


def shards(policy, shape, itemsize=4):
    found = resolve_dp_policy(policy, shape=shape, itemsize=itemsize, num_pe=2, num_cubes=2, target_sip=0)
    return [(part.cube, part.pe, part.offset_bytes, part.nbytes) for part in found]


def test_pages_go_to_the_pes_of_all_cubes_in_turn():
    # Rows of 1,024 bytes: 4 of them fill a page. 18 rows are 4 pages and a half, so PE 0 of cube 0 gets a second one.
    assert shards(PAGES, (18, 256)) == [
        (0, 0, 0, 4096), (0, 1, 4096, 4096), (1, 0, 8192, 4096), (1, 1, 12288, 4096), (0, 0, 16384, 2048),
    ]  # fmt: skip


def test_a_row_longer_than_a_page_stays_whole():
    assert shards(PAGES, (2, 2048)) == [(0, 0, 0, 8192), (0, 1, 8192, 8192)]


def test_parts_begin_at_the_rows_that_are_named_and_may_be_empty():
    policy = DPPolicy(cube="row_wise", pe="row_wise", starts=(0, 3, 3, 9))
    assert shards(policy, (10, 4)) == [(0, 0, 0, 48), (1, 0, 48, 96), (1, 1, 144, 16)]


def test_an_interleaved_tensor_reads_as_it_was_written_and_has_no_local_part():
    """With virtual addresses: the kernel reads two pages at once, and holds neither."""
    rows = np.arange(40 * 256, dtype=np.float32).reshape(40, 256)
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.address_model": "va"}
    with RuntimeContext(GraphEngine(load_topology(None, small))) as torch:
        x, out = torch.from_numpy(rows, dp=PAGES), torch.zeros(8, 256, dtype="f32")

        def kernel(x, out, tl):
            assert x.local_shape == (0, 256)
            if tl.program_id(0) == tl.program_id(1) == 0:
                tl.store(out, tl.load(x + 16 * 1024, (8, 256)))

        torch.launch(kernel, x, out)
        assert np.array_equal(x.numpy(), rows)
        assert np.array_equal(out.numpy(), rows[16:24])


@pytest.mark.parametrize(
    "wrong",
    [
        {"cube": "interleave"},
        {"cube": "row_wise", "pe": "row_wise", "starts": (1, 2)},
        {"cube": "row_wise", "pe": "row_wise", "starts": (0, 5, 2)},
        {"starts": (0, 1)},
    ],
)
def test_policies_that_say_two_things_are_refused(wrong):
    with pytest.raises(UsageError, match="DPPolicy"):
        DPPolicy(**wrong)
