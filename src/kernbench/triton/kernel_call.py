"""A launch of a Triton kernel as the program asks for it: arguments, options and grid."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.triton.internals import LAUNCH_OPTIONS, TensorDescriptor, TritonHandle, core, interpreter, knobs
from kernbench.triton.origins import mark
from kernbench.triton.recording import Ids

DEFAULT_STAGES = 3  # as Triton's own
ON_ONE_PE = "a program runs on one PE"
WITHOUT_MEANING = {  # why, where it is another reason
    "extern_libs": "no library is linked, functions of libdevice are computed here",
}
_NO_ARGUMENTS = (str, bytes, list, dict, set, np.ndarray)


class KernelCall:
    """A kernel with its arguments, its options and its grid."""

    def __init__(
        self, fn: Any, arguments: dict[str, Any], options: dict[str, Any], grid: Ids, constexprs: Sequence[str]
    ) -> None:
        self.fn, self.arguments, self.options, self.grid = fn, arguments, options, grid
        self._constexprs = constexprs

    @classmethod
    def of(cls, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> KernelCall:
        fn = kernel.fn
        names = list(inspect.signature(fn).parameters)
        given = {name: value for name, value in kwargs.items() if name in names}
        options = {name: value for name, value in kwargs.items() if name not in names}
        _refuse_unknown(fn.__name__, options, names)
        if "num_stages" in given:
            options["num_stages"] = given["num_stages"]
        arguments = inspect.getcallargs(fn, *args, **given)
        for name, value in arguments.items():
            _refuse_elsewhere(fn.__name__, name, value)
        for hook in getattr(kernel, "pre_run_hooks", ()):
            hook(*args, **kwargs)
        constexprs = [name for name, note in inspect.get_annotations(fn).items() if _is_constexpr(note)]
        for name, value in arguments.items():
            if name not in constexprs:
                _refuse_type(fn.__name__, name, _unwrapped(value))
        if options.get("debug") is None:
            options["debug"] = getattr(kernel, "debug", None) or knobs.runtime.debug
        found = grid({**options, **arguments}) if callable(grid) else grid
        return cls(fn, arguments, options, _sizes_of(fn.__name__, found), constexprs)

    @property
    def name(self) -> str:
        return str(self.fn.__name__)

    @property
    def is_debug(self) -> bool:
        """Whether `tl.device_assert` has an effect."""
        return bool(_unwrapped(self.options.get("debug")))

    @property
    def num_stages(self) -> int:
        given = self.options.get("num_stages")
        return DEFAULT_STAGES if given is None else _stages(given)

    @property
    def config(self) -> dict[str, object]:
        """The meta-parameters: what is no tensor and no number of the call's data."""
        found = {name: _unwrapped(self.arguments[name]) for name in self._constexprs if name in self.arguments}
        stages = {"num_stages": _unwrapped(self.options["num_stages"])} if "num_stages" in self.options else {}
        return {name: _shown(value) for name, value in {**found, **stages}.items()}

    def converted(self) -> dict[str, Any]:
        """The arguments as the interpreter takes them."""
        found = {name: _unwrapped(value) for name, value in self.arguments.items()}
        for name, value in found.items():
            if name not in self._constexprs:
                found[name] = _converted(value)
                mark(found[name], value, name)
        return found

    @property
    def key(self) -> object:
        """What the calls of the programs follow from: equal for launches that differ in options only. A launch with
        arguments that are not known here has a key of its own.
        """
        found = [(name, _key_of(_unwrapped(value))) for name, value in self.arguments.items()]
        return (self.fn, self.grid, *found) if all(key is not None for _, key in found) else object()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors among the arguments, with the names of their parameters."""
        for name, value in self.arguments.items():
            yield from _tensors_in(name, value)


def _sizes_of(kernel: str, grid: Any) -> Ids:
    """The three sizes of a grid; raises UsageError for what is none."""
    given = tuple([_unwrapped(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))])
    try:
        sizes = tuple([operator.index(size) for size in given])
    except TypeError:
        hint = "sizes are whole numbers: divide with triton.cdiv or //"
        raise UsageError(f"grid {given} of kernel '{kernel}'", hint=hint) from None
    if not 1 <= len(sizes) <= 3 or any(size < 0 for size in sizes):
        raise UsageError(f"grid {sizes} of kernel '{kernel}'", hint="give one to three sizes of 0 or more")
    whole = (*sizes, 1, 1)[:3]
    return whole[0], whole[1], whole[2]


def _refuse_type(kernel: str, name: str, value: Any) -> None:
    """Raise UsageError for an argument of a type that no kernel takes."""
    if isinstance(value, torch.Tensor) and value.dtype.is_complex:
        raise UsageError(
            f"argument '{name}' of kernel '{kernel}' is a tensor of {value.dtype}",
            hint="Triton has no complex numbers: give torch.view_as_real(tensor)",
        )
    if isinstance(value, _NO_ARGUMENTS):
        kind = type(value)
        known = "give tensors, numbers, tuples and descriptors; a tl.constexpr parameter takes other values too"
        is_array = isinstance(value, np.ndarray)
        raise UsageError(
            f"argument '{name}' of kernel '{kernel}' is a {kind.__module__}.{kind.__name__}".replace("builtins.", ""),
            hint="give torch.from_numpy(array)" if is_array else known,
        )


def _refuse_unknown(kernel: str, options: Iterable[str], names: Sequence[str]) -> None:
    """Raise UsageError for a keyword that is no parameter of the kernel and no option of a launch."""
    for option in options:
        if option not in LAUNCH_OPTIONS:
            near = nearest(option, [*names, *LAUNCH_OPTIONS])
            hint = f"did you mean '{near}'?" if near else f"it has {', '.join(names)}"
            raise UsageError(f"kernel '{kernel}' has no parameter '{option}', and no launch has that option", hint=hint)


def _refuse_elsewhere(kernel: str, name: str, value: Any) -> None:
    """Raise UsageError for a tensor whose numbers are not in the memory of this process."""
    for called, tensor in _tensors_in(name, value):
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            found = f"on device '{tensor.device}'" if tensor.device.type != "cpu" else f"{tensor.layout}"
            raise UsageError(
                f"argument '{called}' of kernel '{kernel}' is a tensor {found}, which a kernel cannot access",
                hint='give a dense tensor with numbers, on the accelerator ("cuda") or on the CPU',
            )


def _stages(value: Any) -> int:
    """How many iterations of a loop are under way at a time; 0 and 1 both say that none overlaps the next."""
    stages = int(_unwrapped(value))
    if stages < 0:
        raise UsageError(f"num_stages is {stages}", hint="give 0 or more")
    return max(stages, 1)


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (tuple, list)):
        for at, each in enumerate(value):
            yield from _tensors_in(f"{name}[{at}]", each)
    elif isinstance(value, TensorDescriptor):
        yield from _tensors_in(name, value.base)
    elif isinstance(value, torch.Tensor):
        yield name, value
    elif hasattr(value, "data_ptr") and isinstance(getattr(value, "base", None), torch.Tensor):
        yield name, value.base


def _key_of(value: Any) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value)
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return value.data_ptr(), value.dtype, storage.data_ptr(), storage.nbytes()
    if isinstance(value, TensorDescriptor):
        return (
            _key_of(value.base),
            repr((value.shape, value.strides, value.block_shape)),
            str(vars(value).get("padding")),
        )
    return (value.name,) if isinstance(value, core.dtype) else None


def _converted(value: Any) -> Any:
    """An argument as a compiled kernel has it: a float is an f32, a bool an int1."""
    if isinstance(value, bool):
        return core.tensor(TritonHandle(np.array([value]), core.int1), core.int1)
    if isinstance(value, float):
        return core.tensor(TritonHandle(np.array([value], np.float32), core.float32), core.float32)
    if type(value) is tuple:
        return core.tuple([_converted(each) for each in value])
    return interpreter._implicit_cvt(value)


def _unwrapped(value: Any) -> Any:
    return value.value if hasattr(value, "value") and type(value).__name__ == "constexpr" else value


def _is_constexpr(note: Any) -> bool:
    return "constexpr" in (note if isinstance(note, str) else getattr(note, "__name__", str(note)))


def _shown(value: Any) -> object:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
