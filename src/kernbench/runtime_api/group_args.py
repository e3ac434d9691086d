"""Checks of the arguments that create process groups, as in PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from kernbench.common.errors import DistributedError, DistributedTypeError, KernBenchWarning
from kernbench.runtime_api.host_line import host_line


def checked_size(given: object, fitting: range, default: int) -> int:
    if given == -1 or given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int):
        raise DistributedTypeError(f"world_size is {given!r}", hint=f"leave it out, or give {default}")
    if given not in fitting:
        _warn_ignored("world_size", given, f"there are {default} ranks, one for each SIP or spawned program")
        return default
    return given


def check_rank(given: object, rank: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int | None):
        raise DistributedTypeError(f"rank is {given!r}", hint=f"leave it out, or give {rank}")
    if given not in (-1, None, rank):
        _warn_ignored("rank", given, f"the caller is rank {rank}")


def _warn_ignored(name: str, given: int, what: str) -> None:
    text = f"init_process_group({name}={given}) at {host_line()} is ignored: {what}; leave {name} out"
    warnings.warn(text, KernBenchWarning, stacklevel=4)


def checked_ranks(ranks: object, size: int) -> list[int]:
    if ranks is None:
        return list(range(size))
    if not isinstance(ranks, Sequence | range) or not all(
        isinstance(r, int) and not isinstance(r, bool) for r in ranks
    ):
        raise DistributedTypeError(f"ranks is {ranks!r}", hint="give a list of whole numbers")
    hint = f"give each rank once, of 0 to {size - 1}"
    if not ranks or len(set(ranks)) != len(ranks):
        raise DistributedError(f"ranks is {list(ranks)!r}", hint=hint)
    if not all(0 <= rank < size for rank in ranks):
        raise DistributedError(
            f"ranks is {list(ranks)!r}: the new group's rank should be within the world_size set by init_process_group",
            hint=hint,
        )
    return sorted(ranks)
