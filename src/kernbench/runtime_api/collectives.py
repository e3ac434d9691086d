"""Collectives of tensors and messages between ranks, with PyTorch's calls and PyTorch's meaning.

A rank is a SIP. A call is checked, planned, compared with the calls of the group's other ranks (`matching.py`), and
started on the caller's SIP. No rank waits on the host for another rank: waiting happens on the devices. Without
`async_op` a call returns when the caller's part is done, and other ranks run meanwhile; with it, the call returns a
`Work` at once. A call starts after the caller's launches that use its tensors are done, and a barrier after all of the
caller's launches are done. A call without elements is compared and starts nothing.

A rank's tensor is one tensor however it is placed on the rank's SIP. `per="cube"` of `all_reduce` is an extension of
PyTorch: the part of each cube is a separate addend. Ranks in arguments are global ones, or ranks of the group where
their names begin with `group_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal
from weakref import ref

from greenlet import getcurrent

from kernbench.ccl.calls import CollectiveCall, Per, ReduceOp
from kernbench.common.errors import DistributedError, ProcessGroupError
from kernbench.runtime_api import collective_args as args
from kernbench.runtime_api.collective_call import CollectiveRequest, Member
from kernbench.runtime_api.groups import GroupArg, ProcessGroups
from kernbench.runtime_api.matching import MessageEnd
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import FinishedWork, LaunchedWork, UnmatchedMessage, Work

Op = ReduceOp | str
PER = ("sip", "rank", "cube", None)


class Collectives(ProcessGroups):
    """The part of `torch.distributed` that moves tensors."""

    _warned_of_rows = False  # whether this program was warned of an all_reduce without `per`

    # ---- collectives without a root

    def all_reduce(
        self,
        tensor: Tensor,
        op: Op = ReduceOp.SUM,
        group: GroupArg = None,
        async_op: bool = False,
        *,
        per: Literal["sip", "rank", "cube"] | None = None,
    ) -> Work | None:
        """Every rank's tensor becomes the op over those of all ranks.

        With `per="cube"` the tensor has a row for each cube, and each cube's part is a separate addend: afterwards each
        cube holds the op over all cubes of all ranks. `per="sip"`, or `"rank"`, is the default; a program that reduces
        a tensor with a row for each cube without naming one of them gets a KernBenchWarning, once.
        """
        only = args.one_tensor(tensor, "tensor")
        if per not in PER:
            raise DistributedError(f"per is {per!r}", hint="use 'sip' or 'cube'")
        if per is None and not self._warned_of_rows:
            self._warned_of_rows = args.warn_of_row_per_cube(only)
        addend: Per = "cube" if per == "cube" else "rank"
        text = "" if addend == "rank" else f"per={addend!r}"
        call = CollectiveRequest("all_reduce", (only,), (only,), numel=only.numel(), op=op, per=addend, more=text)
        return self._collective(call, group, async_op)

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: GroupArg = None, async_op: bool = False
    ) -> Work | None:
        """On every rank, tensor i of the list becomes the tensor of rank i."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        outputs = args.tensor_list(tensor_list, "tensor_list", chosen.group.size())
        args.same_numel(outputs, only.numel(), f"it takes the tensor of a rank, as long as '{only.name}'")
        args.different_tensors(outputs, (only,), chosen.rank)
        return self._collective(CollectiveRequest("all_gather", (only,), outputs, numel=only.numel()), group, async_op)

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, group: GroupArg = None, async_op: bool = False
    ) -> Work | None:
        """On every rank, the output becomes the inputs of all ranks, one after the other. The input may be the rank's
        own block of the output.
        """
        output, only = args.one_tensor(output_tensor, "output_tensor"), args.one_tensor(input_tensor, "input_tensor")
        chosen = self._member(group)
        size = chosen.group.size()
        args.same_numel((output,), size * only.numel(), f"{size} ranks give {only.numel()} elements each")
        if not args.is_block(only, output, chosen.rank):
            args.different_tensors((output,), (only,))
        call = CollectiveRequest("all_gather", (only,), (output,), numel=only.numel(), title="all_gather_into_tensor")
        return self._collective(call, group, async_op)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: Op = ReduceOp.SUM,
        group: GroupArg = None,
        async_op: bool = False,
    ) -> Work | None:
        """The output of rank i becomes the op over tensor i of the lists of all ranks."""
        only, size = args.one_tensor(output, "output"), self._member(group).group.size()
        inputs = args.tensor_list(input_list, "input_list", size)
        args.same_numel(inputs, only.numel(), f"it goes into the output of a rank, as long as '{only.name}'")
        args.different_tensors((only,), inputs)
        return self._collective(
            CollectiveRequest("reduce_scatter", inputs, (only,), numel=only.numel(), op=op), group, async_op
        )

    def reduce_scatter_tensor(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, group: GroupArg = None, async_op: bool = False
    ) -> Work | None:
        """The output of rank i becomes the op over part i of the inputs of all ranks. It may be that part of the rank's
        own input.
        """
        only, whole = args.one_tensor(output, "output"), args.one_tensor(input, "input")
        chosen = self._member(group)
        size = chosen.group.size()
        args.same_numel((whole,), size * only.numel(), f"{size} ranks take {only.numel()} elements each")
        if not args.is_block(only, whole, chosen.rank):
            args.different_tensors((only,), (whole,))
        call = CollectiveRequest(
            "reduce_scatter", (whole,), (only,), numel=only.numel(), op=op, title="reduce_scatter_tensor"
        )
        return self._collective(call, group, async_op)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: GroupArg = None,
        async_op: bool = False,
    ) -> Work | None:
        """Part i of every rank's input goes to rank i, whose output becomes the parts, in the order of ranks.

        Parts are rows along axis 0, equally many without split sizes. Split sizes are given on all ranks or on none.
        """
        into, whole = args.one_tensor(output, "output"), args.one_tensor(input, "input")
        size = self._member(group).group.size()
        sends = args.row_splits(whole, input_split_sizes, size, "input_split_sizes")
        receives = args.row_splits(into, output_split_sizes, size, "output_split_sizes")
        if whole.shape[1:] != into.shape[1:]:
            raise DistributedError(
                f"rows of shape {list(whole.shape[1:])} do not fit into rows of shape {list(into.shape[1:])}",
                hint="let input and output differ along axis 0 only",
            )
        args.different_tensors((into,), (whole,))
        row = prod(whole.shape[1:])
        text = (
            "" if not (input_split_sizes or output_split_sizes) else f"sends {list(sends)}, receives {list(receives)}"
        )
        call = CollectiveRequest(
            "all_to_all",
            (whole,),
            (into,),
            numel=row,
            title="all_to_all_single",
            input_splits=sends,
            output_splits=receives,
            has_equal_splits=not text,
            more=text,
        )
        return self._collective(call, group, async_op)

    def barrier(self, group: GroupArg = None, async_op: bool = False, device_ids: object = None) -> Work | None:
        """Return when all ranks have called it: a collective without tensors, which takes simulated time on the
        devices.

        It starts when all of the caller's launches are done. `device_ids` is accepted for compatibility.
        """
        self._member(group)
        self._host.wait_all()
        return self._collective(CollectiveRequest("barrier"), group, async_op)

    # ---- with a root

    def reduce(
        self,
        tensor: Tensor,
        dst: int | None = None,
        op: Op = ReduceOp.SUM,
        group: GroupArg = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """The tensor of rank `dst` becomes the op over those of all ranks; on other ranks its contents are undefined
        afterwards.
        """
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        root = chosen.root(dst, group_dst, "dst")
        outputs = (only,) if root == chosen.rank else ()
        call = CollectiveRequest(
            "reduce", (only,), outputs, numel=only.numel(), op=op, root=root, more=f"dst={chosen.group.ranks[root]}"
        )
        return self._collective(call, group, async_op)

    def broadcast(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: GroupArg = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        """Every rank's tensor becomes that of rank `src`."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        root = chosen.root(src, group_src, "src")
        inputs = (only,) if root == chosen.rank else ()
        call = CollectiveRequest(
            "broadcast", inputs, (only,), numel=only.numel(), root=root, more=f"src={chosen.group.ranks[root]}"
        )
        return self._collective(call, group, async_op)

    def gather(
        self,
        tensor: Tensor,
        gather_list: Sequence[Tensor] | None = None,
        dst: int | None = None,
        group: GroupArg = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """On rank `dst`, which gives a list, tensor i of it becomes the tensor of rank i."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        root = chosen.root(dst, group_dst, "dst", default=0)
        outputs = _list_on_root("gather_list", gather_list, chosen, root, "destination")
        args.same_numel(outputs, only.numel(), f"it takes the tensor of a rank, as long as '{only.name}'")
        args.different_tensors(outputs, (only,), chosen.rank)
        call = CollectiveRequest(
            "gather", (only,), outputs, numel=only.numel(), root=root, more=f"dst={chosen.group.ranks[root]}"
        )
        return self._collective(call, group, async_op)

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: Sequence[Tensor] | None = None,
        src: int | None = None,
        group: GroupArg = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        """The tensor of rank i becomes tensor i of the list that rank `src` gives."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        root = chosen.root(src, group_src, "src", default=0)
        inputs = _list_on_root("scatter_list", scatter_list, chosen, root, "source")
        args.same_numel(inputs, only.numel(), f"it goes into the tensor of a rank, as long as '{only.name}'")
        args.different_tensors((only,), [each for at, each in enumerate(inputs) if at != chosen.rank])
        call = CollectiveRequest(
            "scatter", inputs, (only,), numel=only.numel(), root=root, more=f"src={chosen.group.ranks[root]}"
        )
        return self._collective(call, group, async_op)

    # ---- messages

    def isend(
        self,
        tensor: Tensor,
        dst: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> Work:
        """Send a tensor to a rank, and return at once; its elements may change when the work is done."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        peer = chosen.root(dst, group_dst, "dst")
        args.another_rank(peer, chosen.rank, "destination")
        number, more = args.whole_number(tag, "tag"), f"dst={chosen.group.ranks[peer]}, tag={tag}"
        return self._message(
            CollectiveRequest("send", (only,), numel=only.numel(), peer=peer, tag=number, more=more), chosen
        )

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> Work:
        """Receive the next message of a rank, and return at once; the elements have arrived when the work is done."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        if src is None and group_src is None:
            raise DistributedError("irecv needs a source", hint="name the rank with src=, or use recv, which waits")
        peer = chosen.root(src, group_src, "src")
        args.another_rank(peer, chosen.rank, "source")
        number, more = args.whole_number(tag, "tag"), f"src={chosen.group.ranks[peer]}, tag={tag}"
        return self._message(
            CollectiveRequest("recv", (), (only,), numel=only.numel(), peer=peer, tag=number, more=more), chosen
        )

    def send(
        self,
        tensor: Tensor,
        dst: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> None:
        """Send a tensor to a rank; returns when it has left."""
        self.isend(tensor, dst, group, tag, group_dst).wait()

    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> int:
        """Receive the next message of a rank, or without a source the first that any rank sends; returns the sender,
        a global rank, when the elements have arrived.
        """
        chosen = self._member(group)
        if src is None and group_src is None:
            args.one_tensor(tensor, "tensor")
            src = self._next_sender(chosen, args.whole_number(tag, "tag"))
        self.irecv(tensor, src, group, tag, group_src).wait()
        return chosen.group.ranks[chosen.root(src, group_src, "src")]

    # ---- inside

    def _member(self, group: GroupArg) -> Member:
        """The caller as a member of a group; raises ProcessGroupError if it is none."""
        world, world_rank = self._here()
        chosen = self._chosen(world, group)
        if world_rank is None and world.size > 1:
            raise ProcessGroupError(
                f"the main program is no rank of {chosen.title}",
                hint="call collectives in ranks: torch.multiprocessing.spawn(fn, args, nprocs) runs fn(rank, *args)",
            )
        rank = chosen.rank_of(world_rank or 0)
        if rank < 0:
            raise ProcessGroupError(
                f"rank {world_rank} is not in {chosen.title}, which has ranks {list(chosen.ranks)}",
                hint="let only members call",
            )
        return Member(world, chosen, rank)

    def _collective(self, request: CollectiveRequest, group: GroupArg, async_op: bool) -> Work | None:
        member = self._member(group)
        call = self._checked(request, member)
        if request.tensors and not any(tensor.numel() for tensor in request.tensors) and not request.input_splits:
            member.group.calls.enter(member.rank, request.signature(call, member, {}))
            return FinishedWork(request.title or request.name, None, request.outputs) if async_op else None
        planned = member.world.backend.plan(call, request.inputs, request.outputs)
        number = member.group.calls.enter(member.rank, request.signature(call, member, planned.signature))
        self._host.wait_for_users(request.tensors)
        work = LaunchedWork(self._host, planned.start(number), outputs=request.outputs or request.inputs)
        if async_op:
            return work
        work.wait()
        return None

    def _message(self, request: CollectiveRequest, member: Member) -> Work:
        call = self._checked(request, member)
        planned = member.world.backend.plan(call, request.inputs, request.outputs) if request.numel else None
        assert call.peer is not None
        is_send = call.name == "send"
        ends = (member.rank, call.peer) if is_send else (call.peer, member.rank)
        self._host.wait_for_users(request.tensors)
        both = self._ranks.event()
        facts = planned.signature if planned is not None else {}
        end = MessageEnd(member.rank, request.signature(call, member, facts), is_send, both.succeed)
        member.group.messages.enter(*ends, request.tag, end)
        source = None if is_send else member.group.ranks[call.peer]
        what = f"the other end of {end.signature.at}"

        def when_matched() -> Work:
            # A SIP transfers its messages one after the other. Every rank starts them in the order in which they were
            # matched: with different orders, ranks could deadlock.
            self._ranks.wait([both], what)
            assert end.number is not None
            if planned is None:  # no elements
                return FinishedWork(end.signature.text, source, request.outputs)
            return LaunchedWork(self._host, planned.start(end.number), source, request.outputs)

        if end.number is not None:
            both.succeed()
            return when_matched()
        rank = ref(getcurrent())

        def later() -> None:
            work = when_matched()
            if isinstance(work, LaunchedWork):
                work.launch.rank = rank  # the launch belongs to the rank, not to this background program
            work.wait()

        name = f"rank {member.group.ranks[member.rank]}"
        work = UnmatchedMessage(
            self._ranks.start(later, name), end.signature.text, source, lambda: end.number is not None, request.outputs
        )
        self._unmatched = [*(each for each in self._unmatched if not each.is_completed()), work]
        return work

    def team_finishes(self) -> None:
        """Return when all messages with both ends posted are done, whether or not a program waits for them."""
        for work in self._unmatched:
            if work.is_matched():
                work.wait()
        self._unmatched = []

    def _next_sender(self, member: Member, tag: int) -> int:
        """The rank whose message with this tag the caller receives next; waits until there is one."""
        messages = member.group.messages
        while (sender := messages.first_sender_to(member.rank, tag)) is None:
            sent = self._ranks.event()
            messages.listen(member.rank, sent.succeed)
            self._ranks.wait([sent], f"recv: a message from any rank with tag {tag}")
        return member.group.ranks[sender]

    def _checked(self, request: CollectiveRequest, member: Member) -> CollectiveCall:
        """The call as the backend gets it, after the checks that all collectives share."""
        for tensor in request.tensors:
            self._host.check_ours(tensor)
        args.same_dtype(*request.tensors)
        args.on_sip(request.tensors, member.group.placed.sips[member.rank])
        return request.call(member, None if request.op is None else args.reduce_op(request.op, request.tensors[0]))


def _list_on_root(name: str, given: object, member: Member, root: int, kind: str) -> tuple[Tensor, ...]:
    """The list of tensors that the root passes; other ranks must pass none."""
    if member.rank == root:
        if not given:
            raise DistributedError(
                f"Argument ``{name}`` must be specified on {kind} rank.",
                hint=f"give a list of {member.group.size()} tensors, one for each rank of the group",
            )
        return args.tensor_list(given, name, member.group.size())
    if given:
        raise DistributedError(
            f"Argument ``{name}`` must NOT be specified on non-{kind} ranks.", hint="give None on other ranks"
        )
    return ()
