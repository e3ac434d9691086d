"""Collectives as nccl-tests measures them: two times, two bandwidths, and whether every rank has the right numbers.

algbw is size / time; busbw is that times the share of the size that must cross each rank's link, whatever the
algorithm, so it can be held against the link. Time is the device's: from the first PE that starts to the last that
ends, of all ranks. The time with the launch is the host's: from the first rank's call to the last completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.benches._collective_calls import (
    REDUCES,
    ROOTED,
    MeasuredCollective,
    OpName,
    WantedCollective,
    bus_factor,
    count_wrong,
    expected,
    inputs_of,
)
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.units import counted
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import LaunchedWork, Work

__all__ = [
    "EVERY_PE",
    "Measured",
    "MeasuredCollective",
    "OpName",
    "SipMemoryUse",
    "WantedCollective",
    "measure",
    "sizes_between",
]

EVERY_PE = DPPolicy(cube="row_wise", pe="row_wise")


@dataclass(frozen=True, slots=True)
class SipMemoryUse:
    """Bytes of a SIP that a collective takes, of the SIP that needs most: its tensors, the rings of its messages, and
    what its kernels had in TCM at their peaks.
    """

    tensors_bytes: int = 0
    rings_bytes: int = 0
    kernels_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One collective of one size. `wrong` is None where numbers were not looked at."""

    collective: str
    algorithm: str
    nbytes: int
    count: int
    dtype: str
    op: str | None
    root: int | None
    time_ns: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None
    launched_ns: float = 0.0  # the time with the launch
    memory: SipMemoryUse = SipMemoryUse()

    def as_json(self) -> dict[str, object]:
        return {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "size_bytes": self.nbytes,
            "count": self.count,
            "dtype": self.dtype if self.count else None,
            "op": self.op,
            "root": self.root,
            **self.figures(),
        }

    def figures(self) -> dict[str, object]:
        """What was measured."""
        return {
            "time_us": self.time_ns / 1000,
            "time_with_launch_us": self.launched_ns / 1000,
            "algbw_gbs": self.algbw_gbs,
            "busbw_gbs": self.busbw_gbs,
            "wrong": self.wrong,
            "memory": asdict(self.memory),
        }


# ------------------------------------------------------------------------------------------------------------ one rank


class _Call(NamedTuple):
    start: Callable[[], Sequence[Work | None]]
    results: tuple[Tensor, ...] = ()


class _Rank:
    """A rank's tensors of a collective, and its call."""

    def __init__(self, torch: RuntimeContext, wanted: WantedCollective, ranks: int, rank: int, dp: DPPolicy) -> None:
        self._torch, self._wanted, self._dp = torch, wanted, dp
        self._ranks, self._rank, self._total = ranks, rank, wanted.total(ranks)
        self._given = inputs_of(wanted, ranks, rank)
        self._op = {"prod": "product"}.get(wanted.op, wanted.op)

    def call(self) -> _Call:
        prepare: Callable[[], _Call] = getattr(self, f"_{self._wanted.collective}")
        return prepare()

    def _x(self) -> Tensor:
        return self._torch.from_numpy(self._given, dtype=self._wanted.dtype, dp=self._dp, name="x")

    def _empty(self, n: int, name: str = "y") -> Tensor:
        return self._torch.zeros(n, dtype=self._wanted.dtype, dp=self._dp, name=name)

    def _block(self, whole: Tensor) -> Tensor:
        """The rank's own block of a tensor that has one for each rank."""
        n = self._total // self._ranks
        return whole[self._rank * n : (self._rank + 1) * n]

    def _all_reduce(self) -> _Call:
        x = self._x()
        return _Call(lambda: [self._torch.distributed.all_reduce(x, self._op, async_op=True, per="sip")], (x,))

    def _broadcast(self) -> _Call:
        x = self._x()
        return _Call(lambda: [self._torch.distributed.broadcast(x, self._wanted.root, async_op=True)], (x,))

    def _reduce(self) -> _Call:
        x, root = self._x(), self._wanted.root
        results = (x,) if self._rank == root else ()
        return _Call(lambda: [self._torch.distributed.reduce(x, root, self._op, async_op=True)], results)

    def _all_gather(self) -> _Call:
        if self._wanted.in_place:
            whole = np.zeros(self._total, self._given.dtype)
            n = len(self._given)
            whole[self._rank * n : (self._rank + 1) * n] = self._given
            y = self._torch.from_numpy(whole, dtype=self._wanted.dtype, dp=self._dp, name="y")
            x = self._block(y)
        else:
            x, y = self._x(), self._empty(self._total)
        return _Call(lambda: [self._torch.distributed.all_gather_into_tensor(y, x, async_op=True)], (y,))

    def _reduce_scatter(self) -> _Call:
        x = self._x()
        y = self._block(x) if self._wanted.in_place else self._empty(self._total // self._ranks)
        return _Call(lambda: [self._torch.distributed.reduce_scatter_tensor(y, x, self._op, async_op=True)], (y,))

    def _all_to_all(self) -> _Call:
        x, y = self._x(), self._empty(self._total)
        return _Call(lambda: [self._torch.distributed.all_to_all_single(y, x, async_op=True)], (y,))

    def _gather(self) -> _Call:
        x, root = self._x(), self._wanted.root
        parts: tuple[Tensor, ...] = ()
        if self._rank == root:
            n = self._total // self._ranks
            own = x if self._wanted.in_place else self._empty(n, f"y{root}")
            parts = tuple(own if each == root else self._empty(n, f"y{each}") for each in range(self._ranks))
        return _Call(lambda: [self._torch.distributed.gather(x, parts or None, root, async_op=True)], parts)

    def _scatter(self) -> _Call:
        root, n = self._wanted.root, self._total // self._ranks
        lists: list[Tensor] = []
        if self._rank == root:
            blocks = self._given.reshape(self._ranks, n)
            lists = [
                self._torch.from_numpy(block, dtype=self._wanted.dtype, dp=self._dp, name=f"x{at}")
                for at, block in enumerate(blocks)
            ]
        y = lists[root] if lists and self._wanted.in_place else self._empty(n)
        return _Call(lambda: [self._torch.distributed.scatter(y, lists or None, root, async_op=True)], (y,))

    def _sendrecv(self) -> _Call:
        """To the next rank, and from the one before."""
        dist, x, y = self._torch.distributed, self._x(), self._empty(self._total)
        messages = [
            dist.P2POp(dist.isend, x, (self._rank + 1) % self._ranks),
            dist.P2POp(dist.irecv, y, (self._rank - 1) % self._ranks),
        ]
        return _Call(lambda: dist.batch_isend_irecv(messages), (y,))

    def _barrier(self) -> _Call:
        return _Call(lambda: [self._torch.distributed.barrier(async_op=True)])


def span_of(work: Work | None) -> tuple[float, float]:
    """Waits for a collective; from when to when this rank's PEs were at it."""
    assert isinstance(work, LaunchedWork)
    work.wait()
    return _pe_span(work.launch)


def _pe_span(launch: Launch) -> tuple[float, float]:
    return min(pe.start_ns for pe in launch.pes), max(pe.end_ns for pe in launch.pes)


def duration_ns(spans: Sequence[tuple[float, float]]) -> float:
    """From the first PE that starts to the last that ends, of all ranks."""
    return max(end for _, end in spans) - min(start for start, _ in spans)


def check_root(collective: str, root: int, ranks: int) -> None:
    """Raises UsageError for a root that is not among the ranks, where the collective has one, and for sendrecv on one
    rank.
    """
    if collective == "sendrecv" and ranks < 2:
        raise UsageError("sendrecv needs 2 ranks or more, and there is 1", hint="give -g 2, or a machine of more SIPs")
    if collective in ROOTED and not 0 <= root < ranks:
        raise UsageError(f"root {root} of {counted(ranks, 'rank')}", hint=f"give 0 to {ranks - 1}")


def measure(
    torch: RuntimeContext, wanted: WantedCollective, *, dp: DPPolicy = EVERY_PE, check: bool = True
) -> Measured:
    """One collective by all ranks of a process group that is there; raises UsageError for a root that is not."""
    ranks = torch.distributed.get_world_size()
    check_root(wanted.collective, wanted.root, ranks)
    started: list[int] = []  # how many launches there were when every rank was ready
    wrong: list[int] = []
    tensors: list[int] = []

    def worker(rank: int) -> None:
        call = _Rank(torch, wanted, ranks, rank, dp).call()
        torch.distributed.barrier()
        started.append(len(torch.launches))
        works = call.start()
        for work in works:
            assert work is not None
            work.wait()
        tensors.append(_hbm_bytes(torch, rank))
        title = f"{wanted.collective} of {wanted.nbytes} bytes"
        for at, tensor in enumerate(call.results):
            part = partial(_part, wanted, ranks, rank, at, len(call.results))
            torch.check(tensor, part, name=f"{title}, {tensor.name} of rank {rank}")
        if check and call.results:
            found = np.concatenate([tensor.numpy().ravel() for tensor in call.results])
            wrong.append(count_wrong(found, expected(wanted, ranks, rank), wanted.dtype))

    torch.multiprocessing.spawn(worker, nprocs=ranks)
    prefixes = tuple(f"{name}." for name in wanted.configured_as())
    launches = [each for each in torch.launches[min(started) :] if each.name.startswith(prefixes)]
    time_ns = duration_ns([_pe_span(launch) for launch in launches])
    nbytes = wanted.total(ranks) * dtype_of(wanted.dtype).itemsize
    algbw = nbytes / time_ns if time_ns else 0.0
    return Measured(
        wanted.collective,
        launches[0].name.rpartition(".")[2],
        nbytes,
        wanted.count(ranks),
        wanted.dtype,
        wanted.op if wanted.collective in REDUCES else None,
        wanted.root if wanted.collective in ROOTED else None,
        time_ns,
        algbw,
        algbw * bus_factor(wanted.collective, ranks),
        sum(wrong) if check and wanted.collective != "barrier" else None,
        max(launch.end_ns for launch in launches) - min(launch.start_ns for launch in launches),
        _memory(torch, max(tensors), launches),
    )


def _part(wanted: WantedCollective, ranks: int, rank: int, at: int, parts: int) -> NDArray[np.float64]:
    """What one of a rank's `parts` results must hold; asked for only where it is compared."""
    part: NDArray[np.float64] = expected(wanted, ranks, rank).reshape(parts, -1)[at]
    return part


def _hbm_bytes(torch: RuntimeContext, sip: int) -> int:
    """What is allocated in the HBM of a SIP."""
    spec = torch.spec
    return sum(torch.used_bytes(sip, cube, pe) for cube in range(spec.sip.n_cubes) for pe in range(spec.cube.n_pes))


def _memory(torch: RuntimeContext, tensors: int, launches: Sequence[Launch]) -> SipMemoryUse:
    kernels = [
        sum(pe.tcm_peak_bytes for each in launches for pe in each.pes if pe.sip == sip) for sip in _sips(launches)
    ]
    rings = torch.communicators.allocated_bytes()
    return SipMemoryUse(tensors, max(rings[sip] for sip in _sips(launches)), max(kernels))


def _sips(launches: Sequence[Launch]) -> list[int]:
    return sorted({sip for launch in launches for sip in launch.sips})


def sizes_between(first: int, last: int, factor: int = 2, step: int = 0) -> list[int]:
    """From the first size to the last, each `factor` times the one before, or `step` more."""
    if first < 1 or last < first:
        raise UsageError(
            f"sizes from {first} to {last}", hint="give a first size of 1 or more, and a last one not below"
        )
    if not step and factor < 2:
        raise UsageError(f"a factor of {factor}", hint="give 2 or more, or a step")
    found = []
    while first <= last:
        found.append(first)
        first = first + step if step else first * factor
    return found
