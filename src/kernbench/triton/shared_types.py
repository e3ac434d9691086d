"""Shapes of tensors and types of blocks while kernels run: what Triton computes anew for each of them is computed once
for each shape, and shared. An interpreted operation makes several of both.
"""

from __future__ import annotations

from typing import Any

from kernbench.triton.internals import core

_plain_tensor, _plain_block = core.tensor.__init__, core.block_type.__init__
_TENSOR = ["dtype", "handle", "numel", "shape", "type"]  # what a tensor has, in all releases that are tested
_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}  # shape and number of elements, as a tensor has them
_blocks: dict[tuple[object, ...], dict[str, Any]] = {}  # what a block type has, by element and sizes


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    """What stands for the initialiser of Triton's tensors."""
    sizes = type.shape if type.is_block() else ()
    found = _shapes.get(sizes)
    if found is None:
        _plain_tensor(self, handle, type)
        if sorted(vars(self)) == _TENSOR:
            _shapes[sizes] = self.shape, self.numel
        return
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = found


def block_init(self: Any, element_ty: Any, shape: Any) -> None:
    """What stands for the initialiser of its block types."""
    if not all(size.__class__ is int for size in shape):
        _plain_block(self, element_ty, shape)
        return
    key = (element_ty.name, *shape)
    found = _blocks.get(key)
    if found is None:
        _plain_block(self, element_ty, shape)
        _blocks[key] = dict(vars(self))
        return
    vars(self).update(found)
    self.element_ty = element_ty
