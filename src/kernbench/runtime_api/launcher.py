"""From `launch(name, kernel, *args)` to messages: which SIPs, cubes and PEs, and what the launch did there.

A launch goes to every cube, and in each of them to every PE number, that holds part of one of its tensors: a grid of
cubes and PE numbers, in which a PE may hold no part of a tensor that is split unevenly. A launch without tensors goes
to all of the current device. Tensors on several SIPs make one launch a SIP, and all start together. A launch
sent elsewhere (`sips=`) reaches its tensors over the tray's links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from itertools import count
from numbers import Integral, Real
from typing import Literal

import numpy as np

from kernbench.common.errors import UsageError
from kernbench.common.messages import (
    FailurePolicy,
    KernelAbortMsg,
    KernelArg,
    KernelLaunchMsg,
    KernelRef,
    ScalarArg,
    Targets,
)
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.launches import Launch, engine_use
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.fabric.counters import DoneCounts
from kernbench.sim_engine.handles import Handle
from kernbench.sim_engine.op_tally import Work
from kernbench.triton_emu.binding import signature_of

Kernel = Callable[..., object]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Where a launch goes and how it fails, as far as the caller says."""

    sips: Targets | None = None
    target_cubes: Targets | None = None
    target_pes: Targets | None = None
    failure_policy: FailurePolicy = "fail_fast"

    @classmethod
    def of(cls, given: dict[str, object]) -> LaunchOptions:
        """The options of a call; raises UsageError for one that does not exist."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(
                    f"launch has no option '{name}'",
                    hint=f"options: wait, {', '.join(known)}; give the kernel's arguments by position",
                )
        ids = {name: _ids(name, value) for name, value in given.items() if name != "failure_policy"}
        return cls(**{**given, **ids})  # type: ignore[arg-type]  # messages check the values


def _ids(name: str, value: object) -> object:
    """Ids as a tuple of whole numbers: one number, a range or a list will do."""
    if value is None or (isinstance(value, str) and value == "all"):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Integral) and not isinstance(value, bool):
        return (int(value),)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(value)
    raise UsageError(f"launch option {name} is {value!r}", hint="give one number, several, or 'all'")


class Launcher:
    """Makes, submits and measures launches."""

    def __init__(self, queue: HostQueue) -> None:
        self._queue = queue
        self._engine = queue.engine
        self._done_before: dict[Launch, DoneCounts] = {}  # transfers, when it was submitted
        self.launches: list[Launch] = []

    def messages(
        self, name: str, kernel: Kernel, args: Sequence[object], options: LaunchOptions, device: int
    ) -> list[KernelLaunchMsg]:
        """One message for each SIP; raises UsageError for what cannot be an argument."""
        if not callable(kernel):
            raise UsageError(f"kernel '{name}' is {kernel!r}", hint="give a function")
        if _is_only_made(kernel):
            raise UsageError(
                f"kernel '{name}' is a generator or a coroutine, whose body a call does not run",
                hint="write a plain function: tl waits by itself, without yield and await",
            )
        signature_of(kernel)
        ref = KernelRef(self._known_as(name, kernel))
        passed = tuple(_as_arg(name, at, arg) for at, arg in enumerate(args))
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        sips = self._sips(options.sips) or tuple(dict.fromkeys(t.allocation.sip for t in tensors)) or (device,)
        return [
            KernelLaunchMsg(
                sip=sip,
                kernel_ref=ref,
                args=passed,
                target_cubes=options.target_cubes or _holders(tensors, sip, "cube"),
                target_pes=options.target_pes or _holders(tensors, sip, "pe"),
                failure_policy=options.failure_policy,
                debug_label=name,
            )
            for sip in sips
        ]

    def _sips(self, asked: Targets | None) -> tuple[int, ...]:
        """The SIPs that a caller asks for; none where it does not say. Raises UsageError for what is none."""
        there = range(self._engine.graph.spec.n_sips)
        if asked is None or asked == "all":
            return () if asked is None else tuple(there)
        hint = f"the machine has SIPs 0 to {len(there) - 1}; name each once, or give 'all'"
        for at, sip in enumerate(asked):
            if isinstance(sip, bool) or not isinstance(sip, Integral) or sip not in there:
                raise UsageError(f"no SIP {sip!r}", where="launch option sips", hint=hint)
            if sip in asked[:at]:
                raise UsageError(f"SIP {sip} is named twice", where="launch option sips", hint=hint)
        return tuple(int(sip) for sip in asked)

    def _known_as(self, name: str, kernel: Kernel) -> str:
        """What the device calls a kernel: its name, numbered while another function of that name still runs.

        A bench that defines its kernel inside makes a function for each device it runs on.
        """
        kernels = self._engine.kernels
        for number in count(1):
            ref = name if number == 1 else f"{name}#{number}"
            if kernels.get(ref, kernel) is kernel or not self._is_running(ref):
                kernels[ref] = kernel
                break
        return ref

    def _is_running(self, ref: str) -> bool:
        return any(launch.kernel_ref == ref and not launch.is_over for launch in self.launches)

    def submit(self, name: str, messages: Sequence[KernelLaunchMsg], tensors: tuple[Tensor, ...]) -> Launch:
        """Let a launch in now."""
        done_before = self._engine.done_so_far()
        launch = Launch(name, self._queue.submit_together(messages), keeps=tensors)
        self._done_before[launch] = done_before
        self.launches.append(launch)
        for handle in launch.handles:
            if self._engine.tally is not None:
                self._engine.tally.watch(handle.request.id)
            if handle.done is not None and handle.done.callbacks is not None:
                handle.done.callbacks.append(partial(self._note, launch, handle))
        return launch

    def _note(self, launch: Launch, part: Handle, _: object) -> None:
        """A part of a launch is done. It is measured when all are, not when somebody waits for it."""
        if part.failures:
            self._stop(launch, part)  # a failure is told before all is over there: this is how the host learns when
        if launch.is_done:
            self._finish(launch)
        elif launch.failures and not launch.is_aborted:
            self._abort(launch)

    def _abort(self, launch: Launch) -> None:
        """A launch that is to fail fast has failed on one SIP: stop it on the others."""
        for part in launch.handles:
            request = part.request
            if isinstance(request, KernelLaunchMsg) and request.failure_policy == "fail_fast" and not part.is_done:
                launch.is_aborted = True
                self._stop(launch, part)

    def _stop(self, launch: Launch, part: Handle) -> None:
        """Stop a launch on one SIP; answered when nothing of it is under way there."""
        request = part.request
        assert isinstance(request, KernelLaunchMsg)
        cubes, pes = request.target_cubes, request.target_pes
        abort = KernelAbortMsg(sip=request.sip, target_cubes=cubes, target_pes=pes, launch_id=request.id)
        stop = self._queue.submit(abort, rank=launch.rank())
        launch.stops.append(stop)
        if stop.done is not None and stop.done.callbacks is not None:
            stop.done.callbacks.append(lambda _: launch.let_go())

    def _finish(self, launch: Launch) -> None:
        """Note what a launch that is done has cost: what its PEs did for it, and what the links of its SIPs did."""
        if launch.is_measured:
            return
        launch.is_measured = True
        launch.let_go()
        if self._engine.tally is not None:
            work: dict[str, Work] = {}
            for handle in launch.handles:
                for component, did in self._engine.tally.take(handle.request.id).items():
                    work[component] = work.get(component, Work()).plus(did)
            launch.engines = engine_use(work, launch.ended)
        here = tuple(f"sip{sip}." for sip in launch.sips)
        busy = self._engine.links_busy_since(self._done_before.pop(launch))
        launch.links = {link: busy_ns for link, busy_ns in busy.items() if link[0].startswith(here)}


def _is_only_made(kernel: Kernel) -> bool:
    """Whether a call makes a generator or a coroutine and runs nothing; an object is what its `__call__` is."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    asked = (kernel, type(kernel).__call__)
    return any(isgeneratorfunction(fn) or iscoroutinefunction(fn) or isasyncgenfunction(fn) for fn in asked)


def _holders(tensors: Sequence[Tensor], sip: int, level: str) -> Targets:
    """The cubes, or the PE numbers, of a SIP that hold part of a tensor."""
    ids = dict.fromkeys(getattr(shard, level) for t in tensors for shard in t.shards if shard.sip == sip)
    return tuple(sorted(ids)) or "all"


def _as_arg(kernel: str, at: int, arg: object) -> KernelArg:
    if isinstance(arg, Tensor):
        return arg.as_arg()
    if isinstance(arg, bool | np.bool_):
        return ScalarArg("bool", arg)  # type: ignore[arg-type]  # as it was passed
    if isinstance(arg, Integral):
        dtype: Literal["i32", "i64"] = "i32" if -(2**31) <= int(arg) < 2**31 else "i64"
        return ScalarArg(dtype, arg)  # type: ignore[arg-type]  # as it was passed
    if isinstance(arg, Real):
        return ScalarArg("fp32", arg)  # type: ignore[arg-type]  # as it was passed
    raise UsageError(
        f"argument {at} of kernel '{kernel}' is a {type(arg).__name__}",
        hint="give tensors and numbers; torch.from_numpy makes a tensor of an array",
    )
