"""What vector functions cost on the lanes: passes over the elements, trees at the end of reductions, sorts.

By default every op is one pass, whatever it computes. A description may give the passes of an exponential, a division
and an error function: an op pays the further passes of all that it consists of. With `reduction: tree` a reduction
ends in log2 steps over the lanes that hold its partial results, and with `sorting: n_log_n` a sort makes log2(n)
passes over n elements along its axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

from kernbench.common.array_types import Floats, Ints
from kernbench.common.dtypes import dtype_of
from kernbench.common.engine_declaration import Attribute
from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid
from kernbench.components.builtin.engine_cycles import compute_ns, compute_ns_each

FUNCTION_ATTRS = {
    "exp_passes": Attribute.whole(1, 256, default=1),
    "div_passes": Attribute.whole(1, 256, default=1),
    "erf_passes": Attribute.whole(1, 256, default=1),
    "reduction": Attribute.choice("pass", "tree"),
    "sorting": Attribute.choice("pass", "n_log_n"),
}
# What an op consists of, besides additions and multiplications that one pass has.
_EXP, _DIV, _ERF = ("exp",), ("div",), ("erf",)
CONSISTS_OF: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "sin", "cos", "pow"), _EXP),
    **dict.fromkeys(("div", "floordiv", "mod", "sqrt", "rsqrt"), _DIV),
    **dict.fromkeys(("sigmoid", "silu", "tanh", "softmax"), _EXP + _DIV),
    **dict.fromkeys(("erf", "gelu"), _ERF),
}
TREES: Mapping[str, int] = {
    **dict.fromkeys(("sum", "mean", "max", "min", "argmax", "argmin", "cumsum"), 1),
    "softmax": 2,  # the largest, and the sum
}
SORTS = ("sort", "argsort", "topk")


@frozen
class VectorUnit:
    """How long ops take on the lanes."""

    lanes_per_ns: float  # for f16
    clock_ghz: float = 1.0
    exp_passes: int = 1
    div_passes: int = 1
    erf_passes: int = 1
    reduction: str = "pass"
    sorting: str = "pass"

    @classmethod
    def of(cls, attrs: Mapping[str, float | int | str | bool]) -> VectorUnit:
        """The one that the attrs of PE_MATH describe."""
        return cls(
            float(attrs["lanes_per_ns"]),
            float(attrs.get("clock_ghz", 1.0)),
            int(attrs.get("exp_passes", 1)),
            int(attrs.get("div_passes", 1)),
            int(attrs.get("erf_passes", 1)),
            str(attrs.get("reduction", "pass")),
            str(attrs.get("sorting", "pass")),
        )

    def op_ns(self, op: str, elements: int, dtype: str, along: int = 0) -> float:
        """An op over some elements, of which `along` lie along its axis; 0: all of them."""
        ns = compute_ns(elements * self._passes(op, along or elements), self.lanes_per_ns, dtype, self.clock_ghz)
        steps = self._tree_steps(op, along or elements, dtype)
        return on_grid(ns + steps / self.clock_ghz) if steps else ns

    def op_ns_each(self, op: str, elements: Ints, dtype: str) -> Floats:
        """Elementwise ops over each of several numbers of elements, without the rounding to the grid."""
        return compute_ns_each(elements * self._passes(op, 1), self.lanes_per_ns, dtype, self.clock_ghz)

    def _passes(self, op: str, along: int) -> int:
        if op in SORTS and self.sorting == "n_log_n":
            return max(ceil(log2(along)), 1)
        passes = {"exp": self.exp_passes, "div": self.div_passes, "erf": self.erf_passes}
        return 1 + sum(passes[part] - 1 for part in CONSISTS_OF.get(op, ()))

    def _tree_steps(self, op: str, along: int, dtype: str) -> int:
        """The partial results of all lanes are combined two by two."""
        if self.reduction != "tree" or op not in TREES:
            return 0
        lanes = self.lanes_per_ns * dtype_of(dtype).compute_scale / self.clock_ghz
        return TREES[op] * ceil(log2(max(min(lanes, along), 1)))
