"""The arguments of a launch as a kernel on one PE gets them."""

from __future__ import annotations

from kernbench.common.ids import PeKey
from kernbench.common.messages import KernelArg, TensorArg
from kernbench.policy.placement.shard_grid import grid_of
from kernbench.triton_emu.pointer import TensorPtr


def argument_of(arg: KernelArg, key: PeKey) -> object:
    """A number as it is, a tensor as a pointer."""
    if not isinstance(arg, TensorArg):
        return arg.value
    local_shape, local = arg.local_shape_for(key), arg.local_address_for(key)
    return TensorPtr(
        arg.address_for(key),
        arg.name,
        arg.shape,
        local_shape,
        arg.dtype,
        local,
        grid=grid_of(arg.shape, arg.split_by, arg.shards_by_cube) if any(arg.split_axes) else None,
        space=arg.space,
        part_ends=arg.part_ends,
    )
