"""Address mappings on their way to MMUs: virtual bytes and where they are placed."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise

from kernbench.common.envelope import CubeCommand, check_count, require
from kernbench.common.frozen import frozen


@frozen
class MapEntry:
    """Virtual bytes and where they lie. `cube` and `pe` say whose MMU takes it; None: every one it reaches."""

    va: int
    pa: int
    nbytes: int
    cube: int | None = None
    pe: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("va", 0), ("pa", 0), ("nbytes", 1)):
            check_count("MapEntry", name, getattr(self, name), least)

    def is_for(self, cube: int, pe: int) -> bool:
        return self.cube in (None, cube) and self.pe in (None, pe)


@frozen
class UnmapEntry:
    """Virtual bytes that no longer lie anywhere."""

    va: int
    nbytes: int

    def __post_init__(self) -> None:
        check_count("UnmapEntry", "va", self.va, 0)
        check_count("UnmapEntry", "nbytes", self.nbytes, 1)


@frozen(kw_only=True)
class MmuMapMsg(CubeCommand):
    """Install mappings in the MMUs of PEs. `is_run`: all are for every PE, and each begins where the last one ends."""

    entries: tuple[MapEntry, ...]
    is_run: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        require(len(self.entries) > 0, "MmuMapMsg has no entries", "give at least one")
        touch = all(a.va + a.nbytes == b.va for a, b in pairwise(self.entries))
        is_run = touch and all(entry.cube is None and entry.pe is None for entry in self.entries)
        object.__setattr__(self, "is_run", is_run)  # derived once: every PE asks


@frozen(kw_only=True)
class MmuUnmapMsg(CubeCommand):
    """Remove mappings from the MMUs of PEs."""

    entries: tuple[UnmapEntry, ...]

    def __post_init__(self) -> None:
        CubeCommand.__post_init__(self)
        require(len(self.entries) > 0, "MmuUnmapMsg has no entries", "give at least one")
