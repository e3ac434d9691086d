"""`tl`: one write to several places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from kernbench.common.commands import DmaWriteCmd, Segment
from kernbench.triton_emu.block_access import Block
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_runner import Records
from kernbench.triton_emu.tl_access import TlAccess
from kernbench.values.graph import Value


class TlMulticast(TlAccess):
    """Multicasts of the network on chip."""

    def multicast(self, ptrs: Sequence[int], value: TensorHandle) -> None:
        """Write a tensor to several places at once, say to the memories of a rectangle of PEs, and wait for the last
        acknowledgement. The bytes leave this PE once, and cross every link of the tree of paths once.

        Shape: any, dense; the same at every place. dtype: that of the tensors that `ptrs` point into. Engine: DMA
        (write channel), one request. Places do not overlap, each lies in one memory and begins at a burst of it, and
        their paths form a tree, as those to PEs of one cube do; anything else is refused, and so are PEs of other SIPs
        and machines whose buffers are owned by packets. Waits for what this kernel has yet to write or read there.
        """
        if not isinstance(ptrs, list | tuple) or len(ptrs) < 2:
            self._fail(f"multicast to {ptrs!r}", "give a list of two or more pointers; tl.store writes to one place")
        commands: list[DmaWriteCmd] = []
        blocks: list[tuple[Block, Value]] = []
        for ptr in ptrs:
            cmd, block, known = self._target_of("multicast", ptr, value, None, None, None)
            if cmd is None:
                self._fail("multicast of no bytes", "give a tensor that has elements")
            if len(block.requests) != 1:
                self._fail("multicast to a block in several pieces", "give rows that follow one another in one memory")
            commands.append(cmd)
            blocks.append((block, known))
        self._check_apart([segment for block, _ in blocks for segment in block.segments])
        first, *others = commands
        deps = tuple(dict.fromkeys(dep for cmd in commands for dep in cmd.deps))
        copies = tuple(cmd.requests[0] for cmd in others)
        self._call(first._replace(deps=deps, copies=copies), partial(self._write_blocks, blocks))

    def _check_apart(self, segments: list[Segment]) -> None:
        """No byte is written twice."""
        ordered = sorted(segments)
        for (at, nbytes), (following, _) in pairwise(ordered):
            if at + nbytes > following:
                self._fail("multicast to places that overlap", "give every place once")

    def _write_blocks(self, blocks: Sequence[tuple[Block, Value]], records: Records) -> None:
        for block, known in blocks:
            self._write_block(block, known, records)
