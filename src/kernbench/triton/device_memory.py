"""Which tensors are in the accelerator's memory and which in the host's, though PyTorch has all of them in one.

Copies between the two are copies here, too: a program that keeps `x.cpu()` and then changes x in place finds the
old numbers there. A storage is marked when it is made: on the accelerator if the call names that device or has an
argument there, in the host's memory if it is a copy to it. A storage without a mark was made on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from kernbench.common.errors import UsageError
from kernbench.triton.half_sums import computed

HERE = torch.device("cpu")
_MARK = "_kernbench_on_device"
_COPIES = (torch.as_tensor, torch.asarray)  # of memory that NumPy has


def is_accelerator(device: object) -> bool:
    """Whether a device argument names the accelerator. Raises UsageError for a second one."""
    return _type_of(device) == "cuda"


def _type_of(device: object) -> str:
    """The kind of device that an argument names; "" if it names none."""
    if not isinstance(device, (torch.device, str)):
        return ""
    kind, _, index = str(device).partition(":")
    if kind == "cuda" and index not in ("", "0"):
        raise UsageError(f"device '{device}'", hint="a Triton program runs on one device: use cuda or cuda:0")
    return kind


def to_host(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """`tensor.cpu()`."""
    return _moved(tensor, tensor, to_device=False)


def to_device(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """`tensor.cuda()`."""
    return _moved(tensor, tensor, to_device=True)


def result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch with the accelerator's name replaced, and note where its result is."""
    named = [kwargs.get("device")]
    if func is torch.Tensor.to:
        others = (*args[1:], kwargs.get("other"))
        named += ["cuda" if isinstance(arg, torch.Tensor) and _mark_of(arg) else arg for arg in others]
    kind = next((_type_of(each) for each in named if _type_of(each) in ("cpu", "cuda")), "")
    if kind == "cuda":
        kwargs = {**kwargs, "device": HERE} if is_accelerator(kwargs.get("device")) else kwargs
        args = tuple([HERE if is_accelerator(arg) else arg for arg in args]) if func is torch.Tensor.to else args
    result = computed(func, args, kwargs)
    if func is torch.Tensor.to and kind:
        return _moved(args[0], result, to_device=kind == "cuda")
    if kind == "cuda" and func in _COPIES:
        result = result.clone()
    if kind or isinstance(result, (torch.Tensor, tuple, list)):
        _note(result, args, kind)
    return result


def _moved(tensor: torch.Tensor, result: torch.Tensor, to_device: bool) -> torch.Tensor:
    """A tensor that was to be moved, and is a copy unless it was there already."""
    if result is tensor and _mark_of(tensor) is not to_device:
        result = tensor.clone()
    _mark(result, to_device)
    return result


def _note(result: Any, args: tuple[Any, ...], kind: str) -> None:
    """Mark the tensors that a call has made."""
    made = [each for each in _tensors_in((result,)) if _mark_of(each) is None]
    if made and (kind == "cuda" or (not kind and any(_mark_of(each) for each in _tensors_in(args)))):
        for each in made:
            _mark(each, True)
    elif kind:
        for each in made:
            _mark(each, False)


def _tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def _mark_of(tensor: torch.Tensor) -> bool | None:
    try:
        return getattr(tensor.untyped_storage(), _MARK, None)
    except (NotImplementedError, RuntimeError):  # tensors that are not in one piece of memory
        return None


def _mark(tensor: torch.Tensor, on_device: bool) -> None:
    try:
        setattr(tensor.untyped_storage(), _MARK, on_device)
    except (NotImplementedError, RuntimeError):
        return
