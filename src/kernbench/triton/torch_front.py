"""PyTorch as on a machine with one accelerator: `device="cuda"` is accepted, queries are answered, tensors stay here.

Every tensor says that it is on the device `cuda:0`, which is KernBench's; its contents are in the host's memory. Copies
between the two are copies (`device_memory`).
Streams do nothing, since launches run one after the other; events read the simulated clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from kernbench.common.errors import UsageError
from kernbench.topology.spec import MachineSpec
from kernbench.triton.device_memory import HERE, is_accelerator, result_of, to_device, to_host

DEVICE = torch.device("cuda", 0)
CAPABILITY = (8, 0)
_WARP = 32  # lanes that programs believe to run together


def _local(value: Any) -> Any:
    return HERE if is_accelerator(value) else value


def _named(device: Any) -> Any:
    """A device argument, which may be an index."""
    return f"cuda:{device}" if isinstance(device, int) else device


def _to_device(x: torch.Tensor, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    is_accelerator(_named(device))
    return to_device(x)


class DeviceFront(TorchFunctionMode):  # type: ignore[misc]  # PyTorch's class has no types here
    """Answers for the accelerator. `on_address` is called with tensors whose address a program asks for."""

    def __init__(self, on_address: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        tensor = torch.Tensor
        self._on_address = on_address
        self._answers: dict[Any, Any] = {
            tensor.device.__get__: lambda x: DEVICE,
            tensor.is_cuda.__get__: lambda x: True,
            tensor.get_device: lambda x: 0,
            tensor.cuda: _to_device,
            tensor.cpu: to_host,
            tensor.pin_memory: lambda x, *_, **__: x,
            tensor.is_pinned: lambda x, *_, **__: False,
            tensor.record_stream: lambda x, *_: None,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer: Any = self._answers.get(func) if _is_hashable(func) else None
        if answer is not None:
            return answer(*args, **(kwargs or {}))
        if func is torch.Tensor.data_ptr:
            self._on_address(args[0])
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _named(kwargs["device"])
        if func is torch.Tensor.to:
            args = (*args[:1], *map(_named, args[1:2]), *args[2:])
        elif func is torch.Tensor.new_tensor or func is torch.Tensor.type:
            args = tuple(_local(arg) for arg in args)
        if func is torch.Tensor.numpy:  # reading waits on a real accelerator; here it is the same memory
            return func(args[0].detach() if args[0].requires_grad and not kwargs.get("force") else args[0], **kwargs)
        return result_of(func, args, kwargs)


def _is_hashable(func: object) -> bool:
    try:
        hash(func)
    except TypeError:
        return False
    return True


class BlasLibrary:
    """Stands for the vendor's library of matrix products: PyTorch computes them, and no time is simulated."""

    def __init__(self, _: torch.Tensor) -> None:
        """The workspace is not needed."""

    def matmul(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """c = a @ b.T."""
        c.copy_((a.float() @ b.float().T).to(c.dtype))

    def gemm(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, alpha: float, beta: float
    ) -> None:
        """d = alpha * a @ b.T + beta * c."""
        d.copy_((alpha * (a.float() @ b.float().T) + beta * c.float()).to(d.dtype))


class Stream:
    """A stream that is always idle."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = DEVICE

    def synchronize(self) -> None:
        """Nothing is under way."""

    wait_stream = wait_event = record_event = lambda self, *_, **__: None

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Streams do nothing."""


def device_properties(spec: MachineSpec, tcm_bytes: int) -> dict[str, Any]:
    """What Triton's driver says of the device."""
    return {
        "multiprocessor_count": spec.cube.n_pes * spec.sip.n_cubes,
        "max_num_regs": 65536,
        "max_shared_mem": tcm_bytes,
        "warpSize": _WARP,
        "max_threads_per_sm": 2048,
        "sm_clock_rate": 1_000_000,
        "mem_clock_rate": 1_000_000,
        "mem_bus_width": 1024,
    }


def cuda_names(spec: MachineSpec, tcm_bytes: int, now_ns: Callable[[], float]) -> dict[str, Any]:
    """What `torch.cuda` answers while programs are simulated."""
    pes = spec.cube.n_pes * spec.sip.n_cubes
    name = f"KernBench {spec.system.name}"
    total = int(spec.sum_over_cubes(lambda cube: cube.hbm_bytes, sip=0))
    properties = SimpleNamespace(
        name=name, major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=total, multi_processor_count=pes,
        warp_size=_WARP, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=tcm_bytes, shared_memory_per_block_optin=tcm_bytes,
        shared_memory_per_multiprocessor=tcm_bytes, gcnArchName="", L2_cache_size=0, is_integrated=False,
    )  # fmt: skip

    class Event:
        """A point in simulated time."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._at_ns = now_ns()

        def record(self, *_: Any) -> None:
            self._at_ns = now_ns()

        def elapsed_time(self, other: Event) -> float:
            return (other._at_ns - self._at_ns) / 1e6

        def synchronize(self) -> None:
            """Nothing is under way."""

        wait = synchronize

        def query(self) -> bool:
            return True

    @contextmanager
    def nothing(*_: Any, **__: Any) -> Any:
        yield

    def none(*_: Any, **__: Any) -> None:
        """Nothing to do."""

    def set_device(device: Any) -> None:
        is_accelerator(_named(device))

    @contextmanager
    def on_device(device: Any = None) -> Any:
        is_accelerator(_named(device))
        yield

    answers = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_name": lambda *_: name, "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": lambda *_: properties, "synchronize": none, "set_device": set_device,
        "current_stream": lambda *_: Stream(), "default_stream": lambda *_: Stream(), "Stream": Stream,
        "set_stream": none, "stream": nothing,
        "Event": Event, "empty_cache": none, "manual_seed": none, "manual_seed_all": none, "device": on_device,
        "is_initialized": lambda: True, "init": none, "is_bf16_supported": lambda *_, **__: True,
        "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0, "memory_reserved": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0, "reset_peak_memory_stats": none, "mem_get_info": lambda *_: (total, total),
        "is_current_stream_capturing": lambda: False, "_lazy_init": none, "CUDAGraph": _no_graphs, "graph": _no_graphs,
        "make_graphed_callables": _no_graphs,
    }  # fmt: skip
    return {each: _own(answer) for each, answer in answers.items()}


def _own(answer: Any) -> Any:
    """A function of its own for each name: `torch._dynamo` keeps a rule for each function of PyTorch."""
    return answer if isinstance(answer, type) else lambda *args, **kwargs: answer(*args, **kwargs)


def _no_graphs(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("a graph of launches (torch.cuda.CUDAGraph)", hint="launch the kernels themselves")


class _Generator(torch.Generator):  # type: ignore[misc]  # PyTorch's class has no types here
    """Random numbers of the accelerator, which PyTorch draws here."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls, device=_local(_named(device)) or HERE)


def _eager(model: Any = None, **_: Any) -> Any:
    """`torch.compile` while programs are simulated: what is compiled runs as it is written."""
    return (lambda function: function) if model is None else model


def changes(cuda: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """What PyTorch's modules have while programs are simulated: module, name, answer."""
    for name, answer in cuda.items():
        yield torch.cuda, name, answer
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        yield torch.cuda.nvtx, name, _own(lambda *_, **__: 0)
    yield torch, "Generator", _Generator
    yield torch, "compile", _eager
