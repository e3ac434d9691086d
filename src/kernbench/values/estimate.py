"""Estimates the time of an evaluation before it begins: operations and bytes over the measured rates of the backend,
plus Python's time per value.

Counts every pending value once: 2 M N K operations for a product, and for all other ops the bytes of inputs and result.
Reference computations are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.values.backend import ArrayBackend
from kernbench.values.graph import Value
from kernbench.values.plan import PRODUCTS

LEAST_FLOPS, LEAST_BYTES = 1e10, 1e9  # below both, the time is not worth measuring the computer
VALUE_S = 20e-6  # Python's time: 29,000 small values of a layer took 19 us each on a core of 0.7 M time-outs per second
LEAST_VALUES = 50_000


class OpWork(NamedTuple):
    flops: int
    nbytes: int
    values: int = 0


def work_of(values: Sequence[Value]) -> OpWork:
    """The work of the pending values among `values`, and of all values that they depend on."""
    flops = nbytes = 0
    seen: set[Value] = set()  # used only for membership tests
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
    return OpWork(flops, nbytes, len(seen))


def seconds_for(work: OpWork, backend: ArrayBackend) -> float:
    """The estimated time; 0 for little work."""
    if work.flops < LEAST_FLOPS and work.nbytes < LEAST_BYTES and work.values < LEAST_VALUES:
        return 0.0
    rates = backend.rates()
    return work.flops / rates.flops_s + work.nbytes / rates.bytes_s + work.values * VALUE_S
