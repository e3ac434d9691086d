"""What a transfer is for, by its tag: the stage of an op, a message between PEs, or a request of the host."""

from __future__ import annotations

from kernbench.common.ipcq import Chunk, Message
from kernbench.common.messages import KernelLaunchMsg, RequestId
from kernbench.components.base import Packet
from kernbench.components.builtin.pipeline import TileToken

Purpose = int | Message | RequestId  # a stage (`recording.stage_ref`), a message, a request


def purpose_of(tag: object) -> Purpose | None:
    """None for what no op stands for: credits, commands on their way to PEs, slots that are read."""
    if isinstance(tag, TileToken):
        return tag.ref
    if isinstance(tag, Packet) and tag.initiator is not None:
        return purpose_of(tag.initiator)
    if isinstance(tag, Packet):
        return None if isinstance(tag.request, KernelLaunchMsg) else tag.request.id
    payload = getattr(tag, "payload", None)
    return payload.message if isinstance(payload, Chunk) else None
