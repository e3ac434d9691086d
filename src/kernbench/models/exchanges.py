"""Activations from the PEs that make them to those that need them, by messages, with no copy in memory.

Every part of a matrix of activations is a box, made by one PE and needed by some. A PE that has made one sends each
other PE what that needs of it, straight to its TCM; no barrier is needed, and no read waits behind streams of weights.
Messages between two PEs are sent and taken in the same order: by the box that is made, then by the box that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kernbench.models.plans import SipShape
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TLContext


class Rectangle(NamedTuple):
    """Rows and columns of a matrix."""

    rows: Range
    columns: Range

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def meets(self, other: Rectangle) -> Rectangle | None:
        """What both have; None if that is nothing."""
        (a, b), (c, d) = self
        (e, f), (g, h) = other
        top, bottom, first, end = max(a, e), min(b, f), max(c, g), min(d, h)
        return Rectangle((top, bottom), (first, end)) if top < bottom and first < end else None


class Piece(NamedTuple):
    """What PE `taker` needs for its box `need` of what PE `maker` has made, in its box `part`."""

    maker: int
    part: int
    taker: int
    need: int
    box: Rectangle


@dataclass(frozen=True)
class Exchange:
    """The boxes that each PE of a SIP makes, and those that it needs, each in order; PEs count over cubes."""

    sip: SipShape
    made: tuple[tuple[Rectangle, ...], ...]
    needed: tuple[tuple[Rectangle, ...], ...]

    @cached_property
    def by_taker(self) -> list[list[Piece]]:
        """What makes up all boxes that each PE needs."""
        return [
            [
                Piece(maker, part, taker, number, both)
                for maker, boxes in enumerate(self.made)
                for part, box in enumerate(boxes)
                for number, need in enumerate(needs)
                if (both := box.meets(need)) is not None
            ]
            for taker, needs in enumerate(self.needed)
        ]

    @cached_property
    def by_box(self) -> list[list[list[Piece]]]:
        """What others need of the boxes that each PE makes."""
        found: list[list[list[Piece]]] = [[[] for _ in boxes] for boxes in self.made]
        for pieces in self.by_taker:
            for piece in pieces:
                found[piece.maker][piece.part].append(piece)
        return found

    @property
    def most_makers(self) -> int:
        """Of the boxes that a PE needs, at most: as many rings of messages are in use."""
        return max(len({piece.maker for piece in some} - {pe}) for pe, some in enumerate(self.by_taker))


class Exchanged:
    """One PE's side of an exchange: `send` what it has made, `expect` what it needs, then `take` it."""

    def __init__(self, exchange: Exchange, dtype: str, tl: TLContext) -> None:
        self._exchange, self._dtype, self._tl = exchange, dtype, tl
        self._me = tl.program_id(1) * exchange.sip.pes + tl.program_id(0)
        self._own: dict[int, TensorHandle] = {}  # by part, what this PE has made and needs itself
        self._coming: list[tuple[Piece, TransferHandle | None]] = []

    def send(self, part: int, value: TensorHandle) -> None:
        """A box of this PE is made: send everyone what it needs of it."""
        (top, _), (first, _) = self._exchange.made[self._me][part]
        for piece in self._exchange.by_box[self._me][part]:
            (a, b), (c, d) = piece.box
            if piece.taker == self._me:
                self._own[part] = value
            else:
                self._tl.send_async(self._towards(piece.taker), value[a - top : b - top, c - first : d - first])

    def expect(self) -> None:
        """Ask for all messages: they leave their rings when they arrive."""
        tl = self._tl
        self._coming = [
            (piece, None if piece.maker == self._me else
             tl.recv_async(self._towards(piece.maker), piece.box.shape, self._dtype))
            for piece in self._exchange.by_taker[self._me]
        ]  # fmt: skip

    def take(self) -> list[TensorHandle]:
        """The boxes that this PE needs, each joined from its pieces."""
        pieces: list[dict[Range, list[tuple[Range, TensorHandle]]]] = [{} for _ in self._exchange.needed[self._me]]
        while self._coming:
            piece, handle = self._coming.pop(0)
            found = self._made_here(piece) if handle is None else self._tl.wait(handle)
            assert found is not None
            pieces[piece.need].setdefault(piece.box.columns, []).append((piece.box.rows, found))
        self._own.clear()
        return [self._joined(each) for each in pieces]

    def _joined(self, columns: dict[Range, list[tuple[Range, TensorHandle]]]) -> TensorHandle:
        """Pieces by columns, each by rows, as one matrix."""
        found = [self._cat([x for _, x in sorted(columns[each], key=_rows_of)], 0) for each in sorted(columns)]
        columns.clear()
        return self._cat(found, 1)

    def _cat(self, parts: Sequence[TensorHandle], axis: int) -> TensorHandle:
        return self._tl.cat(parts, axis=axis) if len(parts) > 1 else parts[0]

    def _made_here(self, piece: Piece) -> TensorHandle:
        (top, _), (first, _) = self._exchange.made[self._me][piece.part]
        (a, b), (c, d) = piece.box
        return self._own[piece.part][a - top : b - top, c - first : d - first]

    def _towards(self, pe: int) -> str:
        return direction_of(self._exchange.sip, pe)


def direction_of(sip: SipShape, pe: int) -> str:
    """The direction of a PE of the same SIP, from any other."""
    cube, number = divmod(pe, sip.pes)
    return f"cube_{cube}_pe_{number}"


def _rows_of(piece: tuple[Range, TensorHandle]) -> Range:
    return piece[0]
