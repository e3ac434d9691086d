"""`triton.language.extra.libdevice` and CUDA's extras without CUDA: numbers by numpy, one command of MATH each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernbench.triton.builder import current
from kernbench.triton.handles import DeviceHandle, shape_of, without_room
from kernbench.triton.internals import TritonHandle, core, interpreter
from kernbench.triton.recording import recordable
from kernbench.triton.refusals import refuse


def _each(function: Callable[..., float]) -> Callable[..., Any]:
    """A function of Python numbers over arrays."""
    return np.vectorize(function, otypes=[np.float64])


_IN_NUMPY = (
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "cbrt", "floor", "ceil", "trunc", "rint", "hypot", "copysign", "nextafter", "abs",
)  # fmt: skip


def _in_torch(name: str) -> Callable[[Any], Any]:
    """A special function of PyTorch."""
    return lambda x: getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()


_BESSEL = {"j0": "bessel_j0", "j1": "bessel_j1", "y0": "bessel_y0", "y1": "bessel_y1"}
_SPECIAL = {"cyl_bessel_i0": "i0", "cyl_bessel_i1": "i1", "erfinv": "erfinv", "erfcx": "erfcx", "normcdfinv": "ndtri"}


def _round(x: Any) -> Any:
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or too large
        return math.inf


def _tgamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:  # a pole; on both sides of zero it has the sign of zero
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _remainder(x: float, y: float) -> float:
    try:
        return math.remainder(x, y)
    except ValueError:  # of an infinite number, or by zero
        return math.nan


def _div_rz(x: Any, y: Any) -> Any:
    """A quotient that is rounded towards zero."""
    near = np.divide(x, y)
    if near.dtype == np.float64:
        is_over = _larger_product(near, y, x)
    else:  # quotients of 24 bits that are no f32 differ from every f32 by more than f64 rounds
        exact = np.divide(x, y, dtype=np.float64)
        is_over = np.abs(near.astype(np.float64)) > np.abs(exact)
    is_over &= np.isfinite(x) & (y != 0)
    return np.where(is_over, np.nextafter(near, np.zeros_like(near)), near)


@partial(np.vectorize, otypes=[bool])
def _larger_product(a: float, b: float, limit: float) -> bool:
    """Whether |a * b| > |limit|, exactly."""
    if not math.isfinite(b) or not math.isfinite(limit):
        return False
    return not math.isfinite(a) or abs(Fraction(a) * Fraction(b)) > abs(Fraction(limit))


def _fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    if np.result_type(x, y, z) == np.float64:
        return _fma_f64(x, y, z)
    product, added = np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64)
    total = product + added
    back = total - product
    rest = (product - (total - back)) + (added - back)
    # Rounded to odd in f64, it is rounded as the exact sum is in f32.
    is_even = np.ascontiguousarray(total).view(np.int64) % 2 == 0
    odd = np.where((rest != 0) & is_even & np.isfinite(rest), np.nextafter(total, np.copysign(np.inf, rest)), total)
    return odd.astype(np.result_type(x, y, z))


@partial(np.vectorize, otypes=[np.float64])
def _fma_f64(x: float, y: float, z: float) -> float:
    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(exact) if exact else x * y + z  # with the sign of zero
    except OverflowError:
        return math.copysign(math.inf, exact)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _IN_NUMPY},
    **{name: _in_torch(theirs) for name, theirs in {**_BESSEL, **_SPECIAL}.items()},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "pow": np.power, "fmod": np.fmod, "remainder": _each(_remainder),
    "fdim": lambda x, y: np.maximum(x - y, 0), "fma": _fma, "fma_rn": _fma,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x), "exp10": lambda x: np.power(10.0, x),
    "erf": _each(math.erf), "erfc": _each(math.erfc), "lgamma": _each(_lgamma), "tgamma": _each(_tgamma),
    "round": _round, "nearbyint": np.rint,
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "fast_sinf": np.sin, "fast_cosf": np.cos, "fast_tanf": np.tan, "fast_expf": np.exp, "fast_logf": np.log,
    "fast_log2f": np.log2, "fast_log10f": np.log10, "fast_powf": np.power, "fast_tanhf": np.tanh,
    "fast_exp10f": lambda x: np.power(10.0, x), "fast_dividef": np.divide, "div_rn": np.divide, "div_rz": _div_rz,
    "isnan": np.isnan, "isinf": np.isinf, "isfinited": np.isfinite, "finitef": np.isfinite, "signbit": np.signbit,
    "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "fast_fmaf": _fma,
    "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0))), "saturatef": lambda x: np.clip(x, 0.0, 1.0),
    "llrint": lambda x: np.rint(x).astype(np.int64), "llround": lambda x: _round(x).astype(np.int64),
    "popc": lambda x: np.bitwise_count(x).astype(np.int32),
}  # fmt: skip
_RESULTS = {  # types of results that are not those of the argument
    **dict.fromkeys(("isnan", "isinf", "isfinited", "finitef"), core.int1),
    **dict.fromkeys(("signbit", "popc"), core.int32), **dict.fromkeys(("llrint", "llround"), core.int64),
}  # fmt: skip


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        semantic = interpreter.interpreter_semantic
        tensors = [semantic.to_tensor(arg) for arg in args]
        for each in tensors:
            if each.dtype.is_bf16() or each.dtype.is_fp8():
                refuse(f"the library function '{name}' of {each.dtype}", "convert it to tl.float32")
        for at in range(1, len(tensors)):  # as Triton's extern functions broadcast their arguments
            tensors[0], tensors[at] = semantic.broadcast_impl_value(tensors[0], tensors[at])
        return _applied(name, function, tensors)

    call.__name__ = name
    return call


@recordable
def _applied(name: str, function: Callable[..., Any], tensors: list[Any]) -> Any:
    """A function of numbers on tensors of one shape: at once for index data, else a command of MATH."""
    first = tensors[0]
    scalar = _RESULTS.get(name, first.dtype)
    kind = core.block_type(scalar, list(first.shape)) if first.type.is_block() else scalar
    handles = [each.handle for each in tensors]
    needed = [without_room(handle) for handle in handles]
    held = interpreter._get_np_dtype(scalar)

    def compute() -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(function(*(handle.data for handle in needed))).astype(held)

    inputs = tuple([handle for handle in handles if isinstance(handle, DeviceHandle)])
    program = current()
    if not inputs or program is None:
        if program is not None:
            program.index_ops += 1
        return core.tensor(TritonHandle(compute(), scalar), kind)
    shape = np.broadcast_shapes(*(shape_of(handle) for handle in handles))
    return core.tensor(program.math(name, compute, inputs, shape, scalar, scalar), kind)


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        refuse(f"the library function '{name}'", "it is machine code of one vendor: write it in Triton")

    return call


def _nothing(*_: Any, **__: Any) -> None:
    """Grid dependence control: launches run one after the other here, so there is nothing to wait for."""


_replaced: dict[int, tuple[Any, Callable[..., Any]]] = {}  # by id: functions of the libraries, what stands for them


def known(function: Any) -> Callable[..., Any] | None:
    """What stands for a library's function; None for others."""
    found = _replaced.get(id(function))
    return None if found is None else found[1]


def found_replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """All of `replacements`, which `known` knows from now on. The libraries are as they came."""
    found = list(replacements())
    for module, name, call in found:
        function = getattr(module, name)
        _replaced[id(function)] = (function, call)
    return found


def replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Modules, names and what stands there while kernels run."""
    modules = [import_module("triton.language.extra.libdevice")]
    try:
        cuda = import_module("triton.language.extra.cuda")
    except ImportError:
        cuda = None
    if cuda is not None:
        modules.append(cuda.libdevice)
        for name in ("gdc_wait", "gdc_launch_dependents"):
            if hasattr(cuda, name):
                yield cuda, name, _nothing
        for name in ("globaltimer", "smid", "num_threads", "num_warps"):
            if hasattr(cuda, name):
                yield cuda, name, _refused(name)
    for module in modules:
        for name, member in list(vars(module).items()):
            if callable(member) and not name.startswith("_") and getattr(member, "__module__", "") == module.__name__:
                yield module, name, _called(name, FUNCTIONS[name]) if name in FUNCTIONS else _refused(name)
