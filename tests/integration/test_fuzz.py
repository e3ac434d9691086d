"""A short round of the fuzzer; `make fuzz` runs the long one."""

import pytest
from tests.fuzz import run_rounds


@pytest.mark.parametrize("chunk", range(3))
def test_mutated_machines_and_commands_end_in_success_or_one_message(chunk: int) -> None:
    codes, bad = run_rounds(50, seed=1_000_000 + 50 * chunk)
    assert [(seed, outcome.fault, outcome.args) for seed, outcome in bad] == []
    assert codes[2] > 0, "the mutations no longer break anything: the fuzzer has gone blunt"
    assert codes[0] > 0, "nothing succeeds any more: the fuzzer only sees one path"
