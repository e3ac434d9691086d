"""`triton.language.extra.libdevice` and CUDA's extras without CUDA: numbers by numpy, one command of MATH each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernbench.triton.builder import current
from kernbench.triton.handles import DeviceHandle, shape_of, without_room
from kernbench.triton.internals import Handle, core, interpreter
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


def _isfinite_like(test: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: test(x).astype(np.int32)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _IN_NUMPY},
    **{name: _in_torch(theirs) for name, theirs in {**_BESSEL, **_SPECIAL}.items()},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "pow": np.power, "fmod": np.fmod, "remainder": lambda x, y: x - y * np.rint(x / y),
    "fdim": lambda x, y: np.maximum(x - y, 0), "fma": lambda x, y, z: x * y + z,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x), "exp10": lambda x: np.power(10.0, x),
    "erf": _each(math.erf), "erfc": _each(math.erfc), "lgamma": _each(math.lgamma), "tgamma": _each(math.gamma),
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)), "nearbyint": np.rint,
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "fast_sinf": np.sin, "fast_cosf": np.cos, "fast_tanf": np.tan, "fast_expf": np.exp, "fast_logf": np.log,
    "fast_log2f": np.log2, "fast_log10f": np.log10, "fast_powf": np.power, "fast_tanhf": np.tanh,
    "fast_exp10f": lambda x: np.power(10.0, x), "fast_dividef": np.divide, "div_rn": np.divide, "div_rz": np.divide,
    "isnan": _isfinite_like(np.isnan), "isinf": _isfinite_like(np.isinf), "isfinited": _isfinite_like(np.isfinite),
    "finitef": _isfinite_like(np.isfinite), "signbit": _isfinite_like(np.signbit),
    "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "fast_fmaf": lambda x, y, z: x * y + z,
    "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0))), "saturatef": lambda x: np.clip(x, 0.0, 1.0),
    "llrint": lambda x: np.rint(x).astype(np.int64), "llround": lambda x: np.round(x).astype(np.int64),
    "popc": lambda x: np.bitwise_count(x).astype(np.int32),
}  # fmt: skip
_INTEGERS = ("isnan", "isinf", "isfinited", "finitef", "signbit", "popc")
_LONGS = ("llrint", "llround")


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        semantic = interpreter.interpreter_semantic
        tensors = [semantic.to_tensor(arg) for arg in args]
        for at in range(1, len(tensors)):  # as Triton's extern functions broadcast their arguments
            tensors[0], tensors[at] = semantic.broadcast_impl_value(tensors[0], tensors[at])
        return _applied(name, function, tensors)

    call.__name__ = name
    return call


@recordable
def _applied(name: str, function: Callable[..., Any], tensors: list[Any]) -> Any:
    """A function of numbers on tensors of one shape: at once for index data, else a command of MATH."""
    first = tensors[0]
    scalar = core.int32 if name in _INTEGERS else core.int64 if name in _LONGS else first.dtype
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
        return core.tensor(Handle(compute(), scalar), kind)
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
