"""Ranks of a real `torch.distributed` with the gloo backend, which do what ours do: one process each, on the CPU."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
from tests.oracle.collective_cases import Array, Case, work

# numpy has no such types: their bits are carried as whole numbers.
BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
}


def to_torch(array: Array) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype in BITS:
        bits, dtype = BITS[array.dtype]
        return torch.from_numpy(array.view(bits).copy()).view(dtype)
    return torch.from_numpy(array.copy())


def to_numpy(tensor: torch.Tensor) -> Array:
    for dtype, (bits, known) in BITS.items():
        if tensor.dtype == known:
            return tensor.view(torch.int16 if bits is np.int16 else torch.uint8).numpy().view(dtype)
    return tensor.numpy()


Result = list[Array] | str  # what a rank has afterwards, or why gloo does not do it
Program = Callable[[Any, Callable[[Array], Any], int], dict[str, Any]]  # torch.distributed, a maker of tensors, a rank


def run_on_gloo(cases: Sequence[Case], ranks: int, program: Program) -> tuple[list[list[Result]], list[dict[str, Any]]]:
    """What every rank has after every case, by case and rank; and what a program leaves, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (ranks, tuple(cases), program, folder), nprocs=ranks)
        found = [pickle.loads((Path(folder) / f"rank{rank}").read_bytes()) for rank in range(ranks)]
    by_case = [list(each) for each in zip(*(results for results, _ in found), strict=True)]
    return by_case, [left for _, left in found]


def _rank(rank: int, ranks: int, cases: Sequence[Case], program: Program, folder: str) -> None:
    dist = torch.distributed
    warnings.simplefilter("ignore", FutureWarning)  # newer names of reduce_scatter_tensor and the like
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    results = [_result(dist, case, rank, ranks) for case in cases]
    left = {
        name: to_numpy(value).copy() if isinstance(value, torch.Tensor) else value
        for name, value in program(dist, to_torch, rank).items()
    }
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps((results, left)))
    dist.barrier()
    dist.destroy_process_group()


def _result(dist: Any, case: Case, rank: int, ranks: int) -> Result:
    try:
        left = work(dist, lambda array, _: to_torch(array), case, rank, ranks)
    except (RuntimeError, ValueError, TypeError) as error:  # on all ranks alike: it looks at arguments only
        return str(error).splitlines()[0]
    return [to_numpy(tensor).copy() for tensor in left]
