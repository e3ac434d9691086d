"""A kernel matches another when it makes the same calls, each at its own place, and only then."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import KernelError
from kernbench.common.launch import TensorArg
from kernbench.common.messages import KernelLaunchMsg
from kernbench.components.base import Packet
from kernbench.components.builtin.kernel_arguments import argument_of
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import tiny_machine
from kernbench.triton_emu.binding import bind
from kernbench.triton_emu.call_signatures import PlaceOf
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_env import KernelEnv, KernelIds
from kernbench.triton_emu.matching_tl import RecordingTl, Trace, matches
from kernbench.triton_emu.pending_handle import CompletionHandle, TransferHandle
from kernbench.triton_emu.recording_tl import SharedCalls
from kernbench.triton_emu.repeatable import is_repeatable
from kernbench.triton_emu.tl_context import TLContext

Kernel = Callable[..., object]
PES = 2
SHAPE = (8, 16)  # of each PE's part of a tensor


class Traced(NamedTuple):
    """A kernel that one PE has run."""

    cpu: PeCpuComponent
    env: KernelEnv
    trace: Trace

    def call(self, kernel: Kernel, tl: object) -> object:
        """A kernel with this PE's arguments."""
        args = [argument_of(arg, self.cpu.key) for arg in self.env.launch.args]
        return bind(kernel, args, tl)()

    def is_matched_by(self, kernel: Kernel, other: Traced) -> bool:
        """Whether that kernel, on the PE of another, matches this one."""
        return matches(self.trace, partial(other.call, kernel), place_of(other.env), other.env)


def place_of(env: KernelEnv) -> PlaceOf:
    """Which tensor argument, and how far from this PE's own part of it."""
    args = [arg for arg in env.launch.args if isinstance(arg, TensorArg)]

    def found(address: int) -> tuple[int, int] | None:
        for number, arg in enumerate(args):
            assert arg.va_base is not None
            if arg.va_base <= address < arg.va_base + arg.span_bytes:
                return number, address - arg.local_address_for(env.place)
        return None

    return found


class Ran(NamedTuple):
    pes: list[Traced]
    peaks: list[int]  # of TCM
    times_ns: float


def ran(kernel: Kernel, *scalars: object, traced: bool = True) -> Ran:
    """A kernel on PEs that have a part of each of three tensors."""
    engine = GraphEngine(tiny_machine(PES), data=False)
    found: list[Traced] = []
    shared = SharedCalls()

    def make_tl(cpu: PeCpuComponent, env: KernelEnv) -> TLContext:
        found.append(Traced(cpu, env, Trace()))
        return RecordingTl(env, found[-1].trace, place_of(env), shared)

    def accept(cpu: PeCpuComponent, packet: Packet) -> None:
        assert isinstance(packet.request, KernelLaunchMsg)
        cpu.serve_without_packet(packet.request, partial(cpu._reply_with, packet), partial(make_tl, cpu))

    rows = DPPolicy(pe="row_wise", num_cubes=1, num_pes=PES)
    served = patch.object(PeCpuComponent, "accept", accept) if traced else nullcontext()
    with served, RuntimeContext(engine) as torch:
        x, y, z = (torch.zeros(PES * SHAPE[0], SHAPE[1], dtype=dtype, dp=rows) for dtype in ("f16", "f16", "f32"))
        launch = torch.launch(kernel, x, y, z, *scalars)
        peaks = [result.tcm_peak_bytes for result in launch.pes]
    return Ran(sorted(found, key=lambda one: one.env.place), peaks, launch.pe_exec_ns_max)


def work(x, y, z, *, tl, changed=""):  # type: ignore[no-untyped-def]
    """Some of everything. `changed` is what is done otherwise."""
    rows = 7 if changed == "shape" else 8
    place = x.local + (32 if changed == "offset" else 0)
    a = tl.load(place, (7 if changed == "offset" else rows, 16))
    scale = {"type of scalar": 2, "scalar": 2.5, "sign of zero": 2.0}.get(changed, 2.0)
    b = (a - scale if changed == "operator" else a * scale) + (-0.0 if changed == "sign of zero" else 0.0)
    b = tl.cast(b, "bf16" if changed == "dtype" else "f32")
    if changed == "one more":
        b = tl.exp(b)
    if changed != "one less":
        b = tl.maximum(b, tl.sum(b, axis=1, keep_dims=True))
    c = tl.load_async(y if changed == "no part" else y.local, (4, 16))
    total = b[0 if changed == "view" else 1 : 3].T
    got = tl.wait(c)
    low, high = tl.split(got, 2)
    first = high if changed == "handle" else low
    tl.store_async(x.local, tl.cat([first, low]))
    steps = [{"op": "mul", "other": tl.full((16,), 3 if changed == "fill" else 2, "f32")}]
    if changed == "epilogue":
        steps.append({"op": "relu"})
    streamed = tl.ref(x.local, SHAPE)
    kept = tl.composite("math", streamed, math_op="exp", epilogue=steps, out_dtype="f32")
    out = kept.out if changed != "waits" else tl.wait(kept)
    tl.wait(tl.composite("math", out, math_op="exp", out_ptr=z.local if changed != "place" else z.local + 64))
    if changed == "drops":
        del a
    if changed == "cycles":
        tl.cycles(3)
    tl.wait()
    if changed == "looks":
        total.numpy()
    assert total.shape == (16, 3 if changed == "view" else 2)


CHANGES = (
    "shape", "offset", "type of scalar", "scalar", "sign of zero", "operator", "dtype", "one more", "one less",
    "no part", "view", "handle", "fill", "epilogue", "waits", "place", "cycles", "looks", "drops",
)  # fmt: skip


@cache
def worked() -> Ran:
    return ran(work)


@pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
def test_a_kernel_follows_on_another_pe_what_it_did_on_one() -> None:
    first, second = worked().pes
    assert first.trace.is_usable
    assert len(first.trace.calls) > 15
    assert first.trace.calls == second.trace.calls
    shared = sum(one is other for one, other in zip(first.trace.calls, second.trace.calls, strict=True))
    assert shared > 0.8 * len(first.trace.calls)  # kept once, but those whose results are rare
    assert first.is_matched_by(work, second)
    assert first.is_matched_by(partial(work, changed=""), second)
    assert second.is_matched_by(work, first)


@pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
@pytest.mark.parametrize("changed", CHANGES)
def test_a_kernel_that_does_one_thing_otherwise_does_not_follow(changed: str) -> None:
    first, second = worked().pes
    assert not first.is_matched_by(partial(work, changed=changed), second)


@pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
def test_tracing_changes_neither_time_nor_tcm() -> None:
    plain = ran(work, traced=False)
    assert (plain.peaks, plain.times_ns) == (worked().peaks, worked().times_ns)
    assert plain.peaks[0] > 0


def test_a_trace_holds_no_tensor() -> None:
    def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
        for _ in range(6):  # each takes 384 KiB of a MiB
            tl.full((192, 1024), 0, "f16")
            tl.wait(tl.composite("math", tl.full((192, 512), 0, "f16"), math_op="exp"))

    assert ran(kernel).peaks == ran(kernel, traced=False).peaks


class TestNumbersThatAKernelLooksAt:
    @staticmethod
    def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
        a = tl.load(x.local)
        assert not a.numpy().any()
        at = tl.max(tl.cast(a, "i32"))
        tl.store(z.local + int(at), tl.cast(a, "f32"))
        if float(tl.sum(a)) > 1:
            tl.cycles(5)

    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    def test_are_those_that_the_traced_kernel_saw(self) -> None:
        first, second = ran(self.kernel).pes
        assert first.is_matched_by(self.kernel, second)

    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    def test_are_not_the_followers_to_change(self) -> None:
        def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
            numbers = tl.load(x.local).numpy()
            if tl.program_id(0):
                numbers[0] = 1

        first, second = ran_on_first(kernel)
        assert not first.is_matched_by(kernel, second)


def ran_on_first(kernel: Kernel) -> tuple[Traced, Traced]:
    """What PE 0 did of a kernel; PE 1, which has done nothing."""

    def on_first(x, y, z, tl):  # type: ignore[no-untyped-def]
        if not tl.program_id(0):
            kernel(x, y, z, tl=tl)

    first, second = ran(on_first).pes
    assert first.trace.is_usable
    return first, second


class TestWhatAFollowerTouches:
    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    @pytest.mark.parametrize(
        "touch",
        [
            lambda tl, a, h: a.address,
            lambda tl, a, h: a.records,
            lambda tl, a, h: hasattr(a, "block"),
            lambda tl, a, h: repr(a),
            lambda tl, a, h: f"{h}",
            lambda tl, a, h: h.out,
            lambda tl, a, h: h.number,
            lambda tl, a, h: tl.close(),
            lambda tl, a, h: tl.no_such_name,
            lambda tl, a, h: tl._runner,
            lambda tl, a, h: tl.recv("E", (4,)),
            lambda tl, a, h: 1 / 0,
        ],
    )
    def test_what_was_not_recorded_is_a_difference_even_where_it_is_caught(self, touch: Any) -> None:
        def kernel(x, y, z, tl, *, touches=False):  # type: ignore[no-untyped-def]
            a = tl.load(x.local)
            h = tl.load_async(y.local)
            if touches:
                try:
                    touch(tl, a, h)
                except ZeroDivisionError:
                    raise
                except BaseException:
                    pass
            tl.wait(h)

        first, second = ran(kernel).pes
        assert first.is_matched_by(kernel, second)
        assert not first.is_matched_by(partial(kernel, touches=True), second)

    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    def test_what_was_recorded_is_there(self) -> None:
        def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
            a, b = tl.topk(tl.load(x.local), 2)
            assert (a.shape, a.dtype, b.dtype, a.ndim, a.size, len(a)) == ((8, 2), "f16", "i32", 2, 16, 8)
            assert isinstance(a, TensorHandle)
            assert not a.is_reference
            assert [row.shape for row in a] == [(2,)] * 8
            streamed = tl.ref(x.local, SHAPE)
            assert (streamed.is_reference, streamed.space, streamed.address) == (True, "hbm", int(x.local))
            tl.load(streamed.T.address, SHAPE)  # a plain number, and a pointer all the same
            h = tl.composite("math", streamed, math_op="exp")
            assert isinstance(h, CompletionHandle)
            assert isinstance(tl.load_async(x.local), TransferHandle)
            assert h.out is tl.wait(h) or h.out.size == 128
            with pytest.raises(KernelError, match="dropped"):
                h.out.shape  # noqa: B018
            assert tl.cdiv(7, 2) == 4
            assert tl.num_programs(0) == PES
            assert a.dtype == tl.float16

        first, second = ran(kernel).pes
        assert first.is_matched_by(kernel, second)

    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    def test_places_in_the_grid_are_its_own(self) -> None:
        def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
            tl.load(x + tl.program_id(0) * 256, SHAPE)
            tl.load(x + tl.physical_id(0) * 256, SHAPE)
            tl.load(int(x) + tl.program_id(0) * 256, SHAPE)

        first, second = ran(kernel).pes
        assert first.is_matched_by(kernel, second)
        elsewhere = KernelIds((0, 0, 0), second.env.grid, second.env.place)
        assert not matches(first.trace, partial(second.call, kernel), place_of(second.env), elsewhere)


class TestUnusable:
    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda tl, x: tl.atomic_add(x.local, tl.zeros((4,), "f16")),
            lambda tl, x: (h := tl.load_async(x.local), tl.wait(), h.out)[2],
            lambda tl, x: tl.load(x.local, rows=memoryview(b"")),
            lambda tl, x: tl.load(x.local, (99, 99)),
        ],
    )
    def test_what_cannot_be_compared(self, spoil: Any) -> None:
        def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
            with suppress(KernelError, TypeError):
                tl.relu(spoil(tl, x))
            tl.wait()

        first, second = ran(kernel).pes
        assert not first.trace.is_usable
        assert not first.is_matched_by(kernel, second)

    @pytest.mark.needs("addresses", reason="its kernels are placed by the address range of a tensor")
    def test_an_address_without_a_place(self) -> None:
        def kernel(x, y, z, tl):  # type: ignore[no-untyped-def]
            tl.load(x.local)

        first, second = ran(kernel).pes
        assert not matches(first.trace, partial(second.call, kernel), lambda address: None, second.env)

    def test_a_kernel_that_is_a_generator_or_raises_does_not_follow(self) -> None:
        def generator(x, y, z, tl):  # type: ignore[no-untyped-def]
            yield

        def raises(x, y, z, tl):  # type: ignore[no-untyped-def]
            raise SystemExit

        first, second = ran_on_first(lambda x, y, z, tl: None)
        assert first.is_matched_by(lambda x, y, z, tl: None, second)
        assert not first.is_matched_by(generator, second)
        assert not first.is_matched_by(raises, second)

    def test_a_trace_of_nothing_is_not_usable(self) -> None:
        assert not Trace().is_usable


def test_numbers_of_any_kind_are_distinguished() -> None:
    numbers = [1, 1.0, True, np.float32(1), np.float16(1), np.int32(1), 0.0, -0.0, 0, math.nan, math.inf]

    def kernel(x, y, z, tl, *, number):  # type: ignore[no-untyped-def]
        tl.full((2,), number, "f32")

    for at, number in enumerate(numbers):
        first, second = ran_on_first(partial(kernel, number=number))
        followed = [first.is_matched_by(partial(kernel, number=other), second) for other in numbers]
        assert followed == [other == at for other in range(len(numbers))]


def test_kernels_say_whether_they_may_be_repeated() -> None:
    @kernbench.repeatable
    def kernel(x, tl):  # type: ignore[no-untyped-def]
        """Nothing."""

    assert is_repeatable(kernel)
    assert is_repeatable(partial(partial(kernel, 1), 2))
    assert not is_repeatable(lambda x, tl: None)
    assert not is_repeatable(partial(work))
