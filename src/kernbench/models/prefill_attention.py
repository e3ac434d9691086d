"""Causal attention of whole sequences: blocks of queries against keys and values in the PE's own slice.

Cubes form teams with equally many key heads (`query_blocks.PrefillAttention`). First, the keys and values of its heads
are copied to every PE of a team: one contiguous part from the team's cubes to the PEs of one number, then all parts
within the cube. So blocks of queries access the PE's own memory only.

The product of queries stores them with the PE that has their block. Scores have a row for each key, in HBM: those of
keys before the block, then those of its own keys, with a mask. Next are the largest score of each query, exponentials,
their sum, and the product with the values: a few large composites each. Scores are f32; queries are scaled, and
exponentials rounded to the tensors' type, before they are multiplied and summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.models.column_kernels import Mover, StridedBlock, cut, evenly, join_columns, put, rows_joined
from kernbench.models.kernels import rotate_heads
from kernbench.models.layouts import KParts, ResultLayout
from kernbench.models.plans import F32_BYTES, exchange_rounds
from kernbench.models.query_blocks import PrefillAttention, QueryBlock
from kernbench.models.row_pieces import AHEAD, StoresInFlight, loaded_ahead
from kernbench.policy.placement.dp import parts_of
from kernbench.tp.kernels import EpilogueSteps, rows_here
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

KEYS_AT_ONCE = 1024  # whose scores or exponentials are one composite: few different composites to simulate
ONES_SHARE = 8  # the vector of ones, with which exponentials are summed, takes at most 1/8 of TCM
PARTS_AT_ONCE = 8  # parts of the scores whose maximum is one composite
RopePiece = tuple[int, int, tuple[int, int, int]]  # its address, its first token, and (tokens, heads, head_dim)


# ---- keys and values


@repeatable
def take_heads(
    keys: TensorPtr, values: TensorPtr, key_copies: TensorPtr, value_copies: TensorPtr, *, plan: PrefillAttention,
    tl: TLContext,
) -> None:  # fmt: skip
    """Each PE copies its part of the team's keys and values, beginning with its own cube's."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    team, place = divmod(cube, plan.cubes_per_team)
    d, mover = keys.shape[1], Mover(tl, plan.sip.tcm_bytes)
    for step in range(plan.cubes_per_team):
        first, end = plan.taken_from((place + step) % plan.cubes_per_team, pe)
        own = plan.copies_of(cube, pe) + first
        for x, copies in ((keys, key_copies), (values, value_copies)):
            mover.move(x, (team * plan.team_rows + first) * d, d, copies, own * d, (end - first, d))
    tl.wait()


@repeatable
def share_heads(
    keys: TensorPtr, values: TensorPtr, key_copies: TensorPtr, value_copies: TensorPtr, *, plan: PrefillAttention,
    tl: TLContext,
) -> None:  # fmt: skip
    """Within a cube, each PE copies from every other PE the part that it has: one contiguous piece of each."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    d, mover = keys.shape[1], Mover(tl, plan.sip.tcm_bytes)
    own, is_taken = plan.copies_of(cube, pe), plan.cubes_per_team > 1
    for sources in exchange_rounds(plan.sip.pes):
        other = sources[pe]
        if other == pe and is_taken:
            continue
        start = plan.copies_of(cube, other) if is_taken else cube * plan.team_rows
        first, end = plan.taken_by(other)
        for x, copies in ((keys, key_copies), (values, value_copies)):
            source = copies if is_taken else x
            mover.move(source, (start + first) * d, d, copies, (own + first) * d, (end - first, d))
    tl.wait()


# ---- blocks of queries


def number_of(tl: TLContext) -> int:
    """The number of this PE on its SIP."""
    return tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)


@repeatable
def rope_blocks(
    queries: TensorPtr, keys: TensorPtr, angles: TensorPtr, width: int, block_elements: int, *, plan: PrefillAttention,
    tl: TLContext,
) -> None:  # fmt: skip
    """As `kernels.rope`, for the queries of this PE's blocks, and for keys by head; every PE has all angles."""
    d = keys.shape[1]

    def load(piece: RopePiece) -> list[TransferHandle]:
        place, token, shape = piece
        table = tl.load_async(angles.local + token * d * angles.itemsize, (shape[0], 1, d))
        return [tl.load_async(place, shape), table]

    stored = StoresInFlight(AHEAD, tl)
    pieces = _rope_pieces(queries, keys, width, block_elements, plan, tl)
    for (place, _, _), tensors in loaded_ahead(pieces, load, AHEAD, tl):
        rotated = rotate_heads(tensors[0], tensors[1], keys.dtype, tl)
        del tensors
        stored.add([tl.store_async(place, rotated)])
        del rotated
    tl.wait()


def _rope_pieces(
    queries: TensorPtr, keys: TensorPtr, width: int, block_elements: int, plan: PrefillAttention, tl: TLContext
) -> Iterator[RopePiece]:
    """The pieces that this PE rotates."""
    d, item = keys.shape[1], keys.itemsize
    for block, at in plan.blocks_at(number_of(tl)):
        for first, end in cut(0, block.queries, block_elements // width):
            yield queries.across + (at + first) * width * item, block.first + first, (end - first, width // d, d)
    for start, count in rows_here(keys, keys.shape[0]):
        row, last = start, start + count
        while row < last:
            token = row % plan.tokens
            some = min(last - row, plan.tokens - token, max(1, block_elements // d))
            yield keys.across + row * d * item, token, (some, 1, d)
            row += some


@repeatable
def attend_blocks(
    queries: TensorPtr, keys: TensorPtr, values: TensorPtr, scores: TensorPtr, exponentials: TensorPtr,
    masks: TensorPtr, width: int, *, plan: PrefillAttention, tl: TLContext,
) -> None:  # fmt: skip
    """This PE's blocks, against the keys and values in its own slice. Results overwrite the queries."""
    for block, at in plan.blocks_at(number_of(tl)):
        place = queries.across + at * width * queries.itemsize
        _Block(place, width, keys, values, block, plan, tl).attend(scores, exponentials, masks)


@repeatable
def hand_over(
    results: TensorPtr, out: TensorPtr, width: int, *, plan: PrefillAttention, layout: ResultLayout, tl: TLContext
) -> None:
    """Store the results of this PE's blocks where the next part reads them."""
    stored: list[TransferHandle] = []
    for block, at in plan.blocks_at(number_of(tl)):
        result = tl.load(results.across + at * width * results.itemsize, (block.queries, width))
        for handle in stored:
            tl.wait(handle)
        row, column = block.sequence * plan.tokens + block.first, block.kv_head * width
        stored = put(result, (row, row + block.queries), (column, column + width), [out], layout, tl)
        del result
    tl.wait()


@repeatable
def take_results(
    results: TensorPtr, out: TensorPtr, width: int, *, plan: PrefillAttention, layout: KParts, tl: TLContext
) -> None:
    """Gather the next product's input of this cube's rows from the PEs that computed it, head by head."""
    pe, cube, item = tl.program_id(0), tl.program_id(1), results.itemsize
    (a, b), (top, bottom) = layout.plan.k_of(pe), parts_of(layout.plan.rows, plan.sip.cubes)[cube]
    heads = range(a // width, -(-b // width))
    spans = [(max(a, head * width), min(b, head * width + width)) for head in heads]

    def wanted() -> Iterator[tuple[int, list[StridedBlock]]]:
        for (row, last), places in plan.stretches((top, bottom), heads):
            for first, end in evenly(row, last, rows_joined((b - a) * item, plan.sip)):
                pieces: list[StridedBlock] = []
                for at, (left, right) in zip(places, spans, strict=True):
                    start = (at + first - row) * width + left % width
                    pieces.append(StridedBlock(results + start * item, (end - first, right - left), width))
                yield out.across + layout.place(cube, pe, first) * item, pieces

    join_columns(wanted() if a < b else (), tl)


class _Block:
    """One block of queries, of all heads that share a key head. Scores have a row for each key and a column for each
    query, heads of a token side by side: so keys of all kinds lie one after the other.
    """

    def __init__(
        self,
        place: int,
        width: int,
        keys: TensorPtr,
        values: TensorPtr,
        block: QueryBlock,
        plan: PrefillAttention,
        tl: TLContext,
    ) -> None:
        self._tl, self._block, self._plan, self._place = tl, block, plan, place
        self._d = d = keys.local_shape[1] // plan.team_rows
        self._queries = block.queries * width // d
        self._seen = block.first + block.queries
        first = plan.head_at(block)
        self._keys = keys.local + first * d * keys.itemsize
        self._values = values.local + first * d * values.itemsize
        self._item, self._dtype = keys.itemsize, keys.dtype

    def attend(self, scores: TensorPtr, exponentials: TensorPtr, masks: TensorPtr) -> None:
        """Compute the block; its result overwrites its queries."""
        tl, n = self._tl, self._queries
        self._find_scores(scores, masks)
        self._find_exponentials(scores, exponentials)
        total = self._total(exponentials)
        weights = tl.ref(exponentials.local, (self._seen, n)).T
        values = tl.ref(self._values, (self._seen, self._d))
        steps: EpilogueSteps = [{"op": "div", "other": total}]
        tl.wait(tl.composite("gemm", weights, values, epilogue=steps, out_ptr=self._place, tile_shape="auto"))

    def _total(self, exponentials: TensorPtr) -> TensorHandle:
        """The sum of every query's exponentials, (queries, 1): products with ones, of as many keys as fit TCM."""
        tl, n, total = self._tl, self._queries, None
        spans = list(evenly(0, self._seen, self._plan.sip.tcm_bytes // ONES_SHARE // self._item))
        ones = tl.full((spans[0][1], 1), 1, self._dtype)
        for first, end in spans:
            weights = tl.ref(exponentials.local + first * n * exponentials.itemsize, (end - first, n)).T
            some = ones if end - first == ones.shape[0] else ones[: end - first]
            steps: EpilogueSteps = [] if total is None else [{"op": "add", "other": total}]
            pending = tl.composite("gemm", weights, some, epilogue=steps, out_dtype="f32", tile_shape="auto")
            total = tl.wait(pending)
        assert total is not None
        return total

    def _find_scores(self, scores: TensorPtr, masks: TensorPtr) -> None:
        """Scores of the keys before the block, which are unmasked, and of its own keys."""
        tl, block, d = self._tl, self._block, self._d
        queries = tl.load(self._place, (self._queries, d)) * d**-0.5
        if queries.dtype != self._dtype:
            queries = tl.cast(queries, self._dtype)
        for first, end in cut(0, block.first, KEYS_AT_ONCE):
            some = tl.ref(self._keys + first * d * self._item, (end - first, d))
            place = scores.local + first * self._queries * scores.itemsize
            tl.wait(tl.composite("gemm", some, queries.T, out_ptr=place, tile_shape="auto"))
        own = tl.ref(self._keys + block.first * d * self._item, (block.queries, d))
        at = self._plan.mask_at(block) * self._queries // block.queries
        mask = tl.ref(masks.local + at * masks.itemsize, (block.queries, self._queries))
        steps: EpilogueSteps = [{"op": "add", "other": mask}]
        place = scores.local + block.first * self._queries * scores.itemsize
        tl.wait(tl.composite("gemm", own, queries.T, out_ptr=place, epilogue=steps, tile_shape="auto"))

    def _find_exponentials(self, scores: TensorPtr, exponentials: TensorPtr) -> None:
        tl, n, best = self._tl, self._queries, self._largest(scores)
        steps: EpilogueSteps = [{"op": "exp"}]
        for first, end in cut(0, self._seen, KEYS_AT_ONCE):
            some = tl.ref(scores.local + first * n * scores.itemsize, (end - first, n))
            place = exponentials.local + first * n * exponentials.itemsize
            tl.wait(tl.composite("math", some, best, math_op="sub", epilogue=steps, out_ptr=place, tile_shape="auto"))

    def _largest(self, scores: TensorPtr) -> TensorHandle:
        """The largest score of every query, (1, queries): scores of several keys at a time are compared with those in
        TCM.
        """
        tl, n = self._tl, self._queries
        at_once = max(1, min(self._seen, self._plan.sip.tcm_bytes // 4 // (n * F32_BYTES)))
        whole = self._seen // at_once
        parts = [tl.ref(scores.local + at * at_once * n * F32_BYTES, (at_once, n)) for at in range(whole)]
        rest = self._seen - whole * at_once
        found: TensorHandle | None = None
        while parts:
            some, parts = parts[:PARTS_AT_ONCE], parts[PARTS_AT_ONCE:]
            if found is not None:
                some.append(found)
            found = self._larger(some)
            del some
        assert found is not None
        best = tl.max(found, axis=0)
        del found
        if rest:
            others = tl.load(scores.local + whole * at_once * n * F32_BYTES, (rest, n))
            best = tl.maximum(best, tl.max(others, axis=0))
        return best

    def _larger(self, parts: Sequence[TensorHandle]) -> TensorHandle:
        """The element-wise maximum, in TCM."""
        tl, (first, *others) = self._tl, parts
        if not others:
            return tl.load(first.address, first.shape)
        steps: EpilogueSteps = [{"op": "maximum", "other": part} for part in others[1:]]
        pending = tl.composite("math", first, others[0], math_op="maximum", epilogue=steps, tile_shape="auto")
        found = tl.wait(pending)
        assert found is not None
        return found
