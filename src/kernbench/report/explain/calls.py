"""The program's lines that made launches: of collectives and tensor operations, whose kernels are not the user's."""

from __future__ import annotations

from typing import NamedTuple

from kernbench.report.explain.path import RunData

MOST_NUMBERS = 8  # of launches, in one line


class ProgramCall(NamedTuple):
    """A line of the program, and the launches that it made."""

    place: str  # `train.py:12`, with its folders
    text: str
    launches: list[int]
    ns: float  # all of its launches together; they may overlap


def calls_of(run: RunData, launch: int) -> dict[str, list[int]]:
    """The launches of a scope by the program's line, where that is known; all launches if `launch` is negative."""
    found: dict[str, list[int]] = {}
    for one in run.launches:
        if one.called_at and (launch < 0 or one.index == launch):
            found.setdefault(one.called_at, []).append(one.index)
    return found


def numbered_launches(numbers: list[int]) -> str:
    """`launches 3, 5, ...`."""
    many = ", ".join(map(str, numbers[:MOST_NUMBERS])) + (", ..." if len(numbers) > MOST_NUMBERS else "")
    return f"{'launch' if len(numbers) == 1 else 'launches'} {many}"


def longest_calls(run: RunData, launch: int) -> list[ProgramCall]:
    """Those lines, the ones with the longest launches first."""
    calls = []
    for line, launches in calls_of(run, launch).items():
        place, _, text = line.partition("  ")
        calls.append(ProgramCall(place, text, launches, sum(run.launches[at].total_ns for at in launches)))
    return sorted(calls, key=lambda call: -call.ns)
