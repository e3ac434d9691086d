"""What a kernel that cannot go on waits for, and at which of its lines: made when a deadlock is reported."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.commands import (
    AtomicCmd,
    Command,
    CompositeCmd,
    CpuCmd,
    DmaReadCmd,
    DmaWriteCmd,
    GemmCmd,
    MathCmd,
    WaitCmd,
)
from kernbench.common.errors import BlockedKernel
from kernbench.triton_emu.call_site import definition_of, line_of
from kernbench.triton_emu.kernel_runner import KernelRunner


def blocked_kernel(
    runner: KernelRunner, name: str, kernel: Callable[..., object], pe: tuple[int, int, int]
) -> BlockedKernel | None:
    """Where the kernel of a runner stands; None when nothing keeps it. One that has returned, and has composites under
    way, stands at its definition.
    """
    command = runner.command
    if command is None:
        return None
    frame = runner.frame
    place = line_of(frame) if frame is not None else None
    after = "" if place is not None else ", after the kernel's end"
    return BlockedKernel(*pe, name, *(place or definition_of(kernel)), waits_for(command, runner) + after)


def waits_for(command: Command, runner: KernelRunner) -> str:
    """A command in words; for a wait, the commands that are waited for."""
    if isinstance(command, WaitCmd):
        numbers = command.numbers or tuple(runner.under_way)
        left = [(number, runner.under_way[number]) for number in numbers if number in runner.under_way]
        return "; ".join(f"{in_words(pending)} (number {number})" for number, pending in left)
    return in_words(command)


def in_words(command: Command) -> str:
    if isinstance(command, CpuCmd):
        return f"{command.cycles} cycles of PE_CPU"
    if isinstance(command, DmaReadCmd):
        return f"a DMA read of {command.source.nbytes} bytes at {command.source.address:#x}"
    if isinstance(command, DmaWriteCmd):
        return f"a DMA write of {command.target.nbytes} bytes at {command.target.address:#x}"
    if isinstance(command, AtomicCmd):
        return f"atomic_{command.op} of {command.target.nbytes} bytes at {command.target.address:#x}"
    if isinstance(command, GemmCmd):
        return f"GEMM of {command.m} x {command.k} x {command.n}"
    if isinstance(command, MathCmd):
        return f"MATH op {command.op} of {command.elements} elements"
    if isinstance(command, CompositeCmd):
        return f"a composite {command.math_op or command.op}"
    return f"a {type(command).__name__}"
