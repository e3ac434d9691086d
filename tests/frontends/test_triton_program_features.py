"""Features of Triton's language and runtime, each in a program of its own."""

from __future__ import annotations

import numpy as np
import pytest
from packaging import version
from tests.frontends.triton_programs import SMALL, simulated, tl, torch, triton

from kernbench.common.errors import LaunchError, UsageError
from kernbench.topology import load_topology
from kernbench.triton.benchmarks import SLOWER
from kernbench.triton.program import PeProgram

libdevice = pytest.importorskip("triton.language.extra.libdevice")


# ---- control flow, atomics, several programs


@triton.jit
def locked_sum(x, total, lock, BLOCK: tl.constexpr):
    part = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_a_spin_lock_orders_programs_on_different_pes():
    x, total, lock = torch.ones(16 * 64), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    with simulated(check_races=True) as sim:
        locked_sum[(16,)](x, total, lock, BLOCK=64)
    assert total.item() == 16 * 64
    assert sim.result.races == []


@triton.jit
def racing(total, BLOCK: tl.constexpr):
    tl.store(total, tl.load(total) + 1)


def test_programs_that_race_are_found():
    with simulated(check_races=True) as sim:
        racing[(4,)](torch.zeros(1), BLOCK=1)
    assert sim.result.races
    assert "test_triton_program_features.py" in str(sim.result.races[0])


@triton.jit
def count_of(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, mask=at < n), 1, mask=at < n)


def test_atomics_take_any_lanes_at_addresses_that_were_loaded():
    x, out = torch.randint(0, 8, (300,), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with simulated():
        count_of[(5,)](x, out, 300, BLOCK=64)
    assert torch.equal(out, torch.bincount(x, minlength=8).to(torch.int32))


@triton.jit
def collatz(x, steps):
    pid = tl.program_id(0)
    n, count = tl.load(x + pid), 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        count += 1
    tl.store(steps + pid, count)


def test_branches_and_loops_on_loaded_numbers():
    x, steps = torch.tensor([1, 6, 7, 27]), torch.zeros(4, dtype=torch.int32)
    with simulated():
        collatz[(4,)](x, steps)
    assert steps.tolist() == [0, 8, 16, 111]


# ---- reductions, scans, sorting, randomness


@triton.jit
def smaller_first(a_value, a_index, b_value, b_index):
    take = a_value <= b_value
    return tl.where(take, a_value, b_value), tl.where(take, a_index, b_index)


@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def many_ops(x, least, place, sums, scan, ordered, bins, total, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    value, index = tl.reduce((v, at), 0, smaller_first)
    tl.store(least, value)
    tl.store(place, index)
    tl.store(sums + at, tl.cumsum(v, 0))
    _, b = tl.associative_scan((tl.full((N,), 0.5, tl.float32), v), 0, affine)
    tl.store(scan + at, b)
    tl.store(ordered + at, tl.sort(v))
    tl.store(bins + tl.arange(0, 8), tl.histogram((v * 8).to(tl.int32), 8))
    tl.store(total, tl.sum(tl.reshape(v, (4, N // 4)), axis=None))


def test_reductions_and_scans_with_user_functions_sorting_and_histograms():
    n = 64
    x = torch.rand(n)
    least, place, total = torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    sums, scan, ordered = torch.zeros(n), torch.zeros(n), torch.zeros(n)
    bins = torch.zeros(8, dtype=torch.int32)
    with simulated():
        many_ops[(1,)](x, least, place, sums, scan, ordered, bins, total, N=n)
    assert (least.item(), place.item()) == (x.min().item(), int(x.argmin()))
    torch.testing.assert_close(sums, x.cumsum(0))
    expected, held = [], 0.0
    for value in x.tolist():
        held = 0.5 * held + value
        expected.append(held)
    torch.testing.assert_close(scan, torch.tensor(expected))
    assert torch.equal(ordered, x.sort().values)
    assert torch.equal(bins, torch.histc(x, 8, 0, 1).to(torch.int32))
    torch.testing.assert_close(total, x.sum().reshape(1))


@triton.jit
def random_numbers(out, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.rand(seed, at))
    tl.store(out + N + at, tl.randn(seed, at))


def test_random_numbers_are_those_of_the_philox_generator():
    # The first word of Philox 4x32-10 with key (10, 0) and counter (i, 0, 0, 0), by its definition.
    def philox(counter: int, key: int) -> int:
        c, k, m = [counter, 0, 0, 0], [key, 0], 1 << 32
        for _ in range(10):
            high0, low0 = divmod(0xD2511F53 * c[0], m)
            high1, low1 = divmod(0xCD9E8D57 * c[2], m)
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [(k[0] + 0x9E3779B9) % m, (k[1] + 0xBB67AE85) % m]
        return c[0]

    out = torch.zeros(64)
    with simulated():
        random_numbers[(1,)](out, 10, N=32)
    signed = np.array([philox(i, 10) for i in range(32)], np.uint32).view(np.int32)
    folded = np.where(signed < 0, -signed - 1, signed)
    assert np.array_equal(out[:32].numpy(), folded.astype(np.float32) * np.float32(4.6566127342e-10))
    assert abs(out[32:].mean()) < 1


# ---- addresses: block pointers, descriptors, pointers in memory


@triton.jit
def copy_block(x, out, M, N, B: tl.constexpr):
    source = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(out, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def copy_descriptor(x, out, M, N, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    target.store([0, 0], source.load([0, 0]))


@pytest.mark.filterwarnings("default")  # block pointers are deprecated in 3.7
@pytest.mark.parametrize("kernel", [copy_block, copy_descriptor])
def test_block_pointers_and_descriptors_leave_what_is_outside(kernel):
    if kernel is copy_block and version.parse(triton.__version__) >= version.parse("3.9"):
        pytest.skip("Triton 3.9 has removed block pointers in favour of descriptors")
    x = torch.rand(12, 20)
    out = torch.zeros(12, 20)
    with simulated():
        kernel[(1,)](x, out, 12, 20, B=16)
    assert torch.equal(out[:, :16], x[:, :16])
    assert not out[:, 16:].any()


@triton.jit
def combine(x, out, rows, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr):
    at = tl.program_id(0) * M
    value = tl.load(x + (at + tl.arange(0, M))[:, None] * N + tl.arange(0, N)[None, :])
    block = tl.make_tensor_descriptor(out, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    if KIND == "add":
        block.atomic_add([at, 0], value)
    elif KIND == "max":
        block.atomic_max([at, 0], value)
    else:
        block.atomic_xor([at, 0], value)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("add", torch.float32, torch.add),
        ("add", torch.bfloat16, torch.add),
        ("max", torch.int32, torch.maximum),
        ("xor", torch.int32, torch.bitwise_xor),
    ],
)
def test_atomics_of_descriptors_change_what_is_inside(kind, dtype, expected):
    x, out = ((torch.rand(12, 32) * 100).to(dtype) for _ in range(2))
    wanted = expected(out, x)
    with simulated():
        combine[(1,)](torch.cat((x, x)), out, 12, M=16, N=32, KIND=kind)  # the last rows are outside
    assert torch.equal(out, wanted)


@triton.jit
def through_pointers(table, out, N: tl.constexpr):
    at = tl.arange(0, N)
    source = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0) * N + at, tl.load(source + at))


def test_tensors_whose_addresses_are_in_memory_are_found():
    with simulated():
        tensors = [torch.rand(32) for _ in range(3)]
        table, out = torch.tensor([each.data_ptr() for each in tensors]), torch.zeros(3, 32)
        through_pointers[(3,)](table, out, N=32)
    assert torch.equal(out, torch.stack(tensors))


# ---- types, functions


@triton.jit
def types(a, b, c, d, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(a + at, tl.load(a + at) * 3)
    tl.store(b + at, tl.load(b + at) * 3 + 1)
    tl.store(c + at, tl.load(c + at).to(tl.float32) * 2)
    tl.store(d + at, (tl.load(d + at).to(tl.float32) * 2).to(tl.float8e5))


def test_doubles_long_integers_and_narrow_floats():
    a = torch.rand(16, dtype=torch.float64)
    b = torch.tensor([2**40 + i for i in range(16)])
    c = torch.rand(16).to(torch.bfloat16)
    d = torch.rand(16).to(torch.float8_e5m2)
    expected = (a * 3, b * 3 + 1, c * 2, d.float() * 2)
    with simulated():
        types[(1,)](a, b, c, d, N=16)
    assert torch.equal(a, expected[0])
    assert torch.equal(b, expected[1])
    assert torch.equal(c, expected[2])
    assert torch.equal(d.float(), expected[3])


@triton.jit
def with_library(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, libdevice.asin(v) + libdevice.pow(v, 2.0))


def test_functions_of_libdevice_are_computed():
    x, out = torch.rand(32), torch.zeros(32)
    with simulated():
        with_library[(1,)](x, out, N=32)
    torch.testing.assert_close(out, torch.asin(x) + x**2)


@triton.jit
def with_acc(x, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    acc = tl.zeros((N, N), tl.float32)
    for _ in range(3):
        acc = tl.dot(a, a, acc)
    tl.store(out + at, acc)


def test_a_dot_adds_to_its_accumulator():
    x, out = torch.rand(16, 16).half(), torch.zeros(16, 16)
    with simulated():
        with_acc[(1,)](x, out, N=16)
    torch.testing.assert_close(out, 3 * (x.float() @ x.float()), rtol=1e-3, atol=1e-3)


@triton.jit
def says(x):
    tl.device_print("value", tl.load(x))


def test_device_print_says_the_program_and_the_numbers(capsys):
    with simulated():
        says[(2,)](torch.full((1,), 7.0))
    printed = capsys.readouterr().out
    assert [line.split("value")[0].strip() for line in printed.splitlines()] == ["(0, 0, 0)", "(1, 0, 0)"]
    assert printed.count("7.") == 2


# ---- meta-parameters


@triton.autotune(
    configs=[triton.Config({"B": 1024}), triton.Config({"B": 1024}, num_warps=8), triton.Config({"B": 8192})], key=["n"]
)
@triton.jit
def tuned_copy(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def test_autotune_takes_the_fastest_configuration_and_measures_equal_ones_once():
    x, out = torch.rand(8192), torch.zeros(8192)
    with simulated() as sim:
        tuned_copy[lambda meta: (triton.cdiv(8192, meta["B"]),)](x, out, 8192)
    assert torch.equal(out, x)
    (launch,), (table,) = sim.launches, sim.autotuned
    assert [trial.config["B"] for trial in table.trials] == [8192, 1024]  # one program is less work to simulate than 8
    assert launch.config["B"] == table.best.config["B"] == 1024  # 8 PEs work, not one
    assert launch.ns == table.best.ns
    assert "<- best" in table.as_text()


@triton.autotune(configs=[triton.Config({"B": 1024}), triton.Config({"B": 16})], key=["n"])
@triton.jit
def sum_in_blocks(x, out, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for at in range(0, n, B):
        total += tl.load(x + at + tl.arange(0, B))
    tl.store(out, tl.sum(total))


def test_a_configuration_that_is_bound_to_lose_is_given_up_early(monkeypatch):
    # 16 elements at a time need 64 times as many loads as 1024, each with the same latency: at an eighth of the time of
    # the first configuration it is far from an eighth of its 512 loads.
    loads = []
    before = PeProgram.load
    monkeypatch.setattr(PeProgram, "load", lambda self, *args: loads.append(self._computes) or before(self, *args))
    x, out = torch.rand(8192), torch.zeros(1)
    with simulated() as sim:
        sum_in_blocks[(1,)](x, out, 8192)
    assert out.item() == pytest.approx(x.sum().item(), rel=1e-4)
    first, second = sim.autotuned[0].trials
    assert (sim.launches[0].config["B"], first.error, second.error) == (1024, "", SLOWER)
    assert loads.count(False) - 8 < 512 / 8


@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def heuristic_copy(x, out, n, B: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if EVEN:
        tl.store(out + at, tl.load(x + at))
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def test_heuristics_see_the_arguments():
    with simulated() as sim:
        for n in (128, 100):
            x, out = torch.rand(n), torch.zeros(n)
            heuristic_copy[(2,)](x, out, n, B=64)
            assert torch.equal(out, x)
    assert [launch.config["EVEN"] for launch in sim.launches] == [True, False]


def test_do_bench_is_simulated_time():
    x, out = torch.rand(64), torch.zeros(64)
    with simulated() as sim:
        ms = triton.testing.do_bench(lambda: heuristic_copy[(1,)](x, out, 64, B=64))
        assert np.isnan(triton.testing.do_bench(lambda: x + out))
    assert ms == sim.launches[0].ns / 1e6


# ---- time


@triton.jit
def walk(x, out, steps, B: tl.constexpr, HEAVY: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(steps):
        v = tl.load(x + i * B + at)
        if HEAVY:
            v = tl.exp(tl.exp(v))
        total += v
    tl.store(out + at, total)


def test_stages_let_loads_run_ahead_of_work():
    # An iteration loads 4 KiB (about 30 ns: 16 ns of bytes and latency) and computes 1024 f32 once or three times (8 ns
    # each and 1 ns to issue). With one stage both follow each other; with two, the longer of them counts. With four the
    # latency of loads is hidden too, where the DMA engine has several requests under way.
    x, out = torch.rand(16 * 1024), torch.zeros(1024)
    found = {}
    deep = load_topology(None, {**SMALL, "cube.pe_template.components.pe_dma.attrs.outstanding": 4})
    for heavy in (True, False):
        with simulated(machine=None if heavy else deep) as sim:
            for stages in (1, 2, 4):
                walk[(1,)](x, out, 16, B=1024, HEAVY=heavy, num_stages=stages)
                found[heavy, stages] = sim.launches[-1].ns
    assert found[True, 1] > found[True, 2] + 16 * 20
    assert found[True, 2] >= found[True, 4] >= 16 * 3 * 8
    assert found[False, 1] > found[False, 2] > found[False, 4] >= 16 * 16


@triton.jit
def pages(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at))


def test_placement_and_schedule_change_the_time_and_not_the_numbers():
    x = torch.rand(8 * 1024)
    found = {}
    for placement in ("slabs", "interleave", "auto"):
        with simulated(placement=placement) as sim:
            out = torch.zeros_like(x)
            pages[(8,)](x, out, B=1024)
            assert torch.equal(out, x)
        found[placement] = sim.launches[0].ns
    assert found["auto"] == found["slabs"]
    with simulated() as sim:
        out = torch.zeros_like(x)
        pages[(8,)](x, out, B=1024, schedule="dynamic", placement="interleave")
        assert torch.equal(out, x)


def test_a_grid_larger_than_the_machine_runs_in_waves():
    with simulated() as sim:
        for programs in (8, 16, 32):
            x = torch.rand(programs * 1024)
            pages[(programs,)](x, torch.zeros_like(x), B=1024)
    one, two, four = (launch.ns for launch in sim.launches)
    assert one < two < four
    assert four - two == pytest.approx(2 * (two - one), rel=0.2)


# ---- refused


@triton.jit
def with_assembly(x):
    tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [tl.load(x)], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def specialised(x, out):
    for i in tl.range(0, 4, warp_specialize=True):
        tl.store(out + i, tl.load(x + i))


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [(with_assembly, 1, "inline assembly"), (specialised, 2, "warp specialisation")],
)
def test_what_is_for_one_processor_is_refused_at_its_line(kernel, arguments, message):
    with pytest.raises(LaunchError, match=message) as caught, simulated():
        kernel[(1,)](*[torch.zeros(4) for _ in range(arguments)])
    assert "test_triton_program_features.py" in str(caught.value)


def test_a_block_that_does_not_fit_tcm_says_so():
    with pytest.raises(LaunchError, match="TCM overflow") as caught, simulated():
        pages[(1,)](torch.zeros(1 << 20), torch.zeros(1 << 20), B=1 << 20)
    assert "num_stages" in str(caught.value)
    assert "tl.ref" not in str(caught.value)  # no name of Triton's


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "random"}, "schedule is 'random'"),
        ({"placement": "nowhere"}, "placement is 'nowhere'"),
        ({"BLOCKS": 4}, "kernel 'pages' has no parameter 'BLOCKS'"),
        ({"num_stage": 2}, "has no parameter 'num_stage'.*\n.*did you mean 'num_stages'"),
        ({"num_stages": -1}, "num_stages is -1"),
        ({"stream": 0}, "has no parameter 'stream'"),
    ],
)
def test_a_wrong_option_names_the_choices(options, message):
    with pytest.raises(UsageError, match=message), simulated():
        pages[(1,)](torch.zeros(64), torch.zeros(64), B=64, **options)


def test_without_stages_nothing_overlaps_as_with_one():
    """Triton's compiler pipelines no loop with num_stages=0 or 1."""
    x, out = torch.ones(16 * 1024), torch.empty(1024)
    with simulated() as sim:
        for stages in (0, 1, 3):
            walk[(1,)](x, out, 16, B=1024, HEAVY=True, num_stages=stages)
    none, one, three = (launch.ns for launch in sim.launches)
    assert none == one > three


def test_an_option_that_does_nothing_here_is_noted_once(capsys):
    with simulated():
        for _ in range(2):
            pages[(1,)](torch.zeros(64), torch.zeros(64), B=64, waves_per_eu=2, num_warps=4)
    said = capsys.readouterr().err
    assert said.count("waves_per_eu has no meaning") == said.count("num_warps has no meaning") == 1


@triton.jit
def product(a, b, out, K, N: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        at = k + tl.arange(0, B)
        total += tl.dot(tl.load(a + rows[:, None] * K + at[None, :]), tl.load(b + at[:, None] * N + columns[None, :]))
    tl.store(out + rows[:, None] * N + columns[None, :], total)


def test_rows_that_are_read_together_take_the_times_of_single_flits(monkeypatch):
    """16 programs of 4 steps, each with two blocks of 32 rows: 128 requests are joined, and none without fast paths."""
    pytest.importorskip("numba")
    from kernbench.sim_engine.fabric.loop_reads import LoopReads

    monkeypatch.setattr("kernbench.sim_engine.machine.MANY_EVENTS", 0)
    joined, plain = [], LoopReads.add
    monkeypatch.setattr(
        LoopReads, "add", lambda self, reads, *rest: (joined.append(len(reads)), plain(self, reads, *rest))
    )
    a, b = torch.rand(128, 128), torch.rand(128, 128)
    seen = []
    for exact in ("", "all"):
        monkeypatch.setenv("KERNBENCH_EXACT", exact)
        out = torch.zeros(128, 128)
        with simulated() as sim:
            product[(4, 4)](a, b, out, 128, N=128, B=32, placement="interleave")
        assert torch.allclose(out, a @ b)
        (launch,) = sim.launches
        seen.append((launch.ns, launch.launch.bytes_hbm, sim.total_ns))
    assert seen[0] == seen[1]
    assert joined == [32] * 128


def test_the_addresses_of_a_descriptors_block_are_those_of_triton():
    """Blocks inside, across an edge and before the first element, of a matrix whose rows are 48 elements apart."""
    from triton.runtime.interpreter import TensorDescHandle

    from kernbench.triton.builder import _block_of
    from kernbench.triton.internals import TritonHandle, core

    def number(n, dtype=core.int32):
        return TritonHandle(np.array([n], dtype=np.uint64 if dtype is not core.int32 else np.int32), dtype)

    base = number(4096, core.pointer_type(core.float16))
    desc = TensorDescHandle(base, [number(20), number(40)], [number(48), number(1)], [8, 16], "zero")
    for row, column in ((0, 0), (8, 16), (3, 24), (12, 24), (16, 0), (-1, 8), (0, 32)):
        at = [number(row), number(column)]
        (ptrs, mask), (expected, inside) = _block_of(desc, at), desc.materialize_pointers(at)
        assert ptrs.dtype == expected.dtype
        assert ptrs.data.dtype == expected.data.dtype == np.uint64
        np.testing.assert_array_equal(ptrs.data, expected.data)
        np.testing.assert_array_equal(getattr(mask, "data", mask), getattr(inside, "data", inside))


@triton.jit
def gather_rows(x, rows, out, M, N: tl.constexpr, R: tl.constexpr):
    table = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[1, N])
    found = table.gather(tl.load(rows + tl.arange(0, R)), 0)
    tl.store(out + tl.arange(0, R)[:, None] * N + tl.arange(0, N)[None, :], found)


def test_a_descriptor_gathers_rows_by_their_numbers():
    x = torch.arange(32 * 64, dtype=torch.float32).reshape(32, 64)
    rows, out = torch.tensor([3, 1, 7, 31, 2, 2, 9, 11], dtype=torch.int32), torch.zeros(8, 64)
    with simulated():
        gather_rows[(1,)](x, rows, out, 32, 64, 8)
    assert torch.equal(out, x[rows.long()])


@triton.jit
def wait_for_flag(flag, out):
    tl.store(out, tl.atomic_poll(flag, 1).to(tl.int32))


@pytest.mark.skipif(not hasattr(tl, "atomic_poll"), reason="Triton before 3.9 has no atomic_poll")
def test_a_poll_without_a_time_limit_waits_for_its_value():
    flag, out = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with simulated():
        wait_for_flag[(1,)](flag, out)
    assert out.item() == 1
