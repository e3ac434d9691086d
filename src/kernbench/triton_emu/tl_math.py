"""`tl`: math on tensors in TCM. Every op waits for the MATH engine, which processes the largest of inputs and
result once, at the rate of the slowest type among them. A result without elements takes no time.

Shapes follow numpy's broadcasting. dtypes, if an op does not say otherwise: mixed inputs give the smallest type that
holds both, a Python number takes the tensor's type, and functions of real numbers turn integers into f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.commands import MathCmd
from kernbench.triton_emu.handle import Scalar, TensorHandle
from kernbench.triton_emu.tl_core import TlCore
from kernbench.values.op import TensorType

Tensorish = TensorHandle | Scalar


def _work(touched: Sequence[TensorType]) -> tuple[int, str]:
    """The number of elements to process, and the slowest type among them; the first of equals."""
    elements, slowest = 0, touched[0].dtype
    for type_ in touched:
        if type_.size > elements:
            elements = type_.size
        if type_.dtype.compute_scale < slowest.compute_scale:
            slowest = type_.dtype
    return elements, slowest.name


class TlMath(TlCore):
    """Elementwise ops and casts."""

    def _math(self, op: str, inputs: Sequence[Tensorish], **params: object) -> TensorHandle:
        tensors = [self._local(op, x) for x in inputs if isinstance(x, TensorHandle)]
        if not tensors:
            self._local(op, inputs[0])
        operands = [self._known(x) if isinstance(x, TensorHandle) else self._number(op, x) for x in inputs]
        result = self._apply(op, operands, **params)
        out = self._new(result)
        if not result.type.size:
            return out
        elements, lanes = _work([*(self._known(x).type for x in tensors), result.type])
        axis = params.get("axis")
        along = axis if isinstance(axis, int) else None
        named = tuple([x.operand() for x in tensors])
        cmd = MathCmd(op, named, out.operand(), elements, lanes, along, self._made_by(tensors))
        out.records = self._call(cmd)
        return out

    # ---- one input

    def exp(self, x: TensorHandle) -> TensorHandle:
        """e to the x. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("exp", [x])

    def exp2(self, x: TensorHandle) -> TensorHandle:
        """2 to the x. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("exp2", [x])

    def log(self, x: TensorHandle) -> TensorHandle:
        """Natural logarithm. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("log", [x])

    def log2(self, x: TensorHandle) -> TensorHandle:
        """Logarithm to base 2. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("log2", [x])

    def sqrt(self, x: TensorHandle) -> TensorHandle:
        """Square root. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("sqrt", [x])

    def rsqrt(self, x: TensorHandle) -> TensorHandle:
        """1 over the square root. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("rsqrt", [x])

    def sin(self, x: TensorHandle) -> TensorHandle:
        """Sine. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("sin", [x])

    def cos(self, x: TensorHandle) -> TensorHandle:
        """Cosine. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("cos", [x])

    def tanh(self, x: TensorHandle) -> TensorHandle:
        """Hyperbolic tangent. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("tanh", [x])

    def erf(self, x: TensorHandle) -> TensorHandle:
        """Error function. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("erf", [x])

    def sigmoid(self, x: TensorHandle) -> TensorHandle:
        """1 / (1 + exp(-x)). Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("sigmoid", [x])

    def silu(self, x: TensorHandle) -> TensorHandle:
        """x times its sigmoid. Shape: x's. dtype: float kept, integer gives f32. Engine: MATH."""
        return self._math("silu", [x])

    def gelu(self, x: TensorHandle) -> TensorHandle:
        """x times the normal distribution function (erf form). Shape: x's. dtype: float kept, integer gives f32.
        Engine: MATH.
        """
        return self._math("gelu", [x])

    def relu(self, x: TensorHandle) -> TensorHandle:
        """max(x, 0). Shape: x's. dtype: x's. Engine: MATH."""
        return self._math("relu", [x])

    def abs(self, x: TensorHandle) -> TensorHandle:
        """Absolute value. Shape: x's. dtype: x's. Engine: MATH."""
        return self._math("abs", [x])

    def neg(self, x: TensorHandle) -> TensorHandle:
        """-x. Shape: x's. dtype: x's. Engine: MATH."""
        return self._math("neg", [x])

    def floor(self, x: TensorHandle) -> TensorHandle:
        """The next whole number below, or x. Shape: x's. dtype: x's; integers are unchanged. Engine: MATH."""
        return self._math("floor", [x])

    def ceil(self, x: TensorHandle) -> TensorHandle:
        """The next whole number above, or x. Shape: x's. dtype: x's; integers are unchanged. Engine: MATH."""
        return self._math("ceil", [x])

    def isnan(self, x: TensorHandle) -> TensorHandle:
        """Whether x is not a number. Shape: x's. dtype: bool. Engine: MATH."""
        return self._math("isnan", [x])

    def bit_not(self, x: TensorHandle) -> TensorHandle:
        """`~x`: every bit inverted; for bools, not. Shape: x's. dtype: x's, no float. Engine: MATH."""
        return self._math("bit_not", [x])

    def logical_not(self, x: TensorHandle) -> TensorHandle:
        """Whether x is zero. Shape: x's. dtype: bool. Engine: MATH."""
        return self._math("logical_not", [x])

    def cast(self, x: TensorHandle, dtype: object) -> TensorHandle:
        """Convert, rounding once. Shape: x's. dtype: as given. Engine: MATH."""
        return self._math("cast", [x], dtype=self._dtype(dtype))

    # ---- two and three inputs

    def add(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """a + b. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("add", [a, b])

    def sub(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """a - b. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("sub", [a, b])

    def mul(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """a * b, elementwise. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("mul", [a, b])

    def div(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """a / b. Shape: broadcast. dtype: mixed; integers give f32. Engine: MATH."""
        return self._math("div", [a, b])

    def floordiv(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """`a // b`, rounded down as in Python and numpy (Triton's integers cut towards zero); an integer over 0 is 0.
        Shape: broadcast. dtype: mixed. Engine: MATH.
        """
        return self._math("floordiv", [a, b])

    def mod(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """`a % b`, what `//` leaves, with the sign of b (Triton's has that of a); an integer modulo 0 is 0.
        Shape: broadcast. dtype: mixed. Engine: MATH.
        """
        return self._math("mod", [a, b])

    def pow(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """`a ** b`; an integer to a negative power is 0, unless it is 1 or -1. Shape: broadcast. dtype: mixed. Engine:
        MATH.
        """
        return self._math("pow", [a, b])

    def bitwise(self, op: str, a: Tensorish, b: Tensorish) -> TensorHandle:
        """bit_and, bit_or, bit_xor, shl or shr, which operators call; bools by truth. Shape: broadcast. dtype: mixed,
        integers and bools only. Engine: MATH.
        """
        return self._math(op, [a, b])

    def maximum(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """The larger, elementwise; NaN spreads. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("maximum", [a, b])

    def minimum(self, a: Tensorish, b: Tensorish) -> TensorHandle:
        """The smaller, elementwise; NaN spreads. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("minimum", [a, b])

    def compare(self, op: str, a: Tensorish, b: Tensorish) -> TensorHandle:
        """eq, ne, lt, le, gt or ge, which operators call, logical_and or logical_or. Shape: broadcast. dtype: bool.
        Engine: MATH.
        """
        return self._math(op, [a, b])

    def fma(self, a: Tensorish, b: Tensorish, c: Tensorish) -> TensorHandle:
        """a * b + c, rounded once. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("fma", [a, b, c])

    def clamp(self, x: TensorHandle, min: Tensorish, max: Tensorish) -> TensorHandle:  # names of the contract
        """x limited to the range from min to max. Shape: broadcast. dtype: mixed. Engine: MATH."""
        return self._math("clamp", [x, min, max])

    def where(self, cond: TensorHandle, a: Tensorish, b: Tensorish) -> TensorHandle:
        """a where cond is not zero, else b. Shape: broadcast. dtype: a and b mixed. Engine: MATH."""
        self._local("where", cond, "cond")
        return self._math("where", [cond, a, b])
