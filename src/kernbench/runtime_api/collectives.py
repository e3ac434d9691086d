"""Collectives of tensors, with PyTorch's calls and PyTorch's meaning; messages are in `point_to_point.py`.

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

from kernbench.ccl.calls import Per, ReduceOp
from kernbench.common.errors import DistributedError
from kernbench.runtime_api import collective_args as args
from kernbench.runtime_api.collective_call import CollectiveRequest, Member
from kernbench.runtime_api.groups import GroupArg
from kernbench.runtime_api.point_to_point import PointToPoint
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import FinishedWork, LaunchedWork, Work

Op = ReduceOp | str
PER = ("sip", "rank", "cube", None)


class Collectives(PointToPoint):
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

    # ---- inside

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
