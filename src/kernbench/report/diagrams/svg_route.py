"""How links run between boxes, in pixels.

Straight where two boxes face each other; otherwise round the corner (in a cube, where the other box stands in the next
cell) or along x and y with one jog. A link that would then pass under a third box goes round it: the shortest way along
x and y, with as few bends as that costs, over the lines just outside the boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

from kernbench.report.diagrams.svg_text import Rect

XY = tuple[float, float]
Points = tuple[XY, ...]

_TOUCH_PX = 0.5
_BEND_PX = 40.0  # a bend is worth this much of a way round


def link_points(a: Rect, b: Rect, others: Sequence[Rect] = (), from_corner: bool = False) -> Points:
    """From the edge of `a` to the edge of `b`, clear of the `others` if there is a way.

    `from_corner`: `a` has links on all its sides already, so one that cannot run straight leaves it at a corner.
    """
    points = _straight(a, b) or (_round_the_corner(a, b) if from_corner else _jog(a, b))
    if not is_blocked(points, others):
        return points
    return _way_round(a, b, others) or points


def is_blocked(points: Points, boxes: Sequence[Rect]) -> bool:
    """Whether a chain of pieces passes through one of the boxes."""
    return any(crosses(box, start, end) for start, end in pairwise(points) for box in boxes)


def crosses(rect: Rect, a: XY, b: XY) -> bool:
    """Whether the piece from `a` to `b` passes through the inside of a rectangle (Liang and Barsky's clipping)."""
    enter, leave = 0.0, 1.0
    for start, delta, low, high in (
        (a[0], b[0] - a[0], rect.left + _TOUCH_PX, rect.right - _TOUCH_PX),
        (a[1], b[1] - a[1], rect.top + _TOUCH_PX, rect.bottom - _TOUCH_PX),
    ):
        if delta == 0:
            if not low < start < high:
                return False
            continue
        near, far = sorted(((low - start) / delta, (high - start) / delta))
        enter, leave = max(enter, near), min(leave, far)
    return enter < leave


def _straight(a: Rect, b: Rect) -> Points | None:
    left, right = max(a.left, b.left), min(a.right, b.right)
    if right - left > _TOUCH_PX:
        x = (left + right) / 2
        return ((x, a.bottom), (x, b.top)) if a.bottom <= b.top else ((x, a.top), (x, b.bottom))
    top, bottom = max(a.top, b.top), min(a.bottom, b.bottom)
    if bottom - top > _TOUCH_PX:
        y = (top + bottom) / 2
        return ((a.right, y), (b.left, y)) if a.right <= b.left else ((a.left, y), (b.right, y))
    return None


def _round_the_corner(a: Rect, b: Rect) -> Points:
    """From corner to corner when that is near; otherwise along y, beside the links of `a`, and across."""
    east, south = b.left >= a.right, b.top >= a.bottom
    start = (a.right if east else a.left, a.bottom if south else a.top)
    end = (b.left if east else b.right, b.top if south else b.bottom)
    if abs(end[1] - start[1]) <= 1.5 * min(a.w, b.w):
        return start, end
    y = b.middle[1]
    return start, (start[0], y), (end[0], y)


def _jog(a: Rect, b: Rect) -> Points:
    """Out of one side, half the gap, across, and into the facing side: through the narrower of the two gaps."""
    east, south = b.left >= a.right, b.top >= a.bottom
    gap_x = b.left - a.right if east else a.left - b.right
    gap_y = b.top - a.bottom if south else a.top - b.bottom
    if gap_y <= gap_x:
        out, back = (a.bottom, b.top) if south else (a.top, b.bottom)
        here, there = _towards(a.left, a.right, b.w, east), _towards(b.left, b.right, a.w, not east)
        half = (out + back) / 2
        return (here, out), (here, half), (there, half), (there, back)
    out, back = (a.right, b.left) if east else (a.left, b.right)
    here, there = _towards(a.top, a.bottom, b.h, south), _towards(b.top, b.bottom, a.h, not south)
    half = (out + back) / 2
    return (out, here), (half, here), (half, there), (back, there)


def _towards(low: float, high: float, other: float, upwards: bool) -> float:
    """A point on a side, off its middle towards the other box, so that the middle is left to links that run straight.

    The side of a box that is much smaller than the other is met in the middle.
    """
    share = 0.5 if high - low < 0.6 * other else 0.75 if upwards else 0.25
    return low + share * (high - low)


# ---------------------------------------------------------------------------------------------------------- way round


def _way_round(a: Rect, b: Rect, others: Sequence[Rect]) -> Points | None:
    """Dijkstra's search over the lines outside all boxes; a state is a point and whether it was reached along x."""
    boxes = [*others, a, b]
    clear = _clearance(boxes)
    xs = sorted({a.middle[0], b.middle[0], *(x for box in boxes for x in (box.left - clear, box.right + clear))})
    ys = sorted({a.middle[1], b.middle[1], *(y for box in boxes for y in (box.top - clear, box.bottom + clear))})
    goals = {(xs.index(x), ys.index(y)): at for (x, y), at in _doors(b, clear)}
    heap: list[tuple[float, int, int, bool]] = []
    came: dict[tuple[int, int, bool], tuple[float, tuple[int, int, bool] | None]] = {}
    starts: dict[tuple[int, int, bool], XY] = {}
    for (x, y), at in _doors(a, clear):
        state = (xs.index(x), ys.index(y), at[1] == y)
        came[state], starts[state] = (0.0, None), at
        heappush(heap, (0.0, *state))
    while heap:
        cost, i, j, along_x = heappop(heap)
        if cost > came[i, j, along_x][0]:
            continue
        if (i, j) in goals:
            return _traced((i, j, along_x), came, xs, ys, starts, goals[i, j])
        for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            u, v = i + di, j + dj
            if not (0 <= u < len(xs) and 0 <= v < len(ys)):
                continue
            total = cost + abs(xs[u] - xs[i]) + abs(ys[v] - ys[j]) + (_BEND_PX if (dj == 0) != along_x else 0.0)
            state = (u, v, dj == 0)
            if state in came and came[state][0] <= total:
                continue
            if not is_blocked(((xs[i], ys[j]), (xs[u], ys[v])), boxes):
                came[state] = (total, (i, j, along_x))
                heappush(heap, (total, *state))
    return None


def _clearance(boxes: Sequence[Rect]) -> float:
    """How far from boxes a way round keeps: a part of the smallest box's thickness."""
    return 0.3 * min(min(box.w, box.h) for box in boxes)


def _doors(box: Rect, clear: float) -> list[tuple[XY, XY]]:
    """A point outside the middle of each side, and that middle."""
    x, y = box.middle
    return [
        ((x, box.top - clear), (x, box.top)),
        ((x, box.bottom + clear), (x, box.bottom)),
        ((box.left - clear, y), (box.left, y)),
        ((box.right + clear, y), (box.right, y)),
    ]


def _traced(
    state: tuple[int, int, bool],
    came: dict[tuple[int, int, bool], tuple[float, tuple[int, int, bool] | None]],
    xs: list[float],
    ys: list[float],
    starts: dict[tuple[int, int, bool], XY],
    end: XY,
) -> Points:
    """The corners from the first door to the last, without those where nothing turns."""
    points = [end]
    at: tuple[int, int, bool] | None = state
    while at is not None:
        points.append((xs[at[0]], ys[at[1]]))
        state, at = at, came[at][1]
    points.append(starts[state])
    points.reverse()
    corners = points[:1]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        straight = before[0] == here[0] == after[0] or before[1] == here[1] == after[1]
        if not straight:
            corners.append(here)
    return (*corners, points[-1])
