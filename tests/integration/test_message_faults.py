"""What goes wrong with messages is said, at once, with the line and the PE: nothing hangs, nothing is lost silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import getsourcelines
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import AllocationError, DeadlockError, LaunchError, RaceError, UnreceivedError, UsageError
from kernbench.common.ipcq import RingConfig
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import TopologyGraph, load_topology

SLOT = 4096
MODES = ("sleep", "poll")


@cache
def machine(sips: int = 1) -> TopologyGraph:
    """Two cubes of four PEs on each SIP."""
    return load_topology(
        None,
        {
            "system.sips.count": sips,
            "sip.cube_mesh.w": 2,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": 1,
        },
    )


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    context = RuntimeContext(GraphEngine(machine()))
    yield context
    context.close(wait=False)


def launch(torch: RuntimeContext, kernel: Callable[..., object], *args: object, pes: int = 2, **options: Any) -> Launch:
    return torch.launch(kernel, *args, target_pes=range(pes), **{"target_cubes": 0, **options})


def line_with(kernel: Callable[..., object], text: str) -> int:
    lines, first = getsourcelines(kernel)
    return next(first + at for at, line in enumerate(lines) if text in line)


# ---- directions


def test_a_direction_that_leads_nowhere_is_an_error_that_lists_the_pes_own(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.send("N", tl.full((4,), 1, "f16"))

    with pytest.raises(LaunchError, match=r"no neighbour 'N' of sip0.cube0.pe0") as failed:
        launch(torch, kernel, pes=1)
    assert "its directions are: E, intra_N, intra_S, intra_E, intra_W, intra_1, intra_2, intra_3, cube_1" in str(
        failed.value
    )
    assert failed.value.failures[0].line == line_with(kernel, "tl.send")


@pytest.mark.parametrize("op", ["send", "send_async", "recv", "recv_async", "recv_no_consume"])
def test_every_operation_checks_its_direction(torch: RuntimeContext, op: str) -> None:
    def kernel(tl: Any) -> None:
        if "send" in op:
            getattr(tl, op)("global_E", tl.full((4,), 1, "f16"))
        else:
            getattr(tl, op)("global_E", (4,), "f16")
        tl.recv  # noqa: B018  # so that the launch finds that it receives

    with pytest.raises(LaunchError, match="no neighbour 'global_E'"):
        launch(torch, kernel, pes=1)


def test_a_direction_is_a_name(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.send(0, tl.full((4,), 1, "f16"))

    with pytest.raises(LaunchError, match="send: the direction is a int") as failed:
        launch(torch, kernel, pes=1)
    assert "E, intra_N" in str(failed.value)


def test_a_communicator_that_was_never_made_is_an_error(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.send("E", tl.full((4,), 1, "f16"))

    torch.install_ipcq()
    with pytest.raises(UsageError, match="no communicator 'mine'") as failed:
        launch(torch, kernel, pes=1, communicator="mine")
    assert "there are: world" in str(failed.value.hint)


def test_what_is_sent_is_a_tensor_in_tcm(torch: RuntimeContext) -> None:
    def kernel(x: Any, tl: Any) -> None:
        tl.send("E", x)

    with pytest.raises(LaunchError, match="send"):
        launch(torch, kernel, torch.zeros(4), pes=1)


# ---- what does not fit


def mismatched(shape: tuple[int, ...], dtype: str, op: str) -> Callable[..., None]:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.full((4, 8), 1, "f16"))
        elif op == "recv":
            tl.recv("intra_W", shape, dtype)
        else:
            handle = tl.recv_async("intra_W", shape, dtype)
            tl.cycles(1000)
            tl.wait(handle)

    return kernel


@pytest.mark.parametrize("op", ["recv", "recv_async"])
@pytest.mark.parametrize(("shape", "dtype"), [((8, 4), "f16"), ((4, 8), "bf16"), ((32,), "f16"), ((4, 9), "f16")])
def test_a_shape_dtype_or_size_that_was_not_sent_is_an_error_that_names_both_lines(
    torch: RuntimeContext, shape: tuple[int, ...], dtype: str, op: str
) -> None:
    kernel = mismatched(shape, dtype, op)
    with pytest.raises(LaunchError) as failed:
        launch(torch, kernel)
    sent, received = (f"{__file__}:{line_with(kernel, text)}" for text in ("tl.send", f"tl.{op}("))
    said = str(failed.value)
    assert f"{op} at {received} from intra_W expects {dtype}{list(shape)}, but f16[4, 8] was sent at {sent}" in said
    assert "by sip0.cube0.pe0 (to its intra_E)" in said


@pytest.mark.parametrize("op", ["recv", "recv_async", "recv_no_consume"])
def test_a_receive_without_a_shape_says_what_is_missing(torch: RuntimeContext, op: str) -> None:
    def kernel(tl: Any) -> None:
        tl.recv  # noqa: B018  # so that the launch finds that it receives
        getattr(tl, op)("intra_E")

    with pytest.raises(LaunchError, match=f"{op}: no shape") as failed:
        launch(torch, kernel, pes=1)
    assert f"tl.{op}('intra_E', (64,), \"f16\")" in str(failed.value.hint)


def test_a_wrong_receive_from_anywhere_says_so(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.full((4,), 1, "f16"))
        else:
            tl.recv(None, (5,), "f16")

    with pytest.raises(LaunchError, match=r"from any direction expects f16\[5\], but f16\[4\]"):
        launch(torch, kernel)


# ---- a kernel that dies


@pytest.mark.parametrize("backpressure", MODES)
@pytest.mark.parametrize("waits_in", ["recv", "send", "wait", "drain"])
def test_when_a_kernel_dies_its_waiting_neighbours_are_stopped(
    torch: RuntimeContext, waits_in: str, backpressure: Any
) -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.cycles(500)
            raise ValueError("out of luck")
        if waits_in == "recv":
            tl.recv("intra_0", (4,), "f16")
        elif waits_in == "send":
            tl.send("intra_0", tl.full((64, 1024), 1, "f16"))  # more than the ring holds
        elif waits_in == "wait":
            tl.wait(tl.recv_async("intra_0", (4,), "f16"))
        else:
            tl.send_async("intra_0", tl.full((64, 1024), 1, "f16"))

    torch.install_ipcq(backpressure=backpressure)
    with pytest.raises(LaunchError, match="out of luck") as failed:
        launch(torch, kernel, pes=3)
    assert [(each.pe, each.kind) for each in failed.value.failures] == [(0, "ValueError")]
    torch.wait_all()  # the others have stopped
    assert torch.launches[-1].is_over


def test_one_that_dies_on_another_sip_stops_them_too() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(2) == 1:
            raise ValueError("out of luck")
        tl.recv("global_E", (4,), "f16")

    with RuntimeContext(GraphEngine(machine(2))) as torch:
        with pytest.raises(LaunchError, match="out of luck"):
            launch(torch, kernel, pes=1, sips=(0, 1))
        torch.wait_all()
        assert torch.launches[-1].is_over


def test_one_that_is_stopped_while_it_begins_to_receive_ends_too() -> None:
    """PE_IPCQ of this machine is slow: the abort comes between the asking and the waiting."""
    slow = load_topology(None, {"system.sips.count": 1, "cube.pe_template.components.pe_ipcq.attrs.overhead_ns": 1e5})

    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            raise ValueError("out of luck")
        tl.recv("intra_0", (4,), "f16") if tl.physical_id(0) == 1 else tl.send("intra_0", tl.full((4,), 1, "f16"))

    with RuntimeContext(GraphEngine(slow)) as torch:
        with pytest.raises(LaunchError, match="out of luck"):
            launch(torch, kernel, pes=3)
        torch.wait_all()
        assert torch.launches[-1].is_over


def test_when_all_are_to_be_waited_for_the_report_says_who_died() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_1", tl.full((4,), 1, "f16"))
            tl.cycles(500)
            raise ValueError("out of luck")
        tl.recv("intra_0", (4,), "f16")
        tl.recv("intra_0", (4,), "f16")  # that never comes

    torch = RuntimeContext(GraphEngine(machine()))
    with pytest.raises(DeadlockError) as stuck:
        launch(torch, kernel, failure_policy="collect_all")
    (blocked,) = stuck.value.blocked
    assert blocked.line == line_with(kernel, "that never comes")
    assert "recv from intra_0 (sip0.cube0.pe0), 0 of 4 slots taken; kernel" in blocked.waits_for
    assert "ended on sip0.cube0.pe0 before its end" in blocked.waits_for


def dies_after_sending(tl: Any) -> None:
    """PE 0 dies with 8 KiB in the ring of PE 1 and more on their way."""
    if tl.physical_id(0) == 0:
        for _ in range(3):
            tl.send("intra_1", tl.full((2048,), 1, "f16"))
        raise ValueError("out of luck")
    tl.recv("intra_0", (2048,), "f16")
    tl.cycles(100000)


def counts(out: Any, tl: Any) -> None:
    if tl.physical_id(0) == 0:
        for number in range(20):
            tl.send("intra_1", tl.full((2048,), number, "i16"))
    else:
        for number in range(20):
            tl.store(out + 2 * number, tl.recv("intra_0", (2048,), "i16")[:1])


def test_a_communicator_cannot_be_used_after_a_failure_until_it_is_made_anew(torch: RuntimeContext) -> None:
    with pytest.raises(LaunchError, match="out of luck"):
        launch(torch, dies_after_sending)
    out = torch.zeros(20, dtype="i16")
    with pytest.raises(LaunchError, match="communicator 'world' cannot be used any more: kernel") as refused:
        launch(torch, counts, out)
    assert "before its end: ValueError: out of luck" in str(refused.value)  # the cause
    assert {failure.kind for failure in refused.value.failures} == {"StoppedMessagesError"}
    assert "install_ipcq" in str(refused.value)
    torch.install_ipcq()
    launch(torch, counts, out)
    assert out.numpy().tolist() == list(range(20))
    torch.close()  # and what the failed one sent is dropped


LARGE = RingConfig(4, 128 * 1024, "hbm")


def floods(pe: int, tl: Any) -> None:
    """512 KiB leave the PE in 2 us, and take 4 us over a PCIe link of 128 GB/s."""
    if tl.physical_id(0) == pe:
        tl.send("global_E", tl.full((4, 128 * 1024), 99, "i8"))


def test_chunks_on_their_way_when_their_communicator_ends_do_not_get_into_the_next() -> None:
    """The rings of the next one lie where those of the first did, and are used when the last of its chunks land."""

    def ordered(out: Any, tl: Any) -> None:
        for number in range(12):
            if tl.physical_id(2) == 0:
                tl.send("global_E", tl.full((4,), number, "i16"))
            else:
                tl.store(out + 2 * number, tl.recv("global_W", (4,), "i16")[:1])
                tl.cycles(500)

    with RuntimeContext(GraphEngine(machine(2))) as torch:
        torch.ahbm.set_device(1)
        out = torch.zeros(12, dtype="i16")
        torch.communicators.install_world(LARGE)
        launch(torch, floods, 0, pes=1, sips=0)
        torch.communicators.install_world(LARGE)
        launch(torch, ordered, out, pes=1, sips=(0, 1))
        assert out.numpy().tolist() == list(range(12))


def test_credits_on_their_way_when_their_communicator_ends_do_not_count_in_the_next() -> None:
    """The credit of PE 0 queues behind a flood of PE 1 between the same SIPs."""

    def credited(tl: Any) -> None:
        if tl.physical_id(2) == 1 and tl.physical_id(0) == 1:
            floods(1, tl)
        elif tl.physical_id(0) == 0 and tl.physical_id(2) == 0:
            tl.cycles(1500)
            for _ in range(3):
                tl.send("global_E", tl.full((4,), 1, "i16"))
        elif tl.physical_id(0) == 0:
            for _ in range(3):
                tl.recv("global_W", (4,), "i16")

    def late(tl: Any) -> None:
        if tl.physical_id(2) == 0:
            tl.send("global_E", tl.full((4,), 1, "i16"))
            tl.send("global_E", tl.full((4,), 2, "i16"))
        else:
            tl.cycles(20000)
            tl.recv("global_W", (4,), "i16")
            tl.recv("global_W", (4,), "i16")

    log = OpLog()
    with RuntimeContext(GraphEngine(machine(2), op_log=log)) as torch:
        torch.communicators.install_world(LARGE)
        with pytest.raises(UnreceivedError, match=r"i8\[4, 131072\] for sip0.cube0.pe1"):  # the flood
            launch(torch, credited, sips=(0, 1))
        torch.communicators.install_world(LARGE._replace(n_slots=1))
        started = launch(torch, late, pes=1, sips=(0, 1)).pes[0].start_ns
    sends = [op.t_start - started for op in log.records if op.op_name == "ipcq_send"][-2:]
    assert sends[0] == 0
    assert sends[1] > 20000  # when the only slot is free


# ---- messages that are not received


def test_a_message_to_a_pe_outside_of_the_launch_that_was_not_received_is_an_error_at_the_end_of_the_run() -> None:
    def kernel(tl: Any) -> None:
        tl.send("intra_1", tl.full((4,), 1, "f16"))
        tl.send("intra_1", tl.full((5,), 1, "f16"))
        tl.send("intra_2", tl.full((6,), 1, "f16"))

    def takes_one(tl: Any) -> None:
        tl.recv("intra_0", (4,), "f16")

    torch = RuntimeContext(GraphEngine(machine()))
    launch(torch, kernel, pes=1)
    torch.launch(takes_one, target_cubes=0, target_pes=1)
    with pytest.raises(UnreceivedError) as left:
        torch.close()
    said = str(left.value)
    assert "f16[5] for sip0.cube0.pe1 from its intra_0 was never received, nor were 1 other messages" in said
    assert f"sent at {__file__}:{line_with(kernel, '(5,)')} by sip0.cube0.pe0 to its intra_1" in said
    assert "every tl.send needs a tl.recv" in said
    assert len(left.value.messages) == 2


def sends_twice(tl: Any) -> None:
    """Each PE of a pair sends its number twice, and receives once."""
    other = 1 - tl.program_id(0)
    for n in range(2):
        tl.send(f"intra_{other}", tl.full((4,), n, "f16"))
    tl.recv(f"intra_{other}", (4,), "f16")


def sends_once(tl: Any) -> None:
    other = 1 - tl.program_id(0)
    tl.send(f"intra_{other}", tl.full((4,), 7, "f16"))
    tl.recv(f"intra_{other}", (4,), "f16")


def receives(out: Any, tl: Any) -> None:
    tl.store(out, tl.recv("intra_1", (4,), "f16"))


@pytest.mark.parametrize("sips", [0, (0, 1)])
def test_what_a_launch_sends_its_own_pes_and_does_not_receive_is_an_error_of_the_launch(sips: Any) -> None:
    """It must not be there for the next launch: with MPI as with NCCL, a send without its receive is a bug."""
    torch = RuntimeContext(GraphEngine(machine(2)))
    message = r"kernel 'sends_twice' has ended: f16\[4\] for sip0.cube0.pe1 from its intra_0 was never received"
    with pytest.raises(UnreceivedError, match=message) as left:
        launch(torch, sends_twice, sips=sips)
    assert f"sent at {__file__}:{line_with(sends_twice, 'tl.send')}" in str(left.value)
    assert len(left.value.messages) == (2 if sips == 0 else 4)
    with pytest.raises(LaunchError, match=r"'sends_twice' has left . messages in its rings"):
        launch(torch, sends_once)
    torch.wait_all()
    torch.install_ipcq()
    launch(torch, sends_once)
    torch.close()  # it is reported once


def test_a_launch_that_was_queued_does_not_get_what_the_one_before_it_left() -> None:
    """It begins before the host knows that the other one has ended."""
    torch = RuntimeContext(GraphEngine(machine()))
    out = torch.zeros(4)
    launch(torch, sends_twice, wait=False)
    second = launch(torch, receives, out, pes=1, wait=False)
    with pytest.raises(LaunchError, match=r"recv at .* from intra_1 gets a message of another launch, sent at"):
        torch.wait(second)


def test_a_launch_may_receive_what_another_sent_to_a_pe_that_it_did_not_run_on() -> None:
    """As ranks do that launch a kernel on their own SIP each, one of them earlier than the other."""

    def sender(tl: Any) -> None:
        tl.send("intra_1", tl.full((4,), 3, "f16"))

    def receiver(out: Any, tl: Any) -> None:
        tl.store(out, tl.recv("intra_0", (4,), "f16"))

    with RuntimeContext(GraphEngine(machine())) as torch:
        out = torch.zeros(4)
        launch(torch, sender, pes=1)
        torch.launch(receiver, out, target_cubes=0, target_pes=1)
        assert out.numpy().tolist() == [3] * 4


@pytest.mark.parametrize("comes", [True, False])
def test_a_receive_that_the_kernel_never_waits_for_is_an_error_at_its_line(comes: bool) -> None:
    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 1:
            tl.recv_async("intra_0", (4,), "f16")  # and no wait
        elif comes:
            tl.send("intra_1", tl.full((4,), 3, "f16"))

    torch = RuntimeContext(GraphEngine(machine()))
    with pytest.raises(LaunchError, match=r"the kernel ends, and its recv_async at .* is never waited for") as failed:
        launch(torch, kernel)
    assert failed.value.failures[0].line == line_with(kernel, "and no wait")
    assert "tl.wait(handle)" in str(failed.value.hint)
    torch.close()


def test_waiting_for_all_that_is_under_way_waits_for_receives_too() -> None:
    def kernel(tl: Any) -> None:
        other = f"intra_{1 - tl.program_id(0)}"
        tl.recv_async(other, (4,), "f16")
        tl.send(other, tl.full((4,), 3, "f16"))
        tl.wait()

    with RuntimeContext(GraphEngine(machine())) as torch:
        launch(torch, kernel)


def test_one_that_is_still_on_its_way_when_the_run_ends_is_reported_too() -> None:
    """A message to another SIP takes longer than the answer of the launch."""

    def kernel(tl: Any) -> None:
        tl.send("global_E", tl.full((64, 512), 1, "f16"))  # 64 KiB, 16 chunks

    torch = RuntimeContext(GraphEngine(machine(2)))
    torch.install_ipcq(n_slots=16)
    launch(torch, kernel, pes=1, sips=0)
    with pytest.raises(UnreceivedError, match=r"for sip1.cube0.pe0 from its global_W was never received"):
        torch.close()


def test_a_run_that_failed_does_not_complain_about_messages() -> None:
    with RuntimeContext(GraphEngine(machine())) as torch, pytest.raises(LaunchError, match="out of luck"):
        launch(torch, dies_after_sending)


# ---- deadlocks


@pytest.mark.parametrize("backpressure", MODES)
def test_a_cycle_of_receives_ends_at_once_with_a_report_per_pe(backpressure: Any) -> None:
    def kernel(tl: Any) -> None:
        tl.recv("intra_W", (4, 4), "f16")
        tl.send("intra_E", tl.full((4, 4), 1, "f16"))

    torch = RuntimeContext(GraphEngine(machine()))
    torch.install_ipcq(backpressure=backpressure)
    with pytest.raises(DeadlockError) as stuck:
        launch(torch, kernel, pes=4)
    assert torch.now_ns < 1000  # no time passes where nothing happens
    error, line = stuck.value, line_with(kernel, "tl.recv")
    assert [(b.key, b.line) for b in error.blocked] == [((0, 0, pe), line) for pe in range(4)]
    assert [b.rings[0].peer for b in error.blocked] == [(0, 0, 3), (0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert error.cycle == ((0, 0, 0), (0, 0, 3), (0, 0, 2), (0, 0, 1))
    said = str(error)
    waits = "f16[4, 4], recv from intra_W, 0 of 4 slots taken"  # from four neighbours, which the cycle names
    assert said.splitlines()[2:] == [
        f"  blocked: kernel 'kernel' on sip0.cube0.pe0..pe3 (4 PEs) waits for {waits}",
        f'    at {__file__}:{line}  tl.recv("intra_W", (4, 4), "f16")',
        "  rings of sip0.cube0.pe0..pe3 (4 PEs): rx intra_W: head 0, tail 0, 0 unread",
        "  cycle: sip0.cube0.pe0 -> sip0.cube0.pe3 -> sip0.cube0.pe2 -> sip0.cube0.pe1 -> sip0.cube0.pe0",
        "  hint:  let one PE of the cycle call tl.send before its tl.recv",
    ]


@pytest.mark.parametrize("backpressure", MODES)
def test_a_cycle_of_full_rings_is_a_deadlock_with_their_occupancy(backpressure: Any) -> None:
    def kernel(tl: Any) -> None:
        other = 1 - tl.physical_id(0)
        tl.send(f"intra_{other}", tl.full((5, 2048), 1, "f16"))  # five slots
        tl.recv(f"intra_{other}", (5, 2048), "f16")

    torch = RuntimeContext(GraphEngine(machine()))
    torch.install_ipcq(backpressure=backpressure)
    with pytest.raises(DeadlockError, match=r"send to intra_1 .sip0.cube0.pe1., 4 of 4 slots taken") as stuck:
        launch(torch, kernel)
    assert stuck.value.cycle == ((0, 0, 0), (0, 0, 1))
    assert "more than a ring holds, or give rings more slots" in str(stuck.value.hint)


def test_with_one_slot_more_the_same_program_ends(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        other = 1 - tl.physical_id(0)
        tl.send(f"intra_{other}", tl.full((5, 2048), 1, "f16"))
        tl.recv(f"intra_{other}", (5, 2048), "f16")

    torch.install_ipcq(n_slots=5)
    launch(torch, kernel)


def test_waiting_for_a_pe_that_runs_no_kernel_is_a_deadlock_without_a_cycle(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.recv("E", (4,), "f16")  # the other cube is not in the launch

    with pytest.raises(DeadlockError, match=r"recv from E .sip0.cube1.pe0.") as stuck:
        launch(torch, kernel, pes=1)
    assert stuck.value.cycle == ()
    assert str(stuck.value).splitlines()[-2:] == [
        "  cause: sip0.cube1.pe0 never sends what sip0.cube0.pe0 waits for in E: it is not part of the launch",
        "  hint:  launch on the PEs that the kernel talks to as well (target_cubes, target_pes), or send to others",
    ]


def test_a_message_that_lies_in_another_direction_is_reported() -> None:
    def kernel(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.send("intra_E", tl.full((4,), 1, "f16"))
        else:
            tl.recv("intra_0", (4,), "f16")  # it comes in from the W

    with pytest.raises(DeadlockError) as stuck:
        launch(RuntimeContext(GraphEngine(machine())), kernel)
    sent = f"{__file__}:{line_with(kernel, 'tl.send')}"
    assert f"1 message of the same PE unread in intra_W, sent at {sent}" in str(stuck.value)
    assert "  cause: sip0.cube0.pe0 never sends what sip0.cube0.pe1 waits for in intra_0: no kernel runs" in str(
        stuck.value
    )
    assert "receive from the direction in which the message lies" in str(stuck.value.hint)


def test_a_receive_from_the_direction_of_sends_is_reported_with_where_its_messages_lie() -> None:
    def kernel(tl: Any) -> None:
        tl.send("intra_E", tl.full((4,), 1, "f16"))
        tl.recv("intra_E", (4,), "f16")  # a ring: they come in from the W

    with pytest.raises(DeadlockError) as stuck:
        launch(RuntimeContext(GraphEngine(machine())), kernel, pes=4)
    sent = f"{__file__}:{line_with(kernel, 'tl.send')}"
    assert f"1 message like it unread in intra_W, sent at {sent}" in str(stuck.value)
    assert "receive from the direction in which the message lies" in str(stuck.value.hint)


def test_a_message_of_another_shape_from_the_other_side_is_no_sign_of_a_wrong_direction() -> None:
    def kernel(tl: Any) -> None:
        tl.send("intra_E", tl.full((5,), 1, "f16"))
        tl.recv("intra_E", (4,), "f16")

    with pytest.raises(DeadlockError) as stuck:
        launch(RuntimeContext(GraphEngine(machine())), kernel, pes=4)
    assert "unread in" not in str(stuck.value)
    assert "let one PE of the cycle call tl.send before" in str(stuck.value.hint)


def test_pes_that_wait_alike_are_one_entry_of_the_report_and_the_cause_is_its_end() -> None:
    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 3 and tl.program_id(1) == 0:
            return
        tl.recv("intra_E", (4,), "f16")

    with pytest.raises(DeadlockError) as stuck:
        launch(RuntimeContext(GraphEngine(machine())), kernel, pes=4, target_cubes=(0, 1))
    said = str(stuck.value)
    assert "on sip0.cube0.pe0..pe2, sip0.cube1.pe0..pe3 (7 PEs) waits for f16[4], recv from intra_E, 0 of 4" in said
    assert said.count("blocked:") == 1
    assert said.splitlines()[-2].startswith("  cycle: sip0.cube1.pe0 -> sip0.cube1.pe1 -> ")


def test_sending_to_a_pe_that_runs_no_kernel_is_found_when_its_ring_is_full_or_at_the_end() -> None:
    def kernel(count: int, tl: Any) -> None:
        for _ in range(count):
            tl.send("E", tl.full((4,), 1, "f16"))

    torch = RuntimeContext(GraphEngine(machine()))
    launch(torch, kernel, 4, pes=1)
    with pytest.raises(DeadlockError, match=r"send to E .sip0.cube1.pe0., 4 of 4 slots taken"):
        launch(torch, kernel, 1, pes=1)
    other = RuntimeContext(GraphEngine(machine()))
    launch(other, kernel, 4, pes=1)
    with pytest.raises(UnreceivedError, match="nor were 3 other"):
        other.close()


def test_waiting_for_handles_names_each_of_them(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.recv_async("intra_1", (4,), "f16")
        tl.recv_async("intra_2", (5,), "f16")
        tl.wait()

    with pytest.raises(DeadlockError) as stuck:
        launch(torch, kernel, pes=1)
    (blocked,) = stuck.value.blocked
    assert [(ring.op, ring.peer) for ring in blocked.rings] == [("recv", (0, 0, 1)), ("recv", (0, 0, 2))]
    assert "f16[4], recv from intra_1" in blocked.waits_for
    assert "f16[5], recv from intra_2" in blocked.waits_for


def test_waiting_for_anybody_says_so_and_makes_no_rings(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.recv(None, (4,), "f16")

    torch.install_ipcq(n_slots=32)  # of which a PE has room for one
    with pytest.raises(DeadlockError, match="recv from any of 9 directions, none of which has a message") as stuck:
        launch(torch, kernel, pes=1)
    assert len(stuck.value.blocked[0].rings) == 9


def test_a_deadlock_in_a_with_block_is_what_its_user_sees() -> None:
    def kernel(tl: Any) -> None:
        tl.recv("intra_E", (4,), "f16")

    engine = GraphEngine(machine())
    with pytest.raises(DeadlockError), RuntimeContext(engine) as torch:
        launch(torch, kernel)


# ---- memory


def test_rings_that_do_not_fit_are_refused_with_the_fix(torch: RuntimeContext) -> None:
    def kernel(tl: Any) -> None:
        tl.send("intra_1", tl.full((4,), 1, "f16"))

    torch.install_ipcq(n_slots=65)  # 260 KiB; a PE keeps 256 for rings
    with pytest.raises(LaunchError, match="TCM for rings") as failed:
        launch(torch, kernel, pes=1)
    assert "fewer or smaller slots, fewer directions, or buffer_kind sram or hbm" in str(failed.value)
    torch.install_ipcq(n_slots=65, buffer_kind="hbm")
    launch(torch, kernel, pes=1)
    with pytest.raises(UnreceivedError):
        torch.close()


def test_tcm_that_tensors_have_taken_is_not_there_for_rings() -> None:
    with RuntimeContext(GraphEngine(machine())) as torch:
        kept = torch.empty(1, 900 * 1024, dtype="i8", space="tcm")  # of 1 MiB that may be allocated
        with pytest.raises(AllocationError):
            torch.install_ipcq()
        del kept
        torch.zeros(1)  # a call, at which what is dropped is freed
        torch.install_ipcq()


def test_while_a_kernel_runs_rings_can_neither_be_made_nor_made_anew() -> None:
    def plain(tl: Any) -> None:
        tl.cycles(10000)

    def receives(tl: Any) -> None:
        if tl.physical_id(0) == 0:
            tl.recv("intra_1", (4,), "f16")
        else:
            tl.cycles(10000)
            tl.send("intra_0", tl.full((4,), 1, "f16"))

    engine = GraphEngine(machine())
    with RuntimeContext(engine) as torch:
        running = launch(torch, plain, wait=False)
        engine.run_until_done(engine.env.timeout(2000))
        with pytest.raises(AllocationError):
            torch.communicators.install_world()
        torch.wait(running)
        running = launch(torch, receives, wait=False)
        engine.run_until_done(engine.env.timeout(2000))
        with pytest.raises(UsageError, match="communicator 'world' cannot be replaced: 1 kernels use it"):
            torch.communicators.install_world()
        torch.install_ipcq()  # waits for it
        assert torch.launches[-1].is_done


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"n_slots": 0}, "whole number from 1"),
        ({"n_slots": True}, "whole number from 1"),
        ({"slot_size": 1000}, "power of two of 256 or more"),
        ({"slot_size": 128}, "power of two of 256 or more"),
        ({"buffer_kind": "l2"}, "tcm, sram, hbm"),
        ({"backpressure": "spin"}, "sleep, poll"),
    ],
)
def test_rings_that_cannot_be_built_are_refused(torch: RuntimeContext, wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))) as refused:
        torch.install_ipcq(**wrong)
    assert hint in str(refused.value)


def test_another_programs_communicator_is_not_replaced_but_can_be_used() -> None:
    engine = GraphEngine(machine())
    with RuntimeContext(engine) as first, RuntimeContext(engine) as second:
        first.install_ipcq(n_slots=2)
        with pytest.raises(UsageError, match="another host program installed it"):
            second.install_ipcq()
        out = second.zeros(20, dtype="i16")
        launch(second, counts, out)
        assert out.numpy().tolist() == list(range(20))


# ---- races


def passes_a_token(x: Any, out: Any, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64,), 1, "i32"))
        tl.send("intra_1", tl.full((1,), 1, "i32"))
    else:
        tl.recv("intra_0", (1,), "i32")
        tl.store(out, tl.load(x, (64,)))


def passes_it_along(x: Any, out: Any, tl: Any) -> None:
    """Over a third PE, without waiting where that can be put off."""
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64,), 1, "i32"))
        tl.wait(tl.send_async("intra_2", tl.full((1,), 1, "i32")))
    elif tl.program_id(0) == 2:
        tl.send("intra_1", tl.recv("intra_0", (1,), "i32"))
    else:
        token = tl.recv_async("intra_2", (1,), "i32")
        tl.cycles(10)
        tl.wait(token)
        tl.store(out, tl.load(x, (64,)))


def passes_nothing(x: Any, out: Any, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64,), 1, "i32"))
    else:
        tl.cycles(5000)
        tl.store(out, tl.load(x, (64,)))


def reads_before_the_token(x: Any, out: Any, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64,), 1, "i32"))
        tl.send("intra_1", tl.full((1,), 1, "i32"))
    else:
        early = tl.load(x, (64,))
        tl.recv("intra_0", (1,), "i32")
        tl.store(out, early)


def writes_after_the_token(x: Any, out: Any, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.send("intra_1", tl.full((1,), 1, "i32"))
        tl.store(x, tl.full((64,), 1, "i32"))
    else:
        tl.recv("intra_0", (1,), "i32")
        tl.cycles(5000)
        tl.store(out, tl.load(x, (64,)))


def a_token_that_was_not_waited_for(x: Any, out: Any, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64,), 1, "i32"))
        tl.send("intra_1", tl.full((1,), 1, "i32"))
    else:
        token = tl.recv_async("intra_0", (1,), "i32")
        tl.cycles(5000)
        tl.store(out, tl.load(x, (64,)))
        tl.wait(token)


@pytest.mark.parametrize(("kernel", "pes"), [(passes_a_token, 2), (passes_it_along, 3)])
def test_what_was_stored_before_a_send_may_be_loaded_after_its_receive(kernel: Any, pes: int) -> None:
    ints = np.zeros(64, np.int32)
    (_, out), _ = run_kernel(kernel, ints, ints.copy(), grid=(pes,), check_races=True)
    assert out.tolist() == [1] * 64


@pytest.mark.parametrize(
    "kernel", [passes_nothing, reads_before_the_token, writes_after_the_token, a_token_that_was_not_waited_for]
)
def test_without_a_message_between_them_they_race(kernel: Any) -> None:
    ints = np.zeros(64, np.int32)
    with pytest.raises(RaceError) as raced:
        run_kernel(kernel, ints, ints.copy(), grid=(2,), check_races=True)
    assert len(raced.value.races) == 1
