"""What may follow a composite's head, and which arguments each step needs.

A step is a dict: {"op": "bias", "bias": b}, {"op": "relu"}, {"op": "scale", "factor": 0.5, "scope": "k_tile"}.
Scopes: `k_tile` after every K step, `output_tile` once per output tile (the default), `kernel` over the finished
output. Only ops that may be applied to each partial sum and give the same total, which are those that multiply, may
have scope `k_tile`: a bias would be added once a K tile, so that the result would depend on how the machine cuts K.
"""

from __future__ import annotations

from kernbench.common.commands import Scope
from kernbench.common.frozen import frozen


@frozen
class EpilogueKind:
    """A kind of epilogue: the value op it is, its fields in order, and whether it may be applied to partial sums."""

    op: str
    fields: tuple[str, ...] = ()
    linear: bool = False


_UNARY = (
    "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "abs",
    "neg", "sin", "cos",
)  # fmt: skip

EPILOGUES: dict[str, EpilogueKind] = {
    "bias": EpilogueKind("bias_add", ("bias",)),
    "scale": EpilogueKind("scale", ("factor",), linear=True),
    "dequant": EpilogueKind("dequant", ("scale",), linear=True),
    "add": EpilogueKind("add", ("other",)),
    "sub": EpilogueKind("sub", ("other",)),
    "mul": EpilogueKind("mul", ("other",), linear=True),
    "div": EpilogueKind("div", ("other",), linear=True),
    "maximum": EpilogueKind("maximum", ("other",)),
    "minimum": EpilogueKind("minimum", ("other",)),
    "clamp": EpilogueKind("clamp", ("min", "max")),
    **{name: EpilogueKind(name, linear=name == "neg") for name in _UNARY},
}

MATH_OPS: dict[str, int] = {
    **dict.fromkeys(_UNARY, 1),
    "softmax": 1,
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum"), 2),
}
"""What a composite of kind `math` may do, and to how many tensors."""

SCOPES = tuple(scope.value for scope in Scope)
