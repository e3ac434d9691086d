"""What a kernel prints and asserts, and what is said when it, or a function that it calls, is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench import repeatable
from kernbench.common.errors import LaunchError
from kernbench.common.nearest import nearest
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel, tiny_machine

X = np.arange(6, dtype=np.float16).reshape(2, 3)


def failure(kernel, *args):
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, *args)
    return caught.value.failures[0]


# ---- the line, and the calls that led there


def outer(x, tl):
    inner(x, tl)


def inner(x, tl):
    tl.load(x + 1000, (4,))


def test_an_error_in_a_function_that_the_kernel_calls_shows_the_calls():
    def kernel(x, tl):
        outer(x, tl)

    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, X)
    found = caught.value.failures[0]
    assert found.source_line == "tl.load(x + 1000, (4,))"
    assert [call.partition("  ")[2] for call in found.calls] == ["inner(x, tl)", "outer(x, tl)"]
    where = str(caught.value).partition("where: ")[2].splitlines()
    assert where[0].endswith("tl.load(x + 1000, (4,))")
    assert [line.split()[:2] for line in where[1:3]] == [["called", "from"]] * 2
    assert where[2].endswith("outer(x, tl)")


def test_an_error_of_the_kernel_itself_or_of_a_library_has_no_chain():
    def kernel(x, tl):
        np.zeros(3).reshape(2, 2)

    found = failure(kernel, X)
    assert (found.source_line, found.calls) == ("np.zeros(3).reshape(2, 2)", ())


def test_an_error_in_another_file_names_that_file_and_the_kernels_line(tmp_path, monkeypatch):
    (tmp_path / "my_helper.py").write_text("def helper(tl):\n    tl.no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_helper

    def kernel(tl):
        my_helper.helper(tl)

    found = failure(kernel)
    assert (found.file.endswith("my_helper.py"), found.line) == (True, 2)
    assert [call.partition("  ")[2] for call in found.calls] == ["my_helper.helper(tl)"]


def test_a_very_long_chain_is_cut_in_the_middle():
    def deeper(n, tl):
        return deeper(n - 1, tl) if n else tl.no_such_thing

    found = failure(lambda tl: deeper(40, tl))
    assert len(found.calls) == 9
    assert found.calls[7] == "... 33 more calls"


# ---- names


@pytest.mark.parametrize(("wrong", "hint"), [
    ("prod", "tl.reduce(x, axis, lambda a, b: a * b)"),
    ("transpose", "tl.trans(x), or tl.permute(x, axes)"),
    ("squiggle", "dir(tl) lists what there is"),
    ("lod", "did you mean tl.load?"),
])  # fmt: skip
def test_a_hint_is_what_was_meant_or_none(wrong, hint):
    assert failure(lambda tl: getattr(tl, wrong)).hint == hint


def test_words_that_share_a_few_letters_are_not_near():
    assert nearest("cumprod", ["mod", "sum", "cumsum"]) is None
    assert nearest("cumsun", ["mod", "sum", "cumsum"]) == "cumsum"


# ---- prints and assertions


def test_a_print_on_the_device_has_time_and_pe_in_front(capsys):
    def kernel(x, tl):
        tl.cycles(100 * tl.program_id(0))
        tl.device_print("row", tl.load(x)[tl.program_id(0)], 7)
        tl.device_print("bits", 255, tl.full((2,), 10, "i32"), hex=True)

    run_kernel(kernel, X, grid=(2,))
    (
        first,
        *_,
    ) = lines = capsys.readouterr().out.splitlines()
    assert first.split("] ", 1)[1] == "row f16[3] [0., 1., 2.] 7"
    assert sorted(line.split()[2] for line in lines) == ["sip0.cube0.pe0]"] * 2 + ["sip0.cube0.pe1]"] * 2
    times = [float(line[1:].split()[0]) for line in lines]
    assert times == sorted(times)
    assert {line.split("] ", 1)[1] for line in lines if "bits" in line} == {"bits 0xff i32[2] [0xa, 0xa]"}


def test_it_takes_no_time_and_every_pe_prints_also_in_launches_that_would_be_replayed(capsys):
    def quiet(x, tl):
        tl.load(x)

    def loud(x, tl):
        tl.load(x)
        tl.device_print("here")

    assert run_kernel(quiet, X).time_ns == run_kernel(loud, X).time_ns
    with RuntimeContext(GraphEngine(tiny_machine(4, 2))) as torch:
        for _ in range(2):
            torch.launch(repeatable(lambda tl: tl.device_print("each")), target_cubes=range(2), target_pes=range(4))
    out = capsys.readouterr().out
    assert out.count("here") == 1
    assert len({line for line in out.splitlines() if "each" in line}) == 2 * 2 * 4


def test_printed_tensors_show_their_numbers_where_they_are_known(capsys):
    def kernel(x, tl):
        t = tl.load(x)
        print(t * 2)
        print(f"{tl.sum(t)}", tl.arange(0, 100))
        print(tl.ref(x))
        assert repr(t).startswith("<tensor f16[2, 3] in this PE's TCM")

    run_kernel(kernel, X)
    out = capsys.readouterr().out
    assert "f16[2, 3]\n[[ 0.,  2.,  4.],\n [ 6.,  8., 10.]]\n" in out
    assert "f16[1, 1] [[15.]] i32[100] [ 0,  1,  2, ..., 97, 98, 99]\n" in out
    assert "<tensor f16[2, 3] in HBM at " in out


def test_in_a_run_that_keeps_no_contents_they_say_what_they_are(capsys):
    with RuntimeContext(GraphEngine(tiny_machine())) as torch:
        torch.timing_only()
        torch.launch(lambda x, tl: print(tl.load(x)), torch.empty(2, 3), target_pes=0)
    assert capsys.readouterr().out.startswith("<tensor f16[2, 3] in this PE's TCM")


def test_assertions_fail_at_their_line():
    def kernel(x, tl):
        t = tl.load(x)
        tl.device_assert(t >= 0)
        tl.device_assert(t > 2, mask=t > 2)
        tl.static_assert(t.shape == (2, 3), "shape")
        tl.device_assert(t < 5, "too large")

    found = failure(kernel, X)
    assert (found.message, found.source_line) == (
        "device_assert failed: too large", 'tl.device_assert(t < 5, "too large")'
    )  # fmt: skip


# ---- Triton's further names


def test_static_print_prints_what_a_kernel_knows(capsys):
    def kernel(x, tl):
        tl.static_print("block", 32)

    run_kernel(kernel, np.zeros(8, np.float32))
    assert "block 32" in capsys.readouterr().out


def test_names_of_tritons_that_stand_for_what_there_is():
    def kernel(x, tl):
        t = tl.load(x)
        assert tl.view(t, 3, 2).shape == (3, 2)
        assert [each.shape for each in tl.broadcast(t, tl.zeros((3,)))] == [(2, 3)] * 2
        assert (tl.fdiv(t, 2).numpy() == t.numpy() / 2).all()
        assert (tl.div_rn(t, 2).numpy() == t.numpy() / 2).all()
        assert (tl.sqrt_rn(t).numpy() == tl.sqrt(t).numpy()).all()
        assert [*tl.static_range(3), *tl.range(2)] == [0, 1, 2, 0, 1]
        assert tl.multiple_of(t, 8) is t is tl.max_contiguous(t, 8) is tl.max_constancy(t, 8)
        tl.assume(t.shape[0] > 1)
        assert [(each.shape, each.dtype, each.numpy().max()) for each in (
            tl.zeros_like(t), tl.ones_like(t, "i32"), tl.full_like(t, 3), tl.ones((2,)))] == [
            ((2, 3), "f16", 0), ((2, 3), "i32", 1), ((2, 3), "f16", 3), ((2,), "f16", 1)]  # fmt: skip

    run_kernel(kernel, X)


def test_a_broadcast_takes_no_time_and_no_tcm():
    def plain(x, tl):
        tl.load(x)

    def broadcast(x, tl):
        tl.broadcast_to(tl.load(x)[:, None], (2, 500, 3))

    used = []
    for kernel in (plain, broadcast):
        with RuntimeContext(GraphEngine(tiny_machine())) as torch:
            launch = torch.launch(kernel, torch.from_numpy(X), target_pes=0)
        used.append((launch.pe_exec_ns_max, launch.pes[0].tcm_peak_bytes))
    assert used[0] == used[1]
