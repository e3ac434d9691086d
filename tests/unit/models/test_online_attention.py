"""Attention with scores in TCM: the plan says how much TCM it takes, and the kernel never takes more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.models.test_layer import PUBLIC
from tests.unit.models.test_mapper import DIE, GPU, SHIPPED, model_of

from kernbench.benches.llm_layer import run_layer
from kernbench.common.errors import AllocationError, UsageError
from kernbench.models import mapper
from kernbench.models.layer_choice import ALONE
from kernbench.models.layer_job import LayerJob
from kernbench.models.mapper import MappedLayer
from kernbench.models.mapping import choose_mapping
from kernbench.models.plans import SipShape
from kernbench.models.query_blocks import PrefillAttention, QueryBlock, online_attention, online_bytes, online_keys
from kernbench.models.shapes import load_model
from kernbench.policy.address.slot_list import SlotList
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology

KIB = 1024
SIP = SipShape(2, 2, 8, 512 * KIB)


class StrictSlots(SlotList):
    """Slots of one size for each other only: nothing is placed into gaps that other sizes have left."""

    def _best_fit(self, nbytes: int, align: int) -> int:
        raise AllocationError(f"{nbytes} bytes are beyond the sum over all sizes")


def attention_ns(heads: int, kv_heads: int, head_dim: int, batch: int, tokens: int, tcm_mb: float, tmp: Path) -> float:
    """How long attention by itself takes on one cube of 4 PEs whose kernels have about `tcm_mb` of TCM."""
    changed = {
        "system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1,
        "cube.memory_map.tcm_mb_per_pe": tcm_mb + 0.25, "cube.memory_map.tcm_scheduler_reserved_mb": 0.25,
    }  # fmt: skip
    file, sizes = tmp / "model.yaml", {"heads: 4": heads, "kv_heads: 2": kv_heads, "head_dim: 16": head_dim}
    text = PUBLIC
    for old, number in reversed(sizes.items()):
        text = text.replace(f"  {old}\n", f"  {old.split(':')[0]}: {number}\n")
    file.write_text(text)
    model = load_model(f"{file}:mine")
    assert (model.heads, model.kv_heads, model.head_dim) == (heads, kv_heads, head_dim)

    def attend(torch: RuntimeContext) -> float:
        torch.timing_only()
        mapping = MappedLayer(choose_mapping(SipShape(1, 1, 4, 0), batch * tokens, 1 << 20, 1 << 40), is_online=True)
        job = LayerJob(model, "prefill", batch, tokens, 0, "f16", mapping, only="attention")
        return sum(run_layer(torch, job, 1, ccl={"defaults": ALONE}).part_ns)

    (found,) = run(attend, load_topology(None, changed), device="whole", data=False).returned
    assert isinstance(found, float)
    return found


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_blocks_of_queries_with_different_numbers_of_keys_do_not_fragment_tcm(tmp_path: Path) -> None:
    """Heads of llama2-70b that share a key head, with about the TCM of `one-die-64.yaml`. Scores of 224 keys at a time,
    and of the 32 to 192 that remained, left gaps: 224 KiB did not fit, though 920 KiB were free.
    """
    assert attention_ns(8, 1, 128, 1, 512, 1.6875, tmp_path) > 0


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "batch", "tokens", "tcm_mb"),
    [
        (8, 1, 128, 1, 500, 1.75),
        (4, 1, 128, 1, 512, 0.75),
        (4, 4, 64, 1, 300, 0.5),
        (6, 2, 16, 2, 77, 0.0625),
        (2, 1, 32, 3, 43, 0.125),
        (16, 1, 128, 1, 131, 0.25),
        (2, 2, 128, 1, 257, 0.375),
    ],
)
def test_no_plan_takes_more_tcm_than_it_counts(
    heads: int, kv_heads: int, head_dim: int, batch: int, tokens: int, tcm_mb: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("kernbench.triton_emu.tcm_arena.SlotList", StrictSlots)
    assert attention_ns(heads, kv_heads, head_dim, batch, tokens, tcm_mb, tmp_path) > 0


@pytest.mark.parametrize("file", [SHIPPED, DIE, GPU])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (64, 8, 128), (32, 32, 128), (16, 1, 64)])
@pytest.mark.parametrize("tokens", [1, 7, 100, 256, 1000, 2048])
def test_the_chosen_plan_fits_and_takes_every_key_once(
    file: str | None, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> None:
    sip, shared = model_of(file).sip, heads // kv_heads
    plan = online_attention(sip, 1, tokens, heads, kv_heads, head_dim, 2)
    sizes = range(plan.key_step, plan.keys_at_once + 1, plan.key_step)
    assert online_bytes(plan.most_queries, sizes, shared, head_dim, 2) <= sip.tcm_bytes
    assert plan.keys_at_once <= tokens
    for block in {block for some in plan.blocks for block in some}:
        spans = plan.key_spans(block)
        assert {end - first for first, end in spans} <= set(sizes)
        assert [first for first, _ in spans[1:]] == [end for _, end in spans[:-1]]
        assert spans[0][0] == 0
        assert spans[-1][1] - plan.key_step < block.first + block.queries <= spans[-1][1]


def test_tcm_of_a_block_is_counted_tensor_by_tensor() -> None:
    """2 tokens of 2 heads of 8, f16, 3 keys at a time: 4 rows. Sizes are rounded up to 16 bytes: queries 64, results
    128, columns 16, numbers of tokens 16; keys 48, scores 48, exponentials 32, masks 16, numbers of keys 16.
    """
    held, per_key = 3 * 64 + 2 * 128 + 8 * 16 + 16, 4 * 48 + 2 * 48 + 32 + 3 * 16 + 3 * 16
    assert online_bytes(2, [3], 2, 8, 2) == held + per_key
    for nbytes, keys in ((held + per_key - 1, 2), (held + per_key, 3)):
        assert online_keys(replace(SIP, tcm_bytes=nbytes), 2, 100, 2, 8, 2) == keys


def test_keys_at_a_time_are_weighed_against_scores_that_are_not_seen() -> None:
    """Blocks of 64 queries: 192 keys at a time, in steps of 64, have no key after the block's own; in steps of 192 the
    block from 192 on has 128.
    """
    sip = model_of(DIE).sip
    plan = PrefillAttention(sip, 1, 2048, 8, ((QueryBlock(0, 0, 192, 64),),), 192, 64)
    assert plan.key_spans(QueryBlock(0, 0, 192, 64)) == [(0, 192), (192, 256)]
    padded = replace(plan, key_step=192)
    assert padded.key_spans(QueryBlock(0, 0, 192, 64)) == [(0, 192), (192, 384)]
    assert plan.costs < padded.costs
    assert online_attention(sip, 1, 2048, 32, 8, 128, 2).key_step == 64


def test_where_no_block_fits_tcm_scores_are_in_hbm() -> None:
    """A query and its result of 128 x 128 elements take more than 64 KiB."""
    sip = replace(SIP, tcm_bytes=64 * KIB)
    with pytest.raises(UsageError, match="do not fit"):
        online_attention(sip, 1, 64, 128, 1, 128, 2)
    model = replace(model_of(DIE), sip=sip)
    size = mapper.LayerSize((), (1, 64, 128, 1, 128))
    choice = mapper.choose_layer(model, size, choose_mapping(sip, 64, 1, 1), 1)
    assert list(choice.attention_ns) == ["stored"]
    assert not choice.mapping.is_online
