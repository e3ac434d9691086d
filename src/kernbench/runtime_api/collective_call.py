"""A collective on its way from the program to the device. Each stage is made from the one before:

    CollectiveRequest   what the program passes: tensors, op, root; made by the methods of `torch.distributed`
    CollectiveCall      the same as an algorithm sees it: rank, group, and where the tensors lie (`ccl/calls.py`)
    PlannedCall         the rank's part as the backend plans it (`ccl_backend.py`); its `start` makes the kernel launch

The ranks' calls are compared by their CallSignature (`matching.py`) between planning and starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.ccl.calls import CollectiveCall, CollectiveName, Per, ReduceOp
from kernbench.common.errors import DistributedError
from kernbench.runtime_api.collective_args import described, rank_in
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.matching import CallSignature
from kernbench.runtime_api.process_group import ProcessGroup, World
from kernbench.runtime_api.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Member:
    """The caller as a member of a group; `rank` is its rank within the group."""

    world: World
    group: ProcessGroup
    rank: int

    def root(self, global_rank: object, group_rank: object, name: str, default: int | None = None) -> int:
        """The group rank of a root or peer that was passed as argument `name`, or as `group_name`."""
        if group_rank is not None:
            if global_rank is not None:
                raise DistributedError(f"both {name} and group_{name} are given", hint="give one of them")
            return rank_in(group_rank, range(self.group.size()), f"group_{name}", self.group.title)
        if global_rank is None and default is None:
            raise DistributedError(f"{name} is not given", hint=f"name a rank: {name}=, or group_{name}=")
        return rank_in(default if global_rank is None else global_rank, self.group.ranks, name, self.group.title)


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """What a program asks for. `numel` must be equal on all ranks; `title` and `more` are for messages."""

    name: CollectiveName
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    numel: int = 0
    op: ReduceOp | str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    per: Per = "rank"
    input_splits: tuple[int, ...] = ()  # rows for each rank
    output_splits: tuple[int, ...] = ()  # rows from each rank
    has_equal_splits: bool = False  # whether no sizes were given
    title: str = ""
    more: str = ""  # further arguments, as text

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.inputs + self.outputs

    def call(self, member: Member, op: ReduceOp | None) -> CollectiveCall:
        """The call as the backend gets it."""
        return CollectiveCall(
            name=self.name,
            group=member.group.placed,
            rank=member.rank,
            inputs=tuple(tensor.as_arg() for tensor in self.inputs),
            outputs=tuple(tensor.as_arg() for tensor in self.outputs),
            op=op,
            root=self.root,
            peer=self.peer,
            per=self.per,
            input_splits=self.input_splits,
            output_splits=self.output_splits,
            has_equal_splits=self.has_equal_splits,
        )

    def signature(self, call: CollectiveCall, member: Member, planned: Mapping[str, object]) -> CallSignature:
        """What must match on other ranks, with what the backend adds (`planned`), and the call in words."""
        facts: dict[str, object] = {} if self.peer is not None else {"collective": self.name, "per": self.per}
        if self.tensors:
            facts |= {"dtype": call.dtype, "elements per row" if self.input_splits else "elements": self.numel}
        if call.op is not None:
            facts["op"] = str(call.op)
        if self.root is not None:
            facts["root"] = f"rank {member.group.ranks[self.root]}"
        parts = [described(self.inputs or self.outputs), "" if call.op is None else str(call.op), self.more]
        text = f"{self.title or self.name}({', '.join(part for part in parts if part)})"
        return CallSignature(text, facts | dict(planned), self.input_splits, self.output_splits, host_line())
