"""The courses that launches of one machine can take: those that are kept, and how a new one is found.

A course is looked for among those of the kernel whose regions are alike, whose tensors have the same layout, and whose
kernels had the same TCM and rings. Kernels are then followed, call by call. Where none is found, the launch is
explored, here or by a worker that was there before (`explored_ahead.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from functools import cached_property, partial
from typing import NamedTuple

from kernbench.common.ids import PeKey
from kernbench.common.launch import TensorArg
from kernbench.common.messages import KernelLaunchMsg
from kernbench.components.builtin.launch_job import LaunchJob
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.sim_engine.bounded_dict import BoundedDict
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.simulation_stats import NOT_REPEATABLE, OFF
from kernbench.sim_engine.steady.explored_ahead import ExploredAhead
from kernbench.sim_engine.steady.known_launch import Copy
from kernbench.sim_engine.steady.launch_course import LaunchCourse
from kernbench.sim_engine.steady.launch_explorer import Explorer, turned_channels
from kernbench.sim_engine.steady.launch_places import LaunchPlaces, Offsets, Pointers, Shift
from kernbench.sim_engine.steady.regions import AnyRegion, Region, RegionParts, Tray, regions_of, tray_parts
from kernbench.triton_emu.followed import follows
from kernbench.triton_emu.registry import Kernel
from kernbench.triton_emu.repeatable import base_of, is_repeatable

MOST_COURSES = 32  # of a kernel and a kind of region
MOST_BYTES = 1 << 29  # of all courses of a machine
PATIENCE = 2  # launches of a kernel that were disturbed: its kernels are run from then on
LaunchKind = tuple[object, str, tuple[int, ...]]  # a kernel, as `base_of` has it, a launch's name; SIPs of a collective
TurnsByPe = dict[PeKey, tuple[PeCpuComponent, LaunchJob]]


class Reach(Enum):
    """How far a kernel goes that leaves its cube."""

    SIP = 1
    FARTHER = 2  # or it cannot be known for another reason


class CourseKind(NamedTuple):
    """What courses are kept by: a kernel, as `base_of` has it, and which PEs of a region, or of a tray."""

    kernel: object
    pes: tuple[tuple[int, ...], ...]
    is_cube: bool


class FoundAhead(NamedTuple):
    """What a worker has found of a kind of launch: courses, each with its PEs and whether they are those of a cube."""

    courses: list[tuple[tuple[tuple[int, ...], ...], bool, LaunchCourse]]

    @property
    def leaves_cubes(self) -> bool:
        return bool(self.courses) and not any(is_cube for _, is_cube, _ in self.courses)


class LaunchCourses:
    """Courses of one machine."""

    def __init__(self, machine: Machine, ahead: ExploredAhead) -> None:
        self._machine = machine
        self._ahead = ahead
        self._explorer = Explorer(machine, ahead.note_steps)
        self._courses: dict[CourseKind, list[LaunchCourse]] = {}
        self._kept: BoundedDict[LaunchCourse, tuple[CourseKind, LaunchCourse]] = BoundedDict(MOST_BYTES)
        self._reach: dict[LaunchKind, Reach] = {}  # of kernels that do not keep to their cube
        self._disturbed: Counter[LaunchKind] = Counter()
        self.recorded = 0  # courses so far
        self._first_calls: dict[LaunchKind, object] = {}  # of collectives
        self._for_others: list[tuple[CourseKind, LaunchCourse]] = []  # what this process has explored as a worker

    # ---- kinds of launches

    def why_not(self, launch: KernelLaunchMsg) -> str:
        """Why there can be no course for a launch; empty where there may be one."""
        paths, is_collective = self._machine.fast_paths, launch.stream != "compute"
        if not (paths.collectives if is_collective else paths.launches):
            return OFF
        kernel = self._machine.kernels.get(launch.kernel_ref.name)
        if kernel is None or not is_repeatable(kernel):
            return NOT_REPEATABLE
        if is_collective and self.tray_of(launch) is None:
            return "it is no collective of several SIPs"
        if is_collective and self._is_new(launch):
            return "the first of its kind"
        kind = self._kind_of(launch)
        if self._reach.get(kind) is not Reach.FARTHER:
            return ""
        if self._disturbed[kind] >= PATIENCE:
            return f"launches of its kernel were interrupted {PATIENCE} times"
        return "it leaves its SIPs, fails, or is not repeatable"

    def _is_new(self, launch: KernelLaunchMsg) -> bool:
        """Whether a collective comes for the first time. Most programs have no second one, so it is run, unless the
        host has said that it launches much.
        """
        call = launch.communicator, launch.tag
        is_first = self._first_calls.setdefault(self._kind_of(launch), call) == call
        return is_first and not self._machine.host_ahead.is_inside

    def was_disturbed(self, launch: KernelLaunchMsg) -> None:
        """A launch was taken over in vain."""
        kind = self._kind_of(launch)
        self._disturbed[kind] += 1
        if self._disturbed[kind] == PATIENCE:
            self._reach[kind] = Reach.FARTHER

    def tray_of(self, launch: KernelLaunchMsg) -> Tray | None:
        """The SIPs of a launch's collective; None where it is none, or one of a single SIP."""
        if launch.stream != "communication":
            return None
        communicator = self._machine.communicators.get(launch.communicator)
        return None if communicator is None or len(communicator.sips) < 2 else Tray(tuple(sorted(communicator.sips)))

    def _kind_of(self, launch: KernelLaunchMsg) -> LaunchKind:
        tray = self.tray_of(launch)
        kernel = base_of(self._machine.kernels[launch.kernel_ref.name])
        return kernel, launch.kernel_ref.name.partition("#")[0], () if tray is None else tray.sips

    # ---- regions

    @cached_property
    def _regions(self) -> dict[AnyRegion, RegionParts]:
        return dict(regions_of(self._machine.graph, self._machine.fabric.network).items())

    def parts_of(self, region: AnyRegion) -> RegionParts:
        found = self._regions.get(region)
        if found is None:
            assert isinstance(region, Tray)
            sips = [self._regions[Region(sip, None)] for sip in region.sips]
            found = self._regions[region] = tray_parts(self._machine, sips, region)
        return found

    # ---- courses

    def copies(
        self, launches: Sequence[KernelLaunchMsg], regions: Sequence[AnyRegion], by_key: TurnsByPe
    ) -> list[Copy] | None:
        """A launch region by region, or those of a tray; None where a region has no course."""
        kind, is_cube = self._kind_of(launches[0]), regions[0].cube is not None
        key = _text(kind, launches[0])
        if kind in self._reach and (is_cube or self._reach[kind] is Reach.FARTHER):
            return None  # the last may be known only since another launch that begins now was explored
        found: list[Copy] = []
        for region in regions:
            own = {key: turn for key, turn in by_key.items() if region.holds(*key[:2])}
            memories = self.parts_of(region).memories
            places = LaunchPlaces(launches, region, self._round_bytes(memories))
            course_kind = CourseKind(kind[0], tuple(region.relative(key) for key in own), is_cube)
            taken = self._taken(course_kind, region, own, places, memories)
            if taken is None and self._take_from_others(kind, key):
                if is_cube and kind in self._reach:
                    return None
                taken = self._taken(course_kind, region, own, places, memories)
            if taken is None:
                if not self._ahead.explores(key):
                    return None
                course = self._explorer.explore(launches, region, list(own), places, memories)
                if course is None:
                    self._reach[kind] = Reach.SIP if is_cube else Reach.FARTHER
                    return None
                self._keep(course_kind, course)
                taken = course, [{} for _ in own]
            course, offsets = taken
            shift = Shift((course.region, region), (course.places, places), course.keys, offsets)
            found.append(Copy(course, shift, list(own.values())))
        return found

    def _keep(self, kind: CourseKind, course: LaunchCourse) -> None:
        courses = self._courses.setdefault(kind, [])
        courses.insert(0, course)
        self.recorded += 1
        for surplus in courses[MOST_COURSES:]:
            self._kept.discard(surplus)
        del courses[MOST_COURSES:]
        for whose, oldest in self._kept.put(course, (kind, course), course.nbytes):
            self._courses[whose].remove(oldest)
        if self._ahead.is_worker:
            self._for_others.append((kind, course))

    def _taken(
        self,
        kind: CourseKind,
        region: AnyRegion,
        own: TurnsByPe,
        places: LaunchPlaces,
        memories: Sequence[int],
    ) -> tuple[LaunchCourse, list[Offsets]] | None:
        """The course that kernels in a region take, from the state that the region is in, and where in parts they are;
        None for one that is not known.
        """
        _, turn = next(iter(own.values()))
        leases = [self._machine.tcm_for(*key, turn.launch.stream) for key in own]
        communicator = self._machine.communicators.get(turn.launch.communicator)
        turned = turned_channels(self._machine, memories)
        for course in self._courses.get(kind, ()):
            if self.parts_of(course.region).form != self.parts_of(region).form:
                continue
            if (course.places.layout, course.turned, course.leases) != (places.layout, turned, leases):
                continue
            if course.messages is not None and not course.messages.are_alike(communicator, region.moved):
                continue
            offsets = self._followed(course, own, places)
            if offsets is not None:
                return course, offsets
        return None

    def _followed(self, course: LaunchCourse, own: TurnsByPe, places: LaunchPlaces) -> list[Offsets] | None:
        """Where kernels are within parts that do what those of a course did; None where they do not."""
        found: list[Offsets] = []
        for (cpu, turn), trace, followed in zip(own.values(), course.traces, course.pointers, strict=True):
            pointers = Pointers(places)
            call = partial(_call, cpu, turn.launch, self._machine.kernels[turn.launch.kernel_ref.name])
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

    # ---- workers

    def _take_from_others(self, kind: LaunchKind, key: str) -> bool:
        """Whether a worker has found courses of a kind of launch, which are known from now on. What it has not found is
        not taken for granted.
        """
        found = None if self._ahead.is_worker else self._ahead.take(key, FoundAhead)
        if found is None or not found.courses:
            return False
        for pes, is_cube, course in found.courses:
            self._keep(CourseKind(kind[0], pes, is_cube), course)
        if found.leaves_cubes:
            self._reach.setdefault(kind, Reach.SIP)
        return True

    def explore_for_others(self, launches: Sequence[KernelLaunchMsg], by_key: TurnsByPe) -> None:
        """In a worker: what a launch does in the first of its cubes, or in its SIP; or those of a collective."""
        launch, tray = launches[0], self.tray_of(launches[0])
        key, cubes = _text(self._kind_of(launch), launch), launch.cubes(self._machine.graph.spec.sip.n_cubes)
        if self._ahead.has_given(key):
            return
        self._for_others.clear()
        try:
            stays = tray is None and self.copies(launches, [Region(launch.sip, cubes[0])], by_key) is not None
            if not stays:
                self.copies(launches, [tray or Region(launch.sip, None)], by_key)
        finally:  # somebody may wait for it
            self._ahead.give(key, FoundAhead([(each.pes, each.is_cube, at) for each, at in self._for_others]))


def _text(kind: LaunchKind, launch: KernelLaunchMsg) -> str:
    """A kind of launch and its arguments, as all processes say it."""
    kernel, name, sips = kind
    function = kernel if hasattr(kernel, "__qualname__") else type(kernel)
    args = [
        (arg.shape, arg.dtype, arg.space, arg.split_by, len(arg.shards)) if isinstance(arg, TensorArg) else arg
        for arg in (*launch.args, *launch.named_args.values())
    ]
    return f"{function.__module__} {function.__qualname__} {name} {sips} {args}"


def _call(cpu: PeCpuComponent, launch: KernelLaunchMsg, kernel: Kernel, tl: object) -> object:
    return cpu.call_of(launch, kernel, tl)()
