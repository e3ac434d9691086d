"""Kernel launches: the commands that reach into PEs, and what PEs answer.

Tensor data never travels in a launch: an argument says where each shard lies and what part of the tensor it is. The
kernel itself is known to the device by name. A launch that does not say where it goes runs where its shards are. It may
be stamped with the instant at which every PE starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from numbers import Real
from typing import Literal

import numpy as np

from kernbench.common.array_types import Shape
from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.commands import TILED, Space, TensorLayout
from kernbench.common.composite_use import CompositeUse
from kernbench.common.envelope import CubeCommand, Request, RequestId, Targets, check_choice, check_count, require
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeKey, Place, memory_kind
from kernbench.common.ipcq import LaunchOrigin
from kernbench.common.message_traffic import NO_MESSAGES, MessageTraffic

SplitBy = int | str | None  # of a split: the axis, the kind of tiles, or nothing
FailurePolicy = Literal["fail_fast", "collect_all"]
FAILURE_POLICIES = ("fail_fast", "collect_all")
LaunchStream = Literal["compute", "communication", "send", "receive"]
STREAMS: tuple[LaunchStream, ...] = ("compute", "communication", "send", "receive")


@frozen
class KernelRef:
    """Which kernel: every PE knows it by its name. Its code takes no room and no time to fetch."""

    name: str

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", f"KernelRef.name is {self.name!r}", "name the kernel")


@frozen
class TensorShard:
    """A part of a tensor in one PE's memory. `offset_bytes` counts from the start of the tensor's address range."""

    sip: int
    cube: int
    pe: int
    pa: int
    nbytes: int
    offset_bytes: int

    def __post_init__(self) -> None:
        for name, least in (("sip", 0), ("cube", 0), ("pe", 0), ("pa", 0), ("nbytes", 1), ("offset_bytes", 0)):
            check_count("TensorShard", name, getattr(self, name), least)

    @property
    def key(self) -> PeKey:
        return self.sip, self.cube, self.pe


@frozen
class TensorArg:
    """A tensor as a kernel's argument. `va_base` is where its virtual or logical range begins; None where addresses are
    physical.

    A PE that holds no part of a split tensor has an empty local shape: sizes of 0 along `split_axes`. A tensor that is
    not split is whole for every PE, wherever it is stored. `split_by` is how it is split over cubes, and over PEs;
    `layout` is what a composite's tile of it is to memory.
    """

    name: str
    shape: Shape
    dtype: str
    va_base: int | None
    shards: tuple[TensorShard, ...]
    local_shapes: Mapping[PeKey, Shape] = field(default_factory=dict)
    split_axes: tuple[int, ...] = ()
    space: Space = "hbm"
    split_by: tuple[SplitBy, SplitBy] = (None, None)
    is_logical: bool = False  # `va_base` is a logical address: an access lies in one part
    is_per_pe: bool = True  # each part belongs to one PE; else all PEs of its cube share it
    layout: TensorLayout = TILED
    # Derived once, since every PE asks: from the first byte of its address range to the last, where parts end that an
    # access must not cross, shards by place, and where others than rows are split how many shards each cube has.
    span_bytes: int = field(init=False, repr=False)
    part_ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    shards_by_place: Mapping[tuple[int, ...], TensorShard] = field(init=False, repr=False, compare=False)
    shards_by_cube: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(len(self.shards) > 0, f"TensorArg '{self.name}' has no shards", "deploy the tensor first")
        span_bytes = max(shard.offset_bytes + shard.nbytes for shard in self.shards)
        object.__setattr__(self, "span_bytes", span_bytes)
        ends = {shard.offset_bytes + shard.nbytes for shard in self.shards} if self.is_logical else ()
        object.__setattr__(self, "part_ends", tuple(sorted(ends)))
        by_place: dict[tuple[int, ...], TensorShard] = {}
        for shard in self.shards:
            by_place.setdefault(self._place(shard.key), shard)
        object.__setattr__(self, "shards_by_place", by_place)
        counts = Counter([shard.cube for shard in self.shards]) if any(self.split_axes) else {}
        object.__setattr__(self, "shards_by_cube", tuple(counts.values()))
        require(
            all(isinstance(n, int) and n >= 0 for n in self.shape),
            f"TensorArg '{self.name}' has shape {self.shape!r}",
            "give whole numbers",
        )

    def shard_of(self, key: PeKey) -> TensorShard | None:
        """The part that belongs to a PE, or to all PEs of its cube, if any does."""
        return self.shards_by_place.get(self._place(key))

    def _place(self, key: PeKey) -> tuple[int, ...]:
        """The key of a shard: the PE, or the cube whose PEs share it."""
        return key if self.is_per_pe else key[:2]

    def address_for(self, key: PeKey) -> int:
        """What a kernel on that PE gets as its pointer: the tensor's virtual base, or where the PE's own part lies.

        Without virtual addresses, a PE that holds no part gets the address of the first shard.
        """
        if self.va_base is not None:
            return self.va_base
        return (self.shard_of(key) or self.shards[0]).pa

    def local_address_for(self, key: PeKey) -> int:
        """Where the PE's own part begins, as that PE addresses it; as `address_for` for a PE that holds none."""
        own = self.shard_of(key)
        return self.address_for(key) + (own.offset_bytes if own is not None and self.va_base is not None else 0)

    def local_shape_for(self, key: PeKey) -> Shape:
        """The shape of a PE's own part; for a PE that holds none, of nothing or of the whole, as it is split or not."""
        own = self.local_shapes.get(key if self.is_per_pe else (*key[:2], 0))
        if own is None:
            own = tuple(0 if axis in self.split_axes else size for axis, size in enumerate(self.shape))
        return own


@frozen
class ScalarArg:
    """A number as a kernel's argument; the kernel gets `value` exactly as it is."""

    dtype: Literal["i32", "i64", "fp16", "fp32", "bool"]
    value: float | int | bool

    def __post_init__(self) -> None:
        check_choice("ScalarArg", "dtype", self.dtype, ("i32", "i64", "fp16", "fp32", "bool"))
        require(
            isinstance(self.value, Real | np.bool_), f"ScalarArg.value is {self.value!r}", "give a number or a bool"
        )


PlainValue = str | bool | int | float | None | tuple["PlainValue", ...]
"""What a kernel may be given besides tensors; an element type is text, its own name."""


@frozen
class ConstArg:
    """A plain value that is no number: text, None, an element type or a tuple of plain values; the kernel gets `value`
    exactly as it is.
    """

    value: PlainValue

    def __post_init__(self) -> None:
        hint = "give text, None, numbers or tuples of these"
        require(is_plain(self.value), f"ConstArg.value is {self.value!r}", hint)


def is_plain(value: object) -> bool:
    """Whether a value can be a kernel's argument as it is: it never changes, and every process writes it alike."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(is_plain(item) for item in value)
    return value is None or isinstance(value, str | bool | int | float)


KernelArg = TensorArg | ScalarArg | ConstArg


@frozen(kw_only=True)
class KernelLaunchMsg(CubeCommand):
    """Run a kernel on every target PE, all from one instant on.

    Targets that are left "all" are those that hold part of a tensor argument (`located`), or really all where none is
    on this SIP. `args` are given by position, `named_args` by the name of the kernel's parameter. `fail_fast` ends the
    launch with the first PE that fails and stops the others, `collect_all` waits for all. IO_CPU stamps
    `target_start_ns` unless the host did, which it does for launches that several SIPs start together. `communicator`
    names the neighbours that the kernel can send to; it receives only messages that launches of the same `tag` send. A
    PE runs the launches of each `stream` one after the other, and those of different streams at the same time. Of a
    launch on several SIPs each message has its `number` and what cubes and PEs it is for on each of them.
    """

    kernel_ref: KernelRef
    args: tuple[KernelArg, ...] = ()
    failure_policy: FailurePolicy = "fail_fast"
    target_start_ns: float | None = None
    named_args: Mapping[str, KernelArg] = field(default_factory=dict)
    communicator: str = "world"
    tag: int = 0
    stream: LaunchStream = "compute"
    number: int = 0
    targets_by_sip: Mapping[int, tuple[Targets, Targets]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        require(
            isinstance(self.kernel_ref, KernelRef),
            f"KernelLaunchMsg.kernel_ref is {self.kernel_ref!r}",
            "give a KernelRef",
        )
        # Words about arguments are long, so they are made only where they are needed.
        if not isinstance(self.args, tuple):
            require(False, f"KernelLaunchMsg.args is {self.args!r}", "give a tuple")
        for arg in self.all_args:
            if not isinstance(arg, TensorArg | ScalarArg | ConstArg):
                require(False, f"KernelLaunchMsg.args holds {arg!r}", "give TensorArg, ScalarArg and ConstArg")
        check_choice("KernelLaunchMsg", "failure_policy", self.failure_policy, FAILURE_POLICIES)
        check_choice("KernelLaunchMsg", "stream", self.stream, STREAMS)
        require(
            self.target_start_ns is None or self.target_start_ns >= 0,
            f"KernelLaunchMsg.target_start_ns is {self.target_start_ns!r}",
            "give a time in ns, or leave it out",
        )

    @property
    def all_args(self) -> Iterator[KernelArg]:
        """Those given by position, then those given by name."""
        yield from self.args
        yield from self.named_args.values()

    @property
    def origin(self) -> LaunchOrigin:
        """What its messages say of it."""
        targets = self.targets_by_sip or {self.sip: (self.target_cubes, self.target_pes)}
        return LaunchOrigin(self.number if self.targets_by_sip else self.id, self.tag, targets)

    def located(self) -> KernelLaunchMsg:
        """The launch with targets for each of those left "all": the cubes, and the PE numbers, that hold a shard."""
        if self.target_cubes != "all" and self.target_pes != "all":
            return self
        tensors = [arg for arg in self.all_args if isinstance(arg, TensorArg)]
        cubes: Targets = tuple(sorted({s.cube for arg in tensors for s in arg.shards if s.sip == self.sip})) or "all"
        # SRAM is no PE's own: a tensor there does not say which of them take part.
        of_pes = [s.pe for arg in tensors if arg.space != "sram" for s in arg.shards if s.sip == self.sip]
        pes: Targets = tuple(sorted(set(of_pes))) or "all"
        return replace(
            self,
            target_cubes=cubes if self.target_cubes == "all" else self.target_cubes,
            target_pes=pes if self.target_pes == "all" else self.target_pes,
        )


def stream_of(request: Request) -> LaunchStream:
    """The stream that a request belongs to on its PE: that of its launch, compute where there is none."""
    return request.stream if isinstance(request, KernelLaunchMsg) else "compute"


@frozen(kw_only=True)
class KernelAbortMsg(CubeCommand):
    """Stop a launch on every target PE where it is not over, and do not start it where it has not begun.

    It is found by its id, in whichever stream. A PE answers when nothing of the launch is under way there.
    """

    launch_id: RequestId


@frozen(kw_only=True)
class BarrierMsg(CubeCommand):
    """A PE, a cube or a SIP of a launch has come to the launch's barrier of this `number`; answered when all have.

    `launch_key` is the launch's own, the same on all its SIPs (`LaunchOrigin.key`), `sips` are those that it runs on,
    `first_cubes` its cubes on the first of them.
    """

    launch_key: object
    number: int
    sips: tuple[int, ...]
    first_cubes: Targets


@frozen
class KernelFailure:
    """Why a kernel ended early on one PE: what was raised, the line in the user's code, a hint where there is one, and
    the calls that led to the line where it is in a function that the kernel called, nearest first.
    """

    kind: str  # name of the exception
    message: str
    file: str
    line: int
    source_line: str
    sip: int
    cube: int
    pe: int
    hint: str | None = None
    calls: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """`file:line  source`, and a line for each call that led there."""
        line = f"{self.file}:{self.line}" + (f"  {self.source_line}" if self.source_line else "")
        return "\n         called from ".join((line, *self.calls))

    def __str__(self) -> str:
        text = f"{self.kind} on sip {self.sip}, cube {self.cube}, pe {self.pe}: {self.message}\n  where: {self.where}"
        return f"{text}\n  hint:  {self.hint}" if self.hint else text


@frozen
class PeResult:
    """What one PE answers to a launch: when its kernel ran, and how long its engines were busy meanwhile.

    `dma_ns`, `tcm_ns` and `memories` are of the PE from the kernel's start to its end: where a kernel of another stream
    ran at the same time, what that one did then is in them.
    """

    sip: int
    cube: int
    pe: int
    start_ns: float
    end_ns: float
    pe_exec_ns: float
    dma_ns: float
    compute_ns: float
    error: KernelFailure | None = None
    memories: tuple[tuple[str, ChannelTraffic], ...] = ()  # each one that its DMA moved bytes to or from
    is_aborted: bool = False  # whether it was stopped because another PE had failed
    tcm_ns: float = 0.0  # while a fetch or a store was under way
    composites: tuple[CompositeUse, ...] = ()
    tcm_peak_bytes: int = 0  # the most TCM that the kernel's tensors took at one time
    messages: MessageTraffic = NO_MESSAGES  # of this kernel

    @property
    def hbm(self) -> tuple[tuple[str, ChannelTraffic], ...]:
        """The HBM controllers among its memories."""
        return tuple(each for each in self.memories if memory_kind(each[0]) == "hbm")

    @property
    def hbm_bytes(self) -> tuple[tuple[int, int], ...]:
        """(SIP, bytes): what its DMA moved to and from the HBM of each, in whole bursts."""
        found: dict[int, int] = {}
        for node, use in self.hbm:
            sip = Place.of(node).sip
            found[sip] = found.get(sip, 0) + use.burst_bytes
        return tuple(sorted(found.items()))

    @property
    def bytes_hbm(self) -> int:
        """Moved to and from HBM in whole bursts, on all SIPs together."""
        return sum(use.burst_bytes for _, use in self.hbm)

    @property
    def bytes_hbm_requested(self) -> int:
        """Of those, the ones that it asked to read or write."""
        return sum(use.read_bytes + use.written_bytes for _, use in self.hbm)
