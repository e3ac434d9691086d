"""The tree of switches between host and SIPs: one switch, or levels of them, such as a switch for each tray of a rack.

`system.switch` is the top, where the host is. Each level of `system.switch_levels` divides the SIPs evenly, by number;
the level with the fewest switches is next to the top, and a SIP is on a switch of the one with the most. Bytes from SIP
to SIP pass the lowest switch that both are below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kernbench.common.ids import SWITCH, level_switch
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.spec import MachineSpec, SwitchLevelSpec, SystemSpec
from kernbench.topology.spec_base import ComponentSpec

_LEVELS = "system.switch_levels"


class LevelSwitch(NamedTuple):
    """A switch below the top: its name, the switch above it, and the level that has its link."""

    name: str
    above: str
    level: SwitchLevelSpec


def levels_from_top(system: SystemSpec) -> list[tuple[str, SwitchLevelSpec]]:
    """The levels with their names, the one below the top first."""
    return sorted(system.switch_levels.items(), key=lambda item: item[1].count)


def level_switches(system: SystemSpec) -> Iterator[LevelSwitch]:
    """All switches below the top, level by level."""
    above = [SWITCH]
    for name, level in levels_from_top(system):
        here = [level_switch(name, number) for number in range(level.count)]
        for number, each in enumerate(here):
            yield LevelSwitch(each, above[number * len(above) // level.count], level)
        above = here


def switches_above(system: SystemSpec, sip: int) -> list[str]:
    """The switches between a SIP and the host, its own first."""
    found = [level_switch(name, sip * each.count // system.sips.count) for name, each in levels_from_top(system)]
    return [*reversed(found), SWITCH]


def common_switch(system: SystemSpec, sip: int, other: int) -> str:
    """The lowest switch that two SIPs are below."""
    others = switches_above(system, other)
    return next(name for name in switches_above(system, sip) if name in others)


def switch_of_level(system: SystemSpec, level: SwitchLevelSpec) -> ComponentSpec:
    """What a switch of a level is: as given, else as the one at the top."""
    return system.switch if level.switch is None else level.switch


def check_switches(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Levels divide the SIPs, and each other, evenly."""
    system, count = spec.system, spec.n_sips
    above, above_key = 1, "system.switch"
    for name, level in levels_from_top(system):
        key = f"{_LEVELS}.{name}.count"
        if name == "switch":
            what = "the name of the switch at the top"
            yield UnplacedFault(f"{_LEVELS}.{name}", what, "give the level another one, say tray", (_LEVELS,))
        if level.count == above and above_key != "system.switch":
            what = f"as many switches as {above_key.rpartition('.')[2]} has"
            yield UnplacedFault(key, what, "give each level more switches than the one above it", (above_key,))
        elif level.count > count or count % level.count:
            what = f"{level.count} switches do not divide {count} SIPs evenly"
            yield UnplacedFault(key, what, "give a divisor of system.sips.count", ("system.sips",))
        elif level.count % above:
            what = f"{level.count} switches do not divide evenly over the {above} above them"
            yield UnplacedFault(key, what, f"give a multiple of {above}", (above_key,))
        above, above_key = level.count, f"{_LEVELS}.{name}"
