"""What products cost on a machine's engine for them, and its peak: asked of the engine's class, not of the description.

The tile model, the mapper, bounds, rooflines and summaries ask here, so that a further kind of engine is known to all
of them once it says what a product costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kernbench.common.impls import imported
from kernbench.components.builtin.engine_cycles import ProductCost
from kernbench.components.builtin.pe_gemm import PeGemmComponent


class DescribedEngine(Protocol):
    """A part of a description, or a node of a machine."""

    @property
    def impl(self) -> str: ...

    @property
    def attrs(self) -> Mapping[str, float | int | str | bool | None]: ...


def product_cost(gemm: DescribedEngine) -> ProductCost:
    """What the class of an engine says; one of the user's that says nothing has the rate of the description."""
    kind = imported(gemm.impl)
    asked = kind if isinstance(kind, type) and issubclass(kind, PeGemmComponent) else PeGemmComponent
    attrs = {name: attribute.default for name, attribute in asked.declaration.attrs.items()} | dict(gemm.attrs)
    return asked.cost_of({name: value for name, value in attrs.items() if value is not None})


def peak_macs(gemm: DescribedEngine) -> float:
    """MACs of f16 per ns that an engine does at most; of a user's engine that does not say, as described."""
    peak = getattr(product_cost(gemm), "macs_per_ns", None) or gemm.attrs["macs_per_ns"]
    assert isinstance(peak, int | float)
    return float(peak)
