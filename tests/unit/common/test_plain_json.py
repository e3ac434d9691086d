"""One reader of JSON: what it gives is finite, printable and shallow, or it says what is wrong."""

from __future__ import annotations

import pytest

from kernbench.common.plain_json import MOST_LEVELS, parse_json


def test_data_as_deep_as_the_limit_is_read_and_deeper_data_is_refused() -> None:
    around = MOST_LEVELS - 1
    deepest = "[" * around + "{}" + "]" * around
    assert str(parse_json(deepest)) == deepest
    with pytest.raises(ValueError, match="more than 64 levels deep"):
        parse_json(f"[{deepest}]")


def test_what_would_exhaust_the_stack_is_refused_the_same_way() -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, "[" * 500 + "]" * 500):
        with pytest.raises(ValueError, match="more than 64 levels deep"):
            parse_json(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "Expecting property name"),
        (b"\xff{}", "invalid start byte"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b"[" + b"9" * 5000 + b"]", "4300 digits"),
    ],
)
def test_what_is_no_plain_json_says_why(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_whole_characters_are_read_from_their_escapes() -> None:
    assert parse_json('["\\ud83d\\ude00"]') == ["\N{GRINNING FACE}"]
