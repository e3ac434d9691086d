"""Which tensor of a launch a pointer comes from.

A pointer of a Triton program is an address, and tensors lie next to each other: only where a pointer comes from tells
an access past the end of one tensor from an access to the next. Each pointer argument names its storage, and what is
made of it (sums with offsets, other shapes, choices between pointers) does, too. Pointers that are made of integers or
loaded from memory have no origin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from kernbench.triton.internals import TensorDescriptor, core, interpreter

_KEY = "origins"
# Methods of the builder whose results come from where these arguments do, counted without the builder itself.
CARRIERS: dict[str, tuple[int, ...]] = {
    "create_addptr": (0,), "create_bitcast": (0,), "create_broadcast": (0,), "create_expand_dims": (0,),
    "create_reshape": (0,), "create_splat": (1,), "create_trans": (0,), "create_unsplat": (0,), "create_gather": (0,),
    "create_select": (1, 2), "create_cat": (0, 1), "create_join": (0, 1),
}  # fmt: skip


class PointerOrigin(NamedTuple):
    """The first address of a tensor's storage, and the name of the argument."""

    start: int
    name: str


Origins = tuple[PointerOrigin, ...]


def origins_of(handle: Any) -> Origins | None:
    """Where a pointer may come from; None if that is not known."""
    return handle.attr.get(_KEY)  # type: ignore[no-any-return]  # Triton has no types


def attributes_of(handle: Any) -> dict[str, Any]:
    """What a pointer that is made from another one is given."""
    found = origins_of(handle)
    return {} if found is None else {_KEY: found}


def carrying(call: Callable[..., Any], sources: tuple[int, ...]) -> Callable[..., Any]:
    """A method of the builder that passes on where pointers come from."""

    @wraps(call)
    def carry(self: Any, *args: Any) -> Any:
        made = call(self, *args)
        found = args[sources[0]].attr.get(_KEY)
        if found is None:
            return made
        for at in sources[1:]:
            other = args[at].attr.get(_KEY)
            if other is None:
                return made
            found += tuple([each for each in other if each not in found])
        made.attr[_KEY] = found
        return made

    return carry


def mark(converted: Any, value: Any, name: str) -> None:
    """Note where an argument of a kernel points, which is a tensor, a descriptor or a tuple of them."""
    if isinstance(value, TensorDescriptor):
        _mark_pointer(converted.handle.base, value.base, name)
    elif isinstance(value, tuple):
        for at, (made, each) in enumerate(zip(converted, value, strict=True)):
            mark(made, each, f"{name}[{at}]")
    elif isinstance(converted, core.tensor):
        _mark_pointer(converted.handle, value, name)


def _mark_pointer(handle: Any, value: Any, name: str) -> None:
    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
    if isinstance(tensor, torch.Tensor):
        handle.attr[_KEY] = (PointerOrigin(tensor.untyped_storage().data_ptr(), name),)


# ---- blocks of pointers that Triton's own classes make


class _FromBase:
    """Gives the pointers of a block the origin of their base."""

    base: Any

    def materialize_pointers(self, *args: Any) -> Any:
        ptrs, masks = super().materialize_pointers(*args)  # type: ignore[misc]  # of the class beside it
        ptrs.attr.update(attributes_of(self.base))
        return ptrs, masks


_KINDS = {
    kind: type(kind.__name__, (_FromBase, kind), {})
    for kind in (getattr(interpreter, name, None) for name in ("BlockPointerHandle", "TensorDescHandle"))
    if kind is not None  # the newest releases make block pointers of tensors
}
BLOCKS = ("create_make_block_ptr", "create_advance", "create_make_tensor_descriptor")


def with_origin(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the builder that makes a block pointer or a descriptor."""

    @wraps(call)
    def make(*args: Any) -> Any:
        made = call(*args)
        made.__class__ = _KINDS.get(type(made), type(made))
        return made

    return make
