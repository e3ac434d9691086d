"""The sections of a file that pins a choice (`pinned.py`) as records: their keys, and the values that they can have for
any layer and machine.
"""

from collections.abc import Mapping
from typing import Annotated, get_args

from kernbench.models.mapping import DecodeAttention
from kernbench.models.quantised import CacheName, WeightName
from kernbench.models.rank_sums import RankSums
from kernbench.topology.readers import choice, read_whole, text, truth, whole
from kernbench.topology.record import InvalidValue, ReadBy, Record

MOST = 1 << 40


def count_from(low: int) -> ReadBy:
    """A whole number, whose upper limit follows from the layer."""

    def read(value: object) -> int:
        try:
            return read_whole(value, low, MOST)
        except InvalidValue as wrong:
            raise InvalidValue(wrong.what, f"give a whole number, {low} or more, within the sizes") from None

    return ReadBy(read)


Count = Annotated[int, count_from(1)]
CountOrNone = Annotated[int, count_from(0)]


class SipEntry(Record):
    """The SIP of the choice: `tcm_bytes` are those of a kernel on a PE."""

    mesh_w: Count
    mesh_h: Count
    pes: Count
    tcm_bytes: Count


class WorkEntry(Record):
    """What was mapped."""

    model: Annotated[str, text(r".{1,400}", "the name of a model")]
    phase: Annotated[str, choice("prefill", "decode")]
    batch: Count
    tokens: Count
    context: CountOrNone
    tp: Count
    itemsize: Annotated[int, whole(1, 8)]
    weight_type: Annotated[WeightName, choice(*get_args(WeightName))] = "same"
    cache_type: Annotated[CacheName, choice(*get_args(CacheName))] = "same"


class ProductEntry(Record):
    """A product and its sizes."""

    kind: Annotated[str, choice("blocks", "columns", "split_k")]
    rows: Count
    k: Count
    n: Count
    x_by: Annotated[str, choice("rows", "columns")]


class SplitKEntry(ProductEntry):
    """A product by `split_k`: with `blocks`, it has so many of each cube's columns, and a round for each of them and
    each weight; with 0, as few rounds as TCM allows.
    """

    blocks: CountOrNone = 0


class ColumnsEntry(ProductEntry):
    """A product by columns; `block_rows` 0: x is streamed."""

    groups: Count
    k_parts: Count
    block_rows: CountOrNone


class BlocksEntry(ProductEntry):
    """A product by blocks."""

    groups: Count
    row_parts: Count
    block_rows: Count
    block_columns: Count
    block_k: Count
    strips: Count = 2
    passes: Annotated[int, whole(0, 1)] = 0
    ahead: Count = 1


ENTRIES: Mapping[str, type[ProductEntry]] = {"blocks": BlocksEntry, "columns": ColumnsEntry, "split_k": SplitKEntry}


class AttentionEntry(Record):
    """How a decode step in one launch splits its caches."""

    batch: Count
    kv_heads: Count
    context: Count
    splits: Count
    block_keys: Count
    streamed: Annotated[bool, truth()]
    units_at_once: Count
    units_together: Annotated[int, whole(1, 1)]

    @property
    def plan(self) -> DecodeAttention:
        return DecodeAttention(**self.model_dump())


class SumsEntry(Record):
    """How the ranks that share a layer add up their sums."""

    ranks: Count
    by_owners: Annotated[bool, truth()]

    @property
    def plan(self) -> RankSums:
        return RankSums(self.ranks, self.by_owners)


class FusedEntry(Record):
    """The pieces of a decode step in one launch, the slots of its messages, and its sums over ranks."""

    attention: AttentionEntry
    piece_bytes: Count
    room_bytes: Count
    slot_bytes: Count
    sums: SumsEntry | None = None  # of one rank


class ChoiceEntry(Record):
    """The whole file; products are read by their kind, as `ENTRIES` has them."""

    sip: SipEntry
    work: WorkEntry
    attention: Annotated[str, choice("online", "stored")]
    products: Mapping[str, Annotated[object, ReadBy(lambda value: value)]]
    fused: FusedEntry | None = None
