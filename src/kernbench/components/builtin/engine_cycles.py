"""How long a compute engine takes for an amount of work: whole cycles of its clock, rounded up, at least one.

The rule of PE_GEMM, PE_MATH and further compute engines, and of the closed-form tile model. Rates are per ns and for
f16, whatever the clock is: the clock sets only the granularity of time. An engine works on one op at a time, so it is
idle for the rest of an op's last cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import Protocol

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.dtypes import dtype_of
from kernbench.common.engine_declaration import RATE_PER_NS, TILE_SIDE, Attribute
from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid

CLOCK_GHZ = Attribute(0.001, 1000.0, default=1.0)
PRODUCT_ATTRS: Mapping[str, Attribute] = MappingProxyType(  # that every engine for products has
    {
        "macs_per_ns": RATE_PER_NS,
        "tile_m": TILE_SIDE,
        "tile_k": TILE_SIDE,
        "tile_n": TILE_SIDE,
        "clock_ghz": CLOCK_GHZ,
    }
)
_WHOLE = 1.0 - 2.0**-40  # work that is a whole number of cycles stays one, though the division may round up


def compute_ns(amount: int, per_ns: float, dtype: str, clock_ghz: float = 1.0) -> float:
    """How long `amount` of work takes at `per_ns` for f16: f32 runs at half the rate, one-byte types at double."""
    cycles = amount * clock_ghz / (per_ns * dtype_of(dtype).compute_scale)
    return on_grid(max(ceil(cycles * _WHOLE), 1) / clock_ghz)


def compute_ns_each(amounts: Ints, per_ns: float, dtype: str, clock_ghz: float = 1.0) -> Floats:
    """`compute_ns` of each of several amounts, without the rounding to the grid."""
    cycles = amounts * clock_ghz / (per_ns * dtype_of(dtype).compute_scale)
    return np.asarray(np.maximum(np.ceil(cycles * _WHOLE), 1.0) / clock_ghz)


class ProductCost(Protocol):
    """How long products take on the engine for them, alone and many at once, and how many MACs it does at most."""

    @property
    def macs_per_ns(self) -> float:
        """The peak, for f16."""

    def product_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        """m x k by k x n."""

    def product_ns_each(self, m: Ints, k: Ints, n: Ints, dtype: str) -> Floats:
        """The same for each of several, without the rounding to the grid."""


@frozen
class MacArray:
    """A rate: m * k * n / rate, in whole cycles."""

    macs_per_ns: float  # for f16
    clock_ghz: float = 1.0

    def product_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        return compute_ns(m * k * n, self.macs_per_ns, dtype, self.clock_ghz)

    def product_ns_each(self, m: Ints, k: Ints, n: Ints, dtype: str) -> Floats:
        return compute_ns_each(m * k * n, self.macs_per_ns, dtype, self.clock_ghz)
