"""Korean pages are pairs of English ones: linked both ways, with the same code, looked at when those change."""

from __future__ import annotations

import re

import pytest
from tests.korean_pairs import KOREAN, PAIRS, blocks_of, english, hash_of, korean, recorded

AGAIN = "when the Korean page says the same, run: python -m tests.korean_pairs"


@pytest.mark.parametrize("page", PAIRS)
def test_an_english_page_has_not_changed_since_its_pair_was_looked_at(page: str) -> None:
    assert recorded().get(page) == hash_of(english(page)), (
        f"{PAIRS[page]} has changed, and docs/ko/{page} may lag: {AGAIN}"
    )


@pytest.mark.parametrize("page", PAIRS)
def test_a_pair_has_the_same_code_headings_and_tables(page: str) -> None:
    ours, theirs = korean(page), english(page)
    assert blocks_of(ours) == blocks_of(theirs), AGAIN
    if page == "README.md":  # its index is of Korean pages
        return
    for what in (r"^#+ ", r"^\| ", r"^!\["):
        plain = [re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE) for text in (ours, theirs)]
        assert [len(re.findall(what, text, re.MULTILINE)) for text in plain] in ([n, n] for n in range(500)), what


@pytest.mark.parametrize("page", PAIRS)
def test_pairs_link_to_each_other(page: str) -> None:
    assert f"ko/{page})" in english(page)
    back = "index.md" if page == "README.md" else PAIRS[page].removeprefix("docs/")
    assert f"*[English](../{back})*" in korean(page)


@pytest.mark.parametrize("page", PAIRS)
def test_a_korean_page_is_in_korean(page: str) -> None:
    text = re.sub(r"```.*?```", "", korean(page), flags=re.DOTALL)
    assert len(re.findall("[가-힣]", text)) > 500


def test_every_korean_page_has_a_pair() -> None:
    assert sorted(path.name for path in KOREAN.glob("*.md")) == sorted(PAIRS)
