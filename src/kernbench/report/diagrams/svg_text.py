"""How wide words are, and how they are fitted into boxes, in pixels.

A picture must not depend on the fonts of the machine that draws it, so widths come from a table: those of DejaVu Sans,
the widest of the usual sans-serif fonts. In Helvetica or Arial the same words leave a little room. Characters outside
ASCII count as a full em.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

FONT_FAMILY = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
READABLE_PX = 8.5  # the smallest label, as wide as the picture is shown
LARGEST_PX = 15.0
ASCENT, DESCENT = 0.78, 0.24  # of the size, above and below the baseline

# Of ASCII 32 to 126, in 1/1000 em.
_WIDTHS = (
    *(318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337),
    *(636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531),
    *(1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787),
    *(603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500),
    *(500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612),
    *(635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838),
)
_BOLD = 1.14
_DETAIL = 0.8  # size of a line of detail, of its label's
_SMALLEST_DETAIL = 0.88  # of the smallest label
_MOST_DETAIL_LINES = 3
_WHOLE = 8  # so many characters of a label are never cut
_LINE = 1.2  # line height, of the size
_EXACT_PX = 1e-6  # a size chosen to fill a room fills it but for rounding
_TALL = 1.15  # what a lone label takes up, of its size

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Rect:
    """A box in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def w(self) -> float:
        return self.right - self.left

    @property
    def h(self) -> float:
        return self.bottom - self.top

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def overlaps(self, other: Rect, within: float = 0.0) -> bool:
        """Whether the two share more than `within` pixels each way."""
        return (
            min(self.right, other.right) - max(self.left, other.left) > within
            and min(self.bottom, other.bottom) - max(self.top, other.top) > within
        )

    def holds(self, other: Rect) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and self.right >= other.right
            and self.bottom >= other.bottom
        )


@dataclass(frozen=True, slots=True)
class Text:
    """One line of words. (x, y) is where its baseline is anchored; a turned line reads upwards."""

    x: float
    y: float
    words: str
    size_px: float
    anchor: Anchor = "middle"
    bold: bool = False
    faint: bool = False
    turned: bool = False
    owner: str = ""  # the view node it names

    @property
    def rect(self) -> Rect:
        """What it covers."""
        width = width_px(self.words, self.size_px, self.bold)
        before = {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        up, down = ASCENT * self.size_px, DESCENT * self.size_px
        if self.turned:
            return Rect(self.x - up, self.y - (width - before), self.x + down, self.y + before)
        return Rect(self.x - before, self.y - up, self.x - before + width, self.y + down)


def width_px(words: str, size_px: float, bold: bool = False) -> float:
    ems = sum(_WIDTHS[ord(c) - 32] if 32 <= ord(c) <= 126 else 1000 for c in words) / 1000
    return ems * size_px * (_BOLD if bold else 1.0)


def shortened(words: str, room_px: float, size_px: float, bold: bool = False) -> str:
    """The words, or as much of their beginning as fits before an ellipsis."""
    if width_px(words, size_px, bold) <= room_px + _EXACT_PX:
        return words
    for end in range(len(words) - 1, 0, -1):
        short = words[:end].rstrip() + "…"
        if width_px(short, size_px, bold) <= room_px + _EXACT_PX:
            return short
    return "…"


def wrapped(words: str, room_px: float, size_px: float) -> list[str] | None:
    """Lines no wider than the room, broken after commas or else at spaces; None when one word alone is wider."""
    parts = words.replace(", ", ",\n").split("\n")
    if any(width_px(part, size_px) > room_px for part in parts):
        parts = words.split()
    lines: list[str] = []
    for part in parts:
        if width_px(part, size_px) > room_px:
            return None
        longer = f"{lines[-1]} {part}" if lines else part
        if lines and width_px(longer, size_px) <= room_px:
            lines[-1] = longer
        elif part:
            lines.append(part)
    return lines


@dataclass(frozen=True, slots=True)
class Tag:
    """A box and what is to be written in it."""

    owner: str
    box: Rect
    label: str
    detail: str


def is_turned(box_w: float, box_h: float, label: str) -> bool:
    """Whether a label reads upwards: in a tall box where it can then be clearly larger."""
    if box_h <= 1.5 * box_w:
        return False
    upright, sideways = (_largest(label, *_room(Rect(0, 0, box_w, box_h), turned)) for turned in (False, True))
    return sideways > 1.3 * upright


def room_for(label: str) -> tuple[float, float]:
    """The width and height of a box that holds the label, or the start of a long one, at a readable size."""
    return 1.2 * width_px(_start(label), READABLE_PX) + 1.0, 1.4 * READABLE_PX


def _start(label: str) -> str:
    return label if len(label) <= _WHOLE else label[: _WHOLE - 1] + "…"


def fitted(tags: Sequence[Tag], readable_px: float) -> list[Text]:
    """The labels of boxes of one kind, all at the largest size that fits each; details where every box has room."""
    turned = [is_turned(tag.box.w, tag.box.h, tag.label) for tag in tags]
    rooms = [_room(tag.box, turn) for tag, turn in zip(tags, turned, strict=True)]
    size = min(_largest(tag.label, *room) for tag, room in zip(tags, rooms, strict=True))
    cut = min(_largest(_start(tag.label), *room) for tag, room in zip(tags, rooms, strict=True))
    size = max(size, min(cut, readable_px))
    tags = [replace(tag, label=shortened(tag.label, w, size)) for tag, (w, _) in zip(tags, rooms, strict=True)]
    full, wanted = size, any(tag.detail for tag in tags)
    while wanted and size >= readable_px:
        detail_px = max(_DETAIL * size, _SMALLEST_DETAIL * readable_px)
        blocks = [_lines(tag, w, h, size, detail_px) for tag, (w, h) in zip(tags, rooms, strict=True)]
        if all(block is not None for block in blocks):
            return [
                text
                for tag, turn, block in zip(tags, turned, blocks, strict=True)
                for text in _stacked(tag, turn, block or [], size, detail_px)
            ]
        size -= 0.5
    return [text for tag, turn in zip(tags, turned, strict=True) for text in _stacked(tag, turn, [], full, full)]


def _largest(label: str, w: float, h: float) -> float:
    return min(LARGEST_PX, w / max(width_px(label, 1.0), 0.1), h / _TALL)


def _pad(side: float) -> float:
    return min(6.0, 0.08 * side)


def _room(box: Rect, turned: bool) -> tuple[float, float]:
    w, h = box.w - 2 * _pad(box.w), box.h - 2 * _pad(box.h)
    return (h, w) if turned else (w, h)


def _lines(tag: Tag, w: float, h: float, size: float, detail_px: float) -> list[str] | None:
    """The detail broken into lines that fit below a label of that size; None when they do not."""
    lines = wrapped(tag.detail, w, detail_px)
    if lines is None or len(lines) > _MOST_DETAIL_LINES:
        return None
    return lines if _LINE * (size + len(lines) * detail_px) <= h else None


def _stacked(tag: Tag, turned: bool, lines: list[str], size: float, detail_px: float) -> list[Text]:
    x, y = tag.box.middle
    heights = [_LINE * size if lines else size] + [_LINE * detail_px] * len(lines)
    across = -sum(heights) / 2
    texts = []
    for n, (words, height) in enumerate(zip([tag.label, *lines], heights, strict=True)):
        px = size if n == 0 else detail_px
        baseline = across + height / 2 + (ASCENT - DESCENT) / 2 * px
        at = (x + baseline, y) if turned else (x, y + baseline)
        texts.append(Text(*at, words, px, faint=n > 0, turned=turned, owner=tag.owner))
        across += height
    return texts
