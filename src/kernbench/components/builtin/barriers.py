"""Barriers over the PEs of a launch: arrivals go up the tree of command processors, the release comes down it again.

PE_CPU sends a control message to its cube's M_CPU and waits for the answer. When all PEs of the launch in that cube
have arrived, M_CPU sends a message to IO_CPU; when all cubes have arrived, IO_CPU sends one to IO_CPU of the launch's
first SIP. The topmost processor that takes part answers all waiting messages at once, and each processor that receives
an answer answers those below it. So a launch within one cube is released by its M_CPU, one within a SIP by its IO_CPU.
Each message pays every node and wire of its path, as the messages of a launch do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kernbench.common.commands import BarrierCmd
from kernbench.common.declared_state import idle
from kernbench.common.messages import BarrierMsg, KernelLaunchMsg
from kernbench.components.base import ActiveComponent, Packet
from kernbench.components.recording import NO_REF, FieldValue, Recorder, Release, op_ref
from kernbench.triton_emu.kernel_runner import RecordsCallback

OP_KIND = "communication"
_LAUNCHES = 8  # whose barrier counts a PE keeps, for deadlock reports


class Gathered(NamedTuple):
    """Payload of barrier messages: when the last of some PEs arrived, the op it had waited for last, and what each of
    them released, for the race detector.
    """

    last_ns: float
    record: int | None
    clocks: tuple[object, ...]


class Barriers:
    """The arrivals that wait at one command processor."""

    STATE = (idle("_waiting"),)
    DERIVED = ("_path_to", "_processor")

    def __init__(self, processor: ActiveComponent, path_to: Callable[[str], tuple[str, ...]]) -> None:
        self._processor, self._path_to = processor, path_to
        self._waiting: dict[tuple[object, int], list[Packet]] = {}

    def arrive(self, packet: Packet, expected: int, above: str | None) -> None:
        """Count one of `expected` arrivals; `above` is the processor that is notified when all have arrived."""
        barrier = packet.request
        assert isinstance(barrier, BarrierMsg)
        waiting = self._waiting.setdefault((barrier.launch_key, barrier.number), [])
        waiting.append(packet)
        if len(waiting) < expected:
            return
        del self._waiting[barrier.launch_key, barrier.number]
        parts = [_gathered(each) for each in waiting]
        last = max(parts, key=lambda part: part.last_ns)
        together = last._replace(clocks=tuple(clock for part in parts for clock in part.clocks))
        if above is None:
            self._release(waiting, together)
        else:
            released = partial(self._answered, waiting)
            self._processor.ctx.send(Packet(barrier, self._path_to(above), payload=together, answer=released))

    def _answered(self, waiting: Sequence[Packet], answer: Packet) -> None:
        self._release(waiting, _gathered(answer))

    def _release(self, waiting: Sequence[Packet], together: Gathered) -> None:
        for packet in waiting:
            self._processor.reply(packet, payload=together)


def _gathered(packet: Packet) -> Gathered:
    assert isinstance(packet.payload, Gathered)
    return packet.payload


class BarrierPort:
    """One PE's interface to the barriers of its launches."""

    STATE = (idle("_waiting"),)
    DERIVED = ("_cpu", "_reached")

    def __init__(self, cpu: ActiveComponent) -> None:
        self._cpu = cpu
        place = cpu.node.place
        self._sip, self._cube = place.sip, place.cube
        m_cpu = cpu.ctx.resolver.find_m_cpu(place.sip, place.cube)
        self._path = tuple(cpu.ctx.router.find_node_path(m_cpu, cpu.node.id))[::-1]
        self._waiting: dict[object, RecordsCallback] = {}  # by launch
        self._reached: dict[object, int] = {}  # how many barriers of each launch this PE has reached

    def submit(self, cmd: BarrierCmd, launch: KernelLaunchMsg, done: RecordsCallback, after: int | None) -> None:
        """The kernel has reached a barrier; `done` is called when it is released."""
        origin, now = launch.origin, self._cpu.env.now
        sips = tuple(sorted(origin.targets))
        self._waiting[launch.id] = done
        self._reached[origin.key] = cmd.number
        if len(self._reached) > _LAUNCHES:
            del self._reached[next(iter(self._reached))]
        barrier = BarrierMsg(
            correlation_id=launch.correlation_id,
            request_id=launch.request_id,
            sip=self._sip,
            target_cubes=launch.target_cubes,
            target_pes=launch.target_pes,
            launch_key=origin.key,
            number=cmd.number,
            sips=sips,
            first_cubes=origin.targets[sips[0]][0],
        )
        released = partial(self._released, cmd, launch, now)
        here = Gathered(now, after, tuple(cmd.clocks))
        self._cpu.ctx.send(Packet(barrier, self._path, payload=here, answer=released))

    def _released(self, cmd: BarrierCmd, launch: KernelLaunchMsg, since_ns: float, answer: Packet) -> None:
        done, together = self._waiting.pop(launch.id, None), _gathered(answer)
        if done is None:  # the kernel has been aborted meanwhile
            return
        cmd.clocks[:] = together.clocks
        log = self._cpu.ctx.log
        done(() if log is None else (self._record(log, cmd, launch, since_ns, together),))

    def _record(
        self, log: Recorder, cmd: BarrierCmd, launch: KernelLaunchMsg, since_ns: float, together: Gathered
    ) -> int:
        """Record the exchange itself: from the arrival of the last PE until this one is released."""
        params: dict[str, FieldValue] = {"number": cmd.number}
        if log.lines:
            params["line"] = cmd.line
        before = () if together.record is None else (together.record,)
        causes = (0, Release.MESSAGE, since_ns, op_ref(*before) if before else NO_REF)
        start_ns, node, now = together.last_ns, self._cpu.node.id, self._cpu.env.now
        return log.record(start_ns, now, node, OP_KIND, "barrier", params, before, causes=causes, stream=launch.stream)

    def cancel(self, launch: KernelLaunchMsg) -> None:
        """The kernel is aborted: end its wait."""
        done = self._waiting.pop(launch.id, None)
        if done is not None:
            done(())

    def reached(self, launch: KernelLaunchMsg) -> int:
        """How many barriers of a launch this PE has reached."""
        return self._reached.get(launch.origin.key, 0)
