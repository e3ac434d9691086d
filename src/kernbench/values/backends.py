"""The backends, by name. PyTorch is imported only when it is requested."""

from __future__ import annotations

from functools import cache

from kernbench.common.errors import UsageError
from kernbench.values.backend import ArrayBackend
from kernbench.values.numpy_backend import NumpyBackend
from kernbench.values.op import BackendName


@cache
def backend_named(name: BackendName) -> ArrayBackend:
    """The backend of that name. Raises UsageError for an unknown name, and for torch if PyTorch is missing."""
    if name == "numpy":
        return NumpyBackend()
    if name != "torch":
        raise UsageError(f"no backend {name!r}", hint="use 'numpy' or 'torch'")
    try:
        from kernbench.values.on_torch.backend import TorchBackend
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise UsageError(
            "the torch backend needs PyTorch, which is not installed",
            hint="pip install torch, or use the numpy backend",
        ) from None
    return TorchBackend()
