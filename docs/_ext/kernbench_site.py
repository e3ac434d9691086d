"""What the site has besides the pages of this folder: the reference, made from the code, and two files of the root.

A page named below is a stub in the repository. When the site is built, what is made for it is put under its text; a
file of the root takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import api_pages
import yaml_keys

ROOT = Path(__file__).parents[2]


def root_file(name: str) -> str:
    """A page of the repository's root, with its links as seen from docs/."""
    return re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))


def contents(*pages: str) -> str:
    """A table of contents that is seen at the side only."""
    return "\n".join(["```{toctree}", ":hidden:", ":glob:", "", *pages, "```", ""])


MADE: dict[str, Callable[[], str]] = {
    "adr/README": lambda: contents("0*"),
    "reference/README": lambda: contents("tl", "torch", "python", "cli", "machine-yaml", "ccl-yaml", "sweep-yaml"),
    "reference/tl": api_pages.tl_page,
    "reference/torch": api_pages.torch_page,
    "reference/python": api_pages.python_page,
    "reference/machine-yaml": lambda: yaml_keys.table(yaml_keys.machine_keys()),
    "reference/ccl-yaml": lambda: yaml_keys.table(yaml_keys.ccl_keys()),
    "reference/sweep-yaml": lambda: yaml_keys.table(yaml_keys.sweep_keys()),
}
FROM_ROOT = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}


def add_made_text(app: object, name: str, source: list[str]) -> None:
    """Sphinx has read a page."""
    if name in MADE:
        source[0] = f"{source[0].rstrip()}\n\n{MADE[name]()}"
    elif name in FROM_ROOT:
        source[0] = root_file(FROM_ROOT[name])


def help_as_rst(app: object, ctx: object, lines: list[str]) -> None:
    """sphinx-click takes help texts for reStructuredText: a star there is a star, and `code` is code."""
    lines[:] = [re.sub(r"(?<![`:])`([^`]+)`(?!`)", r"``\1``", line.replace("*", "\\*")) for line in lines]


def setup(app) -> dict[str, bool]:  # app: Sphinx's own, on which the package does not depend
    app.connect("source-read", add_made_text)
    app.connect("sphinx-click-process-options", help_as_rst)
    app.connect("sphinx-click-process-description", help_as_rst)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
