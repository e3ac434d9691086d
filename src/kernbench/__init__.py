"""KernBench: how long a kernel takes on a machine not built yet, whether it is right, and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.runtime_api.bench_runner import BenchResult, run

__version__ = "0.1.0"
__all__ = ["BenchResult", "__version__", "run"]


def __getattr__(name: str) -> object:
    """`kernbench.run` and `kernbench.BenchResult`, imported when first used: the command line starts without them."""
    if name in ("run", "BenchResult"):
        from kernbench.runtime_api import bench_runner

        return getattr(bench_runner, name)
    raise AttributeError(f"module 'kernbench' has no attribute '{name}'")
