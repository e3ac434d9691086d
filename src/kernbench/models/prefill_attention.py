"""Causal attention of whole sequences: blocks of queries against keys and values in the PE's own slice.

Cubes form teams, each with as many key heads as every other (`mapping.PrefillAttention`). Keys and values of its heads
come to every PE of a team first: from each of the team's cubes to the PE of the same number, then within the cube. So
blocks of queries need nobody else's memory.

A block takes the far keys, most of those before it, in a few large steps: all their scores into HBM, their largest,
their exponentials, and the product with the values. Near keys, up to the block's own, of which only some are seen, are
worked on in TCM. Scores are f32; queries are scaled, and exponentials rounded to the tensors' type, before they are
multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernbench.models.column_kernels import Mover, cut, put
from kernbench.models.layouts import Layout
from kernbench.models.mapping import PrefillAttention, QueryBlock
from kernbench.models.plans import exchange_rounds
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

FAR_BELOW = -1e30  # a score that no exponential sees
FAR_KEYS = 128  # keys before a block are taken as a multiple of these: few different products to foresee


# ---- keys and values


def take_heads(
    keys: TensorPtr, values: TensorPtr, key_copies: TensorPtr, value_copies: TensorPtr, *, plan: PrefillAttention,
    tl: TLContext,
) -> None:  # fmt: skip
    """Each PE takes what the PEs of its number in the team's cubes have."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    team, place = divmod(cube, plan.cubes_per_team)
    d, mover = keys.shape[1], Mover(tl, plan.sip.tcm_bytes)
    for turn in range(plan.cubes_per_team):
        first, end = plan.rows_at((place + turn) % plan.cubes_per_team, pe)
        own = plan.copies_of(cube, pe) + first
        for x, copies in ((keys, key_copies), (values, value_copies)):
            mover.move(x, (team * plan.team_rows + first) * d, d, copies, own * d, (end - first, d))
    tl.wait()


def share_heads(
    keys: TensorPtr, values: TensorPtr, key_copies: TensorPtr, value_copies: TensorPtr, *, plan: PrefillAttention,
    tl: TLContext,
) -> None:  # fmt: skip
    """Within a cube, each PE takes from all others what they have, or what they have taken."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    d, mover = keys.shape[1], Mover(tl, plan.sip.tcm_bytes)
    own, is_taken = plan.copies_of(cube, pe), plan.cubes_per_team > 1
    for sources in exchange_rounds(plan.sip.pes):
        other = sources[pe]
        if other == pe and is_taken:
            continue
        start = plan.copies_of(cube, other) if is_taken else cube * plan.team_rows
        for place in range(plan.cubes_per_team):
            first, end = plan.rows_at(place, other)
            for x, copies in ((keys, key_copies), (values, value_copies)):
                source = copies if is_taken else x
                mover.move(source, (start + first) * d, d, copies, (own + first) * d, (end - first, d))
    tl.wait()


# ---- blocks of queries


def take_queries(queries: TensorPtr, copies: TensorPtr, width: int, *, plan: PrefillAttention, tl: TLContext) -> None:
    """The queries of this PE's blocks to its own slice, one block after the other; heads of a token side by side."""
    d, item = queries.shape[1], queries.itemsize
    shared = width // d
    for block, at in _blocks_here(copies, width, plan, tl):
        first = plan.pair_of(block) * shared  # the number of its first query head
        rows = ((first + head) * plan.tokens + block.first for head in range(shared))
        asked = [tl.load_async(queries + row * d * item, (block.queries, d)) for row in rows]
        heads = [tl.wait(handle) for handle in asked]
        del asked
        joined = tl.cat([head for head in heads if head is not None], axis=1) if shared > 1 else heads[0]
        assert joined is not None
        tl.store_async(copies + at * item, joined)
        del heads, joined
    tl.wait()


def attend_blocks(
    queries: TensorPtr, keys: TensorPtr, values: TensorPtr, scores: TensorPtr, powers: TensorPtr, width: int, *,
    plan: PrefillAttention, tl: TLContext,
) -> None:  # fmt: skip
    """This PE's blocks, against the keys and values in its own slice. Results take the places of the queries."""
    for block, at in _blocks_here(queries, width, plan, tl):
        place = queries + at * queries.itemsize
        result = _Block(place, width, keys, values, block, plan, tl).attend(scores, powers)
        tl.store(place, result)
        del result


def hand_over(
    results: TensorPtr, out: TensorPtr, width: int, *, plan: PrefillAttention, layout: Layout, tl: TLContext
) -> None:
    """Results of this PE's blocks to who reads them next."""
    stored: list[TransferHandle] = []
    for block, at in _blocks_here(results, width, plan, tl):
        result = tl.load(results + at * results.itemsize, (block.queries, width))
        for handle in stored:
            tl.wait(handle)
        row, column = block.sequence * plan.tokens + block.first, block.kv_head * width
        stored = put(result, (row, row + block.queries), (column, column + width), [out], layout, tl)
        del result
    tl.wait()


def _blocks_here(
    copies: TensorPtr, width: int, plan: PrefillAttention, tl: TLContext
) -> Iterator[tuple[QueryBlock, int]]:
    """This PE's blocks, and at which element each begins."""
    me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = me * copies.shape[1]
    for block in plan.blocks[me]:
        yield block, at
        at += block.queries * width


class _Block:
    """One block of queries, of all heads that share a key head; its rows are tokens, and heads of a token."""

    def __init__(
        self,
        queries: int,
        width: int,
        keys: TensorPtr,
        values: TensorPtr,
        block: QueryBlock,
        plan: PrefillAttention,
        tl: TLContext,
    ) -> None:
        self._tl, self._block, self._plan = tl, block, plan
        self._d = d = keys.local_shape[1] // plan.team_rows
        self._shared = width // d
        self._rows = block.queries * self._shared
        self._far = block.first - block.first % FAR_KEYS
        self._near = block.first + block.queries - self._far
        first = plan.head_at(block)
        self._keys = keys.local + first * d * keys.itemsize
        self._values = values.local + first * d * values.itemsize
        self._item, self._dtype = keys.itemsize, keys.dtype
        self._queries = tl.cast(tl.load(queries, (self._rows, d)) * d**-0.5, keys.dtype)

    def attend(self, scores: TensorPtr, powers: TensorPtr) -> TensorHandle:
        """The block's result, (rows, head_dim)."""
        tl, before, dtype = self._tl, self._far, self._dtype
        near = self._near_scores()
        best = tl.max(near, axis=1)
        if not before:
            weights = tl.exp(near - best)
            del near
            total, found = tl.sum(weights, axis=1), self._near_values(weights)
            del weights
            return tl.cast(found / total, dtype)
        shape = self._rows, before
        keys = tl.ref(self._keys, (before, self._d))
        tl.wait(tl.composite("gemm", self._queries, keys.T, out_ptr=scores.local, tile_shape="auto"))
        del self._queries  # TCM for what follows
        best = tl.maximum(best, self._reduced(scores, before, tl.max, tl.maximum))
        steps: list[dict[str, object]] = [{"op": "exp"}]
        far = tl.ref(scores.local, shape)
        tl.wait(tl.composite("math", far, best, math_op="sub", epilogue=steps, out_ptr=powers.local, tile_shape="auto"))
        weights = tl.exp(near - best)
        del near
        total = tl.sum(weights, axis=1) + self._reduced(powers, before, tl.sum, tl.add)
        steps = [{"op": "add", "other": self._near_values(weights)}, {"op": "div", "other": total}]
        del weights
        values = tl.ref(self._values, (before, self._d))
        asked = tl.composite(
            "gemm", tl.ref(powers.local, shape), values, epilogue=steps, out_dtype=dtype, tile_shape="auto"
        )
        result = tl.wait(asked)
        assert result is not None
        return result

    def _near_scores(self) -> TensorHandle:
        """Of the near keys, as far as each query sees them."""
        tl, n, shared = self._tl, self._block.queries, self._shared
        keys = tl.load(self._keys + self._far * self._d * self._item, (self._near, self._d))
        scores = tl.dot(self._queries, keys.T, out_dtype="f32")
        tokens = tl.arange(self._block.first, self._block.first + n)
        tokens = tl.reshape(tl.broadcast_to(tl.reshape(tokens, (n, 1)), (n, shared)), (n * shared, 1))
        return tl.where(tokens >= tl.arange(self._far, self._far + self._near), scores, FAR_BELOW)

    def _near_values(self, weights: TensorHandle) -> TensorHandle:
        tl = self._tl
        values = tl.load(self._values + self._far * self._d * self._item, (self._near, self._d))
        return tl.dot(tl.cast(weights, self._dtype), values, out_dtype="f32")

    def _reduced(
        self,
        x: TensorPtr,
        width: int,
        over: Callable[..., TensorHandle],
        join: Callable[[TensorHandle, TensorHandle], TensorHandle],
    ) -> TensorHandle:
        """Every row of x, in this PE's own slice, as one number; the next rows come while some are worked on."""
        tl, most = self._tl, self._plan.sip.tcm_bytes // 5 // x.itemsize
        spans = list(cut(0, width, most))
        blocks = [(rows, span) for rows in cut(0, self._rows, most // min(width, most)) for span in spans]

        def ask(number: int) -> TransferHandle:
            (top, bottom), (left, right) = blocks[number]
            at = x.local + (top * width + left) * x.itemsize
            return tl.load_async(at, (bottom - top, right - left), strides=(width, 1))

        found: list[TensorHandle] = []
        coming = ask(0)
        for number, (_, span) in enumerate(blocks):
            here = tl.wait(coming)
            assert here is not None
            if number + 1 < len(blocks):
                coming = ask(number + 1)
            value = over(here, axis=1)
            del here
            if span[0]:
                found[-1] = join(found[-1], value)
            else:
                found.append(value)
        return tl.cast(found[0] if len(found) == 1 else tl.cat(found, axis=0), "f32")
