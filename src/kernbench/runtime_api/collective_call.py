"""A collective between the program that calls it and the backend: who calls, with which tensors, and how others are
told about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.ccl.calls import CollectiveCall, CollectiveName, Per, ReduceOp
from kernbench.runtime_api.collective_args import described, rank_in
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.matching import Said
from kernbench.runtime_api.process_group import ProcessGroup, World
from kernbench.runtime_api.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Member:
    """The caller as a rank of a group; `rank` counts within it."""

    world: World
    group: ProcessGroup
    rank: int

    def number_of(self, world_rank: object, name: str) -> int:
        """The number in the group of a rank of the world, given as argument `name`."""
        return rank_in(world_rank, self.group.ranks, name, self.group.title)


@dataclass(frozen=True, slots=True)
class Request:
    """What a program asks for. `numel` must be the same on all ranks; `title` and `more` are for messages."""

    name: CollectiveName
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    numel: int = 0
    op: ReduceOp | str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    per: Per = "rank"
    gives: tuple[int, ...] = ()  # rows for each rank
    takes: tuple[int, ...] = ()  # rows from each rank
    title: str = ""
    more: str = ""  # further arguments, as text

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.inputs + self.outputs

    def call(self, member: Member, op: ReduceOp | None) -> CollectiveCall:
        """The call as the backend gets it, but for its number."""
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
            input_splits=self.gives,
            output_splits=self.takes,
        )

    def said(self, call: CollectiveCall, member: Member, agreement: Mapping[str, object]) -> Said:
        """What must be the same on other ranks, and the call in words."""
        facts: dict[str, object] = {}
        if self.peer is None:
            facts = {"collective": self.name, "per": self.per}
        else:
            facts = {}
        if self.tensors:
            facts |= {"dtype": call.dtype, "elements per row" if self.gives else "elements": self.numel}
        if call.op is not None:
            facts["op"] = str(call.op)
        if self.root is not None:
            facts["root"] = f"rank {member.group.ranks[self.root]}"
        parts = [described(self.inputs or self.outputs), "" if call.op is None else str(call.op), self.more]
        text = f"{self.title or self.name}({', '.join(part for part in parts if part)})"
        return Said(text, facts | dict(agreement), self.gives, self.takes, host_line())
