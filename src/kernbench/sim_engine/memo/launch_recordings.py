"""Match at the scope of a launch: the recordings of one machine, and which of them a launch repeats.

A recording is looked up by kernel and PEs. Its tensors must have the same layout, and its kernels the same TCM and
rings. The kernels are then matched, call by call. On a miss the launch is recorded, here or by a worker that has
reached it before (`record_ahead.py`).
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
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, PartOffsets, Pointers, Shift
from kernbench.sim_engine.memo.launch_recorder import LaunchRecorder, channel_directions
from kernbench.sim_engine.memo.launch_recording import LaunchRecording
from kernbench.sim_engine.memo.record_ahead import RecordAhead
from kernbench.sim_engine.memo.regions import (
    AnyRegion,
    Region,
    RegionParts,
    SipGroupRegion,
    regions_of,
    sip_group_parts,
)
from kernbench.sim_engine.memo.replayed_launch import RegionReplay
from kernbench.sim_engine.simulation_stats import NOT_REPEATABLE, OFF
from kernbench.triton_emu.matching_tl import matches
from kernbench.triton_emu.registry import Kernel
from kernbench.triton_emu.repeatable import base_of, is_repeatable

MOST_RECORDINGS = 32  # of a kernel and a kind of region
MOST_BYTES = 1 << 29  # of all recordings of a machine
PATIENCE = 2  # launches of a kernel that were interrupted: its kernels are run from then on
LaunchKind = tuple[object, str, tuple[int, ...]]  # a kernel, as `base_of` has it, a launch's name; SIPs of a collective
JobsByPe = dict[PeKey, tuple[PeCpuComponent, LaunchJob]]


class Extent(Enum):
    """How far a kernel goes that leaves its cube."""

    SIP = 1
    FARTHER = 2  # or it cannot be known for another reason


class RecordingKey(NamedTuple):
    """The key of recordings: a kernel, as `base_of` has it, and which PEs of a region, or of a tray."""

    kernel: object
    pes: tuple[tuple[int, ...], ...]
    is_cube: bool


class RecordedAhead(NamedTuple):
    """Recordings by a worker of one kind of launch, each with its PEs and whether they are those of a cube."""

    recordings: list[tuple[tuple[tuple[int, ...], ...], bool, LaunchRecording]]

    @property
    def leaves_cubes(self) -> bool:
        return bool(self.recordings) and not any(is_cube for _, is_cube, _ in self.recordings)


class LaunchRecordings:
    """Recordings of one machine."""

    def __init__(self, machine: Machine, ahead: RecordAhead) -> None:
        self._machine = machine
        self._ahead = ahead
        self._recorder = LaunchRecorder(machine, ahead.note_steps)
        self._recordings: dict[RecordingKey, list[LaunchRecording]] = {}
        self._kept: BoundedDict[LaunchRecording, tuple[RecordingKey, LaunchRecording]] = BoundedDict(MOST_BYTES)
        self._extents: dict[LaunchKind, Extent] = {}  # of kernels that do not keep to their cube
        self._interrupted: Counter[LaunchKind] = Counter()
        self.recorded = 0  # recordings so far
        self._first_calls: dict[LaunchKind, object] = {}  # of collectives
        self._for_others: list[tuple[RecordingKey, LaunchRecording]] = []  # recorded by this process as a worker

    # ---- kinds of launches

    def why_not(self, launch: KernelLaunchMsg) -> str:
        """Why a launch cannot be recorded; empty where there may be one."""
        paths, is_collective = self._machine.fast_paths, launch.stream != "compute"
        if not (paths.collectives if is_collective else paths.launches):
            return OFF
        kernel = self._machine.kernels.get(launch.kernel_ref.name)
        if kernel is None or not is_repeatable(kernel):
            return NOT_REPEATABLE
        if is_collective and self.sip_group_of(launch) is None:
            return "it is no collective of several SIPs"
        if is_collective and self._is_new(launch):
            return "the first of its kind"
        kind = self._kind_of(launch)
        if self._extents.get(kind) is not Extent.FARTHER:
            return ""
        if self._interrupted[kind] >= PATIENCE:
            return f"launches of its kernel were interrupted {PATIENCE} times"
        return "it leaves its SIPs, fails, or is not repeatable"

    def _is_new(self, launch: KernelLaunchMsg) -> bool:
        """Whether a collective is the first of its kind. Most programs have no second one, so it is run, unless the
        host has announced that it launches much.
        """
        call = launch.communicator, launch.tag
        is_first = self._first_calls.get(self._kind_of(launch), call) == call
        return is_first and not self._machine.host_ahead.is_inside

    def note_call(self, launch: KernelLaunchMsg) -> None:
        """Note the first call of each kind of collective."""
        if self.sip_group_of(launch) is not None and launch.kernel_ref.name in self._machine.kernels:
            self._first_calls.setdefault(self._kind_of(launch), (launch.communicator, launch.tag))

    def note_interrupt(self, launch: KernelLaunchMsg) -> None:
        """The replay of a launch was interrupted."""
        kind = self._kind_of(launch)
        self._interrupted[kind] += 1
        if self._interrupted[kind] == PATIENCE:
            self._extents[kind] = Extent.FARTHER

    def sip_group_of(self, launch: KernelLaunchMsg) -> SipGroupRegion | None:
        """The SIPs of a launch's collective; None where it is none, or one of a single SIP."""
        if launch.stream != "communication":
            return None
        communicator = self._machine.communicators.get(launch.communicator)
        return (
            None
            if communicator is None or len(communicator.sips) < 2
            else SipGroupRegion(tuple(sorted(communicator.sips)))
        )

    def _kind_of(self, launch: KernelLaunchMsg) -> LaunchKind:
        sip_group = self.sip_group_of(launch)
        kernel = base_of(self._machine.kernels[launch.kernel_ref.name])
        return kernel, launch.kernel_ref.name.partition("#")[0], () if sip_group is None else sip_group.sips

    # ---- regions

    @cached_property
    def _regions(self) -> dict[AnyRegion, RegionParts]:
        return dict(regions_of(self._machine.graph, self._machine.fabric.network).items())

    def parts_of(self, region: AnyRegion) -> RegionParts:
        found = self._regions.get(region)
        if found is None:
            assert isinstance(region, SipGroupRegion)
            sips = [self._regions[Region(sip, None)] for sip in region.sips]
            found = self._regions[region] = sip_group_parts(self._machine, sips, region)
        return found

    # ---- recordings

    def replays(
        self, launches: Sequence[KernelLaunchMsg], regions: Sequence[AnyRegion], by_key: JobsByPe
    ) -> list[RegionReplay] | None:
        """A launch region by region, or those of a tray; None where a region has no recording."""
        kind, is_cube = self._kind_of(launches[0]), regions[0].cube is not None
        key = _key_text(kind, launches[0])
        if is_cube and self._machine.fabric.network.buffers is not None:
            return None  # layers of links differ from cube to cube, and are the same on all SIPs
        if kind in self._extents and (is_cube or self._extents[kind] is Extent.FARTHER):
            return None  # the last may be known only since another launch that begins now was recorded
        found: list[RegionReplay] = []
        layout = self._machine.graph.address_layout
        for region in regions:
            own = {key: job for key, job in by_key.items() if region.holds(*key[:2])}
            memories = self.parts_of(region).memories
            places = LaunchPlaces(launches, region, self._round_bytes(memories))
            recording_key = RecordingKey(kind[0], tuple(region.relative(key) for key in own), is_cube)
            matched = self._matching(recording_key, region, own, places, memories)
            if matched is None and self._import_from_workers(kind, key):
                if is_cube and kind in self._extents:
                    return None
                matched = self._matching(recording_key, region, own, places, memories)
            if matched is None:
                if not self._ahead.reserve_recording(key):
                    return None
                recording = self._recorder.record(launches, region, list(own), places, memories)
                if recording is None:
                    self._extents[kind] = Extent.SIP if is_cube else Extent.FARTHER
                    return None
                self._keep(recording_key, recording)
                matched = recording, [{} for _ in own]
            recording, offsets = matched
            shift = Shift((recording.region, region), (recording.places, places), recording.keys, offsets, layout)
            found.append(RegionReplay(recording, shift, list(own.values())))
        return found

    def _keep(self, kind: RecordingKey, recording: LaunchRecording) -> None:
        recordings = self._recordings.setdefault(kind, [])
        recordings.insert(0, recording)
        self.recorded += 1
        for surplus in recordings[MOST_RECORDINGS:]:
            self._kept.discard(surplus)
        del recordings[MOST_RECORDINGS:]
        for whose, oldest in self._kept.put(recording, (kind, recording), recording.nbytes):
            self._recordings[whose].remove(oldest)
        if self._ahead.is_worker:
            self._for_others.append((kind, recording))

    def _matching(
        self,
        kind: RecordingKey,
        region: AnyRegion,
        own: JobsByPe,
        places: LaunchPlaces,
        memories: Sequence[int],
    ) -> tuple[LaunchRecording, list[PartOffsets]] | None:
        """The recording that kernels in a region replay, given the state of the region, and where in parts they are;
        None where there is none.
        """
        _, job = next(iter(own.values()))
        leases = [self._machine.tcm_for(*key, job.launch.stream) for key in own]
        communicator = self._machine.communicators.get(job.launch.communicator)
        directions = channel_directions(self._machine, memories)
        for recording in self._recordings.get(kind, ()):
            if (recording.places.layout, recording.directions, recording.leases) != (places.layout, directions, leases):
                continue
            if recording.messages is not None and not recording.messages.are_alike(communicator, region.moved):
                continue
            offsets = self._match(recording, own, places)
            if offsets is not None:
                return recording, offsets
        return None

    def _match(self, recording: LaunchRecording, own: JobsByPe, places: LaunchPlaces) -> list[PartOffsets] | None:
        """Where kernels are within parts that do what those of a recording did; None where they do not."""
        found: list[PartOffsets] = []
        for (cpu, job), trace, recorded in zip(own.values(), recording.traces, recording.pointers, strict=True):
            pointers = Pointers(places)
            call = partial(_call, cpu, job.launch, self._machine.kernels[job.launch.kernel_ref.name])
            if not matches(trace, call, pointers.place_of, cpu.ids_of(job.launch)):
                return None
            offsets = pointers.offsets_from(recorded)
            if offsets is None:
                return None
            found.append(offsets)
        return found if recording.can_be_at(found) else None

    def _round_bytes(self, memories: Sequence[int]) -> int:
        """After so many bytes addresses name the same channel again, in all memories of a region."""
        specs = self._machine.fabric.network.channel_specs
        return max((specs[node][0] * specs[node][1] for node in memories), default=1)

    # ---- workers

    def _import_from_workers(self, kind: LaunchKind, key: str) -> bool:
        """Keep what a worker has recorded of a kind of launch; returns whether it has. That it has found none proves
        nothing.
        """
        found = None if self._ahead.is_worker else self._ahead.take(key, RecordedAhead)
        if found is None or not found.recordings:
            return False
        for pes, is_cube, recording in found.recordings:
            self._keep(RecordingKey(kind[0], pes, is_cube), recording)
        if found.leaves_cubes:
            self._extents.setdefault(kind, Extent.SIP)
        return True

    def record_for_others(self, launches: Sequence[KernelLaunchMsg], by_key: JobsByPe) -> None:
        """In a worker: what a launch does in the first of its cubes, or in its SIP; or those of a collective."""
        launch, sip_group = launches[0], self.sip_group_of(launches[0])
        key, cubes = _key_text(self._kind_of(launch), launch), launch.cubes(self._machine.graph.spec.sip.n_cubes)
        if self._ahead.has_given(key):
            return
        self._for_others.clear()
        try:
            stays = sip_group is None and self.replays(launches, [Region(launch.sip, cubes[0])], by_key) is not None
            if not stays:
                self.replays(launches, [sip_group or Region(launch.sip, None)], by_key)
        finally:  # another process may wait for it
            self._ahead.give(key, RecordedAhead([(each.pes, each.is_cube, at) for each, at in self._for_others]))


def _key_text(kind: LaunchKind, launch: KernelLaunchMsg) -> str:
    """A kind of launch and its arguments, as text that every process writes alike."""
    kernel, name, sips = kind
    function = kernel if hasattr(kernel, "__qualname__") else type(kernel)
    args = [
        (arg.shape, arg.dtype, arg.space, arg.split_by, len(arg.shards), arg.layout)
        if isinstance(arg, TensorArg)
        else arg
        for arg in (*launch.args, *launch.named_args.values())
    ]
    return f"{function.__module__} {function.__qualname__} {name} {sips} {args}"


def _call(cpu: PeCpuComponent, launch: KernelLaunchMsg, kernel: Kernel, tl: object) -> object:
    return cpu.call_of(launch, kernel, tl)()
