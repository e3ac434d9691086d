"""Plans an evaluation: what to compute, in which order, and in which groups.

From the wanted values backwards, everything pending is found once, without recursion. A unit is one value, or a chain:
a dot or dot_acc and the dot_accs that add to it one after another, as far back as a link has no other user and sums are
not rounded in between. The level of a unit is one above the highest level that it depends on; ids give the order. Units
of one level do not depend on each other; those with equal op, types and parameters form a group. Operands of products
that are pending views are replaced by their parent: a stack of tiles is then cut from the parent in one step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

from kernbench.common.errors import DataError
from kernbench.values.graph import Value
from kernbench.values.matmul import sum_type

BYTE_OPS = ("view", "gather")
PRODUCTS = ("dot", "dot_acc")


class EvaluationUnit:
    """`last` is the value to compute. A chain has `links`, oldest first, and `init`, the accumulator of the oldest."""

    __slots__ = ("init", "last", "level", "links", "needs")

    def __init__(self, last: Value) -> None:
        self.last = last
        self.links: list[Value] = []
        self.init: Value | None = None
        self.needs: list[Value] = []
        self.level = 0


GroupKey: TypeAlias = tuple[Hashable, ...]


@dataclass(slots=True)
class Level:
    """Groups that may be computed in any order. Keys only distinguish groups."""

    chains: dict[GroupKey, list[EvaluationUnit]] = field(default_factory=dict)
    nodes: dict[GroupKey, list[Value]] = field(default_factory=dict)
    bytes: list[Value] = field(default_factory=list)


def _add_need(operand: Value, needs: list[Value]) -> None:
    """Record a pending operand of a product, or the pending parent of a view."""
    if operand.op == "view":
        operand = operand.inputs[0]
        if operand.data is not None:
            return
    needs.append(operand)


def _chain(last: Value, owner: dict[Value, EvaluationUnit]) -> EvaluationUnit:
    """The longest chain that ends in `last` and shares no link with another."""
    unit = EvaluationUnit(last)
    links, needs = unit.links, unit.needs
    link = last
    a_type, b_type = last.inputs[-2].type, last.inputs[-1].type
    sums = sum_type(a_type, b_type)
    while True:
        links.append(link)
        owner[link] = unit
        inputs = link.inputs
        a, b = inputs[-2], inputs[-1]
        if a.data is None and (a.op != "view" or a.inputs[0].data is None):
            _add_need(a, needs)
        if b.data is None and (b.op != "view" or b.inputs[0].data is None):
            _add_need(b, needs)
        if link.op == "dot":
            break
        link = inputs[0]
        fits = link.data is None and link.op in PRODUCTS and link not in owner
        # A link that was rounded to another type than that of the sums cannot be continued.
        rounded = fits and link.type.dtype is not sums
        if not fits or rounded or link.inputs[-2].type is not a_type or link.inputs[-1].type is not b_type:
            unit.init = link
            if link.data is None:
                _add_need(link, needs)
            break
    links.reverse()
    return unit


def _cut(unit: EvaluationUnit, exposed: set[Value]) -> list[EvaluationUnit]:
    """A chain split after every link that has other users."""
    parts: list[EvaluationUnit] = []
    stops = {link: unit for link in unit.links if link in exposed}
    for last in (*stops, unit.last):
        parts.append(_chain(last, {link: unit for link in stops if link is not last}))
    return parts


def _units(roots: Sequence[Value]) -> list[EvaluationUnit]:
    owner: dict[Value, EvaluationUnit] = {}
    units: list[EvaluationUnit] = []
    exposed: set[Value] = set()  # used only for membership tests
    stack = [root for root in roots if root.data is None]
    while stack:
        value = stack.pop()
        unit = owner.get(value)
        if unit is not None:
            if unit.last is not value:
                exposed.add(value)
            continue
        if value.op in PRODUCTS:
            unit = _chain(value, owner)
        else:
            unit = owner[value] = EvaluationUnit(value)
            unit.needs = [needed for needed in value.inputs if needed.data is None]
        units.append(unit)
        stack += unit.needs
    if exposed:
        units = [part for unit in units for part in (_cut(unit, exposed) if unit.links else (unit,))]
    return sorted(units, key=attrgetter("last.id"))


def plan_levels(roots: Sequence[Value]) -> list[Level]:
    """The levels, lowest first. Raises DataError if values of two graphs are mixed, as their ids define no order."""
    units = _units(roots)
    level_of: dict[Value, int] = {}
    try:
        for unit in units:
            unit.level = 1 + max([level_of[value] for value in unit.needs], default=-1)
            level_of[unit.last] = unit.level
    except KeyError as error:
        raise DataError(f"{error.args[0]!r} is of another graph than what uses it", hint="use one ValueGraph") from None
    levels = [Level() for _ in range(1 + max(level_of.values(), default=-1))]
    for unit in units:
        _group(unit, levels[unit.level])
    return levels


def _group(unit: EvaluationUnit, level: Level) -> None:
    last = unit.last
    if unit.links:
        key: GroupKey = (*[v.type for v in last.inputs], last.type, unit.init and unit.init.type, len(unit.links))
        level.chains.setdefault(key, []).append(unit)
    elif last.op in BYTE_OPS:
        level.bytes.append(last)
    else:
        key = (last.op, last.params, *[v.type for v in last.inputs])
        level.nodes.setdefault(key, []).append(last)
