"""The host's calls: launching and where it goes, arguments, waiting, devices, failures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError, NotModelledError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import kernel as messages
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import TopologyGraph, load_topology

ROWS = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)


@cache
def machine(model: str = "va") -> TopologyGraph:
    """Two SIPs of two cubes with 8 PEs each."""
    changes = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.address_model": model}
    return load_topology(None, changes)


@pytest.fixture(params=["va", "pa"])
def torch(request: pytest.FixtureRequest) -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(request.param), op_log=OpLog())) as made:
        yield made


@pytest.fixture
def va() -> Iterator[RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(), op_log=OpLog())) as made:
        yield made


def nothing(*args: object) -> None:
    """A kernel that does nothing."""


def double(x: Any, y: Any, *, tl: Any) -> None:
    """Each PE works on its own part."""
    own = tl.load(x, x.local_shape)
    tl.store(y, own + own)


def places(launch: Any) -> list[tuple[int, int, int]]:
    return [(pe.sip, pe.cube, pe.pe) for pe in launch.pes]


# ---- where a launch goes


def test_a_launch_goes_where_its_tensors_are(torch: RuntimeContext) -> None:
    few, one = torch.zeros(8, dp=ROWS), torch.zeros(8)
    assert places(torch.launch("k", nothing, few, one)) == [(0, 0, pe) for pe in range(4)]
    assert places(torch.launch("k", nothing, one)) == [(0, 0, 0)]


def test_a_launch_without_tensors_goes_to_the_whole_device(torch: RuntimeContext) -> None:
    torch.ahbm.set_device(1)
    assert places(torch.launch("k", nothing)) == [(1, cube, pe) for cube in range(2) for pe in range(8)]


def test_a_launch_goes_where_it_is_sent(torch: RuntimeContext) -> None:
    launch = torch.launch("k", nothing, sips=[0, 1], target_cubes=1, target_pes=range(2, 4))
    assert places(launch) == [(0, 1, 2), (0, 1, 3), (1, 1, 2), (1, 1, 3)]
    assert len({pe.start_ns for pe in launch.pes}) == 1


def test_a_launch_goes_to_all_sips_and_to_ids_in_an_array(torch: RuntimeContext) -> None:
    everywhere = torch.launch("k", nothing, sips="all", target_cubes=0, target_pes=0)
    assert places(everywhere) == [(0, 0, 0), (1, 0, 0)]
    launch = torch.launch("k", nothing, sips=np.int64(1), target_cubes=np.array([0, 1]), target_pes=np.array(3))
    assert places(launch) == [(1, 0, 3), (1, 1, 3)]


@pytest.mark.parametrize(
    ("sips", "what"),
    [
        (5, "no SIP 5"),
        (-1, "no SIP -1"),
        ((0, 2), "no SIP 2"),
        ((1, 1), "SIP 1 is named twice"),
        (["0"], "no SIP '0'"),
        ([0.0], "no SIP 0.0"),
    ],
)
def test_sips_that_are_not_there_or_named_twice_are_refused(va: RuntimeContext, sips: object, what: str) -> None:
    with pytest.raises(UsageError) as refused:
        va.launch("k", nothing, sips=sips)
    assert refused.value.what == what
    assert refused.value.hint == "the machine has SIPs 0 to 1; name each once, or give 'all'"


@pytest.mark.parametrize("option", ["sips", "target_cubes", "target_pes"])
@pytest.mark.parametrize("value", [(), "0", True, np.array([])])
def test_what_is_no_id_is_refused(va: RuntimeContext, option: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"launch option {option} is"):
        va.launch("k", nothing, **{option: value})


def test_tensors_on_two_devices_make_one_launch(torch: RuntimeContext) -> None:
    here = torch.zeros(4)
    torch.ahbm.set_device(1)
    there = torch.zeros(4)
    launch = torch.launch("k", nothing, here, there)
    assert places(launch) == [(0, 0, 0), (1, 0, 0)]
    assert launch.sips == (0, 1)


def test_a_pe_that_holds_nothing_can_read_after_the_launch_has_mapped(va: RuntimeContext) -> None:
    source, out = va.from_numpy(np.arange(4, dtype=np.float16)), va.zeros(4)

    def copy(x: Any, y: Any, tl: Any) -> None:
        tl.store(y, tl.load(x, (4,)))

    va.launch("copy", copy, source, out, target_cubes=1, target_pes=5)
    assert out.numpy().tolist() == [0, 1, 2, 3]


# ---- arguments


def test_scalars_reach_the_kernel_as_they_were_passed(torch: RuntimeContext) -> None:
    given = (3, 2**40, 1.5, True, np.float32(0.25), np.int32(7), np.True_)
    seen: list[tuple[object, ...]] = []
    torch.launch("k", lambda *args: seen.append(args), *given, target_cubes=0, target_pes=0)
    assert seen == [given]
    assert [type(a) for a in seen[0]] == [int, int, float, bool, np.float32, np.int32, np.bool_]


def test_a_tensor_argument_knows_its_local_shape(torch: RuntimeContext) -> None:
    shapes: list[tuple[object, ...]] = []
    torch.launch("k", lambda x: shapes.append((x.shape, x.local_shape, x.dtype)), torch.zeros(6, 2, dp=ROWS))
    assert shapes == [((6, 2), (local, 2), "f16") for local in (2, 2, 1, 1)]


def test_text_none_types_and_tuples_reach_the_kernel_as_plain_values(torch: RuntimeContext) -> None:
    given = ("relu", None, "f32", ("gelu", (1, 2.5, None), True), ())
    seen: list[tuple[object, ...]] = []

    def kernel(*args: object, tl: Any) -> None:
        seen.append(args)

    torch.launch("k", kernel, *given, np.float32, np.dtype("int8"), (np.int64(3), float), target_cubes=0, target_pes=0)
    assert seen == [(*given, "f32", "i8", (3, "f32"))]
    torch.launch(lambda x, act="", dtype=None: seen.append((act, dtype)), torch.zeros(4), act="relu", dtype=np.int32)
    assert seen[-1] == ("relu", "i32")


@pytest.mark.parametrize("bad", [np.zeros(3), [1], {"a": 1}, object, ("a", [1])])
def test_what_cannot_be_an_argument_is_refused(torch: RuntimeContext, bad: object) -> None:
    with pytest.raises(UsageError, match=r"argument 1 of kernel 'k' is a (ndarray|list|dict|type)"):
        torch.launch("k", nothing, 1, bad)
    with pytest.raises(UsageError, match="argument 'y' of kernel 'k' is a"):
        torch.launch("k", lambda x, y: None, 1, bad)
    with pytest.raises(UsageError, match="argument 'y' of kernel 'k' is a"):
        torch.launch("k", lambda x, y: None, 1, y=bad)


def test_wrong_options_are_refused(torch: RuntimeContext) -> None:
    with pytest.raises(UsageError, match="launch has no option 'gird', and kernel 'k' no parameter of that name"):
        torch.launch("k", nothing, gird=3)
    with pytest.raises(UsageError, match="launch option target_pes is 'some'"):
        torch.launch("k", nothing, target_pes="some")
    with pytest.raises(UsageError, match="kernel 'k' is 3"):
        torch.launch("k", 3)
    with pytest.raises(UsageError, match="launch of 'k' has no kernel"):
        torch.launch("k")
    with pytest.raises(UsageError, match="dp is 'rows'"):
        torch.zeros(3, dp="rows")  # type: ignore[arg-type]  # the mistake


def noting(seen: list[object]) -> Callable[..., None]:
    def kernel(x: object, y: object, alpha: float = 0.5, *, beta: object = None, tl: Any) -> None:
        seen.append((x, y, alpha, beta))

    return kernel


@pytest.mark.parametrize(
    ("args", "named", "seen"),
    [
        ((1, 2), {"alpha": 2.0}, (1, 2, 2.0, None)),
        ((1,), {"y": 2}, (1, 2, 0.5, None)),
        ((), {"y": 2, "x": 1, "beta": 3}, (1, 2, 0.5, 3)),
        ((1, 2, 3), {"beta": True}, (1, 2, 3, True)),
    ],
)
def test_a_kernel_takes_arguments_by_name_and_keeps_its_defaults(
    torch: RuntimeContext, args: tuple[int, ...], named: dict[str, Any], seen: tuple[object, ...]
) -> None:
    found: list[object] = []
    torch.launch("k", noting(found), *args, **named, target_cubes=0, target_pes=0)
    assert found == [seen]


def test_a_tensor_given_by_name_is_one_of_the_launch(va: RuntimeContext) -> None:
    x, out = va.from_numpy(np.arange(4, dtype=np.float16)), va.zeros(4)

    def copy(x: Any, to: Any, tl: Any, n: int) -> None:
        tl.store(to, tl.load(x, (n,)))

    launch = va.launch("copy", copy, x, n=4, to=out)
    assert [(pe.cube, pe.pe) for pe in launch.pes] == [(0, 0)]
    assert out.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(LaunchError, match="run past 'to'"):
        va.launch("far", lambda x, to, tl: tl.store(to + 4, tl.load(x, (4,))), x, to=out)


def test_a_kernel_without_a_name_goes_by_its_own(torch: RuntimeContext) -> None:
    x, y = torch.zeros(4, dp=ROWS), torch.empty(4, dp=ROWS)
    assert torch.launch(double, x, y).name == "double"
    assert torch.launch(partial(nothing), x).name == "nothing"


def test_a_parameter_that_is_named_as_an_option_goes_by_position(torch: RuntimeContext) -> None:
    seen: list[object] = []

    def kernel(wait: object, sips: object = 5) -> None:
        seen.append((wait, sips))

    torch.launch("k", kernel, 3, target_cubes=0, target_pes=0)
    assert seen == [(3, 5)]
    for option in ("wait", "sips"):
        with pytest.raises(UsageError, match=f"'{option}' is an option of launch and a parameter of kernel 'k'") as e:
            torch.launch("k", kernel, 3, **{option: True})
        assert f"pass the parameter '{option}' by position" in str(e.value.hint)


def test_names_that_cannot_be_arguments_are_refused(torch: RuntimeContext) -> None:
    with pytest.raises(UsageError, match="parameter 'x' of kernel 'k' is given twice"):
        torch.launch("k", noting([]), 1, 2, x=3)
    with pytest.raises(UsageError, match="tl is passed to kernel 'k'"):
        torch.launch("k", noting([]), 1, 2, tl=3)
    with pytest.raises(LaunchError, match="does not take 1 arguments and alpha: missing a required argument: 'y'"):
        torch.launch("k", noting([]), 1, alpha=2.0)


def test_all_that_a_caller_asks_for_is_all_wherever_its_tensors_are(torch: RuntimeContext) -> None:
    x = torch.zeros(4)  # on one PE
    assert len(torch.launch("k", nothing, x).pes) == 1
    assert len(torch.launch("k", nothing, x, target_pes="all").pes) == torch.spec.cube.n_pes
    assert len(torch.launch("k", nothing, x, target_pes="all", target_cubes="all").pes) == 2 * torch.spec.cube.n_pes


# ---- data


def test_every_pe_works_on_its_own_part_with_physical_addresses() -> None:
    with RuntimeContext(GraphEngine(machine("pa"))) as torch:
        x = torch.from_numpy(np.arange(10, dtype=np.float16), dp=ROWS)
        y = torch.empty(10, dp=ROWS)
        torch.launch("double", double, x, y)
        assert y.numpy().tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]


def test_every_pe_works_on_its_own_replica_with_virtual_addresses(va: RuntimeContext) -> None:
    copies = DPPolicy(num_cubes=2, num_pes=2)
    x, y = va.from_numpy(np.arange(4, dtype=np.float16), dp=copies), va.empty(4, dp=copies)
    va.launch("double", double, x, y)
    parts = y.host.read_parts(y, range(4), timed=False)
    assert [part.tolist() for part in parts] == [[0, 2, 4, 6]] * 4


def test_a_launch_reports_what_the_machine_did(va: RuntimeContext) -> None:
    a, b = va.from_numpy(np.ones((32, 64), np.float16)), va.from_numpy(np.ones((64, 32), np.float16))
    c = va.empty(32, 32)

    def product(x: Any, y: Any, z: Any, tl: Any) -> None:
        tl.store(z, tl.load(x, (32, 64)) @ tl.load(y, (64, 32)))

    launch = va.launch("product", product, a, b, c)
    assert (c.numpy() == 64).all()
    assert launch.flops == 2 * 32 * 64 * 32
    assert launch.bytes_hbm == (32 * 64 + 64 * 32 + 32 * 32) * 2
    assert launch.engines["pe_gemm"].busy_ns == 16.0  # 32 * 64 * 32 / 4096
    assert launch.engines["pe_dma"].ops == 3
    assert launch.total_ns > launch.pe_exec_ns_max == launch.pe_exec_ns_min == launch.pes[0].pe_exec_ns > 0
    assert list(launch.as_json()) == [
        "name",
        "sips",
        "total_ns",
        "pe_exec_ns_max",
        "pe_exec_ns_min",
        "flops",
        "bytes_hbm",
        "engines",
        "per_pe",
        "bytes_hbm_requested",
        "tcm_peak_bytes",
        "bytes_sent",
    ]


# ---- waiting


def busy(tl: Any) -> None:
    tl.cycles(1000)


def test_a_launch_may_go_on_while_the_host_does(torch: RuntimeContext) -> None:
    start = torch.now_ns
    launch = torch.launch("busy", busy, wait=False)
    assert torch.now_ns == start
    assert not launch.is_done
    assert torch.wait(launch).ok
    assert launch.is_done
    assert torch.now_ns - start == launch.total_ns > 1000


def test_wait_all_waits_for_every_launch(torch: RuntimeContext) -> None:
    launches = [torch.launch("busy", busy, wait=False, target_pes=pe) for pe in (0, 1)]
    torch.wait_all()
    assert all(launch.is_done for launch in launches)
    assert torch.launches == launches


def test_reading_sees_what_was_issued_before(torch: RuntimeContext) -> None:
    out = torch.zeros(4)

    def late(x: Any, tl: Any) -> None:
        tl.cycles(1000)
        tl.store(x, tl.full((4,), 3, "f16"))

    torch.launch("late", late, out, wait=False)
    assert out.numpy().tolist() == [3, 3, 3, 3]


def test_a_tensor_outlives_the_launch_that_uses_it(torch: RuntimeContext) -> None:
    source, out = torch.full((4,), 2), torch.zeros(4)

    def late(x: Any, y: Any, tl: Any) -> None:
        tl.cycles(1000)
        tl.store(y, tl.load(x, (4,)))

    torch.launch("late", late, source, out, wait=False)
    del source
    torch.full((4,), 9)  # would take its place if it were free
    assert out.numpy().tolist() == [2, 2, 2, 2]


# ---- failures


def fails(tl: Any) -> None:
    if tl.program_id(0) == 2:
        raise ZeroDivisionError("by nought")


def test_a_failing_kernel_names_pe_and_line(torch: RuntimeContext) -> None:
    with pytest.raises(LaunchError) as caught:
        torch.launch("fails", fails, target_cubes=1)
    error = caught.value
    assert error.what == "kernel 'fails' failed on sip 0, cube 1, pe 2: ZeroDivisionError: by nought"
    line = inspect.getsourcelines(fails)[1] + 2
    assert error.where == f'{__file__}:{line}  raise ZeroDivisionError("by nought")'
    assert torch.launch("nothing", nothing).is_done


def test_all_failures_are_collected_when_asked_for(torch: RuntimeContext) -> None:
    with pytest.raises(LaunchError, match=r"pe 2 \(and 1 more PEs\)") as caught:
        torch.launch("fails", fails, failure_policy="collect_all")
    assert [getattr(f, "cube", None) for f in caught.value.failures] == [0, 1]


def test_a_launch_in_the_background_fails_when_it_is_waited_for(torch: RuntimeContext) -> None:
    torch.launch("fails", fails, wait=False)
    with pytest.raises(LaunchError):
        torch.wait_all()


# ---- devices


def test_the_device_is_chosen_under_either_name(torch: RuntimeContext) -> None:
    assert torch.ahbm.device_count() == torch.accelerator.device_count() == 2
    assert torch.ahbm.current_device() == 0
    torch.accelerator.set_device_index(1)
    assert torch.ahbm.current_device() == torch.accelerator.current_device_index() == 1
    assert torch.zeros(3).device == "sip:1"
    for bad in (2, -1, "gpu:0", True):
        with pytest.raises(UsageError, match="no device"):
            torch.ahbm.set_device(bad)  # type: ignore[arg-type]  # the mistake


def test_each_rank_has_its_own_device(torch: RuntimeContext) -> None:
    def rank(number: int) -> str:
        torch.ahbm.set_device(number)
        return str(torch.zeros(3).device)  # others run while it waits

    assert torch.ranks.run([lambda: rank(1), lambda: rank(0)]) == ["sip:1", "sip:0"]
    assert torch.ahbm.current_device() == 0


def test_the_spec_is_the_machines(torch: RuntimeContext) -> None:
    assert torch.spec.sip.n_cubes == 2
    assert torch.spec is torch.engine.graph.spec


def test_messages_have_their_public_names() -> None:
    assert all(hasattr(messages, name) for name in messages.__all__)
    assert {"KernelLaunchMsg", "MemoryWriteMsg", "MmuMapMsg", "TensorArg"} <= set(messages.__all__)


def test_a_kernel_that_calls_the_host_is_refused_with_that_reason(va: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.cycles(5)
        va.zeros(4)  # takes time that a kernel cannot let pass

    for run in (lambda: va.launch("k", kernel), lambda: va.ranks.run([lambda: va.launch("k", kernel)])):
        with pytest.raises(LaunchError, match="a kernel calls the host"):
            run()


def test_what_is_no_launch_cannot_be_waited_for(va: RuntimeContext) -> None:
    with pytest.raises(UsageError, match="is not a launch"):
        va.wait(3)  # type: ignore[arg-type]  # the mistake


def test_a_launch_counts_its_own_work_when_others_run_beside_it_and_after_it(va: RuntimeContext) -> None:
    x, out = va.zeros(64, 64), va.zeros(64, 64)

    def product(x: Any, out: Any, tl: Any) -> None:
        a = tl.load(x)
        tl.store(out, tl.dot(a, a))

    def one_op(x: Any, out: Any, tl: Any) -> None:
        tl.neg(tl.load(x))

    short = va.launch("short", one_op, x, out, wait=False, target_pes=1)
    long = va.launch("long", product, x, out, wait=False, target_pes=0)
    va.wait(long)
    va.launch("later", product, x, out, target_pes=1)
    va.wait(short)
    assert (short.flops, long.flops) == (64 * 64, 2 * 64**3)
    assert {kind: use.ops for kind, use in short.engines.items()} == {"pe_dma": 1, "pe_math": 1}
    assert {kind: use.ops for kind, use in long.engines.items()} == {"pe_dma": 2, "pe_gemm": 1}


def test_a_failure_that_was_not_waited_for_is_reported_once_all_is_waited_for(va: RuntimeContext) -> None:
    def wrong(tl: Any) -> None:
        raise ValueError("late")

    va.launch("wrong", wrong, wait=False)
    with pytest.raises(LaunchError, match="late"):
        va.wait_all()
    va.wait_all()


def test_waiting_for_all_looks_only_at_launches_that_were_not_waited_for() -> None:
    """So that a program of many launches does not look at all of them again and again."""
    torch = RuntimeContext(GraphEngine(load_topology(None, {"system.sips.count": 1})))
    for _ in range(3):
        torch.launch("idle", lambda tl: None, target_cubes=0, target_pes=0)
    later = torch.launch("later", lambda tl: None, target_cubes=0, target_pes=0, wait=False)
    assert torch._launcher.unreported() == [later]
    torch.wait_all()
    assert torch._launcher.unreported() == []
    assert later.is_waited
    torch.close()


def test_element_types_go_by_their_names_of_pytorch_and_what_there_is_not_says_what_to_use(va: RuntimeContext) -> None:
    assert va.zeros(4, dtype=va.float16).dtype == va.half == "f16"
    assert [va.empty(4, dtype=t).dtype for t in (va.float32, va.bfloat16, va.int32, va.int8)] == [
        "f32", "bf16", "i32", "i8",
    ]  # fmt: skip
    for name, instead in (("complex64", "torch.float32"), ("load", "torch.from_numpy"), ("compile", "leave it out")):
        assert not hasattr(va, name)
        with pytest.raises(NotModelledError, match=f"torch.{name} is not modelled") as caught:
            getattr(va, name)
        assert instead in str(caught.value.hint)
    with pytest.raises(NotModelledError, match=r"torch has no 'zeroes'.*zeros"):
        va.zeroes(4)  # type: ignore[attr-defined]  # that is what is tested


def test_an_error_inside_a_property_of_the_context_is_that_error(
    monkeypatch: pytest.MonkeyPatch, va: RuntimeContext
) -> None:
    monkeypatch.setattr(RuntimeContext, "spec", property(lambda self: self._queue.nothing))
    with pytest.raises(AttributeError, match="'HostQueue' object has no attribute 'nothing'"):
        va.spec  # noqa: B018  # asking is what fails
