"""Segments of logical addresses, and the messages that install and remove them in the BAAW tables of PEs' DMA engines.

Logical addresses are local to a PE: the same address may lie elsewhere for another PE, whose table differs.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Literal

from kernbench.common.envelope import CubeCommand, check_count, require
from kernbench.common.frozen import frozen

MappingMode = Literal["n_to_one", "one_to_one"]


@frozen
class BaawSegment:
    """Logical bytes that lie in one memory. `cube` and `pe` say whose table takes it; None: every one it reaches.

    With `n_to_one` an access goes to `agg_node_id` as one request. With `one_to_one` it becomes one request for each
    channel that it uses: entry i of `channel_ids`, `pa_bases` and `channel_nodes` is a channel that holds bytes of the
    segment, the physical address of the first of them, and the router that its requests go to.
    """

    la_base: int
    la_size: int
    agg_pa_base: int
    agg_node_id: str
    mode: MappingMode = "n_to_one"
    channel_ids: tuple[int, ...] = ()
    pa_bases: tuple[int, ...] = ()
    channel_nodes: tuple[str, ...] = ()
    cube: int | None = None
    pe: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("la_base", 0), ("la_size", 1), ("agg_pa_base", 0)):
            check_count("BaawSegment", name, getattr(self, name), least)
        require(self.mode in ("n_to_one", "one_to_one"), f"BaawSegment.mode is {self.mode!r}", "use a mapping mode")
        require(
            len(self.channel_ids) == len(self.pa_bases) == len(self.channel_nodes)
            and bool(self.channel_ids) == (self.mode == "one_to_one"),
            f"BaawSegment at {self.la_base:#x} has {len(self.channel_ids)} channels with mode {self.mode}",
            "name channels, their addresses and routers for one_to_one, and none for n_to_one",
        )

    @property
    def la_end(self) -> int:
        return self.la_base + self.la_size

    @property
    def channel_count(self) -> int:
        """How many channels hold bytes of it; 0 with `n_to_one`, which knows no channels."""
        return len(self.channel_ids)

    @property
    def channel_size(self) -> int:
        """Bytes on each channel, rounded down; 0 with `n_to_one`."""
        return self.la_size // self.channel_count if self.channel_count else 0

    def is_for(self, cube: int, pe: int) -> bool:
        return self.cube in (None, cube) and self.pe in (None, pe)


@frozen(kw_only=True)
class BaawSegmentInstallMsg(CubeCommand):
    """Install segments in tables of PEs. `is_run`: all are for every PE, and each begins where the last one ends."""

    segments: tuple[BaawSegment, ...]
    is_run: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        require(len(self.segments) > 0, "BaawSegmentInstallMsg has no segments", "give at least one")
        touch = all(a.la_end == b.la_base for a, b in pairwise(self.segments))
        is_run = touch and all(segment.cube is None and segment.pe is None for segment in self.segments)
        object.__setattr__(self, "is_run", is_run)  # derived once: every PE asks


@frozen(kw_only=True)
class BaawSegmentRemoveMsg(CubeCommand):
    """Remove the segments between two logical addresses from the tables of PEs."""

    la_base: int
    la_size: int

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        check_count("BaawSegmentRemoveMsg", "la_base", self.la_base, 0)
        check_count("BaawSegmentRemoveMsg", "la_size", self.la_size, 1)
