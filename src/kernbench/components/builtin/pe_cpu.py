"""PE_CPU: runs kernels. All PEs of a launch start at the instant that the launch was stamped with.

It has two streams, one for compute and one for communication. Each runs its launches one after the other; the two run
at the same time, in TCM of their own, and contend for the PE's engines. The kernel's own Python costs nothing but what
it declares with `tl.cycles`; every command goes to PE_SCHEDULER. The reply holds when the kernel ran, how long DMA, the
busiest compute slot and TCM ports were busy meanwhile, and what the DMA moved to and from HBM. A kernel that raises
ends there, and the reply has the line; one that is aborted ends at once, whatever it waits for. A stream is free for
the next launch when all its commands are done; an abort is answered then. Not modelled: instruction fetch, the time of
scalar code, and contention of the two streams for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property, partial

from kernbench.common.blocked import BlockedKernel, RingWait
from kernbench.common.channel_traffic import NO_TRAFFIC
from kernbench.common.commands import BarrierCmd, EngineCommand, IpcqCommand, RecvCmd, SendCmd
from kernbench.common.declared_state import StateField, differs
from kernbench.common.engine_declaration import Attribute, EngineDeclaration
from kernbench.common.errors import KernBenchError
from kernbench.common.ids import PeId, PeKey
from kernbench.common.launch import STREAMS
from kernbench.common.message_traffic import NO_MESSAGES, ByMemory, MessageTraffic
from kernbench.common.messages import (
    KernelAbortMsg,
    KernelFailure,
    KernelLaunchMsg,
    LaunchStream,
    PeResult,
)
from kernbench.common.units import on_grid
from kernbench.components.base import ActiveComponent, Context, Packet, Process
from kernbench.components.builtin.barriers import BarrierPort
from kernbench.components.builtin.interfaces import (
    COMMAND_TAKER,
    DATA_MOVER,
    MESSAGE_QUEUE,
    CommandTaker,
    DataMover,
    MessageQueue,
)
from kernbench.components.builtin.kernel_arguments import argument_of
from kernbench.components.builtin.launch_job import Answer, LaunchJob, MakeTl
from kernbench.components.builtin.pe_use import Use, longest_ns, use_so_far
from kernbench.components.race_watch import KernelWatch
from kernbench.policy.address.allocator import TcmLease
from kernbench.policy.address.page_table import PhysRange
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.graph import Node
from kernbench.triton_emu.binding import bind, tensor_ranges
from kernbench.triton_emu.blocked import blocked_kernel
from kernbench.triton_emu.call_site import failure_of
from kernbench.triton_emu.kernel_env import KernelEnv, KernelIds
from kernbench.triton_emu.kernel_runner import KernelRunner, RecordsCallback
from kernbench.triton_emu.registry import Kernel


class PeCpuComponent(ActiveComponent):
    """Serves launches, those of a stream one after the other."""

    declaration = EngineDeclaration({"clock_ghz": Attribute(0.001, 1000.0)}, role="control")
    stores_and_forwards = False

    STATE = (StateField("_jobs", lambda cpu, view: differs() if any(cpu._jobs.values()) else ()),)
    DERIVED = ("barriers", "dma", "ipcq", "scheduler", "tcm_base")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        place = node.place
        self.key: PeKey = (place.sip, place.cube, place.pe)
        self.cycle_ns = on_grid(1.0 / float(node.attrs["clock_ghz"]))
        self._pe = str(PeId(*self.key))
        self._dma_id = ctx.resolver.find_pe_part(*self.key, "pe_dma")
        self._scheduler_id = ctx.resolver.find_pe_part(*self.key, "pe_scheduler")
        self._ipcq_id = ctx.resolver.find_pe_part(*self.key, "pe_ipcq")
        # By stream. The first job of each runs, until all its commands are done.
        self._jobs: dict[LaunchStream, deque[LaunchJob]] = {stream: deque() for stream in STREAMS}

    def accept(self, packet: Packet) -> Process | None:
        if isinstance(packet.request, KernelLaunchMsg):
            self._take(LaunchJob(packet.request, partial(self._reply_with, packet)))
            return None
        return super().accept(packet)

    def serve_without_packet(self, launch: KernelLaunchMsg, answer: Answer, make_tl: MakeTl) -> None:
        """Run a launch that was not sent in a packet, with a `tl` of `make_tl`; `answer` is called with its result."""
        self._take(LaunchJob(launch, answer, make_tl))

    def abandon(self) -> None:
        """End the kernels that run here without letting time pass: the simulation is over."""
        for jobs in self._jobs.values():
            for job in jobs:
                if job.runner is not None:
                    job.runner.abandon()

    def _take(self, job: LaunchJob) -> None:
        jobs = self._jobs[job.launch.stream]
        jobs.append(job)
        if len(jobs) == 1:
            self._begin(job)

    def _reply_with(self, packet: Packet, result: PeResult) -> None:
        self.reply(packet, payload=result)

    def is_only_job(self, job: LaunchJob) -> bool:
        """Whether a job is the only one of this PE, and not aborted."""
        return sum(map(len, self._jobs.values())) == 1 and not job.is_aborted

    def end_replayed(self, job: LaunchJob, result: PeResult) -> None:
        """End a job that was replayed: its kernel has not run here."""
        job.answer(result)
        self.ctx.end_lease(*self.key, job.launch.stream)
        job.is_answered = True  # before the next job begins: that may interrupt the replay, and this kernel run late
        self._on_with_next(job)

    def stop(self, packet: Packet) -> Process | None:
        """Abort a launch: its kernel ends if it runs, else its job leaves the queue. The answer is sent when nothing of
        it is under way here any more.
        """
        abort = packet.request
        assert isinstance(abort, KernelAbortMsg)
        if self.ctx.launch_replayer is not None:
            self.ctx.launch_replayer.interrupt((self.key[0],))
        waiting = (job for jobs in self._jobs.values() for job in jobs)
        job = next((job for job in waiting if job.launch.id == abort.launch_id), None)
        if job is not None:
            if job.runner is not None:
                job.stops.append(packet)
                job.abort()
                self._end_messages(job, failed=True)  # whether it was aborted or had ended, and its messages had not
                return None
            job.abort()
        self.reply(packet)
        if job is not None and job is not self._jobs[job.launch.stream][0]:
            self._jobs[job.launch.stream].remove(job)
            job.answer(self._result(job, self.env.now, self._use(job), None))
        return None

    def _begin(self, job: LaunchJob) -> None:
        """Start a job at its time. PEs with equal start times begin in the order in which the launch reached them."""
        at_ns, replayer = max(job.launch.target_start_ns or 0.0, self.env.now), self.ctx.launch_replayer
        if replayer is None:
            self.ctx.at(at_ns, self.start_job, job)
        else:
            replayer.begin(self, job, at_ns)

    def start_job(self, job: LaunchJob) -> None:
        """Run the kernel of a job, from now on."""
        job.begin(self._serve(job))

    def blocked(self) -> tuple[BlockedKernel, ...]:
        """The blocked kernels of this PE and what each waits for, for the report of a deadlock."""
        found = []
        for job in (jobs[0] for jobs in self._jobs.values() if jobs):
            name = job.launch.kernel_ref.name
            if job.runner is not None:
                rings_of, missing = partial(self._rings_of, job.launch), partial(self._missing, job.launch)
                found.append(blocked_kernel(job.runner, name, self.ctx.kernels[name], self.key, rings_of, missing))
        return tuple(kernel for kernel in found if kernel is not None)

    def _missing(self, launch: KernelLaunchMsg, barrier: BarrierCmd) -> list[str]:
        """The PEs of a launch that have not reached one of its barriers."""
        spec, found = self.ctx.graph.spec, []
        for sip, (cubes, pes) in sorted(launch.origin.targets.items()):
            for cube in range(spec.sip.n_cubes) if cubes == "all" else cubes:
                for pe in range(spec.cube.n_pes) if pes == "all" else pes:
                    cpu = self.ctx.component_so_far(self.ctx.resolver.find_pe_part(sip, cube, pe, "pe_cpu"))
                    if not isinstance(cpu, PeCpuComponent) or cpu.barriers.reached(launch) < barrier.number:
                        found.append(str(PeId(sip, cube, pe)))
        return found

    def _rings_of(self, launch: KernelLaunchMsg, cmd: IpcqCommand) -> tuple[RingWait, ...]:
        return self.ipcq.describe(cmd, launch)

    def _serve(self, job: LaunchJob) -> Process:
        start_ns, before = self.env.now, self._use(job)
        stream = job.launch.stream
        self.ctx.begin_launch(self._pe, job.launch.id, stream)
        error = yield from self._run(job)
        if job.watch is not None and error is None:
            job.watch.end()
        result = self._result(job, start_ns, before, error)
        if not job.is_answered:
            job.answer(result)
        if error is not None and job.runner is not None:
            self._end_messages(job, failed=True, why=error)
            yield from job.runner.drain()  # the failure is reported at once; the PE is free when nothing is under way
            if job.watch is not None:
                job.watch.end()
        self._end_messages(job)
        if not job.is_answered:  # else it ended with its replay
            self.ctx.end_lease(*self.key, stream)
            self._on_with_next(job)

    def _on_with_next(self, job: LaunchJob) -> None:
        """Remove a job of which nothing is under way any more, and begin the next one of its stream."""
        jobs = self._jobs[job.launch.stream]
        jobs.popleft()
        for stop in job.stops:
            self.reply(stop)
        if jobs:
            self._begin(jobs[0])

    def _end_messages(self, job: LaunchJob, failed: bool = False, why: KernelFailure | None = None) -> None:
        """A kernel has ended or is being ended: cancel what it still waits for from its neighbours."""
        if failed or job.is_aborted:
            self.barriers.cancel(job.launch)
        ipcq = self.__dict__.get("ipcq")  # only if some kernel has used it
        if ipcq is not None and (failed or job.is_aborted):
            ipcq.cancel(job.launch, why)
        elif ipcq is not None:
            ipcq.finished(job.launch)

    def _run(self, job: LaunchJob) -> Process:
        """Run the kernel to its end; returns the failure, if it failed."""
        if job.is_aborted:
            return None
        launch = job.launch
        name = launch.kernel_ref.name
        kernel = self.ctx.kernels.get(name)
        if kernel is None:
            known = ", ".join(self.ctx.kernels) or "none"
            what, hint = f"no kernel '{name}' on this device", f"launch it by its function; known: {known}"
            return KernelFailure("KernelError", what, "", 0, "", *self.key, hint=hint)
        job.watch = self._watch(launch, kernel)
        runner = job.runner = KernelRunner(
            _Commands(self, launch), job.watch, lines=self.ctx.log is not None and self.ctx.log.lines
        )
        try:
            tcm = job.lease or self.ctx.lease_tcm(*self.key, launch.stream)
            tl = job.make_tl(self._environment(launch, kernel, runner, tcm))
            call = self.call_of(launch, kernel, tl)
        except KernBenchError as wrong:
            return failure_of(wrong, kernel, self.key)
        yield from runner.run(lambda: tl.ended(call()))
        job.tcm_peak_bytes = tl.close()
        if runner.error is None:
            return None
        failure = failure_of(runner.error, kernel, self.key)
        runner.error = None  # its traceback holds the kernel's tensors
        return failure

    # ---- what the kernel cost

    def _use(self, job: LaunchJob) -> Use:
        ipcq = self.__dict__.get("ipcq")  # only if some kernel has used it
        late = {} if ipcq is None else ipcq.landed_late
        return use_so_far(self.ctx, self.key, job.launch.stream, late, self._dma_id, self._scheduler_id)

    def _result(self, job: LaunchJob, start_ns: float, before: Use, error: KernelFailure | None) -> PeResult:
        now, end_ns = self._use(job), self.env.now
        take_composites = getattr(self.ctx.component_so_far(self._scheduler_id), "take_composites", None)
        composites = take_composites(job.launch.stream) if take_composites and job.runner is not None else ()
        moved = {node: use.minus(before.memories.get(node, NO_TRAFFIC)) for node, use in now.memories.items()}
        for node, use in self._messages_under_way(job).items():
            moved[node] = moved.get(node, NO_TRAFFIC).plus(use)
        return PeResult(
            *self.key,
            start_ns,
            end_ns,
            end_ns - start_ns,
            now.dma_ns - before.dma_ns,
            longest_ns(now.slots_ns, before.slots_ns),
            error,
            tuple((node, moved[node]) for node in sorted(moved) if moved[node].burst_bytes),
            job.is_aborted,
            min(now.tcm_ns - before.tcm_ns, end_ns - start_ns),  # ports are taken ahead, for the other stream too
            composites,
            job.tcm_peak_bytes,
            self._messages(job),
        )

    def _messages(self, job: LaunchJob) -> MessageTraffic:
        ipcq = self.__dict__.get("ipcq")  # only if some kernel has used it
        return NO_MESSAGES if ipcq is None else ipcq.traffic_of(job.launch)

    def _messages_under_way(self, job: LaunchJob) -> ByMemory:
        ipcq = self.__dict__.get("ipcq")
        return {} if ipcq is None else ipcq.under_way_of(job.launch)

    # ---- what the kernel gets

    def call_of(self, launch: KernelLaunchMsg, kernel: Kernel, tl: object) -> Callable[[], object]:
        """The call of a launch's kernel; raises KernelError when its arguments do not fit its parameters."""
        key, named_args = self.key, launch.named_args
        named = {name: argument_of(arg, key) for name, arg in named_args.items()} if named_args else None
        return bind(kernel, [argument_of(arg, key) for arg in launch.args], tl, named)

    def ids_of(self, launch: KernelLaunchMsg) -> KernelIds:
        """The position of the kernel in its launch, and in the machine."""
        spec = self.ctx.graph.spec
        sip, cube, pe = self.key
        pes, cubes = launch.pes(spec.cube.n_pes), launch.cubes(spec.sip.n_cubes)
        program, grid = (pes.index(pe), cubes.index(cube), sip), (len(pes), len(cubes), spec.n_sips)
        return KernelIds(program, grid, self.key, self.ctx.communicators.get(launch.communicator))

    def _environment(self, launch: KernelLaunchMsg, kernel: Kernel, runner: KernelRunner, tcm: TcmLease) -> KernelEnv:
        program, grid, place, communicator = self.ids_of(launch)
        return KernelEnv(
            runner,
            self.ctx.values,
            self.ctx.memory,
            self._translate,
            tensor_ranges(kernel, launch.args, launch.named_args),
            lambda: self.tcm_base + tcm.offset,
            tcm.nbytes,
            launch,
            program,
            grid,
            self.ctx.writers,
            place,
            communicator,
            lambda: self.ctx.tcm_holders(*self.key),
        )

    def _watch(self, launch: KernelLaunchMsg, kernel: Kernel) -> KernelWatch | None:
        races = self.ctx.races
        if races is None:
            return None
        name, tensors = (
            launch.debug_label or launch.kernel_ref.name,
            tensor_ranges(kernel, launch.args, launch.named_args),
        )
        return KernelWatch(races.begin(self.key, launch.id, launch.stream), self.env, self.key, name, tensors)

    def _translate(self, address: int, nbytes: int) -> list[PhysRange]:
        return list(self.dma.translate(address, nbytes))

    # ---- other parts of the PE: looked up when a kernel first needs them

    @cached_property
    def tcm_base(self) -> int:
        """The address of the first byte of the PE's TCM."""
        return PhysAddr.pe_tcm_addr(*self.key, 0, self.ctx.graph.address_layout).raw

    @cached_property
    def scheduler(self) -> CommandTaker:
        return self.sibling(self._scheduler_id, COMMAND_TAKER)

    @cached_property
    def ipcq(self) -> MessageQueue:
        return self.sibling(self._ipcq_id, MESSAGE_QUEUE)

    @cached_property
    def barriers(self) -> BarrierPort:
        return BarrierPort(self)

    @cached_property
    def dma(self) -> DataMover:
        return self.sibling(self._dma_id, DATA_MOVER)


_MESSAGES = (SendCmd, RecvCmd)


class _Commands:
    """The interface of a kernel to its PE: dispatches its commands."""

    def __init__(self, cpu: PeCpuComponent, launch: KernelLaunchMsg) -> None:
        self.env = cpu.env
        self.cycle_ns = cpu.cycle_ns
        self._cpu = cpu
        self._launch = launch
        self._started_ns = cpu.env.now

    def submit(self, cmd: EngineCommand, done: RecordsCallback, after: int | None) -> None:
        if isinstance(cmd, _MESSAGES):
            self._cpu.ipcq.submit(cmd, self._launch, done, after, self._started_ns)
        elif isinstance(cmd, BarrierCmd):
            self._cpu.barriers.submit(cmd, self._launch, done, after)
        else:
            self._cpu.scheduler.submit(cmd, self._launch, done, after)
