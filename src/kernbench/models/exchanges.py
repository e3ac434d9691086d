"""Exchange of activations between PEs by messages, from TCM to TCM, with no copy in memory.

A matrix of activations is divided in two ways: into the rectangles that its producers compute, one PE each, and into
those that its consumers need. A producer sends every consumer the intersection of their rectangles as soon as it has
computed its own; no barrier is needed, and no read waits behind streams of weights. Messages between two PEs are sent
and received in one order: by the producer's rectangle, then by the consumer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
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

    def intersection(self, other: Rectangle) -> Rectangle | None:
        """The elements of both; None if there are none."""
        (a, b), (c, d) = self
        (e, f), (g, h) = other
        top, bottom, first, end = max(a, e), min(b, f), max(c, g), min(d, h)
        return Rectangle((top, bottom), (first, end)) if top < bottom and first < end else None


class SharedPart(NamedTuple):
    """The intersection `box` of rectangle `made` of PE `producer` and rectangle `needed` of PE `consumer`; rectangles
    are numbered per PE.
    """

    producer: int
    made: int
    consumer: int
    needed: int
    box: Rectangle


@dataclass(frozen=True)
class Exchange:
    """The rectangles that each PE of a SIP computes, and those that it needs; PEs are numbered over all cubes."""

    sip: SipShape
    made: tuple[tuple[Rectangle, ...], ...]
    needed: tuple[tuple[Rectangle, ...], ...]

    @cached_property
    def by_consumer(self) -> list[list[SharedPart]]:
        """For each PE the parts of the rectangles that it needs, in the order of receives."""
        return [
            [
                SharedPart(producer, at, consumer, number, both)
                for producer, boxes in enumerate(self.made)
                for at, box in enumerate(boxes)
                for number, need in enumerate(needs)
                if (both := box.intersection(need)) is not None
            ]
            for consumer, needs in enumerate(self.needed)
        ]

    @cached_property
    def by_producer(self) -> list[list[list[SharedPart]]]:
        """For each PE and each rectangle that it computes the parts to be sent, in order."""
        found: list[list[list[SharedPart]]] = [[[] for _ in boxes] for boxes in self.made]
        for parts in self.by_consumer:
            for part in parts:
                found[part.producer][part.made].append(part)
        return found

    @property
    def most_senders(self) -> int:
        """The most PEs that one PE receives from: so many of its rings are in use."""
        return max(len({part.producer for part in parts} - {pe}) for pe, parts in enumerate(self.by_consumer))


class PeExchange:
    """One PE's side of an exchange: `send` what it has computed, `post_receives` for what it needs, then `receive`."""

    def __init__(self, exchange: Exchange, dtype: str, tl: TLContext) -> None:
        self._exchange, self._dtype, self._tl = exchange, dtype, tl
        self._me = tl.program_id(1) * exchange.sip.pes + tl.program_id(0)
        self._own: dict[int, TensorHandle] = {}  # by number, rectangles that this PE computes and needs itself
        self._posted: list[tuple[SharedPart, TransferHandle | None]] = []

    def send(self, number: int, value: TensorHandle) -> None:
        """Send every other PE its part of a rectangle that this PE has computed."""
        for part in self._exchange.by_producer[self._me][number]:
            if part.consumer == self._me:
                self._own[number] = value
            else:
                self._tl.send_async(direction_of(self._exchange.sip, part.consumer), self._cut(value, part))

    def post_receives(self) -> None:
        """Post the receives of all messages: each leaves its ring when it arrives."""
        self._posted = [
            (part, None if part.producer == self._me else self._tl.recv_async(
                direction_of(self._exchange.sip, part.producer), part.box.shape, self._dtype))
            for part in self._exchange.by_consumer[self._me]
        ]  # fmt: skip

    def receive(self) -> list[TensorHandle]:
        """Wait for the rectangles that this PE needs, each joined from its parts."""
        parts: list[dict[Range, list[tuple[Range, TensorHandle]]]] = [{} for _ in self._exchange.needed[self._me]]
        while self._posted:
            part, handle = self._posted.pop(0)
            found = self._cut(self._own[part.made], part) if handle is None else self._tl.wait(handle)
            assert found is not None
            parts[part.needed].setdefault(part.box.columns, []).append((part.box.rows, found))
        self._own.clear()
        return [self._joined(each) for each in parts]

    def _cut(self, value: TensorHandle, part: SharedPart) -> TensorHandle:
        """A part of a rectangle that this PE has computed."""
        (top, _), (first, _) = self._exchange.made[self._me][part.made]
        (a, b), (c, d) = part.box
        return value[a - top : b - top, c - first : d - first]

    def _joined(self, columns: dict[Range, list[tuple[Range, TensorHandle]]]) -> TensorHandle:
        """Parts, by columns and then by rows, as one matrix."""
        found = [self._cat([x for _, x in sorted(columns[each], key=itemgetter(0))], 0) for each in sorted(columns)]
        columns.clear()
        return self._cat(found, 1)

    def _cat(self, parts: Sequence[TensorHandle], axis: int) -> TensorHandle:
        return self._tl.cat(parts, axis=axis) if len(parts) > 1 else parts[0]


def direction_of(sip: SipShape, pe: int) -> str:
    """The direction of a PE of the same SIP, from any other."""
    cube, number = divmod(pe, sip.pes)
    return f"cube_{cube}_pe_{number}"
