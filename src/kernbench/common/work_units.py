"""How much an op did, in the unit its engine works in: multiply-accumulates or vector ops of a dtype, or bytes moved.

Flops and energy are counted from these. A multiply-accumulate is two flops, a vector op one, a byte none.
"""

from __future__ import annotations

BYTES = "bytes"
MACS, VECTOR_OPS = "macs", "vector_ops"


def macs_of(dtype: str) -> str:
    """The unit of a MAC array's work."""
    return f"{MACS}/{dtype}"


def vector_ops_of(dtype: str) -> str:
    """The unit of the vector lanes' work: one op on one element."""
    return f"{VECTOR_OPS}/{dtype}"


def flops_of(unit: str, amount: int) -> int:
    """How many flops that is."""
    kind = unit.partition("/")[0]
    return 2 * amount if kind == MACS else amount if kind == VECTOR_OPS else 0
