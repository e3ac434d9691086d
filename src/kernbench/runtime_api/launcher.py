"""From `launch(name, kernel, *args)` to messages: which SIPs, cubes and PEs, and what the launch did there.

A launch goes to every cube, and in each of them to every PE number, that holds part of one of its tensors: a grid of
cubes and PE numbers, in which a PE may hold no part of a tensor that is split unevenly. A launch without tensors goes
to all of the current device. Tensors on several SIPs make one launch a SIP, and all start together. A launch
sent elsewhere (`sips=`) reaches its tensors over the tray's links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
from kernbench.sim_engine.op_tally import Work

Kernel = Callable[..., object]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Where a launch goes and how it fails, as far as the caller says."""

    sips: tuple[int, ...] | None = None
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
                    mend=f"options: wait, {', '.join(known)}; give the kernel's arguments by position",
                )
        ids = {name: _ids(name, value) for name, value in given.items() if name != "failure_policy"}
        return cls(**{**given, **ids})  # type: ignore[arg-type]  # messages check the values


def _ids(name: str, value: object) -> object:
    """Ids as a tuple of whole numbers: one number, a range or a list will do."""
    if value is None or value == "all":
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return (int(value),)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(value)
    raise UsageError(f"launch option {name} is {value!r}", mend="give one number, several, or 'all'")


class Launcher:
    """Makes, submits and measures launches."""

    def __init__(self, queue: HostQueue) -> None:
        self._queue = queue
        self._engine = queue.engine
        self._links_before: dict[Launch, list[float]] = {}  # busy ns, when it was submitted
        self.launches: list[Launch] = []

    def messages(
        self, name: str, kernel: Kernel, args: Sequence[object], options: LaunchOptions, device: int
    ) -> list[KernelLaunchMsg]:
        """One message for each SIP; raises UsageError for what cannot be an argument."""
        if not callable(kernel):
            raise UsageError(f"kernel '{name}' is {kernel!r}", mend="give a function")
        if isgeneratorfunction(kernel) or iscoroutinefunction(kernel) or isasyncgenfunction(kernel):
            raise UsageError(
                f"kernel '{name}' is a generator or a coroutine, whose body a call does not run",
                mend="write a plain function: tl waits by itself, without yield and await",
            )
        ref = KernelRef(self._known_as(name, kernel))
        passed = tuple(_as_arg(name, at, arg) for at, arg in enumerate(args))
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        sips = options.sips or tuple(dict.fromkeys(tensor.allocation.sip for tensor in tensors)) or (device,)
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
        return any(not launch.is_done and launch.kernel_ref == ref for launch in self.launches)

    def submit(self, name: str, messages: Sequence[KernelLaunchMsg], tensors: tuple[Tensor, ...]) -> Launch:
        """Let a launch in now."""
        links_before = self._engine.link_busy_ns()
        launch = Launch(name, self._queue.submit_together(messages), keeps=tensors)
        self._links_before[launch] = links_before
        self.launches.append(launch)
        for handle in launch.handles:
            if self._engine.tally is not None:
                self._engine.tally.watch(handle.request.id)
            if handle.done is not None and handle.done.callbacks is not None:
                handle.done.callbacks.append(lambda _: self._note(launch))
        return launch

    def _note(self, launch: Launch) -> None:
        """A part of a launch is done. It is measured when all are, not when somebody waits for it."""
        if launch.is_done:
            self._finish(launch)
        elif launch.failures and not launch.is_aborted:
            self._abort(launch)

    def _abort(self, launch: Launch) -> None:
        """A launch that is to fail fast has failed on one SIP: stop it on the others."""
        for handle in launch.handles:
            request = handle.request
            if isinstance(request, KernelLaunchMsg) and request.failure_policy == "fail_fast" and not handle.is_done:
                launch.is_aborted = True
                cubes, pes = request.target_cubes, request.target_pes
                self._queue.submit(
                    KernelAbortMsg(sip=request.sip, target_cubes=cubes, target_pes=pes, launch_id=request.id)
                )

    def _finish(self, launch: Launch) -> None:
        """Note what a launch that is done has cost: what its PEs did for it, and what the links of its SIPs did."""
        if launch.is_measured:
            return
        launch.is_measured = True
        launch.keeps = ()
        if self._engine.tally is not None:
            work: dict[str, Work] = {}
            for handle in launch.handles:
                for component, did in self._engine.tally.take(handle.request.id).items():
                    work[component] = work.get(component, Work()).plus(did)
            launch.engines = engine_use(work, launch.pes)
        here = tuple(f"sip{sip}." for sip in launch.sips)
        busy = self._engine.links_busy_since(self._links_before.pop(launch))
        launch.links = {link: busy_ns for link, busy_ns in busy.items() if link[0].startswith(here)}


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
        mend="give tensors and numbers; torch.from_numpy makes a tensor of an array",
    )
