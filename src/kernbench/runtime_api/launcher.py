"""From a call of `launch` to messages: which SIPs, cubes and PEs it goes to, and what it did there.

A launch goes to every cube, and in each of them to every PE number, that holds part of one of its tensors: a grid of
cubes and PE numbers, in which a PE may hold no part of a tensor that is split unevenly. A launch without tensors goes
to all of the current device. Tensors on several SIPs make one message per SIP, and all SIPs start together. A launch
on other SIPs (`sips=`) accesses its tensors over the tray's links.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from numbers import Integral

from greenlet import getcurrent

from kernbench.common.errors import UsageError
from kernbench.common.messages import KernelAbortMsg, KernelLaunchMsg, KernelRef, Targets
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.launch_call import LaunchCall
from kernbench.runtime_api.launches import Launch, engine_use
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.fabric.done_tally import DoneCounts
from kernbench.sim_engine.handles import Handle
from kernbench.sim_engine.op_tally import EngineWork, WorkKey
from kernbench.triton_emu.registry import Kernel


class Launcher:
    """Makes, submits and measures launches."""

    def __init__(self, queue: HostQueue) -> None:
        self._queue = queue
        self._engine = queue.engine
        self._done_before: dict[Launch, DoneCounts] = {}  # transfer counters at submission
        self.launches: list[Launch] = []
        self._numbers = count(1)  # of launches on several SIPs
        self._running: list[Launch] = []  # may include some that are over
        self._unreported: list[Launch] = []  # may include some that were reported

    def running(self) -> list[Launch]:
        """Launches that are not over, in order of submission."""
        self._running = [launch for launch in self._running if not launch.is_over]
        return self._running

    def unreported(self) -> list[Launch]:
        """Launches that no program has waited for, in order of submission."""
        self._unreported = [launch for launch in self._unreported if not launch.is_waited]
        return self._unreported

    def own_unreported(self) -> Iterator[Launch]:
        """Those of the calling program; one that was waited for meanwhile is left out."""
        return (each for each in self.unreported() if each.rank() is getcurrent() and not each.is_waited)

    def own_using(self, storages: Container[int]) -> list[Launch]:
        """Running launches of the calling program that use a tensor in one of these storages, given by number."""
        return [
            launch
            for launch in self.running()
            if launch.rank() is getcurrent()
            and any(isinstance(kept, Tensor) and kept.storage.number in storages for kept in launch.keeps)
        ]

    def messages(self, call: LaunchCall, device: int) -> list[KernelLaunchMsg]:
        """One message for each SIP; raises UsageError for arguments of unsupported types."""
        options, spec = call.options, self._engine.graph.spec
        args, named_args = tuple(call.positional_args()), call.named_args()
        ref = KernelRef(self._register(call.name, call.kernel))
        sips = self._sips(options.sips) or tuple(dict.fromkeys(t.allocation.sip for t in call.tensors)) or (device,)
        return [
            KernelLaunchMsg(
                sip=sip,
                kernel_ref=ref,
                args=args,
                named_args=named_args,
                target_cubes=_targets(options.target_cubes, spec.sip.n_cubes),
                target_pes=_targets(options.target_pes, spec.cube.n_pes),
                failure_policy=options.failure_policy,
                debug_label=call.name,
                communicator=options.communicator,
                tag=options.tag,
                stream=options.stream,
            ).located()
            for sip in sips
        ]

    def _sips(self, asked: Targets | None) -> tuple[int, ...]:
        """The SIPs that the caller asks for; empty if it leaves them open. Raises UsageError for SIPs that do not
        exist.
        """
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

    def _register(self, name: str, kernel: Kernel) -> str:
        """Register a kernel with the device under its name, numbered while another function of that name still runs.

        A bench that defines its kernel in its body makes one function for each device it runs on.
        """
        kernels = self._engine.kernels
        for number in count(1):
            ref = name if number == 1 else f"{name}#{number}"
            if kernels.get(ref, kernel) is kernel or not self._is_running(ref):
                kernels[ref] = kernel
                break
        return ref

    def _is_running(self, ref: str) -> bool:
        return any(launch.kernel_ref == ref for launch in self.running())

    def submit(self, name: str, messages: Sequence[KernelLaunchMsg], tensors: tuple[Tensor, ...]) -> Launch:
        """Submit a launch now."""
        if len(messages) > 1:
            number, targets = next(self._numbers), {each.sip: (each.target_cubes, each.target_pes) for each in messages}
            messages = [replace(message, number=number, targets_by_sip=targets) for message in messages]
        done_before = self._engine.done_so_far([message.sip for message in messages])
        launch = Launch(name, self._queue.submit_together(messages), keeps=tensors)
        self._done_before[launch] = done_before
        self.launches.append(launch)
        self._running.append(launch)
        self._unreported.append(launch)
        for handle in launch.handles:
            if self._engine.tally is not None:
                self._engine.tally.watch(handle.request.id)
            if handle.done is not None and handle.done.callbacks is not None:
                handle.done.callbacks.append(partial(self._part_done, launch, handle))
        return launch

    def _part_done(self, launch: Launch, part: Handle, _: object) -> None:
        """A part of a launch is done. The launch is measured when all parts are, whether or not a
        program waits for it.
        """
        if part.failures:
            self._stop(launch, part)  # answered when its PEs have stopped, which is after the failure is reported
        if launch.is_done:
            self._finish(launch)
        elif launch.failures and not launch.is_aborted:
            self._abort(launch)

    def stop(self, launch: Launch) -> None:
        """Stop a launch wherever it is running, without reporting how it ends."""
        launch.is_aborted = launch.is_waited = True
        for part in launch.handles:
            if not part.is_done:
                self._stop(launch, part)

    def _abort(self, launch: Launch) -> None:
        """A launch with fail_fast has failed on one SIP: stop it on the others."""
        for part in launch.handles:
            request = part.request
            if isinstance(request, KernelLaunchMsg) and request.failure_policy == "fail_fast" and not part.is_done:
                launch.is_aborted = True
                self._stop(launch, part)

    def _stop(self, launch: Launch, part: Handle) -> None:
        """Stop a launch on one SIP; the request is answered when none of its PEs is running there."""
        request = part.request
        assert isinstance(request, KernelLaunchMsg)
        cubes, pes = request.target_cubes, request.target_pes
        abort = KernelAbortMsg(sip=request.sip, target_cubes=cubes, target_pes=pes, launch_id=request.id)
        stop = self._queue.submit(abort, rank=launch.rank())
        launch.stops.append(stop)
        if stop.done is not None and stop.done.callbacks is not None:
            stop.done.callbacks.append(lambda _: launch.release_tensors())

    def _note_unreceived(self, launch: Launch) -> None:
        """Messages that a launch has sent among its own PEs and not received stay unreceived: the next launch must not
        take them.
        """
        request = launch.handles[0].request
        assert isinstance(request, KernelLaunchMsg)
        communicator = self._engine.communicators.get(request.communicator)
        if communicator is None or launch.failures or launch.is_aborted:
            return
        launch.unreceived = tuple(communicator.left_over_by(request.origin))
        if launch.unreceived:
            communicator.failure = f"kernel '{launch.name}' has left {len(launch.unreceived)} messages in its rings"

    def _finish(self, launch: Launch) -> None:
        """Record the figures of a finished launch: the work of its PEs, and the activity of its SIPs' links."""
        if launch.is_measured:
            return
        launch.is_measured = True
        self._engine.interrupt_replays(launch.sips)  # messages may still be in flight when kernels have ended
        launch.release_tensors()
        self._note_unreceived(launch)
        if self._engine.tally is not None:
            work: dict[WorkKey, EngineWork] = {}
            for handle in launch.handles:
                for key, did in self._engine.tally.take(handle.request.id).items():
                    work[key] = work.get(key, EngineWork()).plus(did)
            launch.engines = engine_use(work, launch.ended)
        here = tuple(f"sip{sip}." for sip in launch.sips)
        busy = self._engine.links_busy_since(self._done_before.pop(launch), launch.sips)
        launch.links = {link: busy_ns for link, busy_ns in busy.items() if link[0].startswith(here)}
        for callback in launch.on_end:
            callback(launch)


def _targets(ids: Targets | None, count: int) -> Targets:
    """Targets as a message takes them: a caller's "all" means every one, not only those that hold a shard."""
    if ids is None:
        return "all"
    return tuple(range(count)) if ids == "all" else ids
