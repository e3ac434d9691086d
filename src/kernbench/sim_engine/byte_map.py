"""Which value holds each byte of an address space.

Extents are disjoint and sorted by address. An extent is a contiguous range of one value's bytes, or a band. A band is
`rows` consecutive lines of `stride` bytes, cut into columns, each a block of one value, as tiles of a row-major matrix
are stored. So a tile written to a matrix is one entry, not one per row. A write that does not match a band's geometry
splits the band between rows, and a line that is written across columns becomes plain extents.

Lookup is a bisection. Inserting and clearing touch only the extents that overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple, TypeAlias

from kernbench.values.graph import Value


class StridedCopy(NamedTuple):
    """Bytes of `source` for a part of the request: `rows` runs of `run` bytes, at the source and at the result."""

    source: Value
    src_offset: int
    src_stride: int
    dst_offset: int
    dst_stride: int
    rows: int
    run: int


# hi, value or band, offset in the value, bytes between the value's rows (in a band's column; else 0)
Extent: TypeAlias = "tuple[int, Value | Band, int, int]"


class ExtentList:
    """Disjoint extents of a line of bytes, by their start."""

    __slots__ = ("extents", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.extents: list[Extent] = []

    def find(self, at: int) -> int:
        """The index of the extent that holds byte `at`, or -1."""
        index = bisect_right(self.starts, at) - 1
        return index if index >= 0 and self.extents[index][0] > at else -1

    def span(self, lo: int, hi: int) -> tuple[int, int]:
        """The indices of the extents that [lo, hi) touches: first, and past the last."""
        first = bisect_right(self.starts, lo) - 1
        if first < 0 or self.extents[first][0] <= lo:
            first += 1
        return first, bisect_left(self.starts, hi, first)

    def splice(self, lo: int, hi: int, new: Extent | None) -> None:
        """Clears [lo, hi), which cuts no band, and puts `new` there."""
        first, past = self.span(lo, hi)
        starts, extents = ([], []) if new is None else ([lo], [new])
        if first < past:
            start, (end, source, offset, stride) = self.starts[first], self.extents[first]
            if start < lo:
                starts.insert(0, start)
                extents.insert(0, (lo, source, offset, stride))
            start, (end, source, offset, stride) = self.starts[past - 1], self.extents[past - 1]
            if end > hi:
                starts.append(hi)
                extents.append((end, source, offset + hi - start, stride))
        self.starts[first:past] = starts
        self.extents[first:past] = extents


class Band:
    """`rows` lines of `stride` bytes; `columns` cuts all of them alike."""

    __slots__ = ("columns", "rows", "stride")

    def __init__(self, rows: int, stride: int) -> None:
        self.rows = rows
        self.stride = stride
        self.columns = ExtentList()

    def below(self, row: int) -> Band:
        """The lines from `row` on, as a band of their own."""
        band = Band(self.rows - row, self.stride)
        band.columns.starts = self.columns.starts.copy()
        band.columns.extents = [
            (hi, source, offset + row * step, step) for hi, source, offset, step in self.columns.extents
        ]
        return band


class ByteMap:
    """Byte ranges of one address space -> stretches of values."""

    def __init__(self) -> None:
        self._lines = ExtentList()

    def __len__(self) -> int:
        """The number of entries: plain extents, and columns of bands."""
        return sum(
            len(extent[1].columns.extents) if isinstance(extent[1], Band) else 1 for extent in self._lines.extents
        )

    def holder(self, lo: int, hi: int) -> tuple[Value, int] | None:
        """The one value that holds [lo, hi) in one stretch, and where in it; None when there are several, or a band."""
        at = bisect_right(self._lines.starts, lo) - 1
        if at < 0:
            return None
        end, source, offset, _ = self._lines.extents[at]
        if end < hi or isinstance(source, Band):
            return None
        return source, offset + lo - self._lines.starts[at]

    def put(self, lo: int, hi: int, source: Value, offset: int = 0) -> None:
        """Bytes [lo, hi) are those of `source` from `offset` on."""
        lines = self._lines
        at = bisect_left(lines.starts, lo)
        if at < len(lines.starts) and lines.starts[at] == lo and lines.extents[at][0] == hi:
            lines.extents[at] = (hi, source, offset, 0)
            return
        self._cut_bands(lo, hi)
        lines.splice(lo, hi, (hi, source, offset, 0))

    def clear(self, lo: int, hi: int) -> None:
        self._cut_bands(lo, hi)
        self._lines.splice(lo, hi, None)

    def put_rows(self, addr: int, rows: int, run: int, stride: int, source: Value, offset: int = 0) -> None:
        """Bytes of `source`, from `offset` on, in `rows` runs of `run` bytes, `stride` bytes apart; run < stride."""
        row = 0
        while row < rows:
            row += self._put_some(addr + row * stride, rows - row, run, stride, source, offset + row * run)

    def _put_some(self, addr: int, rows: int, run: int, stride: int, source: Value, offset: int) -> int:
        """Insert as many of the rows as fit one band; returns their number."""
        lines = self._lines
        at = lines.find(addr)
        if at >= 0:
            base, (end, holder, held_at, _) = lines.starts[at], lines.extents[at]
            row, column = divmod(addr - base, stride)
            if isinstance(holder, Band):
                if holder.stride == stride and column + run <= stride:
                    count = min(rows, holder.rows - row)
                    band = self._carve(at, row, count)
                    band.columns.splice(column, column + run, (column + run, source, offset, run))
                    return count
            else:
                base += row * stride
                count = min(rows, (end - base) // stride)
                if count > 1 and column + run <= stride:
                    band = Band(count, stride)
                    band.columns.splice(0, stride, (stride, holder, held_at + row * stride, stride))
                    band.columns.splice(column, column + run, (column + run, source, offset, run))
                    lines.splice(base, base + count * stride, (base + count * stride, band, 0, 0))
                    return count
        else:
            after = bisect_right(lines.starts, addr)
            count = min(rows, (lines.starts[after] - addr) // stride) if after < len(lines.starts) else rows
            if count > 1:
                band = Band(count, stride)
                band.columns.splice(0, run, (run, source, offset, run))
                lines.splice(addr, addr + count * stride, (addr + count * stride, band, 0, 0))
                return count
        self.put(addr, addr + run, source, offset)
        return 1

    def _carve(self, at: int, row: int, count: int) -> Band:
        """The lines [row, row + count) of the band at index `at`, as a band of their own."""
        base, band = self._lines.starts[at], self._lines.extents[at][1]
        assert isinstance(band, Band)  # checked by the caller
        if row:
            self._split(at, row)
            at, base, band = at + 1, base + row * band.stride, self._lines.extents[at + 1][1]
            assert isinstance(band, Band)  # _split makes two
        if count < band.rows:
            self._split(at, count)
        return band

    def _split(self, at: int, row: int) -> None:
        """Two bands of the band at index `at`: the lines before `row`, and the others."""
        lines = self._lines
        end, band, _, _ = lines.extents[at]
        assert isinstance(band, Band)  # checked by the caller
        edge = lines.starts[at] + row * band.stride
        lower = band.below(row)
        band.rows = row
        lines.extents[at] = (edge, band, 0, 0)
        lines.starts.insert(at + 1, edge)
        lines.extents.insert(at + 1, (end, lower, 0, 0))

    def _cut_bands(self, lo: int, hi: int) -> None:
        """After this, no band reaches across `lo` or `hi`: lines that would are plain extents."""
        for edge in (lo, hi):
            at = self._lines.find(edge)
            if at < 0 or not isinstance(band := self._lines.extents[at][1], Band):
                continue
            row, column = divmod(edge - self._lines.starts[at], band.stride)
            if column:
                self._carve(at, row, 1)
                self._flatten(at + (1 if row else 0))
            elif row:
                self._split(at, row)

    def _flatten(self, at: int) -> None:
        """The band of one line at index `at` as plain extents."""
        lines = self._lines
        base, band = lines.starts[at], lines.extents[at][1]
        assert isinstance(band, Band)  # checked by the caller
        columns = band.columns
        lines.starts[at : at + 1] = [base + start for start in columns.starts]
        lines.extents[at : at + 1] = [(base + hi, source, offset, 0) for hi, source, offset, _ in columns.extents]

    def collect(self, addr: int, rows: int, run: int, stride: int, dst: int, copies: list[StridedCopy]) -> None:
        """Adds to `copies` what holds `rows` runs of `run` bytes, `stride` apart, put end to end from `dst` on.

        Bytes never written are left out.
        """
        lines = self._lines
        row = 0
        while row < rows:
            here, there, count = addr + row * stride, dst + row * run, 1
            at = lines.find(here)
            if at >= 0:
                base, (end, holder, offset, _) = lines.starts[at], lines.extents[at]
                if isinstance(holder, Band):
                    first, column = divmod(here - base, holder.stride)
                    if holder.stride == stride and column + run <= stride:
                        count = min(rows - row, holder.rows - first)
                        _block(holder, first, count, column, run, there, run, copies)
                        row += count
                        continue
                elif here + run <= end:
                    count = rows - row if stride == 0 else min(rows - row, (end - here - run) // stride + 1)
                    _add(copies, StridedCopy(holder, offset + here - base, stride, there, run, count, run))
                    row += count
                    continue
            self._collect_line(here, here + run, there, copies)
            row += 1

    def _collect_line(self, lo: int, hi: int, dst: int, copies: list[StridedCopy]) -> None:
        lines = self._lines
        first, past = lines.span(lo, hi)
        for at in range(first, past):
            base, (end, holder, offset, _) = lines.starts[at], lines.extents[at]
            start, stop = max(lo, base), min(hi, end)
            there = dst + start - lo
            if not isinstance(holder, Band):
                _add(copies, StridedCopy(holder, offset + start - base, 0, there, 0, 1, stop - start))
                continue
            stride = holder.stride
            row, column = divmod(start - base, stride)
            last, rest = divmod(stop - base, stride)
            if row == last:
                _block(holder, row, 1, column, rest - column, there, 0, copies)
                continue
            if column:
                _block(holder, row, 1, column, stride - column, there, 0, copies)
                row, there = row + 1, there + stride - column
            if row < last:
                _block(holder, row, last - row, 0, stride, there, stride, copies)
            if rest:
                _block(holder, last, 1, 0, rest, there + (last - row) * stride, 0, copies)


def _block(
    band: Band, row: int, rows: int, column: int, run: int, dst: int, dst_stride: int, copies: list[StridedCopy]
) -> None:
    """Adds the copies of a rectangle of a band."""
    columns = band.columns
    first, past = columns.span(column, column + run)
    for at in range(first, past):
        base, (end, source, offset, step) = columns.starts[at], columns.extents[at]
        assert isinstance(source, Value)  # a band's columns hold no bands
        start, stop = max(base, column), min(end, column + run)
        src = offset + start - base + row * step
        _add(copies, StridedCopy(source, src, step, dst + start - column, dst_stride, rows, stop - start))


def _add(copies: list[StridedCopy], new: StridedCopy) -> None:
    """Adds a copy, joined to the one before where the two are one strided copy."""
    if new.rows > 1 and new.src_stride == new.run == new.dst_stride:
        new = new._replace(rows=1, run=new.rows * new.run, src_stride=0, dst_stride=0)
    joined = _joined(copies[-1], new) if copies and copies[-1].source is new.source else None
    if joined is None:
        copies.append(new)
    else:
        copies[-1] = joined


def _joined(last: StridedCopy, new: StridedCopy) -> StridedCopy | None:
    """Two copies of one value as one: end to end, two equal runs apart, or more rows of the same spacing."""
    step = (new.src_offset - last.src_offset, new.dst_offset - last.dst_offset)
    if last.rows == new.rows == 1:
        if step == (last.run, last.run):
            return last._replace(run=last.run + new.run)
        if new.run == last.run and min(step) >= new.run:
            return last._replace(src_stride=step[0], dst_stride=step[1], rows=2)
        return None
    spacing = (last.src_stride, last.dst_stride)
    alike = last.rows > 1 and last.run == new.run and (new.rows == 1 or spacing == (new.src_stride, new.dst_stride))
    if alike and step == (last.rows * spacing[0], last.rows * spacing[1]):
        return last._replace(rows=last.rows + new.rows)
    return None
