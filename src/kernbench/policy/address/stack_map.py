"""How an access to HBM that is interleaved over stacks is divided: `interleave_bytes` on one stack, then on the next.

All bytes of an access that are on one stack are one request: there they follow one another.
"""

from __future__ import annotations

from typing import NamedTuple


class StackRequest(NamedTuple):
    """The part of an access that is on one stack: its first address there, and its bytes."""

    stack: int
    address: int
    nbytes: int


def stack_requests(address: int, nbytes: int, stacks: int, interleave_bytes: int) -> list[StackRequest]:
    """One request for each stack that an access uses, in the order of their first bytes."""
    found: dict[int, StackRequest] = {}
    first, last = address // interleave_bytes, (address + nbytes - 1) // interleave_bytes
    for at in range(first, min(last, first + stacks - 1) + 1):
        stack, row = at % stacks, at // stacks
        start = max(address, at * interleave_bytes) - at * interleave_bytes
        rows = (last - at) // stacks + 1  # pieces on this stack
        end = rows * interleave_bytes
        if (last - at) % stacks == 0:  # it has the last one, which may be short
            end -= (last + 1) * interleave_bytes - (address + nbytes)
        found[stack] = StackRequest(stack, row * interleave_bytes + start, end - start)
    return list(found.values())
