"""Copies of PyTorch's storages on the machine: where they lie, and what a launch that is only timed leaves of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton.kernel_call import KernelCall
from kernbench.triton.look_ahead import ProgramsAhead
from kernbench.triton.placement import StoragePlacement, policy_of
from kernbench.triton.program_storages import WantedMemory


@dataclass(eq=False)
class Copy:
    """A storage of PyTorch, and its copy on the machine."""

    start: int
    end: int
    alive: StorageWeakRef
    tensor: Tensor
    placement: str
    policy: DPPolicy
    name: str
    itemsize: int


class Copies:
    """The copies on one machine. Those of a trial begin where the run has them: `of_run`."""

    def __init__(self, of_run: Copies | None = None) -> None:
        self._held: dict[int, Copy] = {}  # by first address
        self._of_run = {} if of_run is None else of_run._held

    def placed(
        self,
        call: KernelCall,
        wanted: Mapping[int, WantedMemory],
        placement: StoragePlacement,
        ahead: ProgramsAhead,
        context: RuntimeContext,
        note: Callable[[str], object],
    ) -> list[Copy]:
        """The copies of all storages that a launch may touch; those that are new get a place now."""
        for start in [start for start, copy in self._held.items() if copy.alive.expired()]:
            del self._held[start]
        for start, (nbytes, *_) in wanted.items():
            if start in self._held and not _stays(self._held[start], nbytes, call, placement):
                del self._held[start]
        spec, programs = context.spec, prod(call.grid)
        pes = spec.cube.n_pes * spec.sip.n_cubes
        for at, (start, (nbytes, alive, name, itemsize)) in enumerate(wanted.items()):
            if start in self._held:
                continue
            before = self._of_run.get(start)
            if before is not None and _stays(before, nbytes, call, placement):
                policy = before.policy
            else:
                page = spec.cube.page_bytes
                policy = policy_of(placement, at, nbytes, ahead.samples, start, programs, pes, page)
                if placement == "replicate" and policy.cube != "replicate":
                    note(f"note: '{name}' is written, so it has no copy in every PE's memory")
            tensor = context.empty(nbytes, dtype="u8", dp=policy, name=name)
            self._held[start] = Copy(start, start + nbytes, alive, tensor, placement, policy, name, itemsize)
        return [self._held[start] for start in wanted]


def _stays(held: Copy, nbytes: int, call: KernelCall, placement: StoragePlacement) -> bool:
    """Whether a storage keeps its place: a launch may ask for another one."""
    if held.alive.expired() or held.end - held.start != nbytes:
        return False
    return "placement" not in call.options or held.placement == placement


@contextmanager
def unchanged(wanted: Sequence[WantedMemory]) -> Iterator[None]:
    """What a launch that is only timed writes is undone: the numbers of its storages are kept and put back."""
    storages = [torch.UntypedStorage._new_with_weak_ptr(alive.cdata) for _, alive, _, _ in wanted]
    before = [(storage, storage.clone()) for storage in storages]
    try:
        yield
    finally:
        for storage, numbers in before:
            storage.copy_(numbers)
