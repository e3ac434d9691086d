"""Launches whose course is known: kernels of a cube, a SIP or several that do what others did before are not run again.

A launch begins on all its PEs at one instant. Where its SIP is idle then, nothing but the launch decides what follows,
as long as nobody else comes. So its kernels are run on a private machine (`launch_explorer.py`), those of one cube
first. If they stay within their cube, other cubes whose kernels ask for the same at the same places take the same
course: they are *followed*, call by call (`triton_emu/followed.py`), which costs a twelfth of running them. If they
leave it, the same is done with whole SIPs. Courses are kept, for later launches of the kernel. Launches of a
collective, one on each SIP of its communicator, take one course together, where all of them begin at one instant
(`regions.Tray`).

Meanwhile the machine owns the SIP (a claim of all its links and channels), and each PE has one event: its end. Records,
counters and results are copied, moved to where and when they are told of. Whoever comes before the end makes the PEs
start late: the clock goes back for them alone (`fabric/past.py`), and they run up to now as if they had always run.

For that, kernels have to be `repeatable`. In a run that keeps contents a course has a program of what its kernels do
with values (`value_program.py`), carried out where and when it is over; kernels that look at what they load are run.
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
from kernbench.policy.address.phyaddr import SIP_SHIFT
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import INTERRUPTED, OFF, RECORDED, REPLAYED
from kernbench.sim_engine.steady.explored_ahead import ExploredAhead
from kernbench.sim_engine.steady.foresight import BUILTIN
from kernbench.sim_engine.steady.known_launch import KnownLaunch, Turns
from kernbench.sim_engine.steady.late_credits import awaits_credits
from kernbench.sim_engine.steady.launch_courses import LaunchCourses, TurnsByPe
from kernbench.sim_engine.steady.regions import AnyRegion, Region, Tray
from kernbench.triton_emu.outside_values import OutsideValues, UnknowableError
from kernbench.triton_emu.repeatable import base_of

SKIPPED_NS = 1.0  # what a launch takes for a worker


class KnownLaunches:
    """Takes over launches of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ahead = ExploredAhead(machine.host_ahead, machine.stats)
        self._courses = LaunchCourses(machine, self._ahead)
        self._waiting: dict[LaunchJob, PeCpuComponent] = {}  # whose time has not come, in order of arrival
        self._run: dict[RequestId, int] = {}  # launches whose time is now and that are not known: PEs that start yet
        self._under_way: dict[int, KnownLaunch] = {}  # by SIP
        self.copied = 0  # regions in which launches took a known course to its end: their kernels were not run there
        if machine.writers is not None:
            machine.writers.before_use = self._before_use
        if machine.data:
            machine.memory.before_use = self._before_use

    def try_replay(self, cpu: object, turn: object, at_ns: float) -> bool:
        """Whether to take over what a PE does for a launch that begins at `at_ns`. Another launch that is under way
        there as a known one goes on as if it were not known.
        """
        assert isinstance(cpu, PeCpuComponent)
        assert isinstance(turn, LaunchJob)
        self.interrupt((cpu.key[0],))
        launch = turn.launch
        why_not = "its PEs do not start together" if launch.target_start_ns != at_ns else self._courses.why_not(launch)
        if why_not:
            self._machine.note_launch(launch, why_not)
            if self._ahead.is_worker:
                self._machine.at(at_ns, self._skip, [(cpu, turn)])
            return self._ahead.is_worker
        self._waiting[turn] = cpu
        self._machine.at(at_ns, self._start, (cpu, turn))
        return True

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Somebody comes to some SIPs, or to any: what is under way there goes on as if it were not known."""
        if self._under_way:
            for sip in list(self._under_way) if sips is None else sips:
                if sip in self._under_way:
                    self._under_way[sip].interrupt()

    def _before_use(self, address: int) -> None:
        """Somebody reads or writes bytes, or asks who did: what is known of their SIP has to be written down."""
        if self._under_way:
            self.interrupt((address >> SIP_SHIFT,))

    def _start(self, what: tuple[PeCpuComponent, LaunchJob]) -> None:
        """The time of a kernel has come. What is not known starts in the order in which it would have."""
        cpu, turn = what
        launch = turn.launch
        if turn in self._waiting:
            self._decide()
        left = self._run.get(launch.id)
        if left is not None:
            self._run[launch.id] = left - 1
            if left == 1:
                del self._run[launch.id]
            cpu.start_job(turn)

    def _decide(self) -> None:
        """Take over what begins now, in the order of SIPs: so kernels end that end at one instant, as transfers do."""
        now = self._machine.env.now
        begun = [(cpu, turn) for turn, cpu in self._waiting.items() if turn.launch.target_start_ns == now]
        together: dict[object, Turns] = {}
        for cpu, turn in begun:
            del self._waiting[turn]
            together.setdefault(_call_of(turn.launch), []).append((cpu, turn))
        are_mixed = _are_mixed([turn.launch for _, turn in begun])
        for turns in sorted(together.values(), key=lambda turns: min(cpu.key[0] for cpu, _ in turns)):
            launches = list({turn.launch.id: turn.launch for _, turn in turns}.values())
            why_not = self._replay(launches, turns, are_mixed and len(launches) > 1)
            for launch in launches if why_not else ():
                self._machine.note_launch(launch, why_not)
            if self._ahead.is_worker or why_not:
                self._run_or_skip(turns)

    def _replay(self, launches: Sequence[KernelLaunchMsg], turns: Turns, are_mixed: bool) -> str:
        """Take a launch over, or those of a collective, or find out what they do in a worker; returns why not."""
        whole = None if are_mixed else self._whole(launches, turns)
        if whole is None:
            return "its launches do not start together"
        kernels = {id(kernel): kernel for kernel in (self._machine.kernels[each.kernel_ref.name] for each in launches)}
        try:
            outside = OutsideValues(kernels.values())
        except UnknowableError as unknowable:
            return f"the kernel reads {unknowable}"
        if not self._ahead.is_worker:
            return self._begin(launches, turns, whole, outside)
        self._courses.explore_for_others(launches, _by_key(turns))
        return ""

    def _whole(self, launches: Sequence[KernelLaunchMsg], turns: Turns) -> AnyRegion | None:
        """The SIP of a launch, or the SIPs of a collective; None where not all that belongs to it is there."""
        spec, launch = self._machine.graph.spec, launches[0]
        if len(turns) < sum(len(each.cubes(spec.sip.n_cubes)) * len(each.pes(spec.cube.n_pes)) for each in launches):
            return None
        if launch.stream == "compute":
            return Region(launch.sip, None)
        tray = self._courses.tray_of(launch)
        bases = [base_of(self._machine.kernels[each.kernel_ref.name]) for each in launches]
        if tray is None or not all(base is bases[0] for base in bases):
            return None
        return tray if tray.sips == tuple(sorted(each.sip for each in launches)) else None

    def _begin(
        self, launches: Sequence[KernelLaunchMsg], turns: Turns, whole: AnyRegion, outside: OutsideValues
    ) -> str:
        """Take a launch over that begins now, or those of a collective; returns why it cannot be, if so."""
        machine, launch, by_key = self._machine, launches[0], _by_key(turns)
        if not all(self._is_free_for(cpu, turn) for cpu, turn in turns):
            return "one of its PEs has other work"
        communicator = machine.communicators.get(launch.communicator)
        if communicator is not None and (communicator.unreceived or communicator.users):
            return "messages of its communicator are under way"
        if communicator is not None and awaits_credits(machine, list(by_key), communicator):
            return "credits of its communicator are under way"
        links, memories = self._courses.parts_of(whole).links, self._courses.parts_of(whole).memories
        known = KnownLaunch(
            machine,
            launches,
            self._under_way,
            partial(self._was_undisturbed, outside),
            partial(self._was_interrupted, outside, launches),
        )
        claim = machine.fabric.claim(links, [machine.fabric.network.names[node] for node in memories], known.disturbed)
        if claim is None:
            return "its links or channels are in use"
        recorded = self._courses.recorded
        cubes = [Region(launch.sip, cube) for cube in launch.cubes(machine.graph.spec.sip.n_cubes)]
        copies = None if isinstance(whole, Tray) else self._courses.copies(launches, cubes, by_key)
        if copies is None:
            copies = self._courses.copies(launches, [whole], by_key)
        outside.check()
        is_there = copies is not None and all(copy.finds_its_bytes(machine.memory) for copy in copies)
        self._ahead.begin()
        if copies is None or not is_there or self._ahead.is_worker:  # which it may be since a moment ago
            claim.release()
            return self._courses.why_not(launch) or "no recording fits, and none could be made"
        if not all(copy.makes_its_rings(machine) for copy in copies):
            claim.release()
            return "there is no room for its rings"
        known.begin(claim, copies, turns)
        for each in launches:
            machine.note_launch(each, REPLAYED if self._courses.recorded == recorded else RECORDED)
        return ""

    def _is_free_for(self, cpu: PeCpuComponent, turn: LaunchJob) -> bool:
        """Whether a PE has nothing to do but a launch: a request of the host's may have its DMA, too."""
        dma = self._machine.component_so_far(self._machine.resolver.find_pe_part(*cpu.key, "pe_dma"))
        return cpu.is_only_job(turn) and (not isinstance(dma, PeDmaComponent) or dma.is_idle)

    def _was_interrupted(self, outside: OutsideValues, launches: Sequence[KernelLaunchMsg]) -> None:
        outside.check()
        self._courses.was_disturbed(launches[0])
        for launch in launches:
            self._machine.note_launch(launch, INTERRUPTED)

    def _was_undisturbed(self, outside: OutsideValues, regions: int) -> None:
        outside.check()
        self.copied += regions

    # ---- in a worker

    def _run_or_skip(self, turns: Turns) -> None:
        """Kernels are run that are not known; but not by a worker."""
        if self._ahead.is_worker:
            self._skip(turns)
        else:
            self._run.update(Counter(turn.launch.id for _, turn in turns))

    def _skip(self, turns: Turns) -> None:
        """Kernels are over at once."""
        self._ahead.check_owner()
        for cpu, turn in turns:
            turn.lease = self._machine.lease_tcm(*cpu.key, turn.launch.stream)
        self._machine.at(self._machine.env.now + SKIPPED_NS, self._skipped, turns)

    def _skipped(self, turns: Turns) -> None:
        now = self._machine.env.now
        for cpu, turn in turns:
            cpu.end_replayed(turn, PeResult(*cpu.key, now - SKIPPED_NS, now, SKIPPED_NS, 0.0, 0.0))


def _by_key(turns: Turns) -> TurnsByPe:
    """By PE, in the order in which the launch reached them: at one instant kernels start in that order."""
    return {cpu.key: (cpu, turn) for cpu, turn in turns}


def _call_of(launch: KernelLaunchMsg) -> object:
    """What launches of one collective have in common."""
    return launch.id if launch.stream == "compute" else (launch.communicator, launch.tag)


def _are_mixed(launches: Sequence[KernelLaunchMsg]) -> bool:
    """Whether launches of collectives came in turns. Kernels end in turns then, too, and which of those that end at one
    instant is first is only known within a course.
    """
    calls = [_call_of(launch) for launch in {launch.id: launch for launch in launches}.values()]
    return max(Counter(call for call, _ in groupby(calls)).values()) > 1


def why_all_are_simulated(machine: Machine) -> str:
    """Why no launch can be replayed; empty where some may be: nobody asks for races or lines, and all blocks are ours,
    since those of others may do anything.
    """
    if machine.why_not_ahead:
        return machine.why_not_ahead
    if not machine.fast_paths.launches and not machine.fast_paths.collectives:
        return OFF
    if machine.races is not None:
        return "races are looked for"
    if type(machine.log) not in _LOGS:
        return "the op log is streamed to a file"
    if machine.values.sites is not None:
        return "every intermediate op is compared"
    if not all(machine.class_of(node).__module__.startswith(BUILTIN) for node in machine.graph.nodes):
        return "a component is not built in"
    return ""


_LOGS = (type(None), OpLog)  # those that can copy rows
