"""The fast paths of the simulator: every shortcut that may be taken, with one switch each.

None of them changes a simulated time, a record, a counter or a number; with all of them off, every flit of every tile
of every kernel is an event. `kernbench run --check-fast` compares the two.

    launches     a launch that repeats a recorded one on idle hardware is replayed
    collectives  so is a collective, all its launches together
    composites   an uncontended composite, the only command on its PE, is one event
    trains       an uncontended transfer is scheduled as a whole, as a train
    compiled     a compiled loop (numba) moves flits that contend, in long runs
    workers      processes record launches ahead of the clock
    programs     programs of a Triton kernel whose calls a recorded one has made are replayed

Replays and composites reserve links, and reservations need trains: without trains there are none of them.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Final

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.sim_engine.fabric.planned_trains import Mode

EXACT: Final = "KERNBENCH_EXACT"
CHECK: Final = "check"  # as the value of KERNBENCH_EXACT: run twice and compare
RESERVING: Final = ("launches", "collectives", "composites")  # those that need trains


@frozen(kw_only=True)
class FastPaths:
    """Which fast paths a simulation may take."""

    launches: bool = True
    collectives: bool = True
    composites: bool = True
    trains: bool = True
    compiled: bool = True
    workers: bool = True
    programs: bool = True

    def without(self, *names: str) -> FastPaths:
        """The same with some of them off, and what needs those. Raises UsageError for a name that is none of them."""
        for name in names:
            if name not in NAMES:
                raise UsageError(f"no fast path '{name}'", hint=f"fast paths: {', '.join(NAMES)}")
        off = dict.fromkeys((*names, *(RESERVING if "trains" in names else ())), False)
        return replace(self, **off)

    @property
    def mode(self) -> Mode:
        """The fabric's mode."""
        return "adaptive" if self.trains else "flits"


NAMES: Final = tuple(field.name for field in fields(FastPaths))
ALL: Final = FastPaths()
NONE: Final = ALL.without(*NAMES)  # every flit is an event
TILES: Final = ALL.without(*RESERVING)  # every tile of every composite, every kernel: `fast=False`
SPELLINGS: Final = {"": ALL, CHECK: ALL, "tiles": TILES, "all": NONE}


def from_environment() -> FastPaths:
    """What KERNBENCH_EXACT leaves on: `tiles`, `all`, `check`, or names of fast paths with commas between them. Raises
    UsageError where it is anything else.
    """
    wanted = os.environ.get(EXACT, "")
    if wanted in SPELLINGS:
        return SPELLINGS[wanted]
    names = wanted.split(",")
    if not all(name in NAMES for name in names):
        raise UsageError(
            f"{EXACT} is '{wanted}'",
            hint=f"set it to 'check', 'tiles', 'all' or fast paths to switch off ({','.join(NAMES)}), or leave it out",
        )
    return ALL.without(*names)


def is_check_wanted() -> bool:
    """Whether KERNBENCH_EXACT asks for every run to be checked."""
    return os.environ.get(EXACT, "") == CHECK


def fast_paths_of(fast: bool | FastPaths | None, mode: Mode) -> FastPaths:
    """What `fast` and the fabric's `mode` leave on; `fast=None` is what the environment says."""
    if isinstance(fast, FastPaths):
        paths = fast
    elif fast is None:
        paths = from_environment()
    else:
        paths = ALL if fast else TILES
    return paths if mode == "adaptive" and paths.trains else paths.without("trains")
