"""Programs in a real `torch.distributed` with the gloo backend: one process per rank, on the CPU."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.distributed.device_mesh
import torch.distributed.tensor
import torch.multiprocessing

Program = Callable[[Any, int, int], Any]  # of torch, a rank, and the number of ranks


def plain(result: Any) -> Any:
    """Tensors as arrays, in lists as they are."""
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    if isinstance(result, dict):
        return {key: plain(each) for key, each in result.items()}
    return np.array(result.numpy()) if hasattr(result, "numpy") else result


def run_on_gloo(programs: Sequence[Program], ranks: int) -> dict[str, list[Any]]:
    """What every rank returns, by program."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (ranks, tuple(programs), folder), nprocs=ranks)
        found = [pickle.loads((Path(folder) / f"rank{rank}").read_bytes()) for rank in range(ranks)]
    return {program.__name__: [results[program.__name__] for results in found] for program in programs}


def _rank(rank: int, ranks: int, programs: Sequence[Program], folder: str) -> None:
    warnings.simplefilter("ignore")  # of newer names
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    results: dict[str, Any] = {}
    for program in programs:
        try:
            results[program.__name__] = plain(program(torch, rank, ranks))
        except RuntimeError as error:
            results[program.__name__] = f"{type(error).__name__}: {error}"
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps(results))
    torch.distributed.destroy_process_group()
