"""What a command waits for, for the report of a deadlock: its rings, and unread messages beside them."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.blocked import RingWait
from kernbench.common.commands import IpcqCommand, RecvCmd, SendCmd
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Peer, Unreceived
from kernbench.common.messages import KernelLaunchMsg
from kernbench.components.builtin.ipcq_setup import RingTable


def waits_of(
    rings: RingTable, key: PeKey, communicator: Communicator, cmd: IpcqCommand, launch: KernelLaunchMsg
) -> tuple[RingWait, ...]:
    """The rings that a command waits at; several for a receive from any direction."""
    found: list[RingWait] = []
    is_choice, pointers = cmd.direction is None, rings.pointers(communicator)
    for direction in communicator.directions_of(key) if cmd.direction is None else (cmd.direction,):
        peer = rings.peer(communicator, direction)
        rx, tx = rings.rx.get((communicator, direction)), rings.tx.get((communicator, direction))
        if isinstance(cmd, SendCmd):
            op, taken = "send", tx.occupancy if tx is not None else 0
        else:
            op, taken = "recv", len(rx.arrived) if rx is not None else 0
        outside = (peer.pe[0] == key[0] or bool(launch.targets_by_sip)) and not launch.origin.has(peer.pe)
        asks = op == "recv" and not is_choice
        unread = unread_of(communicator, key, peer, direction) if asks else ()
        alike = alike_of(communicator, key, peer, direction, cmd) if asks else ()
        n_slots, failure = communicator.config.n_slots, communicator.failure or ""
        found.append(
            RingWait(op, direction, peer.pe, taken, n_slots, failure, is_choice, outside, unread, alike, pointers)
        )
    return tuple(found)


def unread_of(communicator: Communicator, receiver: PeKey, peer: Peer, direction: str) -> tuple[str, ...]:
    """Unread messages of the neighbour that a receive waits for, in other directions than the receive's."""
    left = [left for left in communicator.left_over() if (left.receiver, left.message.sender) == (receiver, peer.pe)]
    return _listed([each for each in left if each.direction != direction], "of the same PE")


def alike_of(
    communicator: Communicator, receiver: PeKey, peer: Peer, direction: str, cmd: IpcqCommand
) -> tuple[str, ...]:
    """Unread messages of the shape and type that a receive waits for, in the opposite direction: what one PE sends to
    E arrives at the next from W. A kernel that sends to E and receives from E leaves such messages.
    """
    if not isinstance(cmd, RecvCmd):
        return ()
    other_side = peer.direction  # the neighbour's name for the way back is this PE's name for the opposite direction
    left = [left for left in communicator.left_over() if (left.receiver, left.direction) == (receiver, other_side)]
    wanted = cmd.shape, cmd.dtype
    like = [each for each in left if (each.message.shape, each.message.dtype) == wanted]
    return _listed([each for each in like if each.direction != direction and each.message.sender != peer.pe], "like it")


def _listed(left: Sequence[Unreceived], which: str) -> tuple[str, ...]:
    by_place: dict[tuple[str, str], int] = {}
    for each in left:
        key = each.direction, each.message.line
        by_place[key] = by_place.get(key, 0) + 1
    return tuple(
        f"{count} message{'s' if count > 1 else ''} {which} unread in {where}, sent at {line}"
        for (where, line), count in by_place.items()
    )
