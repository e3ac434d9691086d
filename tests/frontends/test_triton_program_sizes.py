"""Which sizes of a `triton.testing.perf_report` are run."""

import pytest

from kernbench.cli.main import main
from kernbench.common.errors import UsageError
from kernbench.triton.sizes import BenchmarkSizes

PROGRAM = """
import torch
import triton
import triton.language as tl

@triton.jit
def twice(x, N: tl.constexpr):
    at = x + tl.arange(0, N)
    tl.store(at, 2 * tl.load(at))

@triton.testing.perf_report(triton.testing.Benchmark(
    x_names=["M", "N"], x_vals=[64, 128, 256], line_arg="kind", line_vals=["add"], line_names=["Add"],
    plot_name="sums", ylabel="M", args={}))
def bench(M, N, kind):
    twice[(1,)](torch.ones(N), N=N)
    return float(M + N)

bench.run(print_data=True)
"""


@pytest.mark.parametrize(
    ("text", "kept"), [(None, [64, 128, 256]), ("2", [64, 128]), ("0", []), ("N=256,64", [64, 256]), ("M=128", [128])]
)
def test_sizes_are_the_first_or_those_with_a_value(text, kept):
    assert BenchmarkSizes.parse(text).of(["M", "N"], [64, 128, 256], "sums") == [[size, size] for size in kept]


def test_a_value_is_looked_up_under_its_name_where_names_differ_in_theirs():
    assert BenchmarkSizes.parse("K=8").of(["M", "K"], [(8, 4), (4, 8)], "products") == [[4, 8]]


@pytest.mark.parametrize("text", ["", "-1", "two", "N", "N=", "N=1,", "=4", "N=1 2"])
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError, match="names no sizes"):
        BenchmarkSizes.parse(text)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("N=128", 0, "128  128  256"),
        ("N=100", 2, "'sums' has no N of 100"),
        ("K=128", 2, "'sums' has no sizes called K"),
        ("first", 2, "--benchmarks first names no sizes"),
    ],
)
def test_the_command_runs_the_sizes_that_it_names(tmp_path, capsys, given, code, said):
    file = tmp_path / "report.py"
    file.write_text(PROGRAM)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--triton", str(file), "--benchmarks", given])
    assert ended.value.code == code
    out, err = capsys.readouterr()
    assert said in (err if code else out)
    assert "64  64" not in out
