"""Communicators on a machine: rings for the PEs of a group, in memory reserved for them.

A ring is allocated when one of its ends first uses it. Rings in TCM, and the words that credits are written to, come
from a block that is reserved on every PE of the group when its communicator is installed, since a running kernel has
all remaining TCM; rings in SRAM and HBM are allocated like tensors. Setting up takes no simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

from kernbench.ccl.topologies import SipGroup, directions_of, group_of, peer_of
from kernbench.common.errors import AllocationError, UnreceivedError, UsageError
from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import BACKPRESSURES, BUFFER_KINDS, BufferKind, Communicator, RingConfig, Unreceived
from kernbench.common.units import is_power_of_two
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine

if TYPE_CHECKING:
    from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config

__all__ = [
    "ALIGN",
    "WORLD",
    "Communicators",
    "check_received",
    "check_rings",
    "load_ccl_config",
    "resolve_algorithm_config",
]

WORLD = "world"
ALIGN = 256  # of rings: a slot never shares a burst with another
RING_BYTES = 256 * 1024
WORK_BYTES = 256 * 1024


def __getattr__(name: str) -> object:
    """What reads configurations, imported when first used: most programs have no collectives."""
    if name in ("load_ccl_config", "resolve_algorithm_config"):
        from kernbench.ccl import config

        return getattr(config, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


class RingMemory(NamedTuple):
    """The memory of a ring or of a credit word."""

    pe: PeKey
    kind: BufferKind
    address: PhysAddr
    nbytes: int


class Communicators:
    """The communicators of one machine, and the memory of their rings.

    `ring_bytes` and `work_bytes` are reserved in each PE's TCM: for rings, and for the tensors of kernels in the
    communication streams.
    """

    def __init__(self, engine: GraphEngine) -> None:
        self.ring_bytes = RING_BYTES
        self.work_bytes = WORK_BYTES
        self._engine = engine
        self._sips: dict[int, None] = {}  # with TCM reserved
        self._allocated: dict[str, dict[int, RingMemory]] = {}  # by communicator and address

    def install(self, name: str, group: SipGroup, config: RingConfig | None = None) -> Communicator:
        """Install a communicator, replacing one of that name. Raises UsageError for an invalid configuration, or while
        kernels use the existing one, and AllocationError if a PE's TCM has no room for rings, or a running kernel
        occupies it.
        """
        chosen = check_rings(config or RingConfig())
        former = self._engine.communicators.get(name)
        if former is not None:
            self._engine.interrupt_replays(former.sips)  # replayed kernels are not counted in `users`
            if former.users or name not in self._allocated:
                whose = f"{former.users} kernels use it" if former.users else "another host program installed it"
                raise UsageError(
                    f"communicator '{name}' cannot be replaced: {whose}",
                    hint="wait for the launches that use it, and close the program that made it",
                )
            self.uninstall(name)
        self.reserve(group)
        self._allocated[name] = {}
        made = Communicator(
            name,
            chosen,
            partial(peer_of, group),
            partial(directions_of, group),
            partial(self._allocate, name),
            partial(self._release, name),
            tuple(group.sips),
        )
        self._engine.communicators[name] = made
        return made

    def reserve(self, group: SipGroup) -> None:
        """Reserve TCM for communication on the PEs of a group, unless it is reserved already."""
        self._engine.reserve_communication_tcm(group.sips, self.ring_bytes, self.work_bytes)
        self._sips |= dict.fromkeys(group.sips)

    def set_sizes(self, ring_bytes: int, work_bytes: int) -> None:
        """Set how much TCM is reserved on each PE; raises UsageError if other sizes are reserved already."""
        if (ring_bytes, work_bytes) != (self.ring_bytes, self.work_bytes):
            if self._sips:
                raise UsageError(
                    f"{self.ring_bytes} bytes of TCM are kept for rings and {self.work_bytes} for collectives already, "
                    f"not {ring_bytes} and {work_bytes}",
                    hint="initialise the process group before the first kernel that sends",
                )
            self.ring_bytes, self.work_bytes = ring_bytes, work_bytes

    def has(self, name: str) -> bool:
        """Whether there is a communicator of that name."""
        return name in self._engine.communicators

    def install_world(self, config: RingConfig | None = None) -> Communicator:
        """Install the communicator of all SIPs, which launches use by default."""
        return self.install(WORLD, group_of(self._engine.graph.spec), config)

    def uninstall(self, name: str) -> None:
        """Remove a communicator, with its rings and the messages in them."""
        self._engine.interrupt_replays(self._engine.communicators[name].sips)
        self._engine.communicators.pop(name).close()
        for memory in self._allocated.pop(name).values():
            self._free(memory)

    def unreceived(self, name: str | None = None) -> list[Unreceived]:
        """The messages in the rings of a communicator; without a name, of all."""
        there = self._engine.communicators
        found = there.values() if name is None else [there[name]] if name in there else []
        return [left for each in found for left in each.left_over()]

    def allocated_bytes(self) -> Counter[int]:
        """By SIP: how much memory the rings of all communicators take, with the words for credits."""
        found: Counter[int] = Counter()
        for rings in self._allocated.values():
            for memory in rings.values():
                found[memory.pe[0]] += memory.nbytes
        return found

    def left_by_call(self, name: str, tag: int, kernel: str) -> tuple[Unreceived, ...]:
        """The messages that a call has left in rings after all ranks have ended it. If there are any, the rings cannot
        be used any more.
        """
        communicator = self._engine.communicators.get(name)
        left = () if communicator is None else tuple(communicator.left_over_of(tag))
        if communicator is not None and left:
            communicator.failure = f"kernel '{kernel}' has left {len(left)} messages in its rings"
        return left

    def close(self, *, wait: bool = True) -> None:
        """Remove all communicators and release their reserved TCM. Without `wait`, kernels that never ended may still
        occupy it; it is then not released.
        """
        for name in list(self._allocated):
            self.uninstall(name)
        try:
            self._engine.release_communication_tcm(tuple(self._sips))
        except AllocationError:
            if wait:
                raise
        self._sips.clear()

    # ---- memory

    def _allocate(self, communicator: str, pe: PeKey, nbytes: int, kind: BufferKind, anywhere: bool = True) -> int:
        """Allocate a ring or a credit word; raises AllocationError if there is no room."""
        align = min(ALIGN, nbytes)
        if kind == "hbm":
            address = self._engine.pe_memory(*pe).alloc_hbm(nbytes, align)
        elif kind == "sram":
            address = self._engine.cube_memory(*pe[:2]).alloc(nbytes, align)
        else:
            try:
                address = self._engine.communication_rings(*pe).alloc(nbytes, align, anywhere=anywhere)
            except AllocationError as error:
                raise AllocationError(
                    error.what, hint="use fewer or smaller slots, fewer directions, or buffer_kind sram or hbm"
                ) from None
        self._allocated[communicator][address.raw] = RingMemory(pe, kind, address, nbytes)
        return address.raw

    def _release(self, communicator: str, address: int) -> None:
        self._free(self._allocated[communicator].pop(address))

    def _free(self, memory: RingMemory) -> None:
        if memory.kind == "hbm":
            self._engine.pe_memory(*memory.pe).free_hbm(memory.address, memory.nbytes)
        elif memory.kind == "sram":
            self._engine.cube_memory(*memory.pe[:2]).free(memory.address, memory.nbytes)
        else:
            self._engine.communication_rings(*memory.pe).free(memory.address, memory.nbytes)


def check_rings(config: RingConfig) -> RingConfig:
    """The configuration itself, if it is valid; otherwise raises UsageError."""
    for name, most in (("n_slots", 1 << 16), ("slot_size", 1 << 30), ("credit_bytes", 4096)):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
            raise UsageError(f"rings: {name} is {value!r}", hint=f"give a whole number from 1 to {most}")
    if not is_power_of_two(config.slot_size) or config.slot_size < ALIGN:
        raise UsageError(
            f"rings: slot_size is {config.slot_size}", hint=f"give a power of two of {ALIGN} or more, say 4096"
        )
    for name, known in (("buffer_kind", BUFFER_KINDS), ("backpressure", BACKPRESSURES)):
        if getattr(config, name) not in known:
            raise UsageError(f"rings: {name} is {getattr(config, name)!r}", hint=f"use one of {', '.join(known)}")
    return config


def check_received(left: Sequence[Unreceived], when: str = "") -> None:
    """Raise UnreceivedError for messages that a launch or a run leaves in rings; `when` is a prefix of the error."""
    if not left:
        return
    receiver, direction, message = left[0]
    what = f"{message.dtype}{list(message.shape)} for {PeId(*receiver)} from its {direction} was never received"
    more = f", nor were {len(left) - 1} other messages" if len(left) > 1 else ""
    raise UnreceivedError(
        when + what + more,
        left,
        where=f"sent at {message.line} by {PeId(*message.sender)} to its {message.direction}",
        hint="every tl.send needs a tl.recv on the other side",
    )
