"""One range of virtual addresses for a tensor whose parts lie in different PEs: offsets reach every part, near and far.

Each PE adds an offset to the tensor's base and reads not its own part but that of the PE `shift` places on, whose
bytes lie in another HBM slice. It adds its own number and stores the sum as its own part of the output. A wrong
mapping, or an offset that lands one byte off, gives wrong numbers.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from kernbench.benches._numbers import Seed, Size, Wide, draw, wide
from kernbench.benches.registry import bench
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

ITEM_BYTES = 2


def shifted_kernel(x: TensorPtr, out: TensorPtr, rows: int, cols: int, shift: int, tl: TLContext) -> None:
    """out[mine] = x[part `shift` places on] + my number."""
    mine = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    parts = tl.num_programs(0) * tl.num_programs(1)
    theirs = (mine + shift) % parts
    part_bytes = rows * cols * ITEM_BYTES
    block = tl.load(x + theirs * part_bytes, shape=(rows, cols))
    tl.store(out + mine * part_bytes, block + mine)


@bench(name="va-offset-verify", description="Every PE reads another PE's part through one virtual address range.")
def va_offset_verify(
    torch: RuntimeContext,
    *,
    rows: Annotated[Size, "rows of each PE's part"] = 8,
    cols: Annotated[Size, "columns"] = 64,
    shift: Annotated[int, "how many PEs on the part that is read lies"] = 3,
    cubes: Annotated[Size, "cubes to spread over, if there are so many"] = 2,
    seed: Seed = 0,
) -> None:
    spec = torch.spec
    if not spec.system.has_tensor_ranges:
        raise UsageError(
            f"va-offset-verify needs virtual or logical addresses, the machine has '{spec.system.address_model}'",
            hint="--set system.address_model=va",
        )
    n_cubes = min(cubes, spec.sip.n_cubes)
    parts = n_cubes * spec.cube.n_pes
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=n_cubes)
    x = draw(np.random.default_rng(seed), parts * rows, cols)
    source = torch.from_numpy(x, dp=dp, name="x")
    out = torch.empty(parts * rows, cols, dp=dp, name="out")
    torch.launch("shifted", shifted_kernel, source, out, rows, cols, shift)

    def reference() -> Wide:
        blocks = wide(x).reshape(parts, rows, cols)
        moved = np.roll(blocks, -shift, axis=0) + np.arange(parts)[:, None, None]
        return moved.reshape(parts * rows, cols)

    torch.check(out, reference)
