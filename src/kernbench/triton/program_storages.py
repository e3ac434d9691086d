"""The storages of PyTorch that a launch may touch: those of its arguments, and those whose address the program asked
for, since it may have put that into a tensor of pointers.

Storages that overlap are one: several tensors of PyTorch may stand on one array of NumPy. Names and order do not depend
on addresses of the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernbench.triton.kernel_call import KernelCall


class WantedMemory(NamedTuple):
    """A piece of memory that a launch may touch."""

    nbytes: int
    alive: StorageWeakRef
    name: str
    itemsize: int


class ProgramStorages:
    """The storages that a program has used as arguments or asked the address of."""

    def __init__(self) -> None:
        self._addressed: dict[int, WantedMemory] = {}  # by first address
        self._count = 0  # of those that were asked for

    def remember(self, tensor: torch.Tensor) -> None:
        """A program asks for the address of a tensor."""
        with torch._C.DisableTorchFunction():
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                return
            storage = tensor.untyped_storage()
            start, alive = storage.data_ptr(), StorageWeakRef(storage)
            held = self._addressed.get(start)
            if not storage.nbytes() or (held is not None and held.alive.cdata == alive.cdata):
                return
            self._addressed.pop(start, None)
            self._count += 1
            name = f"tensor {self._count} by data_ptr()"
            self._addressed[start] = WantedMemory(storage.nbytes(), alive, name, tensor.element_size())

    def of(self, call: KernelCall) -> dict[int, WantedMemory]:
        """What a launch may touch, by first address: arguments first."""
        wanted: dict[int, WantedMemory] = {}
        for name, tensor in call.tensors():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                start = storage.data_ptr()
                found = WantedMemory(storage.nbytes(), StorageWeakRef(storage), name, tensor.element_size())
                wanted[start] = found if start not in wanted else _larger(wanted[start], found)
        for start, found in list(self._addressed.items()):
            if found.alive.expired():
                del self._addressed[start]
            else:
                wanted[start] = found if start not in wanted else _larger(wanted[start], found)
        return _merged(wanted)


def _larger(first: WantedMemory, second: WantedMemory) -> WantedMemory:
    """Of two storages at one address the larger one, with the name that came first."""
    return first if first.nbytes >= second.nbytes else second._replace(name=first.name, itemsize=first.itemsize)


def _merged(wanted: dict[int, WantedMemory]) -> dict[int, WantedMemory]:
    """Storages that overlap as one, at the place of the first of them."""
    starts = sorted(wanted)
    groups: list[list[int]] = []
    end = 0
    for start in starts:
        if groups and start < end:
            groups[-1].append(start)
        else:
            groups.append([start])
        end = max(end, start + wanted[start].nbytes)
    if len(groups) == len(starts):
        return wanted
    order = {start: at for at, start in enumerate(wanted)}
    whole = {}
    for group in sorted(groups, key=lambda group: min(order[start] for start in group)):
        first = wanted[min(group, key=order.__getitem__)]
        widest = max((wanted[start] for start in group), key=lambda each: each.nbytes)
        end = max(start + wanted[start].nbytes for start in group)
        whole[group[0]] = WantedMemory(end - group[0], widest.alive, first.name, first.itemsize)
    return whole
