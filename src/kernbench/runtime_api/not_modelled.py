"""Names of `torch` and `torch.distributed` that are not modelled, and what to use instead.

Using one raises an error that says so, instead of Python's bare AttributeError; `hasattr` still returns False.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from kernbench.common.errors import NotModelledError
from kernbench.topology.readers import closest

GUIDE = "docs/guides/coming-from-pytorch.md"
_STORES = "ranks are programs of one process: init_process_group finds them without a store"
_ONE_BACKEND = "there is one backend, 'ahbm': is_available() and get_backend() say so"
_ONE_BY_ONE = "call the collective for each tensor; async_op=True lets them overlap"
_GROUPS = "make each group with new_group(ranks), on every rank in the same order"
_LAYERS = "kernbench.tp has parallel layers and groups of ranks"
NAMES = {
    "all_reduce_coalesced": _ONE_BY_ONE,
    "all_gather_coalesced": _ONE_BY_ONE,
    "_all_gather_base": "use all_gather_into_tensor",
    "_reduce_scatter_base": "use reduce_scatter_tensor",
    "reduce_op": "use ReduceOp",
    "split_group": _GROUPS,
    "fsdp": _LAYERS,
    "pipelining": _LAYERS,
    "Backend": _ONE_BACKEND,
    "is_nccl_available": _ONE_BACKEND,
    "is_gloo_available": _ONE_BACKEND,
    "is_mpi_available": _ONE_BACKEND,
    "is_ucc_available": _ONE_BACKEND,
    "is_xccl_available": _ONE_BACKEND,
    "Store": _STORES,
    "TCPStore": _STORES,
    "FileStore": _STORES,
    "HashStore": _STORES,
    "PrefixStore": _STORES,
    "is_torchelastic_launched": "start ranks with torch.multiprocessing.spawn",
    "rpc": "pass what other ranks need in tensors: send and recv",
}


NO_AUTOGRAD = (
    "there is no autograd: a kernel is timed forwards, and a backward pass is kernels that the program launches itself"
)
_WRITE_A_KERNEL = (
    "what runs on the device is a kernel: torch.launch(kernel, *tensors); see docs/guides/write-a-kernel.md"
)
_FLOAT32 = "use torch.float32, one for the real parts and one for the imaginary ones"
TORCH_NAMES = {
    **dict.fromkeys(("autocast", "amp"), "dtypes are as they are given: x.to(torch.float16)"),
    "meshgrid": "use x.unsqueeze(1).expand(len(x), len(y)) and y.expand(len(x), len(y))",
    "bernoulli": "use torch.rand_like(x) < x",
    "multinomial": "draw on the host with numpy, and give the numbers with torch.from_numpy",
    "testing": "use torch.check(x, expected), or numpy.testing with x.numpy()",
    "set_default_device": "use torch.ahbm.set_device(sip)",
    "einsum": f"use matmul, transposes and sums of broadcast products; otherwise {_WRITE_A_KERNEL}",
    "set_printoptions": "tensors are printed as numpy's arrays: numpy.set_printoptions",
    **dict.fromkeys(("save", "load"), "tensors come from numpy (torch.from_numpy) and go there (x.numpy())"),
    **dict.fromkeys(("enable_grad", "autograd", "optim", "func"), NO_AUTOGRAD),
    **dict.fromkeys(("tensordot", "conv1d", "conv2d", "fft", "sparse"), _WRITE_A_KERNEL),
    **dict.fromkeys(("complex64", "complex128"), _FLOAT32),
    **dict.fromkeys(("hub", "jit", "onnx", "export", "fx", "compile"), "kernels are not compiled: leave it out"),
    "linalg": f"x.norm() and torch.matmul are there; otherwise {_WRITE_A_KERNEL}",
    "utils": "give kernels their data as tensors: torch.from_numpy",
    "profiler": "kernbench run --save and kernbench web show where the time goes",
    "backends": "the device is torch.ahbm, or torch.accelerator",
}


FUNCTIONAL_NAMES = {
    "one_hot": "use (x.unsqueeze(-1) == torch.arange(classes)).to(torch.int64)",
    "cross_entropy": "use -F.log_softmax(x, -1).gather(-1, target.unsqueeze(-1)).mean()",
    "nll_loss": "use -x.gather(-1, target.unsqueeze(-1)).mean()",
    "dropout": "inference has none: leave it out",
    "pad": "torch.cat with x.new_zeros(...)",
    "softplus": "use (1 + x.exp()).log()",
    "leaky_relu": "use torch.where(x > 0, x, 0.01 * x)",
    "normalize": "use x / x.norm(dim=1, keepdim=True)",
    "cosine_similarity": "use (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))",
}


_KEEPS_SHAPE = "a tensor keeps its shape: write x = x.squeeze(), x = x.t(), ..., which are views"
_SORTED = "use x.sort(dim).values"
_SCATTERED = "use index_copy_ or index_add_ along axis 0, or a kernel with tl.store(rows=...)"
_SIZE_BY_NUMBERS = "the size of the result depends on numbers: use numpy with x.cpu(), or a mask: torch.where"
TENSOR_NAMES = {
    **dict.fromkeys(("backward", "grad", "grad_fn", "retain_grad", "register_hook"), NO_AUTOGRAD),
    "is_leaf": NO_AUTOGRAD,
    "apply_": "write a kernel and launch it: torch.launch(kernel, x)",
    "map_": "write a kernel and launch it: torch.launch(kernel, x, y)",
    "pin_memory": "host memory is not modelled: leave it out",
    "share_memory_": "ranks share Python's memory: leave it out",
    "to_sparse": "tensors are dense",
    "prod": "use x.log().sum().exp() for positive numbers, or a kernel with tl.reduce",
    "cumprod": "use x.log().cumsum(dim).exp() for positive numbers",
    "unfold": "write a kernel: tl.load takes strides",
    **dict.fromkeys(("squeeze_", "unsqueeze_", "transpose_", "t_", "resize_", "set_"), _KEEPS_SHAPE),
    **dict.fromkeys(("nonzero", "unique"), _SIZE_BY_NUMBERS),
    **dict.fromkeys(("median", "kthvalue", "quantile"), _SORTED),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add_", "scatter_reduce_", "index_fill_"), _SCATTERED),
    **dict.fromkeys(("index_put_", "put_"), "use x[index] = values"),
    **dict.fromkeys(
        ("std_mean", "var_mean", "aminmax"), "call both: x.std(dim) and x.mean(dim), x.amin() and x.amax()"
    ),
    "masked_select": "use x[mask]",
    "baddbmm": "use x + a @ b",
    "lerp_": "use x.copy_(x.lerp(end, weight))",
    "diag": "use x.diagonal() of a matrix, and torch.eye(len(x)) * x for one with x on its diagonal",
    "trace": "use x.diagonal().sum()",
    "inner": "use (x * y).sum(-1)",
    "count_nonzero": "use (x != 0).sum()",
    "nan_to_num": "use x.masked_fill(x.isnan(), 0)",
    "nansum": "use x.masked_fill(x.isnan(), 0).sum()",
    "diff": "use x[1:] - x[:-1]",
    "trunc": "use x.sign() * x.abs().floor()",
    "erfc": "use 1 - x.erf()",
    "expm1": "use x.exp() - 1",
    "log1p": "use (1 + x).log()",
    "log10": "use x.log() / 2.302585",
    "tan": "use x.sin() / x.cos()",
    "bernoulli_": "use x.copy_(torch.rand_like(x) < p)",
    "new_tensor": "use torch.tensor(data, dtype=x.dtype, device=x.device)",
}


_LOCALLY = "use x.to_local(), and DTensor.from_local of the result"
DTENSOR_NAMES = {
    **dict.fromkeys(("backward", "grad", "requires_grad_"), NO_AUTOGRAD),
    **dict.fromkeys(("view", "reshape", "flatten", "unsqueeze", "squeeze", "chunk", "split"), _LOCALLY),
    "cpu": "use x.full_tensor().cpu()",
    "copy_": "make a new one with distribute_tensor",
}
_TIME = "launches do not wait with wait=False; torch.now_ns is the time"
_FREED = "memory is freed with its last tensor: leave it out"
DEVICE_NAMES = {
    **dict.fromkeys(("Stream", "Event", "stream", "current_stream"), _TIME),
    **dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "mem_get_info"), "use torch.used_bytes(sip, cube, pe)"
    ),
    **dict.fromkeys(("empty_cache", "reset_peak_memory_stats", "ipc_collect"), _FREED),
    **dict.fromkeys(("manual_seed", "manual_seed_all"), "use torch.manual_seed"),
    **dict.fromkeys(("amp", "graphs", "CUDAGraph", "graph"), "kernels are launched as they are: leave it out"),
    "get_device_name": "use torch.spec.system.name",
    "get_device_properties": "use torch.spec, the machine's description",
}
WORK_NAMES = {
    "abort": "a program that fails stops its ranks; leave it out",
    "get_future_result": "use get_future()",
    "boxed": "leave it out",
    "unbox": "leave it out",
    "block_current_stream": "use wait(): later launches on the tensors wait for it by themselves",
}
PROCESS_NAMES = {
    **dict.fromkeys(
        ("Process", "Pool", "start_processes"), "start ranks with torch.multiprocessing.spawn(fn, args, nprocs)"
    ),
    **dict.fromkeys(
        ("Queue", "SimpleQueue", "Manager", "Lock", "Event", "Pipe"),
        "ranks are programs of one process and share Python's memory: use a list",
    ),
    **dict.fromkeys(
        ("set_start_method", "get_start_method", "get_context", "set_sharing_strategy"),
        "ranks are programs of one process: leave it out",
    ),
    **dict.fromkeys(("ProcessRaisedException", "ProcessExitedException", "ProcessContext"), "use SpawnException"),
}


def check_no_grad(requires_grad: object) -> None:
    """Raise NotModelledError where gradients are asked for."""
    if requires_grad:
        raise NotModelledError("requires_grad=True is not modelled", hint=NO_AUTOGRAD)


_MOST_LISTED = 40  # names in an error


def refuse_name(of: str, name: str, instead: str | None, known: Iterable[str]) -> NoReturn:
    """Raise NotModelledError for a name, with its replacement or the nearest existing name."""
    if instead is not None:
        raise NotModelledError(f"{of}.{name} is not modelled", hint=instead)
    names = [each for each in known if not each.startswith(("_", "team_"))]
    hint = f"there are: {', '.join(names)}" if len(names) <= _MOST_LISTED else f"{GUIDE} says what there is"
    raise NotModelledError(f"{of} has no '{name}'{closest(name, names)}", hint=hint)
