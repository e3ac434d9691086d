"""The driver that Triton believes to run on: a plain accelerator, whose benchmarks are in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kernbench.triton.internals import DriverBase, GPUTarget
from kernbench.triton.torch_front import CAPABILITY, DEVICE, Stream


class SimulatedDriver(DriverBase):  # type: ignore[misc]  # Triton has no types
    """Answers Triton's queries. It can do what compute capability 8.0 says: no descriptors in hardware, no clusters."""

    def __init__(self, properties: dict[str, Any], benchmarker: Callable[..., Any]) -> None:
        self.utils = SimpleNamespace(get_device_properties=lambda _=0: properties)
        self._benchmarker = benchmarker

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32)

    def get_active_torch_device(self) -> Any:
        return DEVICE

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return self._benchmarker

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _: int) -> None:
        """There is one."""

    def get_current_stream(self, _: int = 0) -> int:
        return Stream.cuda_stream

    def get_device_capability(self, _: int = 0) -> tuple[int, int]:
        return CAPABILITY

    def get_empty_cache_for_benchmark(self) -> Any:
        return None

    def clear_cache(self, _: Any) -> None:
        """There is no cache."""
