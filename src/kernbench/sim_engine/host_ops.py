"""What the op log says of a host's request: writes and reads of memory, mappings. Launches have their kernels' ops."""

from __future__ import annotations

from kernbench.common.messages import (
    BaawSegmentInstallMsg,
    BaawSegmentRemoveMsg,
    HostMessage,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
)
from kernbench.components.recording import FieldValue

HOST_KIND = "host"


def host_op(msg: HostMessage) -> tuple[str, dict[str, FieldValue]] | None:
    """Name and parameters of a request's record; None for one that has none."""
    label = msg.debug_label or ""
    if isinstance(msg, MemoryWriteMsg):
        return "host_write", {"dst_addr": msg.dst_pa, "nbytes": msg.nbytes, "tensor": label}
    if isinstance(msg, MemoryReadMsg):
        return "host_read", {"src_addr": msg.src_pa, "nbytes": msg.nbytes, "tensor": label}
    if isinstance(msg, MmuMapMsg):
        nbytes = sum(entry.nbytes for entry in msg.entries)
        return "mmu_map", {"va": msg.entries[0].va, "nbytes": nbytes, "entries": len(msg.entries), "tensor": label}
    if isinstance(msg, MmuUnmapMsg):
        nbytes = sum(entry.nbytes for entry in msg.entries)
        return "mmu_unmap", {"va": msg.entries[0].va, "nbytes": nbytes, "entries": len(msg.entries), "tensor": label}
    if isinstance(msg, BaawSegmentInstallMsg):
        segments = msg.segments
        nbytes = sum(segment.la_size for segment in segments)
        return "baaw_install", {"la": segments[0].la_base, "nbytes": nbytes, "entries": len(segments), "tensor": label}
    if isinstance(msg, BaawSegmentRemoveMsg):
        return "baaw_remove", {"la": msg.la_base, "nbytes": msg.la_size, "tensor": label}
    return None
