"""KernBench: how long a kernel takes on a machine not built yet, whether it is right, and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.common.version import __version__

if TYPE_CHECKING:
    from kernbench.runtime_api.bench_result import BenchResult
    from kernbench.runtime_api.bench_runner import run
    from kernbench.sweep.api import sweep
    from kernbench.triton_emu.autotune import autotune
    from kernbench.triton_emu.repeatable import repeatable

__all__ = ["BenchResult", "__version__", "autotune", "repeatable", "run", "sweep"]


def __getattr__(name: str) -> object:
    """`run`, `BenchResult`, `sweep`, `autotune` and `repeatable`, imported when first used: the command line starts
    without them.

    `kernbench.sweep` is a package that can be called: its parts are imported from it, and it is the function too.
    """
    if name == "sweep":
        from importlib import import_module

        return import_module("kernbench.sweep")
    if name in ("run", "BenchResult"):
        from kernbench.runtime_api import bench_runner

        return getattr(bench_runner, name)
    if name == "autotune":
        from kernbench.triton_emu.autotune import autotune

        return autotune
    if name == "repeatable":
        from kernbench.triton_emu.repeatable import repeatable

        return repeatable
    raise AttributeError(f"module 'kernbench' has no attribute '{name}'")
