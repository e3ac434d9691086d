"""Sums over the ranks that share a layer, within its launch (`fused_decode.py`).

Every rank has partial sums of the whole product. The PE that ends with a share of them exchanges it with the PEs of the
same cube and number on the other ranks, and all end with the same total:

directly     every rank sends its share to every other one, and adds all of them: one message after the other
by owners    each rank owns a part of the share, of some columns: it gets that part of all others, adds them up and
             returns the total: two messages in turn, and 2 / ranks of the bytes

Shares are sent in the tensors' type, as those of an all-reduce, and added in f32, in the order of ranks: totals have
the same bits on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.models.machine_model import MachineModel
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TLContext


@dataclass(frozen=True)
class RankSums:
    """How so many ranks add up their sums."""

    ranks: int = 1
    by_owners: bool = False

    def owned(self, columns: int) -> list[Range]:
        """The columns that each rank owns."""
        return list(parts_of(columns, self.ranks))


ONE_RANK = RankSums()


def rank_sums(machine: MachineModel, ranks: int, nbytes: int) -> RankSums:
    """The faster way for sums of so many bytes: bytes over a SIP's links, and messages in turn."""
    direct_ns, owners_ns = (
        turns * (machine.rank_ns + machine.message_ns) + nbytes * copies / machine.sip_link
        for turns, copies in ((1, ranks - 1), (2, 2 * (ranks - 1) / ranks))
    )
    return RankSums(ranks, owners_ns < direct_ns)


class RankSum:
    """One PE's side of the sum of one share: it starts when this is made, and `finish` has the total. Every rank starts
    and finishes its sums in the same order.
    """

    def __init__(self, share: TensorHandle, plan: RankSums, rank: int, dtype: str, tl: TLContext) -> None:
        """Send what other ranks add up of a share, and post the receives of what this one adds up."""
        self._plan, self._rank, self._dtype, self._tl = plan, rank, dtype, tl
        self._rows, columns = share.shape
        whole = (0, columns)
        self._owned = plan.owned(columns) if plan.by_owners else [whole] * plan.ranks
        self._others = [(rank + by) % plan.ranks for by in range(1, plan.ranks)]  # not all send to one at a time
        self._posted: dict[int, TransferHandle] = {}  # by rank
        narrow = tl.cast(share, dtype)
        for other in self._owners_of(self._others):
            tl.send_async(f"rank_{other}", _columns(narrow, self._owned[other]))
        self._mine = [_columns(narrow, self._owned[rank])] if self._owners_of([rank]) else []
        if self._mine:
            for other in self._others:
                self._post(other, self._owned[rank])

    def finish(self) -> TensorHandle:
        """The total of all ranks: in f32, or by owners in the tensors' type."""
        if not self._plan.by_owners:
            return self._total()
        totals: dict[int, TensorHandle] = {}
        if self._mine:
            own = totals[self._rank] = self._tl.cast(self._total(), self._dtype)
            for other in self._others:
                self._tl.send_async(f"rank_{other}", own)
        for other in self._owners_of(self._others):
            self._post(other, self._owned[other])
        for other in sorted(self._posted):
            totals[other] = self._received(other)
        parts = [totals.pop(rank) for rank in sorted(totals)]
        return self._tl.cat(parts, axis=1) if len(parts) > 1 else parts[0]

    def _owners_of(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that add up some columns."""
        return [rank for rank in ranks if self._owned[rank][0] < self._owned[rank][1]]

    def _post(self, rank: int, columns: Range) -> None:
        """Post the receive of these columns from another rank."""
        shape = self._rows, columns[1] - columns[0]
        self._posted[rank] = self._tl.recv_async(f"rank_{rank}", shape, self._dtype)

    def _received(self, rank: int) -> TensorHandle:
        found = self._tl.wait(self._posted.pop(rank))
        assert found is not None
        return found

    def _total(self) -> TensorHandle:
        """The sum of the columns that this rank adds up, in the order of ranks."""
        total: TensorHandle | None = None
        for rank in range(self._plan.ranks):
            part = self._mine.pop() if rank == self._rank else self._received(rank)
            total = self._tl.cast(part, "f32") if total is None else total + part
        assert total is not None
        return total


def _columns(x: TensorHandle, columns: Range) -> TensorHandle:
    return x if columns == (0, x.shape[1]) else x[:, columns[0] : columns[1]]
