"""What to try against each cause of lost time, in words of the machine's own memory: HBM, TCM or SRAM."""

from __future__ import annotations

from typing import Final

from kernbench.report.explain.classes import (
    COMMUNICATION,
    CREDIT,
    FETCH_STORE,
    GEMM,
    HOST,
    ISSUE,
    LATENCY,
    LAUNCH,
    MATH,
    TRANSFER,
)
from kernbench.report.explain.finding import MESSAGES, OVERLAP
from kernbench.report.memory_times import home_name
from kernbench.report.runs.parts import TILE
from kernbench.topology.spec import MachineSpec

BARRIER: Final = "barrier"  # the name of an op
WITHOUT_HBM: Final = {  # by the memory that tensors lie in: more of it, what to use instead of SRAM, the nearest
    "sram": ("the SRAM of more cubes", "TCM, or the SRAM of more cubes,", "the SRAM of the PE's own cube"),
    "tcm": ("the TCM of more PEs", "TCM", "the PE's own TCM"),
}


def hint_of(cause: str, spec: MachineSpec) -> str:
    """The advice for a class of time, a class of links or a cause, on that machine."""
    home = home_name(spec)
    more = f"more {home} {'stacks' if spec.cube.has_stacks else 'slices'}"
    instead = "TCM or HBM" if home == "HBM" else "TCM or SRAM slices"  # of a cube's SRAM
    if not spec.cube.has_hbm:
        more, instead, _ = WITHOUT_HBM[spec.cube.home.space]
    return HINTS.get(cause, HINTS[LATENCY]).format(home=home, more=more, instead=instead)


def own_memory(spec: MachineSpec) -> str:
    """The memory that is nearest to a PE."""
    if not spec.cube.has_hbm:
        return WITHOUT_HBM[spec.cube.home.space][2]
    return "the PE's own HBM" if spec.cube.has_stacks else f"the PE's own {home_name(spec)} slice"


HINTS: Final = {
    "hbm channel": "spread the tensors over {more}, or let PEs read different parts at a time",
    "hbm port": "spread the tensors over {more}, or let PEs read different parts at a time",
    "channel router": "spread the accesses over more {home} channels, or the tensors over {more}",
    "sram port": "use {instead} for what several PEs read at a time",
    "far link": "keep what is read often in {home}, or load it earlier",
    "router": "place tensors nearer to the PEs that read them, or spread them over {more}",
    "pe port": "let fewer transfers of the PE overlap, or move fewer bytes",
    "ucie": "keep traffic within its cube, or spread it over more of the cube's sides",
    "sip link": "send less from SIP to SIP, or over more of the links between them",
    "io": "send less through the IO chiplet, or use more of them",
    "pcie": "write less from the host, or earlier: tensors that stay on the device need no transfer",
    "command": "launch less often, with more work each",
    "pe internal": "let fewer ops of the PE overlap",
    OVERLAP: "double-buffer: start the next load with tl.load_async before computing, or use a composite, which "
    "overlaps tiles",
    MESSAGES: "send fewer, larger messages, take an algorithm with fewer steps, or overlap messages with compute",
    BARRIER: "use fewer barriers: only where PEs read what others wrote",
    CREDIT: "give rings more or larger slots (n_slots, slot_size), or let receivers take messages earlier",
    ISSUE: "give the engines more work per command: larger blocks, or a composite instead of single ops",
    LATENCY: "move more bytes per transfer, or have more under way (tl.load_async, pe_dma outstanding)",
    LAUNCH: "do more work per launch, or launch with wait=False so that launches overlap",
    HOST: "write tensors before they are needed, or let them stay on the device",
    GEMM: "spread the product over more PEs; its engine is the bound",
    MATH: "spread the rows over more PEs, or fuse ops so that fewer pass the lanes",
    FETCH_STORE: "use a composite with larger tiles, so that operands are fetched less often",
    TRANSFER: "read fewer bytes (reuse what is in TCM), or spread them over more PEs and {more}",
    TILE: 'use larger tiles, which read operands less often: tile_shape="auto" takes the fastest of the model',
    COMMUNICATION: "send fewer, larger messages, or overlap them with compute",
}
