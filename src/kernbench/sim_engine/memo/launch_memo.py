"""Key, match and interrupt, of launches: decides for each whether it is replayed, recorded or simulated.

A launch starts all its PEs at one instant. Where its SIP is idle then, nothing but the launch decides what follows, as
long as no other access interferes. So its kernels are simulated on a private machine (`launch_recorder.py`), those of
one cube first. If they stay within their cube, other cubes whose kernels request the same at the same relative places
replay the recording: their kernels are *matched*, call by call (`triton_emu/matching_tl.py`), which costs a twelfth of
simulating them. If they leave it, the same is done with whole SIPs. Recordings are kept for later launches of the
kernel. Launches of a collective, one on each SIP of its communicator, are recorded together, where all of them begin at
one instant (`regions.SipGroupRegion`).

Meanwhile the SIP is reserved (all its links and channels), and each PE has one event: its end. Records, counters and
results are copied, translated to the new place and time. An interfering access before the end rewinds the clock for
these PEs alone (`fabric/rewind.py`), and their kernels are simulated up to now.

For that, kernels have to be `repeatable`. In a run that keeps contents a recording has a program of what its kernels do
with values (`value_program.py`), executed where and when it is replayed; kernels that read loaded values are simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby

from kernbench.common.messages import KernelLaunchMsg, PeResult, RequestId
from kernbench.components.builtin.launch_job import LaunchJob
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.memo.composite_memo import BUILTIN_PREFIX
from kernbench.sim_engine.memo.late_credits import queue_so_far
from kernbench.sim_engine.memo.launch_recordings import JobsByPe, LaunchRecordings
from kernbench.sim_engine.memo.record_ahead import RecordAhead
from kernbench.sim_engine.memo.regions import AnyRegion, Region, SipGroupRegion
from kernbench.sim_engine.memo.replayed_launch import Jobs, ReplayedLaunch
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import INTERRUPTED, OFF, RECORDED, REPLAYED
from kernbench.triton_emu.outside_values import OutsideValues, UnknowableError
from kernbench.triton_emu.repeatable import base_of

SKIPPED_NS = 1.0  # what a launch takes for a worker


class LaunchMemo:
    """Replays, records or simulates the launches of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._sip_shift = machine.graph.address_layout.sip_shift
        self._ahead = RecordAhead(machine.host_ahead, machine.stats)
        self._recordings = LaunchRecordings(machine, self._ahead)
        self._waiting: dict[LaunchJob, PeCpuComponent] = {}  # whose time has not come, in order of arrival
        self._run: dict[RequestId, int] = {}  # launches that are simulated from this instant: PEs still to start
        self._under_way: dict[int, ReplayedLaunch] = {}  # by SIP
        self.replayed_regions = (
            0  # regions in which launches were replayed to their end: their kernels were not run there
        )
        if machine.writers is not None:
            machine.writers.access_observers.add(self._before_access)
        if machine.data:
            machine.memory.access_observers.add(self._before_access)

    def begin(self, cpu: object, job: object, at_ns: float) -> None:
        """Begin a PE's job of a launch at `at_ns`, when it is decided whether the launch is replayed. A replay that is
        under way on that SIP is interrupted.
        """
        assert isinstance(cpu, PeCpuComponent)
        assert isinstance(job, LaunchJob)
        self.interrupt((cpu.key[0],))
        why_simulated = self.why_simulated(job.launch, at_ns)
        if job.launch.target_start_ns == at_ns:
            self._recordings.note_call(job.launch)
        if not why_simulated:
            self._waiting[job] = cpu
            self._machine.at(at_ns, self._start, (cpu, job))
            return
        self._machine.note_launch(job.launch, why_simulated)
        if self._ahead.is_worker:
            self._machine.at(at_ns, self._skip, [(cpu, job)])
        else:
            self._machine.at(at_ns, cpu.start_job, job)

    def why_simulated(self, launch: KernelLaunchMsg, at_ns: float) -> str:
        """Why a launch that begins at `at_ns` is simulated whatever it does; empty where it may be replayed."""
        if launch.target_start_ns != at_ns:
            return "its PEs do not start together"
        return self._recordings.why_not(launch)

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Interrupt the replays on some SIPs, or on all: what is under way there is simulated from now on."""
        if self._under_way:
            for sip in list(self._under_way) if sips is None else sips:
                if sip in self._under_way:
                    self._under_way[sip].interrupt()

    def _before_access(self, address: int) -> None:
        """Bytes are accessed, or their writer is asked for: replays on their SIP are interrupted first."""
        if self._under_way:
            self.interrupt((address >> self._sip_shift,))

    def _start(self, what: tuple[PeCpuComponent, LaunchJob]) -> None:
        """The time of a kernel has come. Launches without a recording start in the order of arrival."""
        cpu, job = what
        launch = job.launch
        if job in self._waiting:
            self._decide()
        left = self._run.get(launch.id)
        if left is not None:
            self._run[launch.id] = left - 1
            if left == 1:
                del self._run[launch.id]
            cpu.start_job(job)

    def _decide(self) -> None:
        """Take over what begins now, in the order of SIPs: so kernels end that end at one instant, as transfers do."""
        now = self._machine.env.now
        begun = [(cpu, job) for job, cpu in self._waiting.items() if job.launch.target_start_ns == now]
        together: dict[object, Jobs] = {}
        for cpu, job in begun:
            del self._waiting[job]
            together.setdefault(_call_of(job.launch), []).append((cpu, job))
        are_mixed = _are_mixed([job.launch for _, job in begun])
        for jobs in sorted(together.values(), key=lambda jobs: min(cpu.key[0] for cpu, _ in jobs)):
            launches = list({job.launch.id: job.launch for _, job in jobs}.values())
            why_not = self._replay(launches, jobs, are_mixed and len(launches) > 1)
            for launch in launches if why_not else ():
                self._machine.note_launch(launch, why_not)
            if self._ahead.is_worker or why_not:
                self._run_or_skip(jobs)

    def _replay(self, launches: Sequence[KernelLaunchMsg], jobs: Jobs, are_mixed: bool) -> str:
        """Take a launch over, or those of a collective, or find out what they do in a worker; returns why not."""
        whole = None if are_mixed else self._whole(launches, jobs)
        if whole is None:
            return "its launches do not start together"
        kernels = {id(kernel): kernel for kernel in (self._machine.kernels[each.kernel_ref.name] for each in launches)}
        try:
            outside = OutsideValues(kernels.values())
        except UnknowableError as unknowable:
            return f"the kernel reads {unknowable}"
        if not self._ahead.is_worker:
            return self._begin(launches, jobs, whole, outside)
        self._recordings.record_for_others(launches, _by_key(jobs))
        return ""

    def _whole(self, launches: Sequence[KernelLaunchMsg], jobs: Jobs) -> AnyRegion | None:
        """The SIP of a launch, or the SIPs of a collective; None where not all that belongs to it is there."""
        spec, launch = self._machine.graph.spec, launches[0]
        if len(jobs) < sum(len(each.cubes(spec.sip.n_cubes)) * len(each.pes(spec.cube.n_pes)) for each in launches):
            return None
        if launch.stream == "compute":
            return Region(launch.sip, None)
        sip_group = self._recordings.sip_group_of(launch)
        bases = [base_of(self._machine.kernels[each.kernel_ref.name]) for each in launches]
        if sip_group is None or not all(base is bases[0] for base in bases):
            return None
        return sip_group if sip_group.sips == tuple(sorted(each.sip for each in launches)) else None

    def _begin(self, launches: Sequence[KernelLaunchMsg], jobs: Jobs, whole: AnyRegion, outside: OutsideValues) -> str:
        """Take a launch over that begins now, or those of a collective; returns why it cannot be, if so."""
        machine, launch, by_key = self._machine, launches[0], _by_key(jobs)
        if not all(self._is_free_for(cpu, job) for cpu, job in jobs):
            return "one of its PEs has other work"
        communicator = machine.communicators.get(launch.communicator)
        if communicator is not None and (communicator.unreceived or communicator.users):
            return "messages of its communicator are under way"
        queues = [queue_so_far(machine, key) for key in by_key]
        if communicator and any(queue is not None and queue.awaits_credits(communicator) for queue in queues):
            return "credits of its communicator are under way"
        links, memories = self._recordings.parts_of(whole).links, self._recordings.parts_of(whole).memories
        replayed = ReplayedLaunch(
            machine,
            launches,
            self._under_way,
            partial(self._note_completion, outside),
            partial(self._note_interrupt, outside, launches),
        )
        reservation = machine.fabric.reserve(
            links, [machine.fabric.network.names[node] for node in memories], replayed.on_interrupt
        )
        if reservation is None:
            return "its links or channels are in use"
        recorded = self._recordings.recorded
        cubes = [Region(launch.sip, cube) for cube in launch.cubes(machine.graph.spec.sip.n_cubes)]
        replays = None if isinstance(whole, SipGroupRegion) else self._recordings.replays(launches, cubes, by_key)
        if replays is None:
            replays = self._recordings.replays(launches, [whole], by_key)
        outside.check()
        is_there = replays is not None and all(replay.finds_its_bytes(machine.memory) for replay in replays)
        self._ahead.begin()
        if replays is None or not is_there or self._ahead.is_worker:  # which it may be since a moment ago
            reservation.release()
            return self._recordings.why_not(launch) or "no recording fits, and none could be made"
        if not all(replay.try_make_rings(machine) for replay in replays):
            reservation.release()
            return "there is no room for its rings"
        replayed.begin(reservation, replays, jobs)
        for each in launches:
            machine.note_launch(each, REPLAYED if self._recordings.recorded == recorded else RECORDED)
        return ""

    def _is_free_for(self, cpu: PeCpuComponent, job: LaunchJob) -> bool:
        """Whether a PE has nothing to do but a launch: a request of the host's may have its DMA, too."""
        dma = self._machine.component_so_far(self._machine.resolver.find_pe_part(*cpu.key, "pe_dma"))
        return cpu.is_only_job(job) and (not isinstance(dma, PeDmaComponent) or dma.is_idle)

    def _note_interrupt(self, outside: OutsideValues, launches: Sequence[KernelLaunchMsg]) -> None:
        outside.check()
        self._recordings.note_interrupt(launches[0])
        for launch in launches:
            self._machine.note_launch(launch, INTERRUPTED)

    def _note_completion(self, outside: OutsideValues, regions: int) -> None:
        outside.check()
        self.replayed_regions += regions

    # ---- in a worker

    def _run_or_skip(self, jobs: Jobs) -> None:
        """Kernels are run that are not known; but not by a worker."""
        if self._ahead.is_worker:
            self._skip(jobs)
        else:
            self._run.update(Counter(job.launch.id for _, job in jobs))

    def _skip(self, jobs: Jobs) -> None:
        """Kernels end after `SKIPPED_NS`, without being run."""
        self._ahead.check_owner()
        for cpu, job in jobs:
            job.lease = self._machine.lease_tcm(*cpu.key, job.launch.stream)
        self._machine.at(self._machine.env.now + SKIPPED_NS, self._skipped, jobs)

    def _skipped(self, jobs: Jobs) -> None:
        now = self._machine.env.now
        for cpu, job in jobs:
            cpu.end_replayed(job, PeResult(*cpu.key, now - SKIPPED_NS, now, SKIPPED_NS, 0.0, 0.0))


def _by_key(jobs: Jobs) -> JobsByPe:
    """By PE, in the order in which the launch reached them: at one instant kernels start in that order."""
    return {cpu.key: (cpu, job) for cpu, job in jobs}


def _call_of(launch: KernelLaunchMsg) -> object:
    """What launches of one collective have in common."""
    return launch.id if launch.stream == "compute" else (launch.communicator, launch.tag)


def _are_mixed(launches: Sequence[KernelLaunchMsg]) -> bool:
    """Whether launches of collectives alternated. Their kernels end alternately, too, and which of those that end at
    one instant is first is only defined within a recording.
    """
    calls = [_call_of(launch) for launch in {launch.id: launch for launch in launches}.values()]
    return max(Counter(call for call, _ in groupby(calls)).values()) > 1


def why_all_are_simulated(machine: Machine) -> str:
    """Why no launch can be replayed; empty where some may be: neither races nor source lines are recorded, and all
    blocks are built in, since the effects of a custom block are unknown.
    """
    if machine.why_not_ahead:
        return machine.why_not_ahead
    if not machine.fast_paths.launches and not machine.fast_paths.collectives:
        return OFF
    if machine.graph.spec.sip.hbm_stacks is not None:
        return "HBM is interleaved over stacks"
    if machine.graph.spec.cube_types:
        return "cubes are of several types"
    if machine.races is not None:
        return "races are looked for"
    if type(machine.log) not in _LOGS:
        return "the op log is streamed to a file"
    if machine.values.sites is not None:
        return "every intermediate op is compared"
    if not all(machine.class_of(node).__module__.startswith(BUILTIN_PREFIX) for node in machine.graph.nodes):
        return "a component is not built in"
    return ""


_LOGS = (type(None), OpLog)  # those that can copy rows
