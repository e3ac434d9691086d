"""The declaration of a part of a PE: a class attribute `declaration` in the part's own file.

The machine's description is checked against it (`attrs`), the builder lays its wires, the scheduler sends the part the
ops that it lists, the roofline and the pictures use its role. It is plain data: `topology` reads it from the class that
YAML names, without depending on any class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal, NamedTuple

from kernbench.common.frozen import frozen

SELF = "self"  # in a wire: the part that declares it

PartRole = Literal["compute", "data mover", "memory", "control"]


@frozen
class Attribute:
    """A number among a part's `attrs`, from `low` to `high`, or a word out of `choices`. Without a `default` the
    description must give it.
    """

    low: float
    high: float
    default: float | str | None = None
    form: Literal["number", "whole", "power of two", "choice"] = "number"
    choices: tuple[str, ...] = ()

    @classmethod
    def whole(cls, low: int, high: int, default: int | None = None) -> Attribute:
        """A whole number."""
        return cls(low, high, default, "whole")

    @classmethod
    def power_of_two(cls, low: int, high: int, default: int | None = None) -> Attribute:
        """1, 2, 4, 8, ..."""
        return cls(low, high, default, "power of two")

    @classmethod
    def choice(cls, *choices: str) -> Attribute:
        """One of some words; the first is the default."""
        return cls(0.0, 0.0, choices[0], "choice", choices)


TIME_NS = Attribute(0.0, 1e6)  # that a block charges
RATE_PER_NS = Attribute(0.001, 1e9)  # of work
QUEUE_DEPTH = Attribute.whole(1, 1 << 16)
TILE_SIDE = Attribute.whole(1, 1 << 16)


class Wire(NamedTuple):
    """Between two parts of a PE, of which one is `SELF`. Data runs at the width of the TCM ports; the end that is
    nearer to the TCM comes second.
    """

    src: str
    dst: str
    carries: Literal["control", "data"]


# What an engine needs that takes stages from the scheduler and finds its operands in registers.
COMPUTE_WIRES = (Wire("pe_scheduler", SELF, "control"), Wire(SELF, "pe_fetch_store", "data"))


@frozen
class EngineDeclaration:
    """The parameters of a part, the math ops that it serves, and how it is joined to the other parts.

    The nine parts that every PE has are wired by their place, whatever class models them; `wires` are those of a part
    that a description adds. Math ops that no part lists go to `pe_math`. `stage` is the class of the stages of such
    an op, a `MathStage` or one derived from it: it defines their op-log parameters and their flops.
    """

    attrs: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    ops: tuple[str, ...] = ()
    wires: tuple[Wire, ...] = ()
    role: PartRole = "compute"
    has_own_slot: bool = False  # of a compute engine: works in parallel with the PE's compute slot
    stage: type | None = None
