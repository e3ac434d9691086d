"""What a blocked kernel waits for, and at which of its lines, for the report of a deadlock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.blocked import BlockedKernel, RingWait
from kernbench.common.commands import (
    AtomicCmd,
    BarrierCmd,
    Command,
    CompositeCmd,
    CpuCmd,
    DmaReadCmd,
    DmaWriteCmd,
    GemmCmd,
    MathCmd,
    RecvCmd,
    SendCmd,
    WaitCmd,
)
from kernbench.triton_emu.call_site import definition_of, line_of
from kernbench.triton_emu.kernel_runner import KernelRunner

RingsOf = Callable[[SendCmd | RecvCmd], tuple[RingWait, ...]]
MissingAt = Callable[[BarrierCmd], Sequence[str]]  # PEs that have not reached a barrier
_MOST_NAMED = 4


def blocked_kernel(
    runner: KernelRunner,
    name: str,
    kernel: Callable[..., object],
    pe: tuple[int, int, int],
    rings_of: RingsOf,
    missing_at: MissingAt,
) -> BlockedKernel | None:
    """Where the kernel of a runner is blocked; None if it is not. One that has returned with composites in flight is
    reported at its definition.
    """
    command = runner.command
    if runner.stopped_at is not None:
        return BlockedKernel(*pe, name, *(line_of(runner.stopped_at) or definition_of(kernel)), "its own Python code")
    if command is None:
        return None
    frame = runner.frame
    place = line_of(frame) if frame is not None else None
    after = "" if place is not None else ", after the kernel's end"
    waits, rings = waits_for(command, runner, rings_of)
    if isinstance(command, BarrierCmd):
        waits = _barrier_in_words(command, missing_at(command))
    return BlockedKernel(*pe, name, *(place or definition_of(kernel)), waits + after, rings)


def waits_for(command: Command, runner: KernelRunner, rings_of: RingsOf) -> tuple[str, tuple[RingWait, ...]]:
    """A command in words, and the rings that it waits at; for a wait, the commands that are waited for."""
    if not isinstance(command, WaitCmd):
        rings = rings_of(command) if isinstance(command, SendCmd | RecvCmd) else ()
        return in_words(command, rings), rings
    numbers = command.numbers or tuple(runner.under_way)
    words: list[str] = []
    found: list[RingWait] = []
    for number in numbers:
        pending = runner.under_way.get(number)
        if pending is not None:
            rings = rings_of(pending) if isinstance(pending, SendCmd | RecvCmd) else ()
            words.append(f"{in_words(pending, rings)} (number {number})")
            found += rings
    return "; ".join(words), tuple(found)


def _barrier_in_words(barrier: BarrierCmd, missing: Sequence[str]) -> str:
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    have = "has" if len(missing) == 1 else "have"
    return f"barrier {barrier.number} of its launch, to which {', '.join(missing[:_MOST_NAMED])}{more} {have} not come"


def in_words(command: Command, rings: tuple[RingWait, ...] = ()) -> str:
    if isinstance(command, SendCmd | RecvCmd):
        size = f"{command.message.dtype}{list(command.message.shape)}" if isinstance(command, SendCmd) else ""
        size = size or f"{command.dtype}{list(command.shape)}"  # type: ignore[union-attr]  # a receive
        if command.direction is None:
            failure = f"; {rings[0].failure}" if rings and rings[0].failure else ""
            return f"{size}, recv from any of {len(rings)} directions, none of which has a message{failure}"
        return f"{size}, " + " or ".join(str(ring) for ring in rings)
    if isinstance(command, CpuCmd):
        return f"{command.cycles} cycles of PE_CPU"
    if isinstance(command, DmaReadCmd):
        return f"a DMA read of {command.source.nbytes} bytes at {command.source.address:#x}"
    if isinstance(command, DmaWriteCmd):
        what = f"a multicast to {1 + len(command.copies)} places" if command.copies else "a DMA write"
        return f"{what} of {command.target.nbytes} bytes at {command.target.address:#x}"
    if isinstance(command, AtomicCmd):
        return f"atomic_{command.op} of {command.target.nbytes} bytes at {command.target.address:#x}"
    if isinstance(command, GemmCmd):
        return f"GEMM of {command.m} x {command.k} x {command.n}"
    if isinstance(command, MathCmd):
        return f"MATH op {command.op} of {command.elements} elements"
    if isinstance(command, CompositeCmd):
        return f"a composite {command.math_op or command.op}"
    return f"a {type(command).__name__}"
