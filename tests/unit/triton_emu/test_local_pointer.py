"""`x.local`: a kernel's pointer to what its own PE holds, in either address model, with remainders."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

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


def test_a_pe_that_holds_nothing_sees_all_of_a_tensor_that_is_elsewhere() -> None:
    seen = []

    def look(x: TensorPtr, tl: TLContext) -> None:
        seen.append(tl.load(x.local).numpy().sum())

    def bench(torch: RuntimeContext) -> None:
        torch.launch("look", look, torch.from_numpy(X), target_pes=(0, 5))

    kernbench.run(bench, device=0)
    assert seen == [X.sum()] * 2
