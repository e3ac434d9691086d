"""The tensors of one context on its devices: placed, mapped, written, read, and freed.

A new tensor is mapped in the cubes that hold it, and a launch maps it in the other cubes it runs on, on any SIP. A
tensor without references is freed at the next call: an unmap message goes to every SIP that has mapped it. A later
mapping of the same addresses cannot overtake it, because commands reach a cube in the order of submission
(`sim_engine.command_order`); so the memory can be reused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import finalize

import numpy as np

from kernbench.common.array_types import Mask
from kernbench.common.commands import ROW_MAJOR, TILED, Space, TensorLayout
from kernbench.common.dtypes import DType
from kernbench.common.errors import DataError, UsageError
from kernbench.common.messages import (
    BaawSegmentInstallMsg,
    BaawSegmentRemoveMsg,
    HostMessage,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    Pattern,
    TensorShard,
    UnmapEntry,
)
from kernbench.policy.placement.dp import DPPolicy, ShardSpec, resolve_dp_policy
from kernbench.runtime_api.deploy import Allocation, DeviceMemory, map_entries, segments
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.storage import Storage
from kernbench.runtime_api.tensor import Array, Tensor
from kernbench.runtime_api.tensor_base import DeviceOperations, TensorBase
from kernbench.runtime_api.unwritten import unwritten_in
from kernbench.sim_engine.engine import Handle
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value

Contents = Callable[[ShardSpec], Value]  # what one part of a tensor holds
OnFree = Callable[[str, TensorShard, Value], None]  # with a tensor's name


@dataclass(eq=False)
class _Resources:
    """The memory of a tensor, and the cubes whose PEs map it. It outlives the Tensor object."""

    name: str
    allocation: Allocation
    mapped: dict[int, tuple[int, ...]] = field(default_factory=dict)  # cubes by SIP


class TensorStore:
    """Creates tensors, and implements their reads and writes (`tensor.Host`)."""

    def __init__(self, queue: HostQueue, ops: Callable[[], DeviceOperations]) -> None:
        self._queue = queue
        self._engine = queue.engine
        self._spec = queue.engine.graph.spec
        engine = queue.engine
        ranges = engine.logical_ranges if self._spec.system.address_model == "la" else None
        self.memory = DeviceMemory(self._spec, engine.pe_memory, engine.cube_memory, engine.far_memory, ranges)
        self._resources: dict[int, _Resources] = {}  # by tensor number
        self._dropped: list[int] = []  # numbers of tensors without references
        self._count = 0
        self._closed = False
        self.ops = ops
        self.on_free: list[OnFree] = []  # called with the contents of every freed shard

    def create(
        self,
        shape: tuple[int, ...],
        element: DType,
        policy: DPPolicy,
        sip: int,
        name: str | None,
        contents: Contents | None,
        given_space: Space | None = None,
        *,
        wait: bool = True,
        layout: object = None,
    ) -> Tensor:
        """Place, map and write a tensor; returns when that is done. A tensor of no axes, or of no elements, has a
        storage of one element, so that it has an address. Without `wait` it returns at once: a launch on the cubes that
        hold the tensor cannot overtake its mapping (`sim_engine.command_order`).
        """
        self.tidy()
        placed = shape if shape and 0 not in shape else (1,)
        space = given_space or self.memory.home.space
        _check_space(space, policy, self.memory, written=contents is not None)
        tile_layout = _checked_layout(layout, shape, space)
        is_per_pe = space not in ("sram", "far") or not (policy.pe == "replicate" or policy.num_pes == 1)
        parts = policy
        if not is_per_pe:  # all PEs of a cube share its SRAM, and all cubes of a SIP its far memory
            is_one = space == "far" and policy.cube == "replicate"
            parts = replace(policy, pe="replicate", num_pes=1, num_cubes=1 if is_one else policy.num_cubes)
        placement = resolve_dp_policy(
            parts,
            shape=placed,
            itemsize=element.itemsize,
            num_pe=self._spec.cube.n_pes,
            num_cubes=self._spec.sip.n_cubes,
            target_sip=sip,
            page_bytes=self._spec.cube.page_bytes,
        )
        allocation = self.memory.alloc(placement, space, is_per_pe=is_per_pe)
        number, self._count = self._count, self._count + 1
        name = name or f"t{number}"
        self._resources[number] = _Resources(name, allocation)
        storage = Storage(number, name, placed, element, policy, placement, allocation, tile_layout)
        finalize(storage, self._dropped.append, number).atexit = False
        tensor = Tensor(self, storage, Layout.dense(shape))
        handles = self.map_in(tensor, sip, allocation.cubes)
        if contents is not None and 0 not in shape:
            handles += [self._write(tensor, at, 0, contents(part)) for at, part in enumerate(placement)]
        if wait:
            self._queue.wait(handles, f"tensor '{tensor.name}' to be written")
        return tensor

    def map_in(self, tensor: TensorBase, sip: int, cubes: Sequence[int]) -> list[Handle]:
        """Map a tensor for the PEs of a SIP's `cubes` that have not mapped it yet."""
        resources = self._resources[tensor.number]
        mapped = resources.mapped.get(sip, ())
        new_cubes = tuple(cube for cube in cubes if cube not in mapped)
        if not new_cubes or resources.allocation.va_base is None:
            return []
        handle = self._queue.submit(self._mapping(resources.allocation, sip, new_cubes, tensor.name))
        resources.mapped[sip] = mapped + new_cubes  # after submit, which rejects cubes that do not exist
        return [handle]

    def _mapping(self, allocation: Allocation, sip: int, cubes: tuple[int, ...], name: str) -> HostMessage:
        """The message that maps a tensor: segments for DMA engines, or entries for MMUs."""
        if self._spec.system.has_mmu:
            entries = map_entries(allocation, cubes, self._spec.cube.n_pes)
            return MmuMapMsg(sip=sip, target_cubes=cubes, entries=entries, debug_label=name)
        found = segments(allocation, cubes, self._spec)
        return BaawSegmentInstallMsg(sip=sip, target_cubes=cubes, segments=found, debug_label=name)

    def _unmapping(self, allocation: Allocation, sip: int, cubes: tuple[int, ...]) -> HostMessage:
        """The message that takes it back."""
        assert allocation.va_base is not None
        base, size = allocation.va_base, allocation.va_bytes
        if self._spec.system.has_mmu:
            return MmuUnmapMsg(sip=sip, target_cubes=cubes, entries=(UnmapEntry(base, size),))
        return BaawSegmentRemoveMsg(sip=sip, target_cubes=cubes, la_base=base, la_size=size)

    def check_ours(self, tensor: TensorBase) -> None:
        """Raise UsageError for a tensor of another context, or after closing."""
        if self._closed:
            raise UsageError(
                f"tensor '{tensor.name}' is used after its context was closed",
                hint="take its contents with numpy() inside the 'with' block",
            )
        if tensor.number not in self._resources or tensor.host is not self:
            raise UsageError(
                f"tensor '{tensor.name}' belongs to another context", hint="use tensors where they were made"
            )

    # ---- contents

    def value_of(self, tensor: TensorBase, at: int) -> Value:
        """The current contents of one shard; zeros where nothing was written."""
        part, shard = tensor.placement[at], tensor.shards[at]
        if self._engine.races is not None:
            self._engine.races.host_read(shard.pa, part.nbytes, tensor.name, self._engine.now_ns)
        return self._engine.memory.read(shard.pa, part.local_shape, tensor.element, zero_fill=True)

    def written(self, tensor: TensorBase, at: int) -> Mask:
        """Which elements of a shard were written, once everything issued is done."""
        self._prepare_read(tensor)
        part, shard = tensor.placement[at], tensor.shards[at]
        mask = np.ones(shard.nbytes // tensor.itemsize, bool)
        for first, end in self._engine.memory.gaps(shard.pa, part.nbytes):
            mask[first // tensor.itemsize : -(-end // tensor.itemsize)] = False
        return mask

    def unwritten(
        self, tensor: TensorBase, parts: Sequence[int], wanted: Mapping[int, Mask] | None = None
    ) -> str | None:
        """Which elements of some shards, of all or of those that are wanted, were never written, in words; or None."""
        found: dict[ShardSpec, tuple[Mask, Mask]] = {}
        for at in parts:
            written = self.written(tensor, at)
            found[tensor.placement[at]] = (np.ones_like(written) if wanted is None else wanted[at], written)
        missing = unwritten_in(found, tensor.itemsize)
        return None if missing is None else str(missing)

    def read_parts(
        self, tensor: TensorBase, parts: Sequence[int], *, timed: bool, wanted: Mapping[int, Mask] | None = None
    ) -> list[Array]:
        """The contents of some shards, once everything issued is done. Elements that are not wanted may be anything.

        Raises DataError for elements that were never written.
        """
        missing = self.unwritten(tensor, parts, wanted)
        if missing is not None:
            raise DataError(
                f"tensor '{tensor.name}': {missing}", hint="write them first, or make it with zeros() or full()"
            )
        if timed:
            handles = [self._queue.submit(_read_of(tensor, at, None if wanted is None else wanted[at])) for at in parts]
            self._queue.wait(handles, f"tensor '{tensor.name}' to be read")
        graph = self._engine.values
        debugged = graph.sites is not None  # intermediate values are kept for inspection
        found = [self.value_of(tensor, at) for at in parts]
        return evaluate(found, backend=graph.backend, keep_inputs=debugged)

    def _prepare_read(self, tensor: TensorBase) -> None:
        """Wait for everything issued before contents are read; raises UsageError in a run without contents."""
        self.check_ours(tensor)
        if not self._engine.data:
            raise UsageError("this run keeps no data", hint="run it without data=False and torch.timing_only()")
        self._queue.wait_all()
        self.ops().check()

    def write_parts(self, tensor: TensorBase, parts: Sequence[tuple[int, int, Array]]) -> None:
        """Write arrays into shards; each item is (shard, first element, array). Returns when that is done."""
        self.check_ours(tensor)
        self._queue.wait_all()
        shared: dict[int, Value] = {}  # an array written to several shards is one value
        handles: list[Handle] = []
        for at, first, array in parts:
            if id(array) not in shared:
                shared[id(array)] = self._engine.values.constant(array, tensor.element)
            handles.append(self._write(tensor, at, first, shared[id(array)]))
        self._queue.wait(handles, f"tensor '{tensor.name}' to be written")

    def preset(self, tensor: Tensor, contents: Contents) -> None:
        """Set the contents of memory without simulating a write: no time passes."""
        for part, shard in zip(tensor.placement, tensor.shards, strict=True):
            self._engine.memory.write(shard.pa, contents(part))

    def leave_unwritten(self, tensor: TensorBase, gaps: Mapping[int, Mask]) -> None:
        """Mark elements that a write only passed over as not written; `gaps` are masks by shard."""
        itemsize = tensor.itemsize
        for at, gap in gaps.items():
            edges = np.flatnonzero(np.diff(gap, prepend=False, append=False)).tolist()
            for start, stop in zip(edges[::2], edges[1::2], strict=True):
                self._engine.memory.free(tensor.shards[at].pa + start * itemsize, (stop - start) * itemsize)

    def _write(self, tensor: TensorBase, at: int, first: int, value: Value) -> Handle:
        shard = tensor.shards[at]
        zero = value.op == "full" and not value.params[1]
        message = MemoryWriteMsg(
            dst_sip=shard.sip,
            dst_cube=shard.cube,
            dst_pe=shard.pe,
            dst_pa=shard.pa + first * tensor.itemsize,
            nbytes=value.nbytes,
            src_kind="pattern" if zero else "host_buffer_ref",
            pattern=Pattern("zero") if zero else None,
            debug_label=tensor.name,
        )
        return self._queue.submit(message, value)

    # ---- freeing

    def tidy(self) -> list[Handle]:
        """Free tensors without references; raises UsageError after closing."""
        if self._closed:
            raise UsageError("this context is closed", hint="make tensors and launches inside its 'with' block")
        handles: list[Handle] = []
        while self._dropped:
            handles += self._free(self._resources.pop(self._dropped.pop(0)))
        return handles

    def close(self) -> list[Handle]:
        """Free everything; returns the pending unmap requests."""
        if self._closed:
            return []
        handles = self.tidy()
        for number in list(self._resources):
            handles += self._free(self._resources.pop(number))
        self._dropped.clear()
        self._closed = True
        return handles

    def _free(self, resources: _Resources) -> list[Handle]:
        allocation, handles = resources.allocation, list[Handle]()
        if allocation.va_base is not None:
            for sip, cubes in resources.mapped.items():
                handles.append(self._queue.submit(self._unmapping(allocation, sip, cubes)))
        for shard in allocation.shards:
            if self.on_free and self._engine.data:
                held = self._engine.memory.read(shard.pa, (shard.nbytes,), "u8", zero_fill=True)
                for on_free in self.on_free:
                    on_free(resources.name, shard, held)
            self._engine.memory.free(shard.pa, shard.nbytes)
            if self._engine.races is not None:
                self._engine.races.detector.forget(shard.pa, shard.nbytes)
        self.memory.free(allocation)
        return handles


def _check_space(space: Space, policy: DPPolicy, memory: DeviceMemory, *, written: bool) -> None:
    home = memory.home
    if space not in ("hbm", "sram", "tcm", "far"):
        raise UsageError(f"space is {space!r}", hint="use 'hbm', 'sram', 'tcm' or 'far'")
    if space == "far" and not memory.has_far:
        raise UsageError("a tensor in far memory, and this machine has none", hint="describe system.far_memory")
    if space == "hbm" and home.space != "hbm":
        hint = f"leave space out for {home.name}" + ("" if home.space == "tcm" else ", or use 'tcm'")
        raise UsageError("a tensor in HBM, and this machine has none", hint=hint)
    if space == "sram" and policy.pe != "replicate" and home.space != "sram":
        raise UsageError(
            f"a tensor in SRAM with DPPolicy(pe={policy.pe!r})",
            hint="all PEs of a cube share its SRAM: split over cubes only, DPPolicy(cube=...)",
        )
    if space == "tcm" and written and home.space != "tcm":
        raise UsageError(
            "the host cannot write a PE's TCM",
            hint="make it with torch.empty(..., space='tcm') and let a kernel fill it",
        )


def _read_of(tensor: TensorBase, at: int, wanted: Mask | None) -> MemoryReadMsg:
    """A read of a shard, or of it from the first element that is wanted to the last."""
    shard = tensor.shards[at]
    first, end = 0, shard.nbytes
    if wanted is not None:
        places = np.flatnonzero(wanted)
        first, end = int(places[0]) * tensor.itemsize, (int(places[-1]) + 1) * tensor.itemsize
    return MemoryReadMsg(
        src_sip=shard.sip,
        src_cube=shard.cube,
        src_pe=shard.pe,
        src_pa=shard.pa + first,
        nbytes=end - first,
        dst_kind="discard",  # contents are taken from memory directly, as values
        debug_label=tensor.name,
    )


def _checked_layout(layout: object, shape: tuple[int, ...], space: Space) -> TensorLayout:
    """What a composite's tile of a new tensor is to memory; raises UsageError where a given layout means nothing."""
    if layout is None or str(layout) == "torch.strided":  # PyTorch's own word for tensors with strides
        return TILED
    if layout not in (TILED, ROW_MAJOR):
        raise UsageError(f"layout is {layout!r}", hint=f"use '{TILED}' or '{ROW_MAJOR}', or leave it out")
    if len(shape) < 2 or space != "hbm":
        what = f"a tensor of {len(shape)} axes" if len(shape) < 2 else f"a tensor in {space.upper()}"
        raise UsageError(
            f"layout={layout!r} for {what}, where it means nothing",
            hint="leave it out: it says how rows of a tile of a matrix lie among the bursts of HBM",
        )
    return TILED if layout == TILED else ROW_MAJOR
