"""Marks text by its role; the caller decides whether roles have colours."""

from __future__ import annotations

from collections.abc import Callable

Paint = Callable[[str, str], str]  # text, role: "title", "pass" or "fail"


def plain(text: str, role: str) -> str:
    """No colour."""
    return text
