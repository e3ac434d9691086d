"""Where the tensors of a launch lie on the machine.

`slabs` puts each part of a tensor into the memory next to the PE whose programs use it: the starts of the slabs follow
from the first bytes that the programs touch. `interleave` deals pages to the memories of all PEs, for operands that
many programs share. By default each tensor gets what fits it: three programs of the grid, the first two and the last,
are run ahead without a machine and without effects, to see which bytes they touch. A tensor keeps its place as long as
it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from greenlet import getcurrent

from kernbench.policy.placement.dp import DPPolicy, parts_of
from kernbench.triton.internals import Handle, native, np_dtype_of

Placement = Literal["auto", "slabs", "interleave", "replicate"]
PLACEMENTS = ("auto", "slabs", "interleave", "replicate")
_MOST_OPS = 20_000  # of a program that is run ahead
_DENSE = 0.5  # of the bytes from the first to the last that a program touches are used
_SHARED = 2.0  # so often is each byte of a shared operand used

Ids = tuple[int, int, int]
Span = tuple[int, int]  # first byte and end


class _Stop(BaseException):
    """Ends a program that is run ahead."""


class LookAhead:
    """A program without a machine: its loads are noted, its stores too and not done."""

    has_effects = False

    def __init__(self, grid: Ids, program_id: Ids, starts: Sequence[Span]) -> None:
        self.grid, self.program_id = grid, program_id
        self._spans = list(starts)
        self.touched: dict[int, Span] = {}  # by storage
        self.bytes: dict[int, int] = {}
        self.loads = 0
        self.now_ns = 0.0
        self.is_complete = False
        self._ops = 0

    @property
    def index_ops(self) -> int:
        return self._ops

    @index_ops.setter
    def index_ops(self, count: int) -> None:
        self._ops = count
        if count > _MOST_OPS:
            raise _Stop

    def _note(self, ptrs: Any, mask: Any) -> tuple[Any, Any]:
        self.index_ops += 1
        addresses = ptrs.data
        live = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask.data, addresses.shape)
        touched = addresses[live]
        if touched.size:
            low, high = int(touched.min()), int(touched.max())
            size = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
            for at, (start, end) in enumerate(self._spans):
                if start <= low < end:
                    if high >= end:
                        raise _Stop  # the launch itself names it
                    first, last = self.touched.get(at, (low, high))
                    self.touched[at] = (min(first, low), max(last, high))
                    self.bytes[at] = self.bytes.get(at, 0) + touched.size * size
                    break
            else:
                raise _Stop
        return addresses, np.ascontiguousarray(live)

    def load(self, ptrs: Any, mask: Any, other: Any) -> Any:
        self.loads += 1
        addresses, live = self._note(ptrs, mask)
        dtype = ptrs.get_element_ty()
        found = np_dtype_of(dtype)
        held = np.zeros(addresses.shape, found) if other is None else np.broadcast_to(other.data, addresses.shape)
        return Handle(native.load(addresses, live, np.ascontiguousarray(held), found), dtype)

    def store(self, ptrs: Any, value: Any, mask: Any) -> None:
        self._note(ptrs, mask)

    def dot(self, compute: Callable[[], Any], a: Any, b: Any, acc: Any, scales: Sequence[Any] = ()) -> Any:
        self.index_ops += 1
        return acc

    def atomic(self, *_: Any) -> Any:
        raise _Stop

    def settle(self, handle: Any) -> Any:
        return handle.data

    def fence(self) -> None:
        raise _Stop

    def wait_for(self, _: Any) -> None:
        """There is no time."""

    def loop(self, items: Any, _: Any) -> Any:
        return iter(items)


def look_ahead(run: Callable[[], object], grid: Ids, ids: Sequence[Ids], spans: Sequence[Span]) -> list[LookAhead]:
    """Run these programs ahead; what they touch, as far as they came."""
    thread, found = getcurrent(), []
    for program_id in ids:
        program = LookAhead(grid, program_id, spans)
        thread.triton_program = program
        try:
            with np.errstate(all="ignore"):
                run()
            program.is_complete = True
        except (_Stop, Exception):  # the launch itself reports what is wrong
            pass
        finally:
            del thread.triton_program
        found.append(program)
    return found


def policy_of(
    placement: Placement,
    at: int,
    nbytes: int,
    seen: Sequence[LookAhead],
    start: int,
    programs: int,
    pes: int,
    page: int,
) -> DPPolicy:
    """The policy of storage `at` of a launch, which has `nbytes` from address `start` on."""
    if placement == "replicate":
        return DPPolicy(cube="replicate", pe="replicate")
    touched = [each.touched.get(at) for each in seen]
    if placement == "interleave" or (placement == "auto" and _is_shared(at, nbytes, seen, programs)):
        return DPPolicy(cube="interleave", pe="interleave")
    shares = parts_of(programs, pes)
    starts = []
    for first, _ in shares:
        byte = _first_byte(touched, first, programs, start, nbytes)
        starts.append(min(-(-byte // page) * page, nbytes))
    starts[0] = 0
    return DPPolicy(cube="row_wise", pe="row_wise", starts=tuple(np.maximum.accumulate(starts).tolist()))


def _is_shared(at: int, nbytes: int, seen: Sequence[LookAhead], programs: int) -> bool:
    """Whether programs together use the bytes of a storage several times, or go through it side by side."""
    spans = sorted(span for each in seen if (span := each.touched.get(at)) is not None)
    if len(spans) < 2 or not nbytes:
        return False
    if all(each.bytes[at] >= _DENSE * (span[1] - span[0]) for each in seen if (span := each.touched.get(at))):
        return False  # each program uses a block that lies in one piece
    return any(end >= start for (_, end), (start, _) in pairwise(spans)) or (
        sum(each.bytes.get(at, 0) for each in seen) / len(seen) * programs > _SHARED * nbytes
    )


def _first_byte(touched: Sequence[Span | None], program: int, programs: int, start: int, nbytes: int) -> int:
    """Where the bytes of a program begin: at equal distances if the programs that were seen are, else in proportion."""
    first, second, last = (*touched, None, None, None)[:3]
    if first is not None and second is not None and programs > 1:
        step = second[0] - first[0]
        expected = first[0] + (programs - 1) * step
        if step > 0 and (last is None or last[0] == expected):
            return first[0] + program * step - start
    return program * nbytes // max(programs, 1)
