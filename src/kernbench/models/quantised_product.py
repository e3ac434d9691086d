"""Products of few rows by weights in the PE's own slice, which are loaded ahead as they are stored (`quantised.py` has
the rule of what that costs): of a decode step in one launch, and of `split_k.py` where weights are quantised.

A PE's part of a weight passes through TCM in pieces, each of some rows: whole groups of rows that share scales, or a
fraction of one group. Scales are pieces too, each ahead of the elements that it belongs to. A piece of elements is
widened on the vector engine and multiplied, and the sums of a group are multiplied by its scales and added up in one
pass. Elements of int4 are stored plus 8: for that, the rows' sums over each group times -8 are multiplied by the
scales, a product of one number for each group.

`prepare` widens a piece before it is needed. Engines for products and vectors take turns, so a kernel that waits for a
message does well to widen what comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernbench.models.block_plans import evenly
from kernbench.models.loads_ahead import LoadsAhead, StreamedBlock
from kernbench.models.plans import F32_BYTES, SipShape
from kernbench.models.quantised import OFFSET, SCALE_BYTES, QuantisedForm
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

PIECES_SHARE = 4  # one part of so many of TCM is for pieces of `split_k.py`
SUMS_SHARE = 2  # and one of so many is what its plans count on: they count sums twice, those of groups take three times
WIDE_BYTES = 64 * 1024  # of rows that are summed by groups at a time
LOADED = 7  # pieces that it has room for at a time: their bytes have to cover the latency of memory


class WeightPiece(NamedTuple):
    """Rows of a weight's part that are loaded at a time: of its elements as they are stored, or of its scales."""

    rows: Range
    is_scales: bool = False


def weight_pieces(depth: int, row_bytes: int, form: QuantisedForm | None, piece_bytes: int) -> list[WeightPiece]:
    """A part of `depth` rows of K, in pieces of at most `piece_bytes` if a row of elements, `row_bytes`, and one of
    scales fit; in the order of use.
    """
    most = max(1, piece_bytes // max(1, row_bytes))
    if form is None:
        return [WeightPiece(rows) for rows in evenly(0, depth, most)]
    groups, of_group = depth // form.group, form.group // form.per_byte
    step = -(-groups // -(-groups // max(1, most // of_group)))  # groups of a piece
    scaled = max(1, piece_bytes // max(1, row_bytes * SCALE_BYTES) // step) * step
    found: list[WeightPiece] = []
    for first in range(0, groups, scaled):
        end = min(groups, first + scaled)
        found.append(WeightPiece((first, end), is_scales=True))
        for a in range(first, end, step):
            b = min(end, a + step)
            found += [WeightPiece(rows) for rows in evenly(a * of_group, b * of_group, most)]
    return found


def widened_copies(form: QuantisedForm | None) -> int:
    """TCM of the widened elements of a byte, in bytes, with types of two bytes; 0: nothing is widened."""
    return 0 if form is None else 2 * form.per_byte


def sip_for(sip: SipShape, form: QuantisedForm | None) -> SipShape:
    """The SIP for a plan of `split_k`, less the TCM in which weights of a form are widened and summed by groups."""
    return sip if form is None else replace(sip, tcm_bytes=sip.tcm_bytes // SUMS_SHARE)


def split_k_piece_bytes(sip: SipShape, form: QuantisedForm) -> int:
    """The size of a piece of a product by `split_k`, whose plan is for a SIP of `sip_for`."""
    return max(1, sip.tcm_bytes * SUMS_SHARE // PIECES_SHARE // (LOADED + widened_copies(form) + 1))


class StoredTensor(NamedTuple):
    """A weight or a cache as it is stored."""

    elements: TensorPtr
    scales: TensorPtr | None = None
    form: QuantisedForm | None = None

    @classmethod
    def of(cls, tensors: Iterator[TensorPtr], form: QuantisedForm | None) -> StoredTensor:
        """The next of a kernel's arguments: elements, and scales where there is a form."""
        return cls(next(tensors), None if form is None else next(tensors), form)


class WeightPart(NamedTuple):
    """A block of columns of a PE's part of a weight, in its own slice from element `at` on."""

    weight: StoredTensor
    at: int
    depth: int
    columns: int

    def pieces(self, piece_bytes: int) -> list[WeightPiece]:
        """Its pieces, in the order of use."""
        return weight_pieces(self.depth, self.columns * self.weight.elements.itemsize, self.weight.form, piece_bytes)

    def blocks(self, piece_bytes: int) -> Iterator[StreamedBlock]:
        """The loads of its pieces."""
        (elements, scales, form), columns = self.weight, self.columns
        for (first, end), is_scales in self.pieces(piece_bytes):
            tensor, begin = elements, self.at
            if form is not None:
                begin = self.at // (form.group if is_scales else form.per_byte)
            if is_scales and scales is not None:
                tensor = scales
            item = tensor.itemsize
            place = tensor.local + (begin + first * columns) * item
            nbytes = (end - first) * columns * item
            yield StreamedBlock(place, (end - first, columns), nbytes, form, is_scales)


class PieceStream:
    """Pieces of weights and caches, in the order of use: loaded ahead, at most `room_bytes` of them, and widened to
    `dtype` where they are quantised, up to `most_prepared` before they are needed.
    """

    def __init__(
        self,
        blocks: Iterable[StreamedBlock],
        room_bytes: int,
        dtype: str,
        tl: TLContext,
        *,
        most_prepared: int = 0,
    ) -> None:
        self._loads = LoadsAhead(blocks, room_bytes, tl)
        self._dtype, self._tl, self._most_prepared = dtype, tl, most_prepared
        self._prepared = deque[tuple[list[TensorHandle], int]]()
        self._widened = 0  # of those prepared

    def issue(self) -> None:
        """Issue the loads that there is room for."""
        self._loads.issue()

    def prepare(self) -> None:
        """Widen the next piece now, if it is a quantised one and there is room: scales ahead of it are kept too."""
        while self._widened < self._most_prepared:
            block = self._loads.next_block
            if block is None or block.form is None:
                return
            self._prepared.append(self._next(block))
            if not block.is_scales:
                self._widened += 1
                return

    def take(self) -> tuple[list[TensorHandle], int]:
        """The next piece: its elements or scales, or where a byte has two elements those of low and of high halves; and
        the bytes to `release` after their last use.
        """
        if self._prepared:
            found = self._prepared.popleft()
            if not found[1]:
                self._widened -= 1
            return found
        block = self._loads.next_block
        assert block is not None  # a kernel takes what it has announced
        return self._next(block)

    def release(self, nbytes: int) -> None:
        """The kernel has dropped what it took: issue what there is room for now."""
        if nbytes:
            self._loads.release(nbytes)

    def _next(self, block: StreamedBlock) -> tuple[list[TensorHandle], int]:
        stored = self._loads.take()
        if block.form is None or block.is_scales:
            return [stored], block.nbytes
        found = self._widen(stored, block.form)
        del stored
        self._loads.release(block.nbytes)
        return found, 0

    def _widen(self, stored: TensorHandle, form: QuantisedForm) -> list[TensorHandle]:
        tl = self._tl
        if form.per_byte == 1:
            return [tl.cast(stored, self._dtype)]
        return [tl.cast(stored & 15, self._dtype), tl.cast(stored >> 4, self._dtype)]

    # ---- products

    def multiply(
        self, x: TensorHandle, part: WeightPart, piece_bytes: int, offsets: TensorHandle | None = None
    ) -> TensorHandle:
        """x @ weight, in f32, of a part whose pieces come next; `offsets` are those of x (`group_offsets`)."""
        if part.weight.form is not None:
            return self._multiply_quantised(x, part, part.weight.form, piece_bytes, offsets)
        total: TensorHandle | None = None
        for (a, b), _ in part.pieces(piece_bytes):
            (piece,), nbytes = self.take()
            total = self._tl.dot(x[:, a:b], piece, total, out_dtype="f32")
            del piece
            self.release(nbytes)
        assert total is not None  # every PE has some of K
        return total

    def _multiply_quantised(
        self, x: TensorHandle, part: WeightPart, form: QuantisedForm, piece_bytes: int, offsets: TensorHandle | None
    ) -> TensorHandle:
        tl, of_group = self._tl, form.group // form.per_byte
        total: TensorHandle | None = None
        sums: TensorHandle | None = None
        scales: TensorHandle | None = None
        first_group, held = 0, 0
        for (first, end), is_scales in part.pieces(piece_bytes):
            if is_scales:
                scales = None
                self.release(held)
                (scales,), held = self.take()
                first_group = first
                if offsets is not None:
                    total = tl.dot(offsets[:, first:end], scales, total, out_dtype="f32")
                continue
            halves, _ = self.take()
            assert scales is not None
            for group, a, b in _by_group(first, end, of_group):
                for number, half in enumerate(halves):
                    at = group * form.group + number * of_group
                    rows = half[group * of_group + a - first : group * of_group + b - first]
                    sums = tl.dot(x[:, at + a : at + b], rows, sums, out_dtype="f32")
                    del rows, half
                if b == of_group and sums is not None:
                    each = scales[group - first_group : group - first_group + 1]
                    total = sums * each if total is None else tl.fma(sums, each, total)
                    sums = None
                    del each
            halves.clear()
        del scales
        self.release(held)
        assert total is not None
        return total


def _by_group(first: int, end: int, of_group: int) -> Iterator[tuple[int, int, int]]:
    """Rows of a piece by group: its number, and the first and last of its rows."""
    while first < end:
        group = first // of_group
        last = min(end, (group + 1) * of_group)
        yield group, first - group * of_group, last - group * of_group
        first = last


def group_offsets(x: TensorHandle, form: QuantisedForm | None, tl: TLContext) -> TensorHandle | None:
    """For elements that are stored plus an offset: each row's sum over each group, times what is to be taken off; None
    for others.
    """
    if form is None or form.per_byte == 1:
        return None
    (rows, depth), found = x.shape, list[TensorHandle]()
    for a, b in evenly(0, depth // form.group, max(1, WIDE_BYTES // (rows * form.group * F32_BYTES))):
        wide = tl.cast(x[:, a * form.group : b * form.group], "f32")
        sums = tl.sum(tl.reshape(wide, (rows, b - a, form.group)), axis=2)
        del wide
        found.append(tl.reshape(sums, (rows, b - a)) * float(-OFFSET))
        del sums
    return tl.cat(found, axis=1) if len(found) > 1 else found[0]


def blocks_of(parts: Sequence[WeightPart], piece_bytes: int) -> Iterator[StreamedBlock]:
    """The loads of several parts, one after the other."""
    for part in parts:
        yield from part.blocks(piece_bytes)
