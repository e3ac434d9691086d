"""Megatron's tensor-parallel and data-parallel groups.

World = TP x DP. Consecutive ranks form a tensor-parallel group; ranks with the same index in their groups form a
data-parallel group. With 8 ranks and TP 4: (0 1 2 3) (4 5 6 7), and (0 4) (1 5) (2 6) (3 7).

State belongs to the rank that created it, which is a greenlet, and to one context; it is discarded when the rank ends.
A call without `torch` refers to the context for which the calling rank was initialised last. A program that is not a
rank (one process, no spawn) keeps its state until `destroy_model_parallel`.

Not modelled: pipeline, context and expert parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.current import current_context
from kernbench.runtime_api.groups import GroupArg


@dataclass(frozen=True, slots=True, eq=False)
class ParallelGroup:
    """A group as one of its ranks sees it: its handle, its ranks in order, and which of them this one is."""

    handle: GroupArg
    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class ModelParallel:
    """One rank's groups in one context."""

    torch: RuntimeContext
    tensor: ParallelGroup
    data: ParallelGroup


_states: WeakKeyDictionary[greenlet, list[ModelParallel]] = WeakKeyDictionary()  # the latest last


def tensor_parallel_ranks(world: int, tensor_parallel: int) -> list[tuple[int, ...]]:
    """The ranks of every tensor-parallel group."""
    return [tuple(range(first, first + tensor_parallel)) for first in range(0, world, tensor_parallel)]


def data_parallel_ranks(world: int, tensor_parallel: int) -> list[tuple[int, ...]]:
    """The ranks of every data-parallel group."""
    return [tuple(range(first, world, tensor_parallel)) for first in range(tensor_parallel)]


def initialize_model_parallel(
    tensor_model_parallel_size: int | None = None, torch: RuntimeContext | None = None
) -> ModelParallel:
    """Form the groups; every rank calls it, after `torch.distributed.init_process_group`. Without a size, all ranks
    share the model; without `torch`, it is the context that runs the caller.

    Raises UsageError for a size that does not divide the world's, a context without process group, and a second call.
    """
    torch = torch if torch is not None else current_context(RuntimeContext)
    if not isinstance(torch, RuntimeContext):
        raise UsageError("initialize_model_parallel: no torch", hint="pass the context: torch=torch")
    if model_parallel_is_initialized(torch):
        raise UsageError("model parallelism is initialised already", hint="call destroy_model_parallel first")
    if not torch.distributed.is_initialized():
        raise UsageError(
            "initialize_model_parallel: there is no process group",
            hint='call torch.distributed.init_process_group(backend="ahbm") first',
        )
    world = torch.distributed.get_world_size()
    size = world if tensor_model_parallel_size is None else tensor_model_parallel_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or world % size:
        fitting = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
        raise UsageError(
            f"tensor_model_parallel_size is {size!r}, the world has {world} ranks", hint=f"use one of {fitting}"
        )
    tensor = _form(torch, tensor_parallel_ranks(world, size))
    data = _form(torch, data_parallel_ranks(world, size))
    state = ModelParallel(torch, tensor, data)
    _states.setdefault(getcurrent(), []).append(state)
    return state


def _form(torch: RuntimeContext, groups: Sequence[tuple[int, ...]]) -> ParallelGroup:
    """Create all groups of a kind, which every rank must do in the same order, and return the caller's. A group of all
    ranks is the world itself.
    """
    me = torch.distributed.get_rank()
    mine: ParallelGroup | None = None
    for ranks in groups:
        is_world = len(ranks) == torch.distributed.get_world_size()
        handle = torch.distributed.group.WORLD if is_world else torch.distributed.new_group(list(ranks))
        if me in ranks:
            mine = ParallelGroup(handle, ranks, ranks.index(me))
    assert mine is not None, "every rank is in one group of each kind"
    return mine


def model_parallel_is_initialized(torch: RuntimeContext | None = None) -> bool:
    """Whether the calling rank has groups, in any context or in this one."""
    return _find(torch) is not None


def model_parallel(torch: RuntimeContext | None = None) -> ModelParallel:
    """The calling rank's groups; raises UsageError before `initialize_model_parallel`."""
    found = _find(torch)
    if found is None:
        raise UsageError(
            "model parallelism is not initialised for this rank",
            hint="call kernbench.tp.initialize_model_parallel(torch=torch) in every rank, after set_device",
        )
    return found


def destroy_model_parallel(torch: RuntimeContext | None = None) -> None:
    """Forget the calling rank's groups, of one context or of all; without any, nothing happens."""
    me = getcurrent()
    left = [state for state in _states.get(me, []) if torch is not None and state.torch is not torch]
    if left:
        _states[me] = left
    else:
        _states.pop(me, None)


def get_tensor_model_parallel_group(torch: RuntimeContext | None = None) -> GroupArg:
    return model_parallel(torch).tensor.handle


def get_tensor_model_parallel_world_size(torch: RuntimeContext | None = None) -> int:
    return model_parallel(torch).tensor.size


def get_tensor_model_parallel_rank(torch: RuntimeContext | None = None) -> int:
    return model_parallel(torch).tensor.rank


def get_data_parallel_group(torch: RuntimeContext | None = None) -> GroupArg:
    return model_parallel(torch).data.handle


def get_data_parallel_world_size(torch: RuntimeContext | None = None) -> int:
    return model_parallel(torch).data.size


def get_data_parallel_rank(torch: RuntimeContext | None = None) -> int:
    return model_parallel(torch).data.rank


def _find(torch: RuntimeContext | None) -> ModelParallel | None:
    states = _states.get(getcurrent(), [])
    return next((state for state in reversed(states) if torch is None or state.torch is torch), None)
