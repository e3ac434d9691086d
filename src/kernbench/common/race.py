"""Races as users read them: two accesses to the same bytes of memory that nothing puts in an order.

An access is what one command of a kernel, or one request of a host program, does to memory. Two accesses race when both
touch a byte, they are not both reads or both atomics, and neither happens before the other.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, fields
from typing import Literal

from kernbench.common.frozen import frozen
from kernbench.common.units import format_ns

AccessKind = Literal["read", "write", "atomic"]
Epoch = tuple[int, int]  # a timeline, and how far it has come: from such pairs clocks are made


@dataclass(slots=True, eq=False)
class RacingAccess:
    """One command's touch of memory. `end_ns` is filled in when the command is done."""

    kind: AccessKind
    op: str  # load, store, composite, atomic_add, ..., host write
    pe: tuple[int, int, int] | None  # sip, cube, pe; None for the host
    kernel: str  # "" for the host
    tensor: str | None  # as the kernel calls it
    file: str
    line: int
    start_ns: float  # when the kernel asked for it
    end_ns: float | None = None
    program: tuple[int, ...] | None = None  # its id, where the kernel runs several programs of a grid

    @property
    def site(self) -> tuple[str, int, str, str | None]:
        """What accesses by one line of code to one tensor have in common."""
        return self.file, self.line, self.kind, self.tensor


@frozen
class RaceSide:
    """One of the two accesses of a race. The host has no sip, cube, pe and kernel."""

    kind: AccessKind
    op: str
    sip: int | None
    cube: int | None
    pe: int | None
    kernel: str
    tensor: str | None
    file: str
    line: int
    source_line: str
    start_ns: float
    end_ns: float | None  # None where the run ended first
    program: tuple[int, ...] | None = None

    @classmethod
    def of(cls, access: RacingAccess) -> RaceSide:
        """An access, with its line of source."""
        source = linecache.getline(access.file, access.line).strip()
        sip, cube, pe = access.pe or (None, None, None)
        return cls(
            kind=access.kind,
            op=access.op,
            sip=sip,
            cube=cube,
            pe=pe,
            kernel=access.kernel,
            tensor=access.tensor,
            file=access.file,
            line=access.line,
            source_line=source,
            start_ns=access.start_ns,
            end_ns=access.end_ns,
            program=access.program,
        )

    @property
    def issuer(self) -> str:
        """What accessed the bytes: `sip 0, cube 0, pe 1`, with the program of a grid if there is one, or `the host`."""
        program = "" if self.program is None else f", program {self.program}"
        return "the host" if self.sip is None else f"sip {self.sip}, cube {self.cube}, pe {self.pe}{program}"

    @property
    def where(self) -> str:
        """`file:line  source`."""
        return f"{self.file}:{self.line}" + (f"  {self.source_line}" if self.source_line else "")

    def __str__(self) -> str:
        whose = f"{self.op} of '{self.kernel}'" if self.kernel else self.op
        until = "unfinished" if self.end_ns is None else f"to {format_ns(self.end_ns)}"
        return f"{whose} on {self.issuer}, {format_ns(self.start_ns)} {until}\n    {self.where}"

    def as_json(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@frozen
class Race:
    """Two lines of code that race. `first` and `second` are the pair that was found first, in the order in which the
    simulation did them; `count` is how many pairs of accesses of the same two lines, kinds and tensors race.
    """

    kind: str  # write-write, read-write, atomic-read or atomic-write
    address: int  # physical, of the first byte that both of the pair touch
    nbytes: int  # up to the last such byte
    first: RaceSide
    second: RaceSide
    count: int = 1

    @property
    def tensor(self) -> str:
        """What the two call the tensor; both names where they differ."""
        names = dict.fromkeys(side.tensor for side in (self.first, self.second) if side.tensor)
        return " / ".join(names) or "memory"

    def __str__(self) -> str:
        times = "" if self.count == 1 else f", {self.count:,} times"
        head = f"{self.kind} race on '{self.tensor}', {self.nbytes:,} bytes at {self.address:#x}{times}"
        return f"{head}\n  {self.first}\n  {self.second}"

    def as_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "tensor": self.tensor,
            "address": self.address,
            "nbytes": self.nbytes,
            "count": self.count,
            "first": self.first.as_json(),
            "second": self.second.as_json(),
        }
