"""Values of an axis as text."""

from __future__ import annotations

import pytest

from kernbench.cli.sweep_values import split_values
from kernbench.common.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("128,256", ["128", "256"]),
        ("load, ref", ["load", "ref"]),
        ("16..64+16", ["16", "32", "48", "64"]),
        ("128..1000*2", ["128", "256", "512"]),
        ("1..3", ["1", "2", "3"]),
        ("0.1..0.3+0.1", ["0.1", "0.2", "0.3"]),  # exact, as written
        ("1e3..4e3*2,7", ["1000", "2000", "4000", "7"]),
        ("[1, 2],[3, 4]", ["[1, 2]", "[3, 4]"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("1.5,-2", ["1.5", "-2"]),
        ("5..5", ["5"]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert split_values(text, "here") == values


@pytest.mark.parametrize("text", ["", "1,,2", "4..1", "1..9*1", "0..9*2", "1..9+0", "1..9+-1", "0..1e9"])
def test_what_is_no_list_of_values(text: str) -> None:
    with pytest.raises(UsageError):
        split_values(text, "here")


def test_a_long_range_without_a_step_is_refused_with_its_size_unless_it_is_sampled() -> None:
    with pytest.raises(UsageError) as caught:
        split_values("2048..8192", "--over tokens=2048..8192")
    assert caught.value.what == "'2048..8192' has 6,145 values in steps of 1"
    assert caught.value.hint == "give a step, 2048..8192*2 or 2048..8192+768, or write values with commas"
    for text, count in (("2048..8192+1", 6145), ("1..1000", 1000)):
        assert len(split_values(text, "here")) == count
    assert len(split_values("2048..8192", "here", is_sampled=True)) == 6145
