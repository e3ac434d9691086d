"""One write to several places: paths from one source that form a tree, whose links carry every flit once.

A tree is cut into segments, one for each destination: the first is the whole path to the first destination, a further
one begins at the node where its path leaves the tree so far. A flit that has crossed a link is ready at the same
instant for every link of the tree that leads on: routers copy it without delay. At such a link it comes in on the link
that it was copied from, as any flit does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.transfers import Transfer

COPY = 2.0**-20  # between the places in order of two copies of a flit


class TreeSegment(NamedTuple):
    """The part of a path that is not in the tree before it, and where it begins: a segment, and a hop of that one."""

    path: tuple[Hashable, ...]
    fed_by: int
    hop: int


def segments_of(paths: Sequence[Sequence[Hashable]]) -> list[TreeSegment]:
    """The tree of paths, cut into one segment for each; raises FabricError where they form none."""
    if not paths or any(len(path) < 2 or path[0] != paths[0][0] for path in paths):
        raise FabricError("a multicast from several nodes, or to none", hint="give paths that begin at one node")
    segments: list[TreeSegment] = []
    places: dict[Hashable, tuple[int, int]] = {paths[0][0]: (0, 0)}  # of a node: in which segment, and how far
    before: dict[Hashable, object] = {paths[0][0]: None}
    leaves = {path[-1]: None for path in paths}
    for number, path in enumerate(paths):
        start = 0
        for at in range(1, len(path)):
            node, came_from = path[at], path[at - 1]
            if node in before and (before[node] != came_from or start < at - 1):
                raise FabricError(
                    f"a multicast from {path[0]!r} whose paths reach {node!r} by two paths",
                    hint="give paths that form a tree, as those of dimension order do",
                )
            if node in before:
                start = at
            before[node] = came_from
        if start == len(path) - 1 or any(node in leaves for node in path[1:-1]):
            raise FabricError(
                f"a multicast from {path[0]!r} to {path[-1]!r}, where another path ends, or passes",
                hint="give every destination once, and none that is on the way to another",
            )
        segments.append(TreeSegment(tuple(path[start:]), *places[path[start]]))
        for at in range(start + 1, len(path)):
            places[path[at]] = number, at - start
    return segments


def join(segments: Sequence[TreeSegment], transfers: Sequence[Transfer]) -> None:
    """Make transfers along segments one multicast."""
    tree = tuple(transfers)
    for number, (segment, transfer) in enumerate(zip(segments, transfers, strict=True)):
        transfer.tree = tree
        if segment.hop:
            feeder = tree[segment.fed_by]
            transfer.fed_by, transfer.fed_at = feeder, segment.hop
            # Its flits come in on that link. Copies of a flit go to different links, so any order among them will do.
            transfer.order = feeder.links[segment.hop - 1] + number * COPY
            if feeder.branches is None:
                feeder.branches = {}
            feeder.branches.setdefault(segment.hop, []).append(transfer)
