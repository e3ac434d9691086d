"""Messages between two ranks: send, receive, and what they share with collectives.

A message starts when both of its ends were called (`matching.py`), in the order in which messages were matched.
"""

from __future__ import annotations

from typing import Literal
from weakref import ref

from greenlet import getcurrent

from kernbench.ccl.calls import CollectiveCall
from kernbench.common.errors import DistributedError, ProcessGroupError
from kernbench.runtime_api import collective_args as args
from kernbench.runtime_api.collective_call import CollectiveRequest, Member
from kernbench.runtime_api.groups import GroupArg, ProcessGroups
from kernbench.runtime_api.matching import MessageEnd
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import FinishedWork, LaunchedWork, UnmatchedMessage, Work


class PointToPoint(ProcessGroups):
    """The part of `torch.distributed` that moves tensors from one rank to another."""

    def isend(
        self,
        tensor: Tensor,
        dst: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> Work:
        """Send a tensor to a rank, and return at once; its elements may change when the work is done."""
        return self._posted("send", tensor, group, tag, dst, group_dst)

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: GroupArg = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> Work:
        """Receive the next message of a rank, and return at once; the elements have arrived when the work is done."""
        if src is None and group_src is None:
            raise DistributedError("irecv needs a source", hint="name the rank with src=, or use recv, which waits")
        return self._posted("recv", tensor, group, tag, src, group_src)

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

    def _posted(
        self,
        name: Literal["send", "recv"],
        tensor: Tensor,
        group: GroupArg,
        tag: int,
        rank: int | None,
        group_rank: int | None,
    ) -> Work:
        """One end of a message with another rank, which is named by its global rank or by that in the group."""
        only, chosen = args.one_tensor(tensor, "tensor"), self._member(group)
        side, what = ("dst", "destination") if name == "send" else ("src", "source")
        peer = chosen.root(rank, group_rank, side)
        args.another_rank(peer, chosen.rank, what)
        number, more = args.whole_number(tag, "tag"), f"{side}={chosen.group.ranks[peer]}, tag={tag}"
        given, taken = ((only,), ()) if name == "send" else ((), (only,))
        return self._message(
            CollectiveRequest(name, given, taken, numel=only.numel(), peer=peer, tag=number, more=more), chosen
        )

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
