"""What documents and docstrings point to is in the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
OURS = ("topology", "policy", "probes", "report")
TEXTS = [
    *sorted(ROOT.glob("docs/**/*.md")),
    *(path for name in OURS for path in sorted(ROOT.glob(f"src/kernbench/{name}/**/*.py"))),
]


def files_named_in(text: str) -> list[str]:
    """Names in backticks that are a file or a folder by their form."""
    names = re.findall(r"`([\w./-]+)`", text)
    return [name for name in names if "/" in name or name.endswith((".py", ".md", ".yaml"))]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_every_file_that_a_decision_names_exists(decision: Path) -> None:
    tests = {path.name for path in ROOT.glob("tests/**/*.py")}
    places = (ROOT, ROOT / "src" / "kernbench")
    named = files_named_in(decision.read_text(encoding="utf-8"))
    assert [name for name in named if name not in tests and not any((at / name).exists() for at in places)] == []


def test_no_text_names_a_decision_record_that_is_not_in_docs_adr() -> None:
    numbers = {path.name[:4] for path in DECISIONS}
    missing = [
        f"{path.relative_to(ROOT)}: ADR-{number}"
        for path in TEXTS
        for number in re.findall(r"\bADR-?(\d{4})\b", path.read_text(encoding="utf-8"))
        if number not in numbers
    ]
    assert missing == []


def test_every_decision_says_context_decision_consequences_and_guard() -> None:
    for decision in DECISIONS:
        text = decision.read_text(encoding="utf-8")
        assert [part for part in ("Context", "Decision", "Consequences", "Guard") if f"**{part}.**" not in text] == []
