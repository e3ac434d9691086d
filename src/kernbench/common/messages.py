"""What travels between host and device, and what comes back. Fields are checked when a message is made.

Requests name their target twice, as a physical address and as (sip, cube, pe): the tag decides which PE serves it, the
address decides where the bytes land, and a request whose two halves disagree is refused when it is submitted.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from kernbench.common.baaw import BaawSegment, BaawSegmentInstallMsg, BaawSegmentRemoveMsg
from kernbench.common.envelope import (
    Completion,
    CubeCommand,
    Request,
    RequestId,
    Targets,
    check_choice,
    check_count,
    require,
)
from kernbench.common.frozen import frozen
from kernbench.common.launch import (
    BarrierMsg,
    ConstArg,
    FailurePolicy,
    KernelAbortMsg,
    KernelArg,
    KernelFailure,
    KernelLaunchMsg,
    KernelRef,
    LaunchStream,
    PeResult,
    ScalarArg,
    TensorArg,
    TensorShard,
    stream_of,
)
from kernbench.common.mmu_messages import MapEntry, MmuMapMsg, MmuUnmapMsg, UnmapEntry

__all__ = [
    "BaawSegment",
    "BaawSegmentInstallMsg",
    "BaawSegmentRemoveMsg",
    "BarrierMsg",
    "Completion",
    "ConstArg",
    "CubeCommand",
    "CubeDmaMsg",
    "FailurePolicy",
    "HostMessage",
    "KernelAbortMsg",
    "KernelArg",
    "KernelFailure",
    "KernelLaunchMsg",
    "KernelRef",
    "LaunchStream",
    "MapEntry",
    "MemoryReadMsg",
    "MemoryWriteMsg",
    "MmuMapMsg",
    "MmuUnmapMsg",
    "Pattern",
    "PatternKind",
    "PeDmaMsg",
    "PeResult",
    "Request",
    "RequestId",
    "ScalarArg",
    "Targets",
    "TensorArg",
    "TensorShard",
    "UnmapEntry",
    "stream_of",
]

PatternKind = Literal["zero", "fill_u8", "fill_u16", "fill_u32", "fill_fp16", "fill_fp32"]
_PATTERN_KINDS = ("zero", "fill_u8", "fill_u16", "fill_u32", "fill_fp16", "fill_fp32")
_UNSIGNED_LIMIT = {"fill_u8": 1 << 8, "fill_u16": 1 << 16, "fill_u32": 1 << 32}


@frozen
class Pattern:
    """What a write that brings no bytes of its own fills memory with."""

    pattern_kind: PatternKind = "zero"
    value: float | int | None = None

    def __post_init__(self) -> None:
        kind, value = self.pattern_kind, self.value
        require(kind in _PATTERN_KINDS, f"unknown pattern '{kind}'", f"use one of {', '.join(_PATTERN_KINDS)}")
        if kind == "zero":
            return
        require(
            isinstance(value, int | float) and not isinstance(value, bool),
            f"pattern '{kind}' has no value",
            "give the value to fill with",
        )
        limit = _UNSIGNED_LIMIT.get(kind)
        if limit is not None:
            require(
                isinstance(value, int) and 0 <= value < limit,
                f"pattern '{kind}' cannot hold {value!r}",
                f"give a whole number from 0 to {limit - 1}",
            )


@frozen(kw_only=True)
class MemoryWriteMsg(Request):
    """The host writes device memory: a pattern, or the value that it is submitted with (`host_buffer_ref`)."""

    dst_sip: int
    dst_cube: int
    dst_pe: int
    dst_pa: int
    nbytes: int
    src_kind: Literal["pattern", "host_buffer_ref"] = "pattern"
    pattern: Pattern | None = field(default_factory=Pattern)
    dst_mem_kind: Literal["HBM", "TCM", "SRAM", "FAR", "AUTO"] = "AUTO"

    def __post_init__(self) -> None:
        for name in ("dst_sip", "dst_cube", "dst_pe", "dst_pa"):
            check_count("MemoryWriteMsg", name, getattr(self, name), 0)
        check_count("MemoryWriteMsg", "nbytes", self.nbytes, 1)
        kinds = ("pattern", "host_buffer_ref")
        require(self.src_kind in kinds, f"unknown src_kind '{self.src_kind}'", f"use one of {', '.join(kinds)}")
        require(
            self.src_kind != "pattern" or isinstance(self.pattern, Pattern),
            "MemoryWriteMsg of src_kind 'pattern' has no pattern",
            "give pattern=Pattern('zero')",
        )
        memories = ("HBM", "TCM", "SRAM", "FAR", "AUTO")
        require(
            self.dst_mem_kind in memories,
            f"unknown dst_mem_kind '{self.dst_mem_kind}'",
            f"use one of {', '.join(memories)}",
        )


@frozen(kw_only=True)
class MemoryReadMsg(Request):
    """The host reads device memory."""

    src_sip: int
    src_cube: int
    src_pe: int
    src_pa: int
    nbytes: int
    dst_kind: Literal["host_sink", "discard"] = "host_sink"  # whether the host keeps the bytes: `Handle.contents`

    def __post_init__(self) -> None:
        for name in ("src_sip", "src_cube", "src_pe", "src_pa"):
            check_count("MemoryReadMsg", name, getattr(self, name), 0)
        check_count("MemoryReadMsg", "nbytes", self.nbytes, 1)
        kinds = ("host_sink", "discard")
        require(self.dst_kind in kinds, f"unknown dst_kind '{self.dst_kind}'", f"use one of {', '.join(kinds)}")


@frozen
class PeDmaMsg(Request):
    """A PE's DMA engine reads from, or writes to, any physical address in the tray.

    `channel` is which of the engine's channels it takes: the read or write channel, which kernels' loads and stores
    use, or the one for communication.

    A write leaves `pattern` there, or the value that it is submitted with; what a read found is `Handle.contents`.
    """

    pattern: Pattern = field(default_factory=Pattern, kw_only=True)
    channel: Literal["compute", "communication"] = field(default="compute", kw_only=True)
    src_sip: int
    src_cube: int
    src_pe: int
    dst_pa: int
    nbytes: int
    is_write: bool = False

    def __post_init__(self) -> None:
        check_choice("PeDmaMsg", "channel", self.channel, ("compute", "communication"))
        for name in ("src_sip", "src_cube", "src_pe", "dst_pa"):
            check_count("PeDmaMsg", name, getattr(self, name), 0)
        check_count("PeDmaMsg", "nbytes", self.nbytes, 1)
        require(isinstance(self.is_write, bool), f"PeDmaMsg.is_write is {self.is_write!r}", "give True or False")
        _check_pattern("PeDmaMsg", self.pattern)


@frozen(kw_only=True)
class CubeDmaMsg(CubeCommand):
    """The host commands the M_CPUs of some cubes to move `nbytes` between themselves and their cube's memory.

    IO_CPU fans the command out to `target_cubes`, each M_CPU's DMA moves the bytes to or from `offset` in every one of
    `target_pes`' HBM slices, and one completion comes back when all have answered. A write leaves `pattern` in each of
    them, or the value that it is submitted with; what a read found is `Handle.contents`, by cube and PE.
    """

    offset: int
    nbytes: int
    is_write: bool = True
    pattern: Pattern = field(default_factory=Pattern)

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        check_count("CubeDmaMsg", "offset", self.offset, 0)
        check_count("CubeDmaMsg", "nbytes", self.nbytes, 1)
        require(isinstance(self.is_write, bool), f"CubeDmaMsg.is_write is {self.is_write!r}", "give True or False")
        _check_pattern("CubeDmaMsg", self.pattern)


def _check_pattern(message: str, pattern: object) -> None:
    require(isinstance(pattern, Pattern), f"{message}.pattern is {pattern!r}", "give pattern=Pattern('zero')")


HostMessage = (
    MemoryWriteMsg
    | MemoryReadMsg
    | PeDmaMsg
    | CubeDmaMsg
    | KernelLaunchMsg
    | KernelAbortMsg
    | MmuMapMsg
    | MmuUnmapMsg
    | BaawSegmentInstallMsg
    | BaawSegmentRemoveMsg
)
