"""What is changed in Triton and PyTorch while a simulation is active, and put back at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from kernbench.common.errors import UsageError
from kernbench.topology.spec import MachineSpec
from kernbench.triton import autocast
from kernbench.triton.benchmarks import Benchmarks
from kernbench.triton.driver import SimulatedDriver
from kernbench.triton.internals import active_driver, autotuner, interpreter, jit, knobs, testing, vendor_blas
from kernbench.triton.rewriting import rewritten
from kernbench.triton.torch_front import BlasLibrary, DeviceFront, changes, cuda_names, device_properties
from kernbench.triton.tuner_call import run_of_tuner
from kernbench.triton.warm_kernel import WarmKernel

_MISSING = object()


class TritonPatches:
    """Triton's driver, launches, benchmarks and autotuning, and PyTorch's device queries, are those of a machine.
    `launch` takes a kernel, its arguments, grid and options; `noted` are the notes that the user has had.
    """

    def __init__(
        self,
        spec: MachineSpec,
        benchmarks: Benchmarks,
        launch: Callable[..., Any],
        now_ns: Callable[[], float],
        remember: Callable[[Any], None],
        noted: set[str],
    ) -> None:
        self._spec, self._benchmarks, self._launch, self._now_ns, self._noted = spec, benchmarks, launch, now_ns, noted
        self._tcm_bytes = spec.least_of_cubes(lambda cube: cube.tcm_allocatable_bytes)
        self._front = DeviceFront(remember)
        self._changed: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """Make all changes; raises UsageError inside another simulation."""
        if isinstance(active_driver._active, SimulatedDriver):
            raise UsageError(
                "a simulation inside a simulation",
                hint="end the first one; `kernbench run --triton` needs no `simulate`",
            )
        spec, tcm, timed = self._spec, self._tcm_bytes, self._benchmarks
        self._driver_before = active_driver._active
        active_driver.set_active(SimulatedDriver(device_properties(spec, tcm), timed.do_bench))
        self._interpret_before = vars(knobs.runtime).get("interpret", _MISSING)
        knobs.runtime.interpret = True
        for change in changes(cuda_names(spec, tcm, self._now_ns)):
            self._change(*change)
        for name, method in autocast.methods().items():
            self._change(autocast.CLASS, name, method)
        if vendor_blas is not None:
            self._change(vendor_blas, "CublasLt", BlasLibrary)
        for kind in (jit.JITFunction, interpreter.InterpretedFunction):
            self._change(kind, "run", self._run_of())
            self._change(kind, "warmup", self._warmup_of())
            self._change(kind, "__call__", _device_call)
        self._change(testing, "do_bench", timed.do_bench)
        self._change(testing, "do_bench_cudagraph", timed.do_bench)
        self._change(testing, "perf_report", timed.perf_report)
        self._change(autotuner.Autotuner, "run", run_of_tuner(timed.run_of_tuner(), self._noted))
        self._change(autotuner.Autotuner, "_bench", timed.bench_of_tuner())
        self._change(autotuner.Autotuner, "prune_configs", timed.configs_of_tuner())
        self._front.__enter__()

    def end(self) -> None:
        """Put everything back."""
        self._front.__exit__(None, None, None)
        while self._changed:
            owner, name, before = self._changed.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        if self._interpret_before is _MISSING:
            del knobs.runtime.interpret
        else:
            knobs.runtime.interpret = self._interpret_before
        active_driver._active = self._driver_before

    def _change(self, owner: Any, name: str, value: Any) -> None:
        self._changed.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def _run_of(self) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            if warmup:
                return None
            return self._launch(kernel, args, grid, kwargs)

        return run

    def _warmup_of(self) -> Callable[..., Any]:
        def warmup(kernel: Any, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
            return WarmKernel(self._launch, kernel, kwargs, self._tcm_bytes)

        return warmup


def _device_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A device function, called in a kernel."""
    if getattr(getcurrent(), "triton_program", None) is None and not _is_evaluating():
        raise UsageError(f"'{self.fn.__name__}' is called like a function", hint="launch it: kernel[grid](...)")
    return rewritten(self.fn)(*args, **kwargs)


def _is_evaluating() -> bool:
    """Whether numbers are being computed for a kernel, outside its greenlet."""
    return type(interpreter.interpreter_builder).__name__ == "SimulatedBuilder"
