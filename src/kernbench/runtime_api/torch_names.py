"""PyTorch's names on `torch`: element types, and errors for names that are not modelled.

`torch.float16` is the element type "f16". The error for a name that is not modelled has its replacement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, I8, I16, I32, I64, U8
from kernbench.runtime_api.not_modelled import TORCH_NAMES, refuse_name

PUBLIC = (
    *("zeros", "empty", "full", "from_numpy", "launch", "wait", "wait_all", "check"),
    *("ahbm", "accelerator", "distributed", "multiprocessing", "install_ipcq", "now_ns"),
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)  # names listed in the error for an unknown one


class TorchNames:
    """Base of the host's context."""

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> object:
            """Called for missing names."""
            if name.startswith("_"):  # Python's own protocols
                raise AttributeError(name)
            if not hasattr(type(self), name):
                refuse_name("torch", name, TORCH_NAMES.get(name), PUBLIC)
            return object.__getattribute__(self, name)  # the attribute exists and raised AttributeError: repeat that

    float32 = float = F32
    float16 = half = F16
    bfloat16 = BF16
    float8_e4m3fn = F8E4M3
    float8_e5m2 = F8E5M2
    int64 = long = I64
    int32 = int = I32
    int16 = short = I16
    int8 = I8
    uint8 = U8
    bool = BOOL
