"""RuntimeContext: what host code calls `torch`. Tensors on devices, launches, waiting.

Calls return when the device has done what they ask for: a tensor is mapped and written, a kernel has run on every PE.
While one rank waits, others run (`ranks.py`). A launch with `wait=False` returns at once; reading a tensor waits for
everything issued before. A tensor without references is freed at the next call.

`torch.multiprocessing` and `torch.distributed` start ranks and connect them, in modules of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from greenlet import greenlet
from numpy.typing import ArrayLike

from kernbench.ccl.install import WORLD, Communicators, check_received
from kernbench.common.errors import LaunchError, SpawnException, UsageError
from kernbench.common.ipcq import Backpressure, BufferKind, RingConfig
from kernbench.common.messages import Completion, KernelLaunchMsg
from kernbench.runtime_api.checks import Checks
from kernbench.runtime_api.current import bind_context, release_context
from kernbench.runtime_api.deploy import DeviceMemory
from kernbench.runtime_api.device import AcceleratorNamespace, AhbmNamespace
from kernbench.runtime_api.device_ops import DeviceOps
from kernbench.runtime_api.host_queue import HostQueue
from kernbench.runtime_api.launch_call import LaunchCall, LaunchOptions
from kernbench.runtime_api.launcher import Launcher
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.op_order import OccupiedPes
from kernbench.runtime_api.ranks import Ranks
from kernbench.runtime_api.script_errors import shorten_uncaught_errors
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.runtime_api.tensor_store import OnFree
from kernbench.runtime_api.torch_functions import TorchFunctions
from kernbench.runtime_api.torch_names import TorchNames
from kernbench.runtime_api.workers import Team, Workers
from kernbench.sim_engine.engine import GraphEngine, Handle
from kernbench.topology.spec import MachineSpec
from kernbench.triton_emu.autotune import Autotuned
from kernbench.triton_emu.message_use import sends
from kernbench.triton_emu.registry import Kernel

if TYPE_CHECKING:
    from kernbench.ccl.config import CclSource
    from kernbench.runtime_api.ccl_backend import Backend
    from kernbench.runtime_api.distributed import DistributedContext
    from kernbench.runtime_api.multiprocessing import MultiprocessingNamespace


class RuntimeContext(TorchFunctions, TorchNames):
    """The host's side of one simulation. `device` is the SIP that a program works on unless it selects another.

    `checks` records the results that programs state; without it they are ignored. `backend` makes the backend of a
    process group's collectives, in place of the built-in one.
    """

    def __init__(
        self,
        engine: GraphEngine,
        *,
        device: int = 0,
        correlation_id: str = "run",
        checks: Checks | None = None,
        backend: Callable[[RuntimeContext, CclSource], Backend] | None = None,
    ) -> None:
        queue = HostQueue(engine, correlation_id)
        super().__init__(queue, AhbmNamespace(engine.graph.spec.n_sips, device, self._finish_on))
        self.accelerator = AcceleratorNamespace(self.ahbm)
        self.cuda = self.ahbm  # the device has the names that programs use for it
        self.ops = DeviceOps(self)
        self.checks = checks if checks is not None else Checks(enabled=False)
        self._launcher = Launcher(self._queue)
        self.communicators = Communicators(engine)
        self.workers = Workers()
        self._make_backend = backend or _ahbm_backend
        self._team: Team | None = None  # the ranks that are running
        bind_context(self)
        shorten_uncaught_errors()

    def timing_only(self) -> None:
        """Keep no tensor contents in this run, which saves their cost. Neither the host nor a kernel can read numbers
        then.

        Raises UsageError after the first tensor or launch, and if contents are to be verified.
        """
        if self.checks.enabled:
            raise UsageError("timing_only in a run that is to be verified", hint="verify it, or time it only")
        self.engine.drop_contents()

    def record_ahead(self) -> AbstractContextManager[None]:
        """A block in which the host only makes tensors, launches kernels and waits. Worker processes may execute it
        ahead of time, to simulate the next launches in parallel, which makes this simulation faster. Their effects are
        discarded; but a program that writes files in such a block writes them more than once.

        Every running rank must be within such a block. Times and numbers do not change.
        """
        return self.engine.host_ahead.scope(lambda: self.ranks.running)

    explore_ahead = record_ahead  # its former name

    def __enter__(self) -> RuntimeContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, LaunchError | SpawnException):  # the machine is intact, and another context may use it
            self._queue.wait([stop for launch in self.launches for stop in launch.stops], "failed kernels to stop")
        self.close(wait=error is None)

    def close(self, *, wait: bool = True) -> None:
        """Wait for everything that is running and free all tensors. Closing twice is harmless.

        Raises LaunchError for a failed launch that was never waited for; without `wait`, it raises nothing.
        """
        if wait:
            self._queue.wait_all()
            for launch in self.launches:  # including those of ranks that have ended
                self._queue.wait(launch.handles, f"kernel '{launch.name}'")
                self._queue.wait(launch.stops, f"kernel '{launch.name}' to stop")
        release_context(self)
        unreceived = self.communicators.unreceived() if wait else []
        self.communicators.close(wait=wait)
        unmaps = self._store.close()
        if not wait:
            return
        self._queue.wait(unmaps, "mappings to be removed")
        unreported = self._launcher.unreported()
        for launch in unreported:
            launch.is_waited = True
        for launch in unreported:
            launch.raise_failures()
        check_received(unreceived)

    @property
    def spec(self) -> MachineSpec:
        """The machine's checked description."""
        return self.engine.graph.spec

    @property
    def now_ns(self) -> float:
        return self.engine.now_ns

    @property
    def ranks(self) -> Ranks:
        """The concurrent host programs on this context's clock."""
        return self._queue.ranks

    @property
    def launches(self) -> list[Launch]:
        """Every launch so far, in order of submission."""
        return self._launcher.launches

    @property
    def requests(self) -> int:
        """How many requests the host has submitted."""
        return self._queue.count

    @property
    def memory(self) -> DeviceMemory:
        """The allocator of the devices' memory for this host."""
        return self._store.memory

    def watch_contents(self, on_free: OnFree) -> None:
        """Call `on_free` with the contents of every shard of a tensor, as bytes, when the tensor is freed."""
        self._store.on_free.append(on_free)

    def used_bytes(self, sip: int, cube: int, pe: int) -> int:
        """How much of a PE's HBM slice tensors take; without HBM, of its TCM or of the SRAM of its cube."""
        return self._store.memory.used_bytes(sip, cube, pe)

    # ---- launching and waiting

    def launch(
        self, name: str | Callable[..., object], /, *args: object, wait: bool | None = None, **named: object
    ) -> Launch:
        """Run a kernel on PEs, which all start at the same time: `launch(name, kernel, *args)`. Returns when it is
        done, or at once with `wait=False`. The name may be left out: then it is that of the kernel function.

        Keywords that are not options of launch are arguments of the kernel; parameters that are not passed keep their
        defaults. The kernel runs on every cube and PE number that holds part of an argument, or where `sips=`,
        `target_cubes=` and `target_pes=` say; without tensors, on all of the current device. The first PE that fails
        stops the others; `failure_policy="collect_all"` waits for all of them. A PE runs launches one after the other,
        except that one with `stream="communication"` runs concurrently with compute launches, in TCM reserved for it.
        Raises LaunchError, with PE and kernel line, when the kernel fails.
        """
        self._store.tidy()
        call = LaunchCall.of(name, args, named if wait is None else {**named, "wait": wait})
        for tensor in call.tensors:
            self._store.check_ours(tensor)
        if isinstance(call.kernel, Autotuned):
            from kernbench.runtime_api.autotuning import tuned  # few runs need it

            call = tuned(self, call, RuntimeContext)
        if call.options.communicator == WORLD and WORLD not in self.engine.communicators and sends(call.kernel):
            self.install_ipcq()
        messages = self._launcher.messages(call, self.ahbm.current_device())
        self._check_communication(call, messages)
        if self.ops.order.before_launch(call.tensors, self._one_place(messages)):
            messages = self._launcher.messages(call, self.ahbm.current_device())  # as below, after a wait
        return self._submit(call, messages)

    def launch_op(
        self, name: str, kernel: Kernel, args: Sequence[object], sip: int, cubes: Sequence[int], pes: Sequence[int]
    ) -> Launch:
        """Launch a kernel of the host's own, without waiting for it."""
        self._store.tidy()
        options = LaunchOptions(False, (sip,), tuple(cubes), tuple(pes))
        call = LaunchCall(name, kernel, tuple(args), {}, options)
        return self._submit(call, self._launcher.messages(call, sip))

    def _submit(self, call: LaunchCall, messages: list[KernelLaunchMsg]) -> Launch:
        """Map a launch's tensors where it runs, and launch it."""
        mapping: list[Handle] = []
        for message in messages:
            for tensor in call.tensors:
                mapping += self._store.map_in(tensor, message.sip, message.cubes(self.spec.sip.n_cubes))
        if mapping:
            self._queue.wait(mapping, f"mappings for kernel '{call.name}'")
            messages = self._launcher.messages(
                call, self.ahbm.current_device()
            )  # another rank may have registered a kernel of that name
        launch = self._launcher.submit(call.name, messages, call.tensors)
        if call.options.wait:
            self.wait(launch)
        return launch

    def _one_place(self, messages: Sequence[KernelLaunchMsg]) -> OccupiedPes | None:
        """The SIP, cubes and PEs of a launch in the compute stream, if it is on one SIP."""
        if len(messages) > 1 or messages[0].stream != "compute":
            return None
        only = messages[0]
        return only.sip, tuple(only.cubes(self.spec.sip.n_cubes)), tuple(only.pes(self.spec.cube.n_pes))

    def _check_communication(self, call: LaunchCall, messages: Sequence[KernelLaunchMsg]) -> None:
        """Raise UsageError for an unknown communicator, or a stream without reserved TCM."""
        known, name = self.engine.communicators, call.options.communicator
        if name != WORLD and name not in known:
            raise UsageError(
                f"launch of '{call.name}': no communicator {name!r}",
                hint=f"there are: {', '.join(known) or 'none'}; leave it out for all SIPs",
            )
        without = [each.sip for each in messages if not self.engine.communication_tcm_bytes(each.sip)]
        if call.options.stream != "compute" and without:
            raise UsageError(
                f"launch of '{call.name}' in stream '{call.options.stream}', for which SIP {without[0]} keeps no TCM",
                hint="call torch.distributed.init_process_group('ahbm') or torch.install_ipcq() first",
            )

    def install_ipcq(
        self,
        n_slots: int | None = None,
        slot_size: int | None = None,
        buffer_kind: BufferKind | None = None,
        backpressure: Backpressure | None = None,
        *,
        algorithm: str | None = None,
        ccl_yaml: CclSource = None,
    ) -> None:
        """Give every PE rings for messages: `n_slots` of `slot_size` bytes per direction, in "tcm", "sram" or "hbm".

        A PE that waits for a message or a credit sleeps or polls, as `backpressure` says. Without these it is 4 slots
        of 4 KiB in TCM and "sleep"; with an `algorithm`, or a `ccl_yaml` (a path or a mapping), what that configuration
        says. Launches whose kernels send, receive or ask for neighbours do this implicitly, with the defaults, unless
        it was done before. Existing rings are replaced.
        """
        self._queue.wait_all()
        rings = RingConfig()
        if algorithm is not None or ccl_yaml is not None:
            from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config  # most programs configure none

            chosen = resolve_algorithm_config(load_ccl_config(ccl_yaml), algorithm)
            rings = chosen.rings
            self.communicators.set_sizes(chosen.ring_bytes, chosen.work_bytes)
        given = zip(RingConfig._fields, (n_slots, slot_size, buffer_kind, backpressure), strict=False)
        changed: dict[str, Any] = {name: value for name, value in given if value is not None}
        self.communicators.install_world(rings._replace(**changed))

    def wait(self, what: Launch | Handle) -> Completion:
        """Return when a launch or a request is done; raises LaunchError for a launch that failed."""
        if isinstance(what, Handle):
            self._queue.wait([what], f"a {what.request.msg_type}")
            return what.completion
        if not isinstance(what, Launch):
            raise UsageError(f"wait: {what!r} is not a launch", hint="give what torch.launch returned")
        self._queue.wait(what.handles, f"kernel '{what.name}'")
        what.is_waited = True
        what.raise_failures()
        return Completion(ok=True)

    def wait_all(self) -> None:
        """Return when everything that this program issued is done; raises LaunchError if a launch of it failed."""
        self._queue.wait_all()
        for launch in self._launcher.own_unreported():
            self.wait(launch)

    def wait_for_users(self, tensors: Sequence[Tensor]) -> None:
        """Return when no running launch of this program uses one of these tensors."""
        self.ops.order.before_launch(tensors, None)
        for launch in self.launches_on(tensors):
            self.wait(launch)

    def launches_on(self, tensors: Sequence[TensorBase]) -> list[Launch]:
        """Running launches of this program that use one of these tensors, in order of submission."""
        return self._launcher.own_using({tensor.storage.number for tensor in tensors})

    def _finish_on(self, sip: int) -> None:
        for launch in self._launcher.own_unreported():
            if sip in launch.sips:
                self.wait(launch)

    # ---- ranks

    @cached_property
    def multiprocessing(self) -> MultiprocessingNamespace:
        """`torch.multiprocessing`."""
        from kernbench.runtime_api.multiprocessing import MultiprocessingNamespace  # most programs start no ranks

        return MultiprocessingNamespace(self, self.ranks, self.ahbm, self.workers)

    @cached_property
    def distributed(self) -> DistributedContext:
        """`torch.distributed`."""
        from kernbench.runtime_api.distributed import DistributedContext  # most programs have no process group

        made = DistributedContext(self, self.ranks, self.workers, self.spec.n_sips, partial(self._make_backend, self))
        if self._team is not None:
            made.team_starts(self._team)
        return made

    @property
    def _has_groups(self) -> bool:
        """Whether `torch.distributed` was used."""
        return "distributed" in self.__dict__

    def check_ours(self, tensor: TensorBase) -> None:
        """Raise UsageError for a tensor of another context, or after closing."""
        self._store.check_ours(tensor)

    def team_finishes(self) -> None:
        """Return when all messages between ranks with both ends posted are done."""
        if self._has_groups:
            self.distributed.team_finishes()

    def stop_launches(self, programs: Collection[greenlet]) -> None:
        """Stop the launches of these programs, which have ended."""
        for launch in self._launcher.running():
            if launch.rank() in programs:
                self._launcher.stop(launch)

    def team_starts(self, team: Team) -> None:
        """Called before ranks are started; raises UsageError if they cannot be."""
        if self._has_groups:
            self.distributed.team_starts(team)
        self._team = team

    def team_ends(self, team: Team, *, failed: bool) -> None:
        """Called when all ranks of a team have ended; raises UsageError for collectives that only
        some of them called.
        """
        self._team = None
        if self._has_groups:
            self.distributed.team_ends(team, failed=failed)

    def check(
        self,
        tensor: Tensor,
        reference: ArrayLike | Callable[[], ArrayLike],
        *,
        name: str | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """State what a tensor must hold now. It is compared if the run is verified, and ignored otherwise.

        Tolerances are those of the tensor's dtype unless given. A reference function is called only if it is needed.
        """
        self._store.check_ours(tensor)
        self._queue.wait_all()  # verified or not: times must not depend on it
        if self.checks.enabled:
            which = tensor.first_holders()
            parts = [(tensor.placement[at], self._store.value_of(tensor, at)) for at in which]
            missing = self._store.unwritten(tensor, which)
            self.checks.add(name or tensor.name, tensor.shape, tensor.element, parts, reference, rtol, atol, missing)

    def __repr__(self) -> str:
        return f"RuntimeContext({self.spec.system.name!r}, device {self.ahbm.current_device()}, at {self.now_ns} ns)"


def _ahbm_backend(torch: RuntimeContext, ccl: CclSource) -> Backend:
    from kernbench.ccl.config import load_ccl_config  # imported when used: most programs have no collectives
    from kernbench.runtime_api.ahbm import AhbmBackend

    return AhbmBackend(torch, torch.spec, torch.communicators, load_ccl_config(ccl))
