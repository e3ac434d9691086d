"""Launches whose course is known: kernels of a cube, or of a SIP, that do what others did before are not run again.

A launch begins on all its PEs at one instant. Where its SIP is idle then, nothing but the launch decides what follows,
as long as nobody else comes. So its kernels are run on a private machine (`launch_course.py`), those of one cube first.
If they stay within their cube, other cubes whose kernels ask for the same at the same places take the same course: they
are *followed*, call by call (`triton_emu/followed.py`), which costs a twelfth of running them. If they leave it, the
same is done with whole SIPs. Courses are kept, for later launches of the kernel.

Meanwhile the machine owns the SIP (a claim of all its links and channels), and each PE has one event: its end. Records,
counters and results are copied, moved to where and when they are told of. Whoever comes before the end makes the PEs
start late: the clock goes back for them alone (`fabric/past.py`), and they run up to now as if they had always run.

For that, kernels have to be `repeatable`. In a run that keeps contents a course has a program of what its kernels do
with values (`value_program.py`), carried out where and when it is over; kernels that look at what they load are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from enum import Enum
from functools import cached_property, partial
from typing import NamedTuple

from kernbench.common.ids import PeKey
from kernbench.common.messages import KernelLaunchMsg, RequestId
from kernbench.components.builtin.launch_turn import Turn
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.policy.address.phyaddr import SIP_SHIFT
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.steady.foresight import BUILTIN
from kernbench.sim_engine.steady.known_launch import Copy, KnownLaunch, Turns
from kernbench.sim_engine.steady.launch_course import Explorer, LaunchCourse, turned_channels
from kernbench.sim_engine.steady.launch_places import LaunchPlaces, Offsets, Pointers, Shift
from kernbench.sim_engine.steady.regions import Region, RegionParts, regions_of
from kernbench.triton_emu.followed import follows
from kernbench.triton_emu.registry import Kernel
from kernbench.triton_emu.repeatable import base_of, is_repeatable

MOST_COURSES = 32  # of a kernel and a kind of region
ReachKey = tuple[object, str]  # a kernel without the arguments that it was given beforehand, and its launch's name
PATIENCE = 2  # launches of a kernel that were disturbed: its kernels are run from then on


class Reach(Enum):
    """How far a kernel goes that leaves its cube."""

    SIP = 1
    FARTHER = 2  # or it cannot be known for another reason


class CourseKind(NamedTuple):
    """What courses are kept by: a kernel, as in `ReachKey`, and which PEs of a region."""

    kernel: object
    pes: tuple[tuple[int, ...], ...]
    is_cube: bool


class KnownLaunches:
    """Takes over launches of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._explorer = Explorer(machine)
        self._courses: dict[CourseKind, list[LaunchCourse]] = {}
        self._reach: dict[ReachKey, Reach] = {}  # of kernels that do not keep to their cube
        self._disturbed: Counter[ReachKey] = Counter()
        self._waiting: dict[RequestId, Turns] = {}  # launches whose time has not come
        self._run: dict[RequestId, int] = {}  # launches whose time is now and that are not known: PEs that start yet
        self._under_way: dict[int, KnownLaunch] = {}  # by SIP
        self.copied = 0  # regions in which launches took a known course to its end: their kernels were not run there
        if machine.writers is not None:
            machine.writers.before_use = self._before_use
        if machine.data:
            machine.memory.before_use = self._before_use

    @cached_property
    def _regions(self) -> dict[Region, RegionParts]:
        return regions_of(self._machine)

    def takes(self, cpu: object, turn: object, at_ns: float) -> bool:
        """Whether to take over what a PE does for a launch that begins at `at_ns`. Another launch that is under way
        there as a known one goes on as if it were not known.
        """
        assert isinstance(cpu, PeCpuComponent)
        assert isinstance(turn, Turn)
        self.settle((cpu.key[0],))
        launch = turn.launch
        if launch.stream != "compute" or launch.target_start_ns != at_ns:
            return False
        kernel = self._machine.kernels.get(launch.kernel_ref.name)
        if kernel is None or not is_repeatable(kernel) or self._reach.get(reach_key(launch, kernel)) is Reach.FARTHER:
            return False
        self._waiting.setdefault(launch.id, []).append((cpu, turn))
        self._machine.at(at_ns, self._start, (cpu, turn))
        return True

    def settle(self, sips: Collection[int] | None = None) -> None:
        """Somebody comes to some SIPs, or to any: what is under way there goes on as if it were not known."""
        if self._under_way:
            for sip in list(self._under_way) if sips is None else sips:
                if sip in self._under_way:
                    self._under_way[sip].settle()

    def _before_use(self, address: int) -> None:
        """Somebody reads or writes bytes, or asks who did: what is known of their SIP has to be written down."""
        if self._under_way:
            self.settle((address >> SIP_SHIFT,))

    def _start(self, what: tuple[PeCpuComponent, Turn]) -> None:
        """The time of a kernel has come. What is not known starts in the order in which it would have."""
        cpu, turn = what
        launch = turn.launch
        if launch.id in self._waiting:
            self._decide()
        left = self._run.get(launch.id)
        if left is not None:
            self._run[launch.id] = left - 1
            if left == 1:
                del self._run[launch.id]
            cpu.start_turn(turn)

    def _decide(self) -> None:
        """Take over what begins now, in the order of SIPs: so kernels end that end at one instant, as transfers do."""
        now = self._machine.env.now
        launches = [turns[0][1].launch for turns in self._waiting.values()]
        for launch in sorted(launches, key=lambda launch: launch.sip):
            if launch.target_start_ns == now:
                turns = self._waiting.pop(launch.id)
                if not self._is_known(launch, turns):
                    self._run[launch.id] = len(turns)

    def _is_known(self, launch: KernelLaunchMsg, turns: Turns) -> bool:
        """Take a launch over that begins now, if that can be done."""
        spec, machine = self._machine.graph.spec, self._machine
        cubes, pes = launch.cubes(spec.sip.n_cubes), launch.pes(spec.cube.n_pes)
        by_key = {cpu.key: (cpu, turn) for cpu, turn in turns}
        if len(by_key) < len(cubes) * len(pes) or not all(self._is_free_for(cpu, turn) for cpu, turn in turns):
            return False
        communicator = machine.communicators.get(launch.communicator)
        if communicator is not None and (communicator.unreceived or communicator.users):
            return False
        sip = Region(launch.sip, None)
        links, memories = self._regions[sip].links, self._regions[sip].memories
        known = KnownLaunch(
            machine, launch, self._under_way, self._was_undisturbed, partial(self._was_disturbed, launch)
        )
        claim = machine.fabric.claim(links, [machine.fabric.network.names[node] for node in memories], known.disturbed)
        if claim is None:
            return False
        copies = self._copies(launch, [Region(launch.sip, cube) for cube in cubes], by_key)
        if copies is None:
            copies = self._copies(launch, [sip], by_key)
        if copies is None or not all(copy.finds_its_bytes(machine.memory) for copy in copies):
            claim.release()
            return False
        known.begin(claim, copies)
        return True

    def _is_free_for(self, cpu: PeCpuComponent, turn: Turn) -> bool:
        """Whether a PE has nothing to do but a launch: a request of the host's may have its DMA, too."""
        dma = self._machine.component_so_far(self._machine.resolver.find_pe_part(*cpu.key, "pe_dma"))
        return cpu.has_only(turn) and (not isinstance(dma, PeDmaComponent) or dma.is_idle)

    def _was_undisturbed(self, regions: int) -> None:
        self.copied += regions

    def _was_disturbed(self, launch: KernelLaunchMsg) -> None:
        key = reach_key(launch, self._machine.kernels[launch.kernel_ref.name])
        self._disturbed[key] += 1
        if self._disturbed[key] == PATIENCE:
            self._reach[key] = Reach.FARTHER

    def _copies(
        self, launch: KernelLaunchMsg, regions: Sequence[Region], by_key: dict[PeKey, tuple[PeCpuComponent, Turn]]
    ) -> list[Copy] | None:
        """The launch region by region; None where a region has no course."""
        kernel = self._machine.kernels[launch.kernel_ref.name]
        reach, is_cube = reach_key(launch, kernel), regions[0].cube is not None
        if is_cube and reach in self._reach:
            return None
        found: list[Copy] = []
        for region in regions:
            own = {key: turn for key, turn in sorted(by_key.items()) if region.holds(*key[:2])}
            memories = self._regions[region].memories
            places = LaunchPlaces(launch, region, self._round_bytes(memories))
            kind = CourseKind(base_of(kernel), tuple(region.relative(key) for key in own), is_cube)
            courses = self._courses.setdefault(kind, [])
            taken = self._taken(courses, kernel, region, own, places, memories)
            if taken is None:
                course = self._explorer.explore(launch, region, list(own), places, memories)
                if course is None:
                    self._reach[reach] = Reach.SIP if is_cube else Reach.FARTHER
                    return None
                courses.insert(0, course)
                del courses[MOST_COURSES:]
                taken = course, [{} for _ in own]
            course, offsets = taken
            shift = Shift((course.region, region), (course.places, places), course.keys, offsets)
            found.append(Copy(course, shift, list(own.values())))
        return found

    def _taken(
        self,
        courses: Sequence[LaunchCourse],
        kernel: Kernel,
        region: Region,
        own: dict[PeKey, tuple[PeCpuComponent, Turn]],
        places: LaunchPlaces,
        memories: Sequence[int],
    ) -> tuple[LaunchCourse, list[Offsets]] | None:
        """The course that kernels in a region take, from the state that the region is in, and where in parts they are;
        None for one that is not known.
        """
        leases = [self._machine.tcm_for(*key, "compute") for key in own]
        _, turn = next(iter(own.values()))
        communicator = self._machine.communicators.get(turn.launch.communicator)
        turned = turned_channels(self._machine, memories)
        for course in courses:
            if self._regions[course.region].form != self._regions[region].form:
                continue
            if (course.places.layout, course.turned, course.leases) != (places.layout, turned, leases):
                continue
            if course.messages is not None and not course.messages.are_alike(communicator, region.moved):
                continue
            offsets = self._followed(course, kernel, own, places)
            if offsets is not None:
                return course, offsets
        return None

    def _followed(
        self,
        course: LaunchCourse,
        kernel: Kernel,
        own: dict[PeKey, tuple[PeCpuComponent, Turn]],
        places: LaunchPlaces,
    ) -> list[Offsets] | None:
        """Where kernels are within parts that do what those of a course did; None where they do not."""
        found: list[Offsets] = []
        for (cpu, turn), trace, followed in zip(own.values(), course.traces, course.pointers, strict=True):
            pointers = Pointers(places)
            call = partial(_call, cpu, turn.launch, kernel)
            if not follows(trace, call, pointers.place_of, cpu.ids_of(turn.launch)):
                return None
            offsets = pointers.offsets_from(followed)
            if offsets is None:
                return None
            found.append(offsets)
        return found if course.can_be_at(found) else None

    def _round_bytes(self, memories: Sequence[int]) -> int:
        """After so many bytes addresses name the same channel again, in all memories of a region."""
        specs = self._machine.fabric.network.channel_specs
        return max((specs[node][0] * specs[node][1] for node in memories), default=1)


def reach_key(launch: KernelLaunchMsg, kernel: Kernel) -> ReachKey:
    return base_of(kernel), launch.kernel_ref.name.partition("#")[0]


def _call(cpu: PeCpuComponent, launch: KernelLaunchMsg, kernel: Kernel, tl: object) -> object:
    return cpu.call_of(launch, kernel, tl)()


def can_know_launches(machine: Machine) -> bool:
    """Whether kernels need not be run: nobody asks for races or lines, and all blocks are ours, since those of others
    may do anything.
    """
    if machine.foresight is None or machine.races is not None or type(machine.log) not in _LOGS:
        return False
    if machine.values.sites is not None:
        return False
    return all(machine.class_of(node).__module__.startswith(BUILTIN) for node in machine.graph.nodes)


_LOGS = (type(None), OpLog)  # those that can copy rows
