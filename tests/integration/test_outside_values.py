"""A repeatable kernel whose outside values change while it is under way is an error, and one whose outside values may
change unseen is simulated on every PE.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.integration.test_replayed_launches import CUBES, Run, machine, outcome, same

from kernbench import repeatable
from kernbench.common.errors import KernelError

ROUNDS = 2


@repeatable
def counts(x: Any, y: Any, tl: Any) -> None:
    """Looks at a global after every load."""
    done = 0
    while done < ROUNDS:
        tl.store(y.local, tl.exp(tl.load(x.local, (8, 64))))
        done += 1


@repeatable
def by_chance(x: Any, y: Any, tl: Any) -> None:
    for _ in range(random.randrange(1, 2)):  # one
        tl.store(y.local, tl.load(x.local, (8, 64)))


def launched(kernel: Any, change: Any = None, after_ns: float = 0.0, then: Any = None) -> Any:
    """Three launches; the second is asynchronous, `change` happens so long after it was made, and `then` 1 ns later."""

    def program(run: Run) -> None:
        x, y = run.tensors()
        run.launch(kernel, x, y)
        made = run.launch(kernel, x, y, wait=False)
        if change is not None:
            run.happens(after_ns, change)
        if then is not None:
            run.happens(after_ns + 1, lambda: then(run))
        run.torch.wait(made)
        run.launch(kernel, x, y)

    return program


def start_ns() -> float:
    """How long after its making the second launch begins on its PEs."""
    run = outcome(launched(counts), machine(), fast=False)
    first, second, _ = run.launches
    return min(pe.start_ns for pe in second.pes) - first.end_ns


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Changes the global."""
    return lambda: monkeypatch.setitem(globals(), "ROUNDS", 3)


def test_a_global_that_changes_between_launches_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(run: Run) -> None:
        x, y = run.tensors()
        for rounds in (2, 3, 2):
            monkeypatch.setitem(globals(), "ROUNDS", rounds)
            run.launch(counts, x, y)

    assert same(program) == 3 * CUBES


def test_one_that_changes_before_the_kernel_begins_is_followed(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before_ns = start_ns() / 2

    def program(run: Run) -> None:
        monkeypatch.setitem(globals(), "ROUNDS", 2)
        launched(counts, more, before_ns)(run)

    assert same(program) == 3 * CUBES


def test_one_that_changes_while_the_kernel_runs_is_an_error(more: Any) -> None:
    """Simulated in full the kernel would see it in its second round, and make a third."""
    with pytest.raises(KernelError, match="'ROUNDS', which it reads, changed while it ran") as caught:
        outcome(launched(counts, more, start_ns() + 1), machine())
    assert "test_outside_values.py:" in str(caught.value.where)


def test_one_that_changes_before_another_access_interrupts_the_replay_is_an_error(more: Any) -> None:
    """From the interruption on the kernel is simulated from its begin, where it would have seen the former value."""
    with pytest.raises(KernelError, match="'ROUNDS', which it reads, changed while it ran"):
        outcome(launched(counts, more, start_ns() + 1, then=lambda run: run.engine.link_counters()), machine())


def test_a_kernel_that_changes_a_list_is_an_error() -> None:
    seen: list[int] = []

    @repeatable
    def kernel(x: Any, y: Any, tl: Any) -> None:
        seen.append(tl.program_id(0))
        tl.store(y.local, tl.load(x.local, (8, 64)))

    with pytest.raises(KernelError, match="'seen', which it reads, changed while it ran"):
        outcome(launched(kernel), machine())


def test_a_kernel_that_changes_a_list_while_it_is_recorded_in_vain_is_an_error() -> None:
    """It leaves its SIP: nothing is replayed, but it was called to find that out, and its list has changed."""
    seen: list[int] = []

    @repeatable
    def kernel(x: Any, y: Any, tl: Any) -> None:
        seen.append(tl.program_id(0))
        tl.store(y.local, tl.load(x, (8, 64)))

    def program(run: Run) -> None:
        x, y = run.tensors()
        run.launch(kernel, x, y, sips=(0, 1))

    with pytest.raises(KernelError, match="'seen', which it reads, changed while it ran"):
        outcome(program, machine())


def test_a_kernel_that_draws_random_numbers_is_simulated_on_every_pe() -> None:
    assert same(launched(by_chance)) == 0
    stats = outcome(launched(by_chance), machine()).engine.simulation_stats().launches
    assert stats.given_up == {"the kernel reads random.Random.randrange": 3}
