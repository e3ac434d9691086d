"""What `kernel.warmup` returns, where Triton has a compiled kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class WarmKernel:
    """A kernel with its options: a launch of it is one of the kernel. `launch` takes kernel, arguments, grid, and
    options.
    """

    n_regs, n_spills = 32, 0

    def __init__(self, launch: Callable[..., Any], kernel: Any, options: Mapping[str, Any], shared: int) -> None:
        self._launch, self._kernel = launch, kernel
        names = list(inspect.signature(kernel.fn).parameters)
        self._options = {name: value for name, value in options.items() if name not in names}
        self.metadata = _Metadata(shared)
        self.name = kernel.fn.__name__

    def _init_handles(self) -> None:
        """There is no machine code to load."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._launch(self._kernel, args, grid, {**self._options, **kwargs})


@dataclass(frozen=True)
class _Metadata:
    shared: int
    num_warps: int = 1
    num_ctas: int = 1
