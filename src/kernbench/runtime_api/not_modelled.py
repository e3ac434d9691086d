"""Names of `torch` and `torch.distributed` that are not modelled, and what to use instead.

Using one raises an error that says so, instead of Python's bare AttributeError; `hasattr` still returns False.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from kernbench.common.errors import NotModelledError
from kernbench.topology.readers import closest

_OBJECTS = "objects are no tensors, and ranks share Python's memory: pass them in a list that the ranks see"
_STORES = "ranks are programs of one process: init_process_group finds them without a store"
_ONE_BACKEND = "there is one backend, 'ahbm': is_available() and get_backend() say so"
_ONE_BY_ONE = "call the collective for each tensor; async_op=True lets them overlap"
_GROUPS = "make each group with new_group(ranks), on every rank in the same order"
_LAYERS = "kernbench.tp has parallel layers and groups of ranks"
NAMES = {
    "all_to_all": "use all_to_all_single, with one tensor for all ranks and split sizes",
    "batch_isend_irecv": "call isend and irecv one after the other: none of them waits; then wait for what they return",
    "P2POp": "call isend and irecv themselves",
    "all_gather_object": _OBJECTS,
    "broadcast_object_list": _OBJECTS,
    "gather_object": _OBJECTS,
    "scatter_object_list": _OBJECTS,
    "send_object_list": _OBJECTS,
    "recv_object_list": _OBJECTS,
    "all_reduce_coalesced": _ONE_BY_ONE,
    "all_gather_coalesced": _ONE_BY_ONE,
    "_all_gather_base": "use all_gather_into_tensor",
    "_reduce_scatter_base": "use reduce_scatter_tensor",
    "reduce_op": "use ReduceOp",
    "monitored_barrier": "use barrier: a rank that never calls it is reported at once, by name",
    "new_subgroups": _GROUPS,
    "new_subgroups_by_enumeration": _GROUPS,
    "split_group": _GROUPS,
    "init_device_mesh": _LAYERS,
    "DeviceMesh": _LAYERS,
    "device_mesh": _LAYERS,
    "tensor": _LAYERS,
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
    "get_node_local_rank": "use get_rank: all ranks are on one tray",
    "is_torchelastic_launched": "start ranks with torch.multiprocessing.spawn",
    "rpc": "pass what other ranks need in tensors: send and recv",
}


_MADE_BY_NUMPY = "make it with numpy, and torch.from_numpy(array, dtype=..., dp=...)"
_WRITE_A_KERNEL = (
    "what runs on the device is a kernel: torch.launch(kernel, *tensors); see docs/guides/write-a-kernel.md"
)
_NO_TRAINING = "there are no gradients: leave it out"
TORCH_NAMES = {
    **dict.fromkeys(("tensor", "as_tensor", "rand", "randn", "randint", "arange", "linspace", "eye"), _MADE_BY_NUMPY),
    **dict.fromkeys(("matmul", "mm", "bmm", "add", "mul", "exp", "softmax", "relu", "sum"), _WRITE_A_KERNEL),
    **dict.fromkeys(("cat", "stack", "split", "chunk", "reshape", "transpose"), _WRITE_A_KERNEL),
    **dict.fromkeys(("ones", "ones_like", "zeros_like", "empty_like"), "use torch.full(size, 1), zeros or empty"),
    **dict.fromkeys(("save", "load"), "tensors come from numpy (torch.from_numpy) and go there (x.numpy())"),
    **dict.fromkeys(("no_grad", "enable_grad", "inference_mode", "autograd", "optim", "manual_seed"), _NO_TRAINING),
    "float64": "use torch.float32: there is nothing wider",
    "double": "use torch.float32: there is nothing wider",
    "cuda": "the device is torch.ahbm, or torch.accelerator",
    "device": "the device is torch.ahbm.set_device(rank); tensors are made on it",
    "nn": _LAYERS,
    "compile": "kernels are not compiled: leave it out",
    "Tensor": "it is kernbench.runtime_api.tensor.Tensor",
}


def refuse_name(of: str, name: str, instead: str | None, known: Iterable[str]) -> NoReturn:
    """Raise NotModelledError for a name, with its replacement or the nearest existing name."""
    if instead is not None:
        raise NotModelledError(f"{of}.{name} is not modelled", hint=instead)
    names = [each for each in known if not each.startswith("_")]
    raise NotModelledError(f"{of} has no '{name}'{closest(name, names)}", hint=f"there are: {', '.join(names)}")
