"""Running a bench: devices, verification, results as JSON, and times that do not depend on data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest

import kernbench
from kernbench.benches.gemm import gemm_single_pe
from kernbench.benches.registry import AtLeast
from kernbench.common.errors import DataError, LaunchError, UsageError
from kernbench.report.run_figures import figures_of
from kernbench.report.run_summary import full_summary
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import devices_of
from kernbench.topology import load_topology
from kernbench.values.ops import OPS

SMALL = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
A = np.arange(12, dtype=np.float16).reshape(3, 4)


def square(x: Any, y: Any, tl: Any) -> None:
    own = tl.load(x, x.shape)
    tl.store(y, own * own)


def bench(torch: Any, factor: float = 1.0, background: bool = False) -> float:
    x = torch.from_numpy(A, name="x")
    y = torch.empty(3, 4, name="y")
    torch.launch("square", square, x, y, wait=not background)
    torch.check(y, lambda: factor * A.astype(np.float32) ** 2)
    torch.zeros(64)
    return factor


def run(**options: Any) -> BenchResult:
    return kernbench.run(bench, overrides=SMALL, **options)


def test_a_right_result_passes() -> None:
    result = run(verify_data=True, device="sip:0")
    assert result.ok
    assert [(c.tensor, c.dtype, c.ok, c.max_abs_err) for c in result.data] == [("y", "f16", True, 0.0)]
    assert result.returned == [1.0]


def test_a_wrong_result_fails() -> None:
    result = run(verify_data=True, device=1, params={"factor": 1.5})
    assert not result.ok
    assert result.data[0].max_abs_err == 0.5 * 11**2
    assert result.devices == (1,)


def test_nothing_is_compared_unless_asked_for() -> None:
    result = run(params={"factor": 1.5})
    assert result.ok
    assert result.data == []


def test_every_device_runs_the_bench_at_the_same_time() -> None:
    both, one = run(verify_data=True), run(device="sip:0")
    assert both.devices == (0, 1)
    assert [check.tensor for check in both.data] == ["y@sip0", "y@sip1"]
    assert [launch.sips for launch in both.launches] == [(0,), (1,)]
    assert both.total_ns == one.total_ns  # each SIP has its own memory: they do not meet
    assert both.launches[0].start_ns == both.launches[1].start_ns


def drives_all(torch: Any) -> list[int]:
    """A tensor on every SIP, and one launch over all of them."""
    first = torch.ahbm.current_device()
    parts = []
    for sip in range(torch.spec.n_sips):
        torch.ahbm.set_device(sip)
        parts.append(torch.from_numpy(A + sip, name=f"x{sip}"))
    torch.launch("add", lambda *xs, tl: tl.store(xs[tl.program_id(2)], tl.load(xs[tl.program_id(2)]) * 2), *parts)
    for sip, part in enumerate(parts):
        torch.check(part, 2 * (A + sip))
    return [first, len(torch.launches)]


@pytest.mark.parametrize("device", ["whole", " Whole"])
def test_a_function_may_drive_the_whole_tray_in_one_run(device: str) -> None:
    result = kernbench.run(drives_all, overrides=SMALL, device=device, verify_data=True)
    assert result.ok
    assert result.returned == [[0, 1]]  # once, from device 0 on
    assert result.devices == (0, 1)
    assert [launch.sips for launch in result.launches] == [(0, 1)]
    assert [check.tensor for check in result.data] == ["x0", "x1"]
    assert "sip:0+sip:1" in full_summary(figures_of(result))


@pytest.mark.parametrize("background", [False, True])
def test_times_do_not_depend_on_data_or_verification(background: bool) -> None:
    params = {"background": background}
    plain = run(params=params)
    assert plain.total_ns > 0
    for options in ({"verify_data": True}, {"data": False}, {"debug_ops": True}, {"mode": "flits"}):
        other = run(params=params, **options)
        assert other.total_ns == plain.total_ns
        assert other.op_log is not None
        assert plain.op_log is not None
        assert other.op_log.records == plain.op_log.records


def test_every_op_is_compared_when_ops_are_debugged() -> None:
    result = run(debug_ops=True, device=0)
    assert result.ok
    assert [op.tensor.split()[1] for op in result.ops] == ["mul[3,"]


def test_a_wrong_op_is_named_with_its_kernel_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "mul", replace(OPS["mul"], compute=OPS["add"].compute))
    result = run(debug_ops=True, device=0)
    (wrong,) = (op for op in result.ops if not op.ok)
    line = square.__code__.co_firstlineno + 2
    assert wrong.tensor.endswith(f" mul[3, 4] at {__file__}:{line}")
    assert (wrong.dtype, wrong.max_abs_err) == ("f16", 11 * 11 - 22)
    assert f"{wrong.tensor} f16: off by 99" in full_summary(figures_of(result))


def test_ops_behind_a_branch_and_a_host_read_are_compared_too() -> None:
    def branching(x: Any, y: Any, tl: Any) -> None:
        twice = tl.load(x, x.shape) + tl.load(x, x.shape)
        tl.store(y, twice * twice if float(tl.max(twice)) > 3 else twice)

    def bench(torch: Any) -> None:
        x, y = torch.from_numpy(A), torch.empty(3, 4)
        torch.launch("branching", branching, x, y)
        y.numpy()
        torch.check(y, lambda: 4 * A.astype(np.float32) ** 2)

    result = kernbench.run(bench, overrides=SMALL, device=0, debug_ops=True)
    assert result.ok
    assert [op.tensor.split()[1] for op in result.ops] == ["add[3,", "mul[3,"]


@pytest.mark.parametrize("threads", [0, -4])
def test_no_threads_are_refused_before_anything_runs(threads: int) -> None:
    def never(torch: Any) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=f"threads is {threads}"):
        kernbench.run(never, overrides=SMALL, threads=threads)


def test_the_json_is_what_the_command_prints() -> None:
    result = run(verify_data=True, device=0, name="my-bench")
    parsed = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert list(parsed) == ["schema", "command", "bench", "ok", "total_ns", "launches", "data", "backend"]
    assert (parsed["schema"], parsed["command"], parsed["bench"], parsed["ok"]) == (1, "run", "my-bench", True)
    assert {"name", "total_ns", "pe_exec_ns_max", "pe_exec_ns_min", "flops", "bytes_hbm", "engines"} <= set(
        parsed["launches"][0]
    )
    assert {"tensor", "ok", "max_abs_err", "rtol", "atol"} <= set(parsed["data"][0])


def test_a_tensor_that_was_never_written_fails_and_the_others_are_compared() -> None:
    def forgetful(torch: Any) -> None:
        x, y = torch.from_numpy(A, name="x"), torch.empty(3, 4, name="y")
        torch.launch("nothing", lambda x, y, tl: tl.store(y, tl.load(x, (1, 4))), x, y)
        torch.check(y, A)
        torch.check(x, A)

    result = kernbench.run(forgetful, overrides=SMALL, device=0, verify_data=True)
    y, x = result.data
    assert (y.tensor, y.ok, y.max_abs_err, x.tensor, x.ok, x.reason) == ("y", False, np.inf, "x", True, None)
    assert y.reason == "16 of 24 bytes were never written, the first of them element [1, 0], on sip0.cube0.pe0"
    assert not result.ok


@pytest.mark.parametrize("how", [{"verify_data": True}, {"debug_ops": True}])
def test_a_bench_that_states_nothing_is_not_ok_when_it_is_verified(how: dict[str, bool]) -> None:
    def silent(torch: Any) -> None:
        torch.zeros(4)

    result = kernbench.run(silent, overrides=SMALL, **how)
    assert (result.ok, result.completion.error_code) == (False, "NO_REFERENCE")
    assert kernbench.run(silent, overrides=SMALL).ok


@pytest.mark.parametrize("reference", [np.full(4, 1j), np.full(4, "0"), lambda: [0j] * 4])
def test_a_reference_of_no_real_numbers_is_refused(reference: Any) -> None:
    def complex_(torch: Any) -> None:
        torch.check(torch.zeros(4, name="x"), reference)

    with pytest.raises(DataError, match=r"torch\.check of tensor 'x' cannot take"):
        kernbench.run(complex_, overrides=SMALL, device=0, verify_data=True)


def test_parameters_are_checked_before_anything_runs() -> None:
    def never(torch: Any, *, rows: Annotated[int, AtLeast(1)], cols: int = 4) -> None:
        raise AssertionError

    def refused(**params: object) -> str:
        with pytest.raises(UsageError) as error:
            kernbench.run(never, overrides=SMALL, params=params)
        return str(error.value)

    assert refused(zz=1, rows=1) == "no parameter 'zz'\n  hint:  parameters of this bench: rows, cols"
    assert refused(row=1).startswith("no parameter 'row'; did you mean 'rows'?")
    assert refused(cols=1).startswith("parameter 'rows' has no value")
    assert refused(rows=0) == "rows is 0\n  where: params['rows']\n  hint:  give 1 or more"
    assert refused(rows="many").startswith("rows is 'many'")
    with pytest.raises(AssertionError):
        kernbench.run(never, overrides=SMALL, params={"rows": 1})
    assert kernbench.run(lambda torch, **any_: torch.zeros(4), overrides=SMALL, params={"zz": 1}).ok


def test_a_shipped_bench_checks_its_parameters_from_python_too() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        kernbench.run(gemm_single_pe, overrides=SMALL, params={"seed": -1})


def test_a_bench_that_asks_nothing_of_the_device_is_not_ok() -> None:
    result = kernbench.run(lambda torch: None, overrides=SMALL)
    assert not result.ok
    assert result.completion.error_code == "NO_REQUESTS"


def test_errors_of_a_bench_come_through() -> None:
    def wrong(torch: Any) -> None:
        torch.zeros(4)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kernbench.run(wrong, overrides=SMALL)

    def fails(tl: Any) -> None:
        raise ValueError("kernel")

    with pytest.raises(LaunchError, match="sip 0, cube 0, pe 0: ValueError: kernel"):
        kernbench.run(lambda torch: torch.launch("fails", fails), overrides=SMALL)


def test_devices_are_named_three_ways() -> None:
    assert devices_of("all", 3) == (0, 1, 2)
    assert devices_of("sip:2", 3) == devices_of(2, 3) == devices_of("2", 3) == devices_of("SIP:2", 3) == (2,)
    assert devices_of("ALL", 2) == (0, 1)
    for bad in ("sip:3", 3, "sip:x", "", -1, True):
        with pytest.raises(UsageError, match="no device"):
            devices_of(bad, 3)


def test_a_machine_may_be_compiled_already() -> None:
    graph = load_topology(None, SMALL)
    assert kernbench.run(bench, graph).total_ns == run().total_ns
    with pytest.raises(UsageError, match="compiled already"):
        kernbench.run(bench, graph, SMALL)


def test_a_run_without_data_cannot_be_verified() -> None:
    with pytest.raises(UsageError, match="without data"):
        run(data=False, verify_data=True)


def test_progress_is_given_the_time() -> None:
    times: list[float] = []

    def long(torch: Any) -> None:
        torch.launch("spin", lambda tl: [tl.cycles(1) for _ in range(9000)], target_pes=0)

    total = kernbench.run(long, overrides=SMALL, device=0, progress=times.append).total_ns
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= total


def test_each_device_may_have_a_function_of_its_own_under_one_name() -> None:
    def inner(torch: Any) -> list[float]:
        device = torch.ahbm.current_device()
        out = torch.zeros(2, dtype="f32")

        def mine(x: Any, tl: Any) -> None:
            tl.cycles(100)
            tl.store(x, tl.full((2,), 10 + device, "f32"))

        torch.launch("mine", mine, out)
        return [float(x) for x in out.numpy()]

    assert kernbench.run(inner, overrides=SMALL).returned == [[10, 10], [11, 11]]


def test_the_package_offers_run_and_nothing_unknown() -> None:
    assert kernbench.BenchResult is BenchResult
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        _ = kernbench.walk
