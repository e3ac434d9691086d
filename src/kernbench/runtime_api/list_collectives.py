"""Collectives of lists of tensors of different sizes, and batches of messages.

`all_to_all`, and `all_gather` with sizes that differ, are messages between every two ranks, all of which are posted
before any is waited for. `reduce_scatter` with sizes that differ is one `reduce` per rank, of copies: inputs keep their
contents. The calls of the ranks are compared as those of other collectives are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from kernbench.ccl.calls import ReduceOp
from kernbench.common.errors import DistributedError, DistributedTypeError
from kernbench.runtime_api import collective_args as args
from kernbench.runtime_api.collective_call import CollectiveRequest, Member
from kernbench.runtime_api.collectives import Collectives, Op
from kernbench.runtime_api.groups import GroupArg
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.matching import CallSignature
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import CombinedWork, Work

_TAG = 1 << 40  # tags of a program are smaller


class P2POp:
    """A message for `batch_isend_irecv`: `op` is `torch.distributed.isend` or `irecv`."""

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: Tensor,
        peer: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if getattr(op, "__name__", "") not in ("isend", "irecv"):
            raise DistributedError(
                f"P2POp: op is {op!r}", hint="give torch.distributed.isend or torch.distributed.irecv"
            )
        args.one_tensor(tensor, "tensor")
        self.op, self.tensor, self.peer = op, tensor, peer
        self.group, self.tag, self.group_peer = group, tag, group_peer

    def start(self) -> Work:
        """Post the message."""
        return self.op(self.tensor, self.peer, self.group, self.tag, self.group_peer)


class ListCollectives(Collectives):
    """The part of `torch.distributed` that takes lists of tensors of any sizes."""

    def batch_isend_irecv(self, p2p_op_list: Sequence[P2POp]) -> list[Work]:
        """Post several messages; none waits for another."""
        if not isinstance(p2p_op_list, list | tuple) or not p2p_op_list:
            raise DistributedTypeError(f"p2p_op_list is {p2p_op_list!r}", hint="give a list of P2POp, one or more")
        for each in p2p_op_list:
            if not isinstance(each, P2POp):
                raise DistributedTypeError(
                    f"p2p_op_list has a {type(each).__name__}", hint="make each with torch.distributed.P2POp"
                )
        return [each.start() for each in p2p_op_list]

    def monitored_barrier(
        self, group: GroupArg = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier: a rank that never calls it is reported at once, by name."""
        self.barrier(group)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        group: GroupArg = None,
        async_op: bool = False,
    ) -> Work | None:
        """Tensor i of every rank's inputs goes to rank i, whose outputs become those of ranks 0, 1, ..."""
        member = self._member(group)
        size = member.group.size()
        outputs = args.tensor_list(output_tensor_list, "output_tensor_list", size)
        inputs = args.tensor_list(input_tensor_list, "input_tensor_list", size)
        args.different_tensors(outputs, inputs)
        return self._exchanged("all_to_all", member, inputs, outputs, group, async_op)

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: GroupArg = None, async_op: bool = False
    ) -> Work | None:
        """On every rank, tensor i of the list becomes the tensor of rank i; their sizes may differ."""
        only, member = args.one_tensor(tensor, "tensor"), self._member(group)
        outputs = args.tensor_list(tensor_list, "tensor_list", member.group.size())
        if all(each.numel() == only.numel() for each in outputs):
            return super().all_gather(outputs, only, group, async_op)
        own = outputs[member.rank]
        args.same_numel((own,), only.numel(), f"it takes the tensor of this rank, as long as '{only.name}'")
        args.different_tensors(outputs, (only,), member.rank)
        return self._exchanged("all_gather", member, (only,) * len(outputs), outputs, group, async_op)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: Op = ReduceOp.SUM,
        group: GroupArg = None,
        async_op: bool = False,
    ) -> Work | None:
        """The output of rank i becomes the op over tensor i of the lists of all ranks; their sizes may differ."""
        only, member = args.one_tensor(output, "output"), self._member(group)
        inputs = args.tensor_list(input_list, "input_list", member.group.size())
        if all(each.numel() == only.numel() for each in inputs):
            return super().reduce_scatter(only, inputs, op, group, async_op)
        own = inputs[member.rank]
        args.same_numel((own,), only.numel(), f"it goes into the output of this rank, as long as '{only.name}'")
        args.different_tensors((only,), inputs)
        works: list[Work] = []
        for rank, each in enumerate(inputs):
            into = only.view(each.shape).copy_(each) if rank == member.rank else each.clone()
            work = self.reduce(into, op=op, group=group, group_dst=rank, async_op=True)
            assert work is not None
            works.append(work)
        return _ended(CombinedWork("reduce_scatter", works, (only,)), async_op)

    def _exchanged(
        self,
        name: str,
        member: Member,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        group: GroupArg,
        async_op: bool,
    ) -> Work | None:
        """inputs[i] goes to rank i, and outputs[i] comes from it."""
        sends, receives = (tuple(each.numel() for each in some) for some in (inputs, outputs))
        if sends[member.rank] != receives[member.rank]:
            raise DistributedError(
                f"{name}: this rank sends {sends[member.rank]} elements to itself and receives {receives[member.rank]}",
                hint="let both be of one size",
            )
        request = CollectiveRequest("all_to_all", tuple(inputs), tuple(outputs))
        call = self._checked(request, member)
        facts = {"collective": name, "dtype": call.dtype}
        text = f"{name}(sends {list(sends)} elements, receives {list(receives)})"
        number = member.group.calls.enter(
            member.rank, CallSignature(text, facts, sends, receives, host_line(), "elements")
        )
        tag, works = _TAG + number, list[Work]()
        for step in range(1, len(inputs)):
            to, source = (member.rank + step) % len(inputs), (member.rank - step) % len(inputs)
            if sends[to]:
                works.append(self.isend(inputs[to], group=group, tag=tag, group_dst=to))
            if receives[source]:
                works.append(self.irecv(outputs[source], group=group, tag=tag, group_src=source))
        into, own = outputs[member.rank].view(-1), inputs[member.rank].view(-1)
        if into.storage is not own.storage or into.layout != own.layout:
            into.copy_(own)
        return _ended(CombinedWork(name, works, outputs), async_op)


def _ended(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None
