"""Operators on GPUs: kernels compute what they say, tiles are dealt in full waves, and no driver sees a measurement."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import UsageError
from kernbench.testing import run_kernel
from kernbench.validation import gpu_operators
from kernbench.validation.contract import judge
from kernbench.validation.data import DataFolder
from kernbench.validation.gpu_kernels import batch, blocks_of, gelu, layernorm, product, share_of, softmax
from kernbench.validation.gpu_operators import FOLDER, SET, Card, Ring, read_calls, simulated, simulated_us

ROOT = Path(__file__).parents[3]
HEADS = {
    "matmul.csv": "device,dtype,sweep,m,n,k,latency_us",
    "softmax.csv": "device,sweep,m_rows,n_normalised,latency_us_derived",
    "layernorm.csv": "device,sweep,m_rows,n_normalised,latency_us_derived",
    "gelu.csv": "device,elements,latency_us_derived",
    "allreduce_a100x4.csv": "device,n,collective,size_bytes,latency_us",
    "transformer_layer_a100x4.csv": "device,phase,part,shape_per_device,latency_us,launch_overhead_subtracted",
}
ROWS = {  # a row of each table; what was measured comes last, but in the last table
    "matmul.csv": "A100,fp16,M,64,12288,12288,190.0",
    "softmax.csv": "A100,N,2048,4096,50.31",
    "layernorm.csv": "A100,N,2048,4096,59.13",
    "gelu.csv": "A100,67108864,204.44",
    "allreduce_a100x4.csv": "four,4,all_reduce,33554432,279.7",
    "transformer_layer_a100x4.csv": "four,decode,Wo_proj,m=8 k=3072 n=12288,68.90,no",
}


def says_nothing(_):
    pass


def folder_of(tmp_path, **rows):
    """A folder as --data takes it, with rows by table; tables that are not named have none."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for name, head in HEADS.items():
        (folder / name).write_text("\n".join([head, *rows.get(name.split(".")[0], [])]) + "\n")
    return DataFolder(FOLDER, tmp_path)


# ---- tiles


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 30))
def test_blocks_cover_every_tile_once_and_none_is_too_large(height, width, most):
    seen = np.zeros((height, width), int)
    for block in blocks_of(height, width, most):
        assert 0 < block.height * block.width <= most
        seen[block.top : block.top + block.height, block.left : block.left + block.width] += 1
    assert (seen == 1).all()


def test_a_large_grid_takes_hardly_more_blocks_than_full_ones():
    for height, width in ((16, 16), (32, 12), (128, 12), (64, 64), (8, 12)):
        least = -(-height * width // 27)
        assert len(list(blocks_of(height, width, 27))) in (least, least + 1)


def test_pes_share_a_side_in_whole_tiles():
    assert [share_of(length, 128, 4) for length in (1, 128, 512, 513, 8192)] == [128, 128, 128, 256, 2048]


# ---- kernels


@pytest.mark.parametrize(
    ("elements", "is_kept"),
    [(16, False), (64, False), (1000, False), (64, True), (1000, True)],  # parts of a row, one row, all rows at once
)
def test_softmax_and_layernorm_are_those_of_numpy(elements, is_kept):
    x = np.linspace(-3, 3, 6 * 64, dtype=np.float32).reshape(6, 64) ** 2
    powers = np.exp(x - x.max(1, keepdims=True))
    (_, y), _ = run_kernel(softmax, x, np.zeros_like(x), elements, is_kept)
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=1e-5)
    (_, y), _ = run_kernel(layernorm, x, np.zeros_like(x), elements, is_kept)
    np.testing.assert_allclose(y, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-3)


def test_gelu_is_done_block_by_block():
    x = np.array([-1.0, 0.0, 1.0, 2.0, 3.0], np.float16)
    (_, y), _ = run_kernel(gelu, x, np.zeros_like(x), 2)
    np.testing.assert_allclose(y, [-0.1587, 0.0, 0.8413, 1.9545, 2.9960], rtol=2e-3)


def test_a_product_of_one_block_and_a_batch_are_right():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((2, 8, 4), (2, 4, 6)))
    (_, _, c), _ = run_kernel(product, a[0], b[0], np.zeros((8, 6), np.float16), 8, 4, 6, (16, 16), 4, True)
    assert (c == a[0] @ b[0]).all()
    (_, _, c), _ = run_kernel(batch, a, b, np.zeros((2, 8, 6), np.float16), 8, 4, 6, 2, 1, (16, 16), 4)
    assert (c == a @ b).all()


def test_small_products_of_a_batch_fill_the_units_together():
    a100 = Card("A100", "matmul", has_launch=True)
    assert a100._together(2048, 2048, 128) == 1  # 16 tiles of 128 rows for 27 units
    assert a100._together(1, 128, 3073) == 27 * 256 // 3073 == 2
    assert a100._together(1, 3073, 128) == 27 * 256 // 128 == 54
    # 48 products of a PE at once: all values of 192 heads from memory, 151 MB at 2039 x 0.87 GB/s, and the launch
    found = simulated_us("A100", "matmul", (1, 3073, 128, 192), 1, True).us
    assert 192 * 3073 * 128 * 2 / 1774e3 + 21.0 < found < 130.0


def test_rows_are_read_again_where_those_under_way_do_not_fit_the_l2():
    """27 SMs x 2048 threads: 16 rows of 128 threads are under way on each, as read and as written."""
    a100 = Card("A100", "layernorm", has_launch=True)
    assert 27 * 16 * 2 * 2 * 4096 <= a100.l2_bytes < 27 * 16 * 2 * 2 * 12288
    assert [a100._keeps("layernorm", width) for width in (4096, 12288)] == [True, False]
    assert [a100._keeps("softmax", width) for width in (1024, 4096, 32768)] == [True, True, False]


# ---- the set


@pytest.mark.needs("n_to_one", reason="real chips were compared with it")
def test_a_handful_of_rows_is_near_what_was_measured(tmp_path):
    data = folder_of(tmp_path, **{name.split(".")[0]: [row] for name, row in ROWS.items()})
    verdict = judge(SET, data, says_nothing)
    assert [(row.regime, row.case) for row in verdict.rows] == [
        ("operators", "A100 matmul 64 x 12288 x 12288"),
        ("operators", "A100 softmax 2048 x 4096, sweep N"),
        ("operators", "A100 gelu 67108864"),
        ("all-reduce", "all_reduce of 33554432 B over 4"),
        ("layer decode", "decode Wo_proj, m=8 k=3072 n=12288"),
        ("launch overhead", "A100 layernorm 2048 x 4096, sweep N"),
    ]
    assert all(abs(row.error) < 12.0 for row in verdict.rows)


def test_what_was_measured_changes_no_simulated_value(tmp_path):
    names = ("gelu", "allreduce_a100x4", "transformer_layer_a100x4")
    rows = {name: [ROWS[f"{name}.csv"]] for name in names}
    judged = judge(SET, folder_of(tmp_path / "a", **rows), says_nothing)
    deleted = {name: [row.replace(measured, "") for row in rows[name]]
               for name, measured in zip(names, ("204.44", "279.7", "68.90"), strict=True)}  # fmt: skip
    simulated_us.cache_clear()
    without = judge(SET, folder_of(tmp_path / "b", **deleted), says_nothing)
    assert [(row.regime, row.case, row.simulated) for row in without.rows] == [
        (row.regime, row.case, row.simulated) for row in judged.rows
    ]
    assert [row.error for row in without.rows] == [None] * 3


def test_a_row_is_of_the_launch_where_that_is_more_than_half(tmp_path):
    data = folder_of(tmp_path, gelu=["A100,1024,48.16", "A100,67108864,204.44"])
    short, long = [simulated(call) for call, _ in read_calls(data)]
    assert short[0][0] == "launch overhead"
    assert 45.0 < short[1] < 90.0 < long[1]
    assert long[0][0] == "operators"


def test_parts_of_a_layer_are_read_from_their_shapes(tmp_path):
    lines = [
        "four,prefill,Q_K_V,3 x (m=16384 k=12288 n=3072),1,no",
        "four,prefill,Q_mul_K,192 x (m=2048 k=128 n=2048),1,no",
        "four,decode,LayerNorm_MHA,8 rows of 12288,1,yes",
        "four,decode,Softmax,192 rows of 3073,1,no",
        "four,decode,AllReduce_MHA,196608 B over 4,1,no",
        "four,decode,GeLU,98304 elements,1,no",
    ]
    calls = [call[2:] for call, _ in read_calls(folder_of(tmp_path, transformer_layer_a100x4=lines))]
    assert calls == [
        ("A100", "matmul", (16384, 12288, 3072), 3, True),
        ("A100", "matmul", (2048, 128, 2048, 192), 1, True),
        ("A100", "layernorm", (8, 12288), 1, False),
        ("A100", "softmax", (192, 3073), 1, True),
        ("A100", "all_reduce", (196608, 4), 1, True),
        ("A100", "gelu", (98304,), 1, True),
    ]


def test_three_products_are_three_launches():
    once = simulated_us("A100", "matmul", (64, 64, 64), 1, True)
    assert simulated_us("A100", "matmul", (64, 64, 64), 3, True).us > 3 * 21.0
    assert once.launch_us == 21.0


def test_an_all_reduce_goes_around_twice():
    ring = gpu_operators.rings(4)[0]
    assert isinstance(ring, Ring)
    assert ring.empty_us > 8.4 + 6 * 8.92  # start, and six steps
    # 2 (n - 1) / n of the bytes over a link of 240 GB/s, besides software
    assert ring.all_reduce_us(1 << 27) > 8.4 + 6 * 8.92 + 1.5 * (1 << 27) / 240e3


@pytest.mark.parametrize(
    ("table", "row", "what"),
    [
        ("gelu", "H100,1024,1", "device 'H100'"),
        ("matmul", "A100,fp16,M,0,64,64,1", "sizes are 1 or more"),
        ("allreduce_a100x4", "four,4,all_gather,1024,1", "all_gather over 4"),
        ("transformer_layer_a100x4", "four,decode,GeLU,many,1,no", "shape 'many' of part GeLU"),
    ],
)
def test_rows_that_are_no_calls_are_refused(tmp_path, table, row, what):
    with pytest.raises(UsageError, match=what):
        list(read_calls(folder_of(tmp_path, **{table: [row]})))


def test_at_most_five_constants_are_fitted_and_all_are_named_in_the_machines():
    assert len(SET.fitted) == 5
    described = [(ROOT / "examples" / "machines" / name).read_text() for name in ("a100-like.yaml", "mi210-like.yaml")]
    # the share of the lanes is one value, in both descriptions
    assert sum(text.count("F: ") for text in described) - 1 == len(SET.fitted)
