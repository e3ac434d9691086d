"""How text is marked by what it is: whoever prints it says whether that is by colour."""

from __future__ import annotations

from collections.abc import Callable

Paint = Callable[[str, str], str]  # text, role: "title", "pass" or "fail"


def plain(text: str, role: str) -> str:
    """No colour."""
    return text
