"""What tensors hold of TCM, and until when, is compared where a recorded launch is reused: peaks, addresses in the op
log and overflows are those of a run that simulates every kernel.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_launches import CUBES, Run, machine, outcome, same

from kernbench import repeatable

BLOCK = (128, 1024)  # of f16: 256 KiB, and a kernel has 1 MiB


@repeatable
def keeps(x: Any, y: Any, kept: int, tl: Any) -> None:
    """Makes six blocks of 256 KiB, and keeps the last `kept` of them; its calls do not depend on that."""
    held: list[object] = []
    for number in range(6):
        held.append(tl.full(BLOCK, number, "f16"))
        del held[: max(len(held) - kept, 0)]
    tl.store(y.local, tl.load(x.local, (8, 64)))


@repeatable
def keeps_by_cube(x: Any, y: Any, tl: Any) -> None:
    """Cube 0 keeps none, cube 1 one."""
    first = tl.full((8, 64), 1, "f16")
    if not tl.program_id(1):
        del first
    tl.store(y.local, tl.load(x.local, (8, 64)))


@repeatable
def keeps_a_handle(x: Any, y: Any, keeps: bool, tl: Any) -> None:
    """What a load brings is kept by its handle, which one kernel keeps and another drops without a wait."""
    asked = tl.load_async(x.local, (8, 64))
    if not keeps:
        del asked
    tl.wait()
    tl.store(y.local, tl.exp(tl.full((8, 64), 1, "f16")))


@repeatable
def keeps_a_result(x: Any, y: Any, kept: int, tl: Any) -> None:
    """The result of a composite is kept by its handle (1), or as a tensor that was taken from it (2)."""
    under_way = tl.composite("math", tl.ref(x.local, (8, 64)), math_op="exp")
    result = under_way.out
    if kept != 1:
        del under_way
    if kept != 2:
        del result
    tl.wait()
    tl.store(y.local, tl.exp(tl.full((8, 64), 1, "f16")))


@repeatable
def drops_while_under_way(x: Any, y: Any, tl: Any) -> None:
    """Engines keep what they need, whatever the kernel drops."""
    tl.store_async(y.local, tl.load(x.local, (8, 64)))
    tl.composite("math", tl.exp(tl.load(x.local, (8, 64))), math_op="exp")
    tl.load_async(x.local, (8, 64))
    tl.full((8, 64), 1, "f16")
    tl.wait()
    tl.store(y.local, tl.full((8, 64), 1, "f16"))


def launches(kernel: Any, *several: tuple[object, ...]) -> Any:
    """One launch for each tuple of arguments."""

    def program(run: Run) -> None:
        x, y = run.tensors()
        for args in several:
            run.launch(kernel, x, y, *args)

    return program


def test_a_kernel_that_keeps_too_much_for_its_arguments_fails_as_it_does_alone() -> None:
    """Three blocks and the load fit in 1 MiB, a fourth block leaves no room for the load: 4 * 256 KiB is all."""
    program = launches(keeps, (1,), (3,), (4,))
    assert same(program) == 2 * CUBES
    assert "TCM overflow" in str(outcome(program, machine()).notes)


@pytest.mark.parametrize(
    ("kernel", "several", "reused"),
    [
        (keeps, ((1,), (2,), (1,), (2,)), 4),
        (keeps_by_cube, ((), ()), 2),
        (keeps_a_handle, ((True,), (False,), (True,)), 3),
        (keeps_a_result, ((1,), (2,), (0,), (1,)), 4),
        (drops_while_under_way, ((), ()), 2),
    ],
)
def test_peaks_and_addresses_are_those_of_a_run_of_every_kernel(
    kernel: Any, several: tuple[tuple[object, ...], ...], reused: int
) -> None:
    assert same(launches(kernel, *several)) == reused * CUBES
