"""What all messages between host and device have in common: an envelope, a target, an ending.

A request carries identifiers that its answer repeats. A cube command also names the cubes and PEs of one SIP that it is
for; IO_CPU and M_CPU fan it out. Fields are checked when a message is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernbench.common.errors import MessageError
from kernbench.common.frozen import frozen

Targets = tuple[int, ...] | Literal["all"]
RequestId = tuple[str, str]  # correlation_id and request_id


def require(ok: bool, what: str, hint: str) -> None:
    """Raise MessageError unless `ok`."""
    if not ok:
        raise MessageError(what, hint=hint)


def check_count(message: str, name: str, value: object, least: int) -> None:
    """A field that holds a whole number of `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise MessageError(f"{message}.{name} is {value!r}", hint=f"give a whole number of {least} or more")


def check_choice(message: str, name: str, value: object, choices: Sequence[str]) -> None:
    """A field that holds one of a few words."""
    require(value in choices, f"{message}.{name} is {value!r}", f"use one of {', '.join(choices)}")


@frozen
class Completion:
    """How a request ended. `ok` carries no error; a failure always carries a code."""

    ok: bool
    error_code: str | None = None
    error_message: str | None = None

    def __post_init__(self) -> None:
        if self.ok:
            require(
                self.error_code is None and self.error_message is None,
                "a Completion that is ok carries an error",
                "leave error_code and error_message out",
            )
        else:
            require(self.error_code is not None, "a failed Completion has no error_code", "name the failure")


@frozen(kw_only=True)
class Request:
    """The envelope every request carries. `correlation_id` groups requests, `request_id` is unique within one;
    `debug_label` is shown in reports and changes nothing.
    """

    correlation_id: str = ""
    request_id: str = ""
    target_device: str = ""
    debug_label: str | None = None

    @property
    def msg_type(self) -> str:
        return type(self).__name__.removesuffix("Msg")

    @property
    def id(self) -> RequestId:
        """What distinguishes it from every other request, whichever way it is forwarded."""
        return self.correlation_id, self.request_id


@frozen(kw_only=True)
class CubeCommand(Request):
    """A request that IO_CPU fans out to cubes of one SIP and each M_CPU to PEs of its cube, the same in every cube."""

    sip: int
    target_cubes: Targets = "all"
    target_pes: Targets = "all"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_count(name, "sip", self.sip, 0)
        for field in ("target_cubes", "target_pes"):
            ids = getattr(self, field)
            if ids == "all":
                continue
            require(isinstance(ids, tuple) and len(ids) > 0, f"{name}.{field} is {ids!r}", "give 'all' or ids")
            for item in ids:
                check_count(name, field, item, 0)
            require(len(dict.fromkeys(ids)) == len(ids), f"{name}.{field} is {ids!r}", "name each of them once")

    def cubes(self, n_cubes: int) -> Sequence[int]:
        """The cubes it is for, in a SIP that has `n_cubes`."""
        return range(n_cubes) if self.target_cubes == "all" else self.target_cubes

    def pes(self, n_pes: int) -> Sequence[int]:
        """The PEs it is for in each of those cubes, where a cube has `n_pes`."""
        return range(n_pes) if self.target_pes == "all" else self.target_pes
