"""Advice in the words of Triton's programs, which have grids, `num_stages` and placements where our kernels have
`tl.load_async`, composites and policies.
"""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = (
    (
        r"double-buffer: start the next load with tl\.load_async before computing, or use a composite, which overlaps "
        "tiles",
        "let loads run ahead in a loop: a larger num_stages, or smaller blocks",
    ),
    (r"\(tl\.load_async, pe_dma outstanding\)", "(num_stages, pe_dma outstanding)"),
    (
        r"do more work per launch, or launch with wait=False so that launches overlap",
        "do more work per launch: fuse kernels",
    ),
    (
        r"divide the work over all ([\d,]+) PEs: by tl\.program_id, or each PE its own part \(x\.local\)",
        r"give the grid a program for each of the \1 PEs: smaller blocks",
    ),
    (r"or let PEs take blocks from a shared counter", 'or take programs from a queue (schedule="dynamic")'),
    (
        r'keep a copy of (.+?) in each cube that reads it \(DPPolicy\(cube="replicate".*?\)\), or let each PE read the '
        "part that lies in its own cube",
        r'keep copies of \1 (placement="replicate"), or let programs read the part that lies next to their PE',
    ),
    (
        r"place (.+?) so that each PE reads and writes the part that lies in its own cube",
        r"let the kernel place \1 itself: it lies where an earlier launch or the placement has put it",
    ),
    (r"larger blocks, or a composite instead of single ops", "larger blocks"),
    (
        r"use a composite with larger tiles, so that operands are fetched less often",
        "use larger blocks, so that operands are fetched less often",
    ),
)


def in_words_of_triton(hint: str) -> str:
    """The same advice for a Triton program."""
    for ours, theirs in _WORDS:
        hint = re.sub(ours, theirs, hint)
    return hint
