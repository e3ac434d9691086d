"""Every shipped bench on three machines: the data is right and nothing races; on one of them, another one for each
bench, two runs are the same to the last bit.

One machine is like the shipped one with fewer cubes and PEs. One is small and odd: three PEs, slow HBM, physical
addresses, a request for each channel, which is where remainders and wrong assumptions about counts show. One has
logical addresses and a request for each of four channels.
"""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.benches.registry import list_all, resolve
from kernbench.common.errors import SpawnException, UsageError
from kernbench.report.run_figures import figures_of
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.topology import TopologyGraph, load_topology

MACHINES = {
    "wide": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1},
    "odd": {
        "system.sips.count": 1,
        "system.address_model": "pa",
        "sip.cube_mesh.w": 1,
        "sip.cube_mesh.h": 3,
        "cube.pe_layout.corners": ["NW", "NE", "SE"],
        "cube.pe_layout.pe_per_corner": 1,
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
        "cube.memory_map.hbm_channel_bw_gbs": 12.5,
        "cube.components.hbm_ctrl.attrs.switch_penalty_ns": 2.0,
    },
    "logical": {
        "system.address_model": "la",
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 1,
        "cube.pe_layout.corners": ["NW", "SE"],
        "cube.pe_layout.pe_per_corner": 1,
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
        "cube.memory_map.hbm_channels_per_pe": 4,
        "cube.memory_map.hbm_channel_bw_gbs": 64,
    },
}
CUBE = "cube"  # one cube as shipped, for what depends on its eight PEs
UNABLE = {  # by address model
    "va": (), "la": (), "pa": ("tp-mlp", "tp-transformer-block", "llm-layer", "llm-plan", "va-offset-verify", "pe2pe"),
}  # fmt: skip
NAMES = [spec.name for spec in list_all() if not spec.is_evaluation]
SMALLER: dict[tuple[str, str], dict[str, object]] = {
    **{("tp-transformer-block", where): {"seq": 4, "hidden": 128, "ffn": 128, "heads": 4} for where in MACHINES},
    ("llm-layer", "wide"): {"tokens": 2},
    ("llm-layer", "logical"): {"tokens": 4},
    ("llm-plan", "wide"): {"context": 2, "mapping": "columns"},
    ("llm-plan", "logical"): {"context": 2},
    **{("tp-mlp", where): {"tokens": 8, "ffn": 256} for where in MACHINES},
    **{("pe2pe", where): {"max_bytes": 4096} for where in MACHINES},
    **{("gpt3-qkv", where): {"heads": 2, "seq": 16} for where in ("odd", "logical")},
    **{("qkv-gemm-multi-pe", where): {"seq": 16} for where in ("odd", "logical")},
    **{("gelu-mlp", where): {"rows": 32, "d_hidden": 128} for where in ("odd", "logical")},
}
VARIED = [
    ("gemm-single-pe", {"m": 33, "k": 65, "n": 31}),
    *(("gemm-single-pe", {"dtype": dtype}) for dtype in ("bf16", "f32", "f8e4m3", "f8e5m2", "i8")),
    *(
        ("matmul-composite", {"variant": variant, "m": 70, "k": 130, "n": 50})
        for variant in ("load", "load-ref", "ref")
    ),
    *(("matmul-composite", {"dtype": dtype, "variant": "ref"}) for dtype in ("f32", "f8e4m3", "i8")),
    ("qkv-gemm", {"seq": 10, "d_model": 96, "d_out": 40, "dtype": "bf16"}),
    ("qkv-gemm-multi-pe", {"seq": 16, "d_model": 64, "d_out": 100}),
    ("qkv-gemm-multi-pe", {"seq": 4, "d_model": 64, "d_out": 2}),
    ("gpt3-qkv", {"heads": 1, "cubes": 3, "seq": 5}),
    ("va-offset-verify", {"shift": -1, "rows": 3, "cols": 10}),
    ("softmax", {"fused": True}),
    ("softmax", {"rows": 3, "cols": 17, "block_rows": 2, "dtype": "f32"}),
    ("layernorm", {"rows": 21, "cols": 40, "block_rows": 4, "dtype": "f32"}),
    ("gelu-mlp", {"rows": 13, "d_model": 48, "d_hidden": 80, "replicate": False}),
    ("ccl-allreduce", {"n_elem": 333, "algorithm": "ring_allreduce", "per": "rank", "dtype": "i32"}),
    ("ccl-allreduce", {"n_elem": 5000, "algorithm": "hierarchical_all_pes", "buffer_kind": "sram"}),
    ("ccl-bench", {"collective": "all_gather", "min_bytes": 6, "max_bytes": 6000, "factor": 31}),
    ("flash-attention", {"pes": 0}),
    ("flash-attention", {"pes": 0, "causal": True, "seq_q": 70, "seq_k": 70, "block_q": 16, "block_k": 24}),
    ("flash-attention", {"seq_q": 3, "seq_k": 100, "pes": 0, "dtype": "f32"}),
]


@cache
def machine(name: str) -> TopologyGraph:
    one_cube = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    return load_topology(None, one_cube if name == CUBE else MACHINES[name])


def run(bench: str, where: str, params: dict[str, object] | None = None, *, verify: bool = True) -> BenchResult:
    spec = resolve(bench)
    options = RunOptions(device=spec.device_for(None), verify_data=verify, debug_ops=verify, check_races=verify)
    return run_bench(spec.run, machine(where), options, name=bench, params=params)


def able(bench: str) -> list[str]:
    """The machines whose addresses reach what the bench needs."""
    return [where for where in MACHINES if bench not in UNABLE[machine(where).spec.system.address_model]]


def is_refused(bench: str, where: str) -> bool:
    """Whether the bench needs more than the addresses of a machine reach; it says so then."""
    if bench not in UNABLE[machine(where).spec.system.address_model]:
        return False
    with pytest.raises((UsageError, SpawnException), match=r"needs? virtual (or logical )?addresses"):
        run(bench, where)
    return True


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("bench", NAMES)
def test_data_is_right_nothing_races_and_two_runs_agree(bench: str, where: str) -> None:
    if is_refused(bench, where):
        return
    params = SMALLER.get((bench, where))
    first = run(bench, where, params)
    assert first.data
    assert first.ops or (bench, where) == ("ccl-bench", "odd")  # one rank reduces nothing
    assert [check for check in (*first.data, *first.ops) if not check.ok] == []
    assert first.races == []
    for _, roofline in figures_of(first).launches:
        assert roofline.share <= 1  # nothing is faster than its flops and its bytes allow
        assert roofline.share > 0 or not (roofline.flops or roofline.nbytes)
    if where == able(bench)[NAMES.index(bench) % len(able(bench))]:
        second = run(bench, where, params, verify=False)
        assert second.total_ns == first.total_ns
        assert first.op_log is not None
        assert second.op_log is not None
        assert list(second.op_log.items()) == list(first.op_log.items())


REACHES = pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")


@pytest.mark.parametrize(
    ("bench", "params"),
    [pytest.param(b, p, marks=REACHES if "collective" in p else ()) for b, p in VARIED],
    ids=[f"{b}-{'-'.join(map(str, p.values()))}" for b, p in VARIED],
)
def test_data_is_right_for_other_shapes_and_types(bench: str, params: dict[str, object]) -> None:
    if is_refused(bench, "wide"):
        return
    result = run(bench, "wide", params)
    assert [check for check in result.data if not check.ok] == []
    assert len({check.max_abs_err for check in result.data if check.dtype == "i32"} - {0.0}) == 0


def test_a_seed_changes_the_numbers_and_not_the_time() -> None:
    runs = [run("gemm-single-pe", "wide", {"seed": seed}) for seed in (0, 1)]
    assert runs[0].total_ns == runs[1].total_ns
    assert runs[0].data[0].max_abs_err != runs[1].data[0].max_abs_err


def test_all_pes_of_a_cube_finish_attention_sooner_than_one() -> None:
    one, all_ = (run("flash-attention", CUBE, {"pes": pes}).launches[0] for pes in (1, 0))
    assert (len(one.pes), len(all_.pes)) == (1, 8)
    # 128 queries in blocks of 32 are 4 rounds for one PE; 16 queries are half a block, in one round.
    assert 4 < one.pe_exec_ns_max / all_.pe_exec_ns_max < 8


def test_what_is_streamed_is_read_once_for_each_tile_row_or_column_that_needs_it() -> None:
    # 128 x 256 by 256 x 128 in f16 with tiles of 32 x 64 x 32: 4 rows and 4 columns of output tiles.
    a, b, c = 2 * 128 * 256, 2 * 256 * 128, 2 * 128 * 128
    moved = {
        v: run("matmul-composite", "wide", {"variant": v}).launches[0].bytes_hbm for v in ("load", "load-ref", "ref")
    }
    assert moved == {"load": a + b + c, "load-ref": a + 4 * b + c, "ref": 4 * a + 4 * b + c}


def test_weights_of_one_slice_are_slower_than_replicas() -> None:
    near, far = (run("gelu-mlp", CUBE, {"replicate": r}).launches[0].pe_exec_ns_max for r in (True, False))
    assert near < far / 2  # eight PEs share what one slice gives


@pytest.mark.parametrize(
    ("bench", "where"),
    [
        *(("matmul-composite", where) for where in MACHINES),
        ("qkv-gemm", "odd"),
        ("qkv-gemm", "logical"),
        ("qkv-gemm-multi-pe", "wide"),
        ("gpt3-qkv", "odd"),
        ("gelu-mlp", "wide"),
        ("gelu-mlp", "odd"),
    ],
)
def test_auto_tiles_give_the_same_numbers_and_are_not_slower(bench: str, where: str) -> None:
    params = SMALLER.get((bench, where), {})
    native, auto = (run(bench, where, {**params, "tile": tile}, verify=tile == "auto") for tile in ("native", "auto"))
    assert [check for check in auto.data if not check.ok] == []
    took = [result.launches[0].pe_exec_ns_max for result in (native, auto)]
    assert took[1] <= took[0] * 1.05
