"""A YAML file that a command, or a parameter of a bench, is given."""

from __future__ import annotations

from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.topology.yaml_marks import MAX_CHARS, Marked, parse_yaml


def read_yaml(name: str, what: str, example: str) -> Marked:
    """The contents of a file, with line numbers; raises UsageError or TopologyError for what cannot be read. `example`
    is what an empty file should have.
    """
    try:
        with Path(name).open("rb") as file:
            text = file.read(4 * MAX_CHARS).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"the {what} cannot be read: {why}", where=name, hint="give a YAML file") from None
    if all(line.strip() in ("", "---") or line.lstrip().startswith("#") for line in text.splitlines()):
        raise UsageError(f"the {what} is empty: there is nothing in it", where=name, hint=f"write {example}")
    return parse_yaml(text, name)
