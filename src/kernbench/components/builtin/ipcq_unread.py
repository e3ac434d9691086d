"""Messages that lie unread at a PE that waits for another one: what the report of a deadlock says of them, in words."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.commands import IpcqCommand, RecvCmd
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Peer, Unreceived


def unread_of(communicator: Communicator, receiver: PeKey, peer: Peer, direction: str) -> tuple[str, ...]:
    """What the neighbour that a receive waits for has sent, and what lies in another direction than is asked."""
    left = [left for left in communicator.left_over() if (left.receiver, left.message.sender) == (receiver, peer.pe)]
    return _told([each for each in left if each.direction != direction], "of the same PE")


def alike_of(
    communicator: Communicator, receiver: PeKey, peer: Peer, direction: str, cmd: IpcqCommand
) -> tuple[str, ...]:
    """Messages such as a receive asks for that came in from the other side: what goes out to E comes in from W.

    Whoever sends to E and receives from E has these.
    """
    if not isinstance(cmd, RecvCmd):
        return ()
    other_side = peer.direction  # as the neighbour calls the way back, so does this PE the way that leads away from it
    left = [left for left in communicator.left_over() if (left.receiver, left.direction) == (receiver, other_side)]
    wanted = cmd.shape, cmd.dtype
    like = [each for each in left if (each.message.shape, each.message.dtype) == wanted]
    return _told([each for each in like if each.direction != direction and each.message.sender != peer.pe], "like it")


def _told(left: Sequence[Unreceived], which: str) -> tuple[str, ...]:
    by_place: dict[tuple[str, str], int] = {}
    for each in left:
        key = each.direction, each.message.line
        by_place[key] = by_place.get(key, 0) + 1
    return tuple(
        f"{count} message{'s' if count > 1 else ''} {which} unread in {where}, sent at {line}"
        for (where, line), count in by_place.items()
    )
