"""How long an evaluation will take, before it begins: its operations and bytes over what the backend was measured at,
and what Python takes for each value.

Counts every pending value once: 2 M N K operations for a product, and for all other ops the bytes of inputs and result.
A reference to compare with is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.values.backend import ArrayBackend
from kernbench.values.graph import Value
from kernbench.values.plan import PRODUCTS

LEAST_FLOPS, LEAST_BYTES = 1e10, 1e9  # under both, nobody waits: not worth measuring the machine
VALUE_S = (
    20e-6  # of our own time: 29,000 small values of a layer took 19 us each on a core of 0.7 M time-outs per second
)
LEAST_VALUES = 50_000


class Work(NamedTuple):
    flops: int
    nbytes: int
    values: int = 0


def work_of(values: Sequence[Value]) -> Work:
    """What the pending ones among `values`, and all they rest on, ask for."""
    flops = nbytes = 0
    seen: set[Value] = set()  # asked only for membership
    to_see = [value for value in values if value.data is None]
    while to_see:
        value = to_see.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op in PRODUCTS:
            flops += 2 * value.type.size * value.inputs[-1].shape[-2]
        else:
            nbytes += value.nbytes + sum(v.nbytes for v in value.inputs if value.op not in ("view", "gather"))
        to_see += [needed for needed in value.inputs if needed.data is None]
    return Work(flops, nbytes, len(seen))


def seconds_for(work: Work, backend: ArrayBackend) -> float:
    """0 for what is too little to be measured."""
    if work.flops < LEAST_FLOPS and work.nbytes < LEAST_BYTES and work.values < LEAST_VALUES:
        return 0.0
    rates = backend.rates()
    return work.flops / rates.flops_s + work.nbytes / rates.bytes_s + work.values * VALUE_S
