"""Matrix products by PyTorch, on a GPU where there is one. Imported only when asked for; kernbench does not depend on
it."""

from __future__ import annotations

import numpy as np

from kernbench.common.errors import UsageError
from kernbench.values.casts import to_f32
from kernbench.values.chains import Product
from kernbench.values.matmul import product
from kernbench.values.op import Array, TensorType, aligned


def torch_product() -> Product:
    """A product in f32 by torch, within f32 accumulation of numpy's; integers stay with numpy, where they are exact."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "the torch backend needs PyTorch, which is not installed", hint="use backend='numpy'"
        ) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def multiply(a: Array, b: Array, a_type: TensorType, b_type: TensorType) -> Array:
        if not (a_type.dtype.is_float or b_type.dtype.is_float):
            return product(a, b, a_type, b_type)
        rank = max(len(a_type.shape), len(b_type.shape))
        left, right = (
            torch.from_numpy(np.array(aligned(to_f32(x, t.dtype), rank))).to(device)
            for x, t in ((a, a_type), (b, b_type))
        )
        result: Array = torch.matmul(left, right).cpu().numpy()
        return result

    return multiply
