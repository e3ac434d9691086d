"""The choice of mappings: a function of the machine and of sizes, which more hardware never makes slower."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.unit.models.test_layer import llm_layer, run

from kernbench.common.errors import UsageError
from kernbench.models import block_estimate, mapper
from kernbench.models.attention_estimate import attention_ns
from kernbench.models.block_plans import BlocksPlan
from kernbench.models.choice_report import report_rows
from kernbench.models.machine_model import MachineModel, machine_model
from kernbench.models.mapper import LayerSize, candidates_of, choose_layer
from kernbench.models.mapping import MAPPINGS, SplitKPlan, choose_mapping, split_k_plan
from kernbench.models.plans import SipShape, columns_plan
from kernbench.models.product_size import ProductSize
from kernbench.models.split_k_estimate import fastest_rounds, split_k_ns
from kernbench.topology import TopologyGraph, load_topology

MACHINES = Path(__file__).parents[3] / "examples/machines"
DIE, GPU, SHIPPED = "one-die-64.yaml", "gpu-like.yaml", None
RING_BYTES = 9 * 16 * 1024


def graph_of(file: str | None, changed: tuple[tuple[str, float], ...] = ()) -> TopologyGraph:
    return load_topology(None if file is None else str(MACHINES / file), {"system.sips.count": 1, **dict(changed)})


@cache
def model_of(file: str | None, changed: tuple[tuple[str, float], ...] = ()) -> MachineModel:
    graph = graph_of(file, changed)
    mesh, cube = graph.spec.sip.cube_mesh, graph.spec.cube
    sip = SipShape(mesh.w, mesh.h, cube.n_pes, cube.tcm_allocatable_bytes - RING_BYTES - 4096)
    return machine_model(graph, sip, RING_BYTES)


def products(rows: int, hidden: int, ffn: int) -> LayerSize:
    """Those of a layer with as many columns of heads as `hidden`, a quarter of them of keys and values."""
    found = (
        ProductSize("qkv", rows, hidden, hidden * 3 // 2, 1, "rows"),
        ProductSize("out_proj", rows, hidden, hidden, 1, "columns"),
        ProductSize("mlp_up", rows, hidden, ffn, 2, "rows"),
        ProductSize("mlp_down", rows, ffn, hidden, 1, "columns"),
    )
    return LayerSize(found, (1, rows, hidden // 128, hidden // 512, 128))


LLAMA_8B, LLAMA_70B = products(2048, 4096, 14336), products(2048, 8192, 28672)


def choice_of(model: MachineModel, size: LayerSize) -> mapper.LayerChoice:
    usual = choose_mapping(model.sip, size.products[0].rows, 16 << 30, 1 << 40)
    return choose_layer(model, size, usual, 4)


def test_few_rows_are_collected_by_one_latency_for_each_pe_that_has_some() -> None:
    """48 rows over 32 PEs of two dies, with 342 ns for a read across a die: simulated, a product by columns spends
    8.26 us on copies, and was chosen with an estimate of 2.11.
    """
    product = ProductSize("qkv", 48, 4096, 6144)
    assert isinstance(choice_of(model_of(GPU), LayerSize((product,))).mapping.plans[0][1], SplitKPlan)
    plan = columns_plan(model_of(GPU).sip, 48, 4096, 6144, 2, 1, k_parts=2)
    assert mapper.estimate(model_of(GPU), plan, product)["copies"] == pytest.approx(8260, rel=0.1)


@pytest.mark.parametrize(
    ("file", "product"),
    [
        (SHIPPED, LLAMA_8B.products[2]),
        (GPU, LLAMA_8B.products[1]),
        *((file, products(512, 1024, 3584).products[3]) for file in (SHIPPED, DIE, GPU)),
    ],
    ids=["8b-shipped", "8b-gpu", "small-shipped", "small-die", "small-gpu"],
)
def test_twice_the_hardware_is_never_slower_and_nothing_beats_compute(file: str | None, product: ProductSize) -> None:
    """Twice the MACs, HBM, links or TCM of every candidate: the best one stays as fast or gets faster."""
    base = model_of(file)
    wider = replace(base.sip, tcm_bytes=2 * base.sip.tcm_bytes)
    models = (*(model_of(file, keys) for keys in doubled(file)), replace(base, sip=wider))
    best = candidates_of(base, product, 4)[0].total_ns
    assert best >= product.macs / base.macs / base.sip.size
    for changed in models:
        assert candidates_of(changed, product, 4)[0].total_ns <= best * 1.0001


def doubled(file: str | None) -> list[tuple[tuple[str, float], ...]]:
    """Twice the MACs; twice the HBM; twice the links between cubes."""
    spec = graph_of(file).spec
    ucie = spec.cube.ucie
    gemm = "cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
    return [
        ((gemm, 2 * spec.cube.pe_template.components.pe_gemm.number_attr("macs_per_ns")),),
        (("cube.memory_map.hbm_channel_bw_gbs", 2 * spec.cube.memory_map.hbm_channel_bw_gbs),),
        (
            ("sip.links.cube_to_cube.bw_gbs", 2 * spec.sip.links.cube_to_cube.bw_gbs),
            ("cube.ucie.per_connection_bw_gbs", 2 * ucie.per_connection_bw_gbs),
        ),
    ]


def test_a_product_has_the_plan_of_its_name_also_where_others_are_of_its_size() -> None:
    sip = model_of(SHIPPED).sip
    qkv, up = (ProductSize(name, 512, 256, 512, weights, "rows") for name, weights in (("qkv", 1), ("mlp_up", 2)))
    plans = columns_plan(sip, 512, 256, 512, 2, 1, k_parts=2), columns_plan(sip, 512, 256, 512, 2, 1, k_parts=4)
    layer = mapper.MappedLayer(MAPPINGS["columns"], ((qkv, plans[0]), (up, plans[1])))
    assert (layer.plan_of("qkv", sip, 512, 256, 512), layer.plan_of("mlp_up", sip, 512, 256, 512)) == plans
    assert layer.plan_of("mlp_up", sip, 256, 256, 512) is None
    assert layer.plan_of("mlp_down", sip, 512, 256, 512) is None


def test_estimates_know_types_of_four_bytes() -> None:
    """The engine multiplies f32 at half the rate of f16, and reads twice the bytes."""
    model = model_of(SHIPPED)
    half, full = (ProductSize("mlp_up", 64, 4096, 14336, 1, "rows", 1, item) for item in (2, 4))
    times = [
        split_k_ns(model, split_k_plan(model.sip, 64, 4096, 14336, size.itemsize), size)["product"]
        for size in (half, full)
    ]
    assert times[1] > 1.7 * times[0]
    stored = [attention_ns(model, 1, 2048, 32, 8, 128, item)["stored"] for item in (2, 4)]
    assert stored[1] > 1.2 * stored[0]


@pytest.mark.parametrize(("file", "percent"), [(DIE, 84), (GPU, 80)])
def test_products_of_prefill_are_estimated_near_the_machines_bound(file: str, percent: float) -> None:
    model = model_of(file)
    for size in (LLAMA_8B, LLAMA_70B):
        choice = choice_of(model, size)
        bound = sum(product.macs for product in size.products) / model.macs / model.sip.size
        assert 100 * bound / sum(ranked[0].total_ns for _, ranked in choice.products) > percent
        assert choice.mapping.has_blocks
        assert choice.mapping.is_online


def test_where_products_of_a_wafer_like_machine_lose_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the guide *Time a layer* states: a PE's block of out_proj, 64 rows by 512 columns, loads 2 x (64 + 512) bytes
    for each step of K, 0.56 ns at 2,048 GB/s, and 64 x 512 MACs of 65,536 per ns take 0.5 ns. With 4 GB per cube
    instead of 2, two copies of the weights fit half of the memory.
    """
    reported: list[dict[str, object]] = []

    def stop(*_: object) -> None:
        raise UsageError("the choice is all that is asked for")

    monkeypatch.setattr(
        "kernbench.benches.llm_layer.choice_rows", lambda found, *_: reported.extend(report_rows(found))
    )
    monkeypatch.setattr("kernbench.benches.llm_layer.run_layer", stop)
    graph = graph_of("wafer-like.yaml", (("cube.memory_map.hbm_total_gb_per_cube", 4),))
    params = {"model": "llama3-8b", "mapping_report": "-"}
    with pytest.raises(UsageError, match="all that is asked for"):
        run(llm_layer, graph, device="whole", params=params)
    chosen = {row["choice of"]: row for row in reported if row["chosen"] == "yes"}
    assert "block_rows=64 block_columns=512" in str(chosen["out_proj"]["blocking"])
    bound_us = {each.name: each.rows * each.k * each.n * each.weights / 256 / 65536e3 for each in LLAMA_8B.products}
    assert {
        name: (round(us, 2), round(float(str(chosen[name]["estimate_us"])), 1)) for name, us in bound_us.items()
    } == {
        "qkv": (3.07, 5.9),
        "out_proj": (2.05, 4.0),
        "mlp_up": (14.34, 17.5),
        "mlp_down": (7.17, 16.0),
    }
    assert chosen["mlp_down"]["kind"] == "columns"


def test_products_by_blocks_take_what_the_engine_takes_for_their_dots() -> None:
    """Cores with arrays of 128 x 128 fill for 254 cycles at each dot. A block of 256 x 768 with chunks of 512, in two
    strips of 128 rows: 6 tiles of one fold each on two cores, three rounds of 766 cycles at 1.41 GHz, twice per chunk.
    Reading a chunk takes less: 1 MiB at 435 bytes per ns, of which PEs that take turns get 0.8. It still adds up to
    6 %, since neither always waits for the other.
    """
    gemm = "cube.pe_template.components.pe_gemm.attrs"
    given = {"cores": 2, "arrays": 1, "rows": 128, "columns": 128, "local_kb": 3072, "macs_per_ns": 2 * 128**2 * 1.41}
    model = model_of("a100-cores.yaml", tuple((f"{gemm}.{name}", value) for name, value in given.items()))
    size = ProductSize("qkv", 1024, 12288, 9216, 1, "columns")
    plan = BlocksPlan(model.sip, size.rows, size.k, size.n, 1, 1, 256, 768, 512)
    step = 2 * 3 * (512 + 254) / 1.41 + block_estimate.STEP_NS
    blocks, chunks, finish = 4 * 3, 24, 2 * 256 * 768 / model.lanes
    expected = blocks * (chunks * step + finish) + step
    assert expected < mapper.estimate(model, plan, size)["product"] < 1.06 * expected


def test_resources_that_are_busy_at_once_delay_each_other() -> None:
    """Never less than the longest, and more the nearer another one is: two that take as long, 2^(1/8) of one."""
    assert block_estimate.overlapped_ns(100.0, 0.0) == 100.0
    assert block_estimate.overlapped_ns(100.0, 100.0) == pytest.approx(109.05, abs=0.01)
    assert 100.0 < block_estimate.overlapped_ns(100.0, 50.0) < 100.1
    assert block_estimate.overlapped_ns(0.0, 0.0) == 0.0


def test_chunks_are_passed_on_where_reading_them_takes_longer_than_the_products() -> None:
    """A PE of the GPU-like package has 35,156 MACs per ns and 230 bytes of HBM: a block of 256 x 512 takes 3.73 ns for
    each column of K, and its 1,536 bytes 6.7 ns. Without rings there are no messages.
    """
    model, size = model_of(GPU), LLAMA_8B.products[3]
    best = candidates_of(model, size, 4)[0]
    assert isinstance(best.plan, BlocksPlan)
    assert best.plan.passes
    reading = candidates_of(replace(model, ring_bytes=0), size, 4)
    assert not any(isinstance(each.plan, BlocksPlan) and each.plan.passes for each in reading)
    assert best.total_ns < 0.6 * reading[0].total_ns


def test_scores_of_short_sequences_are_not_worth_a_launch_of_their_own() -> None:
    """Faster HBM made attention of 64 tokens slower (0.82 to 1.47 us on one cube): scores went to HBM, in a launch of
    their own, which the estimate did not count.
    """
    one = (("sip.cube_mesh.w", 1), ("sip.cube_mesh.h", 1))
    for gbs in (32.0, 64.0):
        model = model_of(SHIPPED, (*one, ("cube.memory_map.hbm_channel_bw_gbs", gbs)))
        assert choice_of(model, replace(LLAMA_8B, attention=(1, 64, 8, 4, 32))).mapping.is_online


@pytest.mark.parametrize(
    ("tokens", "heads", "is_online"),
    [(256, 32, True), (256, 16, False), (512, 16, False), (256, 8, False), (512, 8, False)],
)
def test_keys_of_many_cubes_are_copied_where_links_would_be_slower(tokens: int, heads: int, is_online: bool) -> None:
    """With two cubes for each key head, attention of 256 tokens takes 4.6 us with scores in TCM and 5.3 in HBM; with
    four, on two SIPs, 6.1 and 5.2 us, and of 512 tokens 24.5 and 9.2 us, since all PEs read keys from the other cubes;
    with eight, on four SIPs, 5.6 and 4.9, and 11.8 and 8.3 us (`llm-layer`, llama3-8b).
    """
    attention = (1, tokens, heads, heads // 4, 128)
    assert choice_of(model_of(SHIPPED), replace(LLAMA_8B, attention=attention)).mapping.is_online == is_online


def test_the_shipped_machine_keeps_most_of_the_mapping_by_rules() -> None:
    """2,048 tokens of llama3-8b: other plans are faster by less than the margin of large products and of attention,
    which they pay with several times the time to simulate (out_proj 67.9 us instead of 77.3, attention 69.9 of 92.4).
    """
    choice = choice_of(model_of(SHIPPED), LLAMA_8B)
    assert [size.name for size, (first, *_) in choice.products if not first.is_usual] == []
    assert not choice.mapping.is_online
    assert all(first.is_usual for _, (first, *_) in choice.usual.products)
    assert not choice.usual.mapping.has_blocks


def test_few_rows_and_experts_are_not_computed_by_blocks() -> None:
    model = model_of(DIE)
    assert not choice_of(model, products(8, 512, 1024)).mapping.has_blocks
    expert = replace(LLAMA_8B.products[2], experts=8)
    assert not any(isinstance(each.plan, BlocksPlan) for each in candidates_of(model, expert, 4))


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (64, 4)])
def test_few_rows_are_reduced_in_as_many_rounds_as_pay(rows: int, blocks: int) -> None:
    """Two weights of 256 x 448 on one cube of two PEs. Of one row a round for each weight is enough: more would be
    latency. Of 64 rows, sums are 229 KB: their messages, 0.9 us, are hidden but for those of the last round.
    """
    changed = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.corners": ["NW", "SE"]}
    graph = load_topology(None, {"system.sips.count": 1, **changed, "cube.pe_layout.pe_per_corner": 1})
    machine = machine_model(graph, SipShape(1, 1, 2, 2 << 20), 1 << 18)
    usual = split_k_plan(machine.sip, rows, 256, 448, 2)
    size = ProductSize("mlp_up", rows, 256, 448, 2, "rows")
    plan = fastest_rounds(machine, usual, size)
    assert plan == replace(usual, blocks=blocks)
    joined, found = (sum(split_k_ns(machine, each, size).values()) for each in (usual, plan))
    assert found <= joined
    more = replace(machine, sip=replace(machine.sip, tcm_bytes=4 << 20))
    assert fastest_rounds(more, replace(usual, sip=more.sip), size).blocks == blocks


def test_rows_that_one_kind_has_no_tcm_for_are_done_by_another() -> None:
    """33 rows of 49,152 elements over 4 PEs: sums and rows of `split_k` take more than 512 KiB."""
    sip = SipShape(4, 4, 4, 512 * 1024)
    model, size = replace(model_of(SHIPPED), sip=sip), ProductSize("mlp_down", 33, 49152, 12288, 1, "columns")
    usual = choose_mapping(sip, 33, 1, 1)
    with pytest.raises(UsageError, match="do not fit"):
        usual.product(sip, 33, 49152, 12288, 2, x_by="columns")
    ((_, found),) = choose_layer(model, LayerSize((size,)), usual, 1).products
    assert not isinstance(found[0].plan, SplitKPlan)
    small = replace(size, k=256, n=256)
    assert choose_layer(replace(model, sip=replace(sip, tcm_bytes=1024)), LayerSize((small,)), usual, 1).products == ()
