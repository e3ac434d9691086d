"""What `torch` is asked for by PyTorch's names: element types, and names that there are not.

`torch.float16` is what "f16" names. A name that is not modelled says what to use instead.
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
)  # what a program may look for


class TorchNames:
    """Base of the host's context."""

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> object:
            """Called for what there is not."""
            if name.startswith("_"):  # Python's own questions
                raise AttributeError(name)
            if not hasattr(type(self), name):
                refuse_name("torch", name, TORCH_NAMES.get(name), PUBLIC)
            return object.__getattribute__(self, name)  # it is there, and has failed itself: its own error is seen

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
