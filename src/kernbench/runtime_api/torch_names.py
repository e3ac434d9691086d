"""PyTorch's names on `torch`: element types, and errors for names that are not modelled.

`torch.float16` is the element type "f16". The error for a name that is not modelled has its replacement.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernbench.common.dtypes import (
    BF16,
    BOOL,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from kernbench.runtime_api.device import Device
from kernbench.runtime_api.not_modelled import TENSOR_NAMES, TORCH_NAMES, refuse_name
from kernbench.runtime_api.random_state import Generator
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.torch_functions import METHODS, NoGrad

PUBLIC = (
    *("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "tensor"),
    *("as_tensor", "from_numpy", "arange", "linspace", "eye", "rand", "randn", "randint", "randperm"),
    *("rand_like", "randn_like", "launch", "wait", "wait_all", "check", "now_ns", "timing_only"),
    *("install_ipcq", "ahbm", "accelerator", "cuda", "device", "distributed", "multiprocessing", "nn"),
    *("no_grad", "inference_mode", "manual_seed", "Generator", "set_default_dtype", "get_default_dtype"),
    *("finfo", "iinfo", "Tensor", "Size", "dtype", "cat", "concat", "stack", "vstack", "hstack", "where"),
    *("matmul", "isclose", "bincount", "is_tensor", "is_floating_point"),
    *("result_type", "set_grad_enabled", "is_grad_enabled", "inf", "nan", "pi", "float64", "float32"),
    *("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint64"),
    *("uint32", "uint16", "uint8", "bool"),
    *METHODS,
)  # names listed in the error for an unknown one


class TorchNames:
    """Base of the host's context."""

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> object:
            """Called for missing names."""
            if name.startswith("__"):  # Python's own protocols
                raise AttributeError(name)
            if not hasattr(type(self), name):
                refuse_name("torch", name, TORCH_NAMES.get(name) or TENSOR_NAMES.get(name), PUBLIC)
            return object.__getattribute__(self, name)  # the attribute exists and raised AttributeError: repeat that

    Tensor, Generator, device, dtype, Size = Tensor, Generator, Device, DType, tuple
    no_grad = inference_mode = NoGrad
    inf, nan, pi, e = math.inf, math.nan, math.pi, math.e
    float64 = double = F64
    float32 = float = F32
    float16 = half = F16
    bfloat16 = BF16
    float8_e4m3fn = F8E4M3
    float8_e5m2 = F8E5M2
    int64 = long = I64
    int32 = int = I32
    int16 = short = I16
    int8 = I8
    uint64 = U64
    uint32 = U32
    uint16 = U16
    uint8 = U8
    bool = BOOL
