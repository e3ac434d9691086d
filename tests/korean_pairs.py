"""The Korean pages and the English pages that they are pairs of.

    python -m tests.korean_pairs

copies the code of the English pages into their pairs and records that these were looked at: the hash of each English
page, in docs/ko/pairs.json. Run it when the text of the Korean page says what the English one does
(tests/unit/test_korean_pages.py).
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
KOREAN = ROOT / "docs" / "ko"
RECORDED = KOREAN / "pairs.json"
PAIRS = {
    "README.md": "README.md",
    "glossary.md": "docs/glossary.md",
    "many-devices.md": "docs/guides/many-devices.md",
    "model-a-machine.md": "docs/guides/model-a-machine.md",
    "write-a-kernel.md": "docs/guides/write-a-kernel.md",
}
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def english(page: str) -> str:
    return (ROOT / PAIRS[page]).read_text(encoding="utf-8")


def korean(page: str) -> str:
    return (KOREAN / page).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def blocks_of(text: str) -> list[str]:
    """The code of a page, block by block."""
    return BLOCK.findall(text)


def recorded() -> dict[str, str]:
    return dict(json.loads(RECORDED.read_text(encoding="utf-8")))


def main() -> None:
    for page in PAIRS:
        code, text = blocks_of(english(page)), korean(page)
        if len(blocks_of(text)) != len(code):
            raise SystemExit(f"{page} has {len(blocks_of(text))} blocks of code, {PAIRS[page]} has {len(code)}")
        following = iter(code)
        (KOREAN / page).write_text(BLOCK.sub(lambda _, code=following: next(code), text), encoding="utf-8")
    found = {page: hash_of(english(page)) for page in PAIRS}
    RECORDED.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
