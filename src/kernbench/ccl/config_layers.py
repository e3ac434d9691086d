"""The layers of `ccl.yaml` as trees with line numbers: the package's file, a file, a mapping; and their merge.

Mappings merge key by key, lists replace. `auto: FILE` in a layer is replaced by the table `auto` of that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from kernbench.common.errors import CclConfigError, Fault, TopologyError
from kernbench.topology.readers import show
from kernbench.topology.yaml_marks import MAX_CHARS, Marked, SourceMark, parse_yaml, shipped_yaml

FILE: Final = "ccl.yaml"
SHIPPED: Final = "kernbench/ccl/ccl.yaml"
SECTIONS: Final = ("defaults", "collectives", "auto", "algorithms")


@cache
def shipped() -> Marked:
    """The file of the package."""
    return shipped_yaml("kernbench.ccl", FILE)


def _stop(where: object, key: str, what: str, hint: str) -> CclConfigError:
    return CclConfigError([Fault(what, str(where), key, hint)])


def read_layer(path: Path, named_by: object) -> Marked:
    """A file as a tree; `named_by` is where its path comes from. Raises CclConfigError if it cannot be read."""
    try:
        data = path.expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a file name"
        raise _stop(named_by, "", f"cannot read '{path}': {reason}", "give the path of a ccl.yaml") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _stop(path, "", "this is not UTF-8 text", "save the file as UTF-8") from None
    if not text.strip() or len(text) > MAX_CHARS:
        raise _stop(path, "", "it is empty, or too long", f"start with {', '.join(f'{s}:' for s in SECTIONS)}")
    try:
        return parse_yaml(text, str(path))
    except TopologyError as error:
        raise CclConfigError(error.faults) from None


def layer_of(value: object, mark: SourceMark) -> Marked:
    """A mapping from the caller as a tree; raises CclConfigError for values that a file cannot have."""
    if isinstance(value, Mapping):
        return Marked({str(key): layer_of(child, mark) for key, child in value.items()}, mark)
    if isinstance(value, list | tuple):
        return Marked([layer_of(child, mark) for child in value], mark)
    if value is None or isinstance(value, str | int | float):
        return Marked(value, mark)
    if isinstance(value, Path):
        return Marked(str(value), mark)
    raise _stop(mark, "", f"{show(value)} cannot stand in a configuration", "use numbers, text, lists and mappings")


def with_table(layer: Marked) -> Marked:
    """A layer in which `auto: FILE` is replaced by that file's own `auto`."""
    if not isinstance(layer.value, dict):
        raise _stop(
            layer.mark, "", f"expected keys and values, got {show(layer.plain())}", f"start with {SECTIONS[0]}:"
        )
    children = dict(layer.value)
    named = children.get("auto")
    if named is not None and isinstance(named.value, str):
        table = read_layer(beside(named.value, named.mark), named.mark)
        found = table.value.get("auto") if isinstance(table.value, dict) else None
        if found is None or not isinstance(found.value, dict):
            raise _stop(table.mark, "auto", "there is no table `auto:` in it", "write it with kernbench tune-ccl")
        children["auto"] = found
    return Marked(children, layer.mark)


def beside(path: str, mark: SourceMark) -> Path:
    """A path relative to the file that names it."""
    return Path(mark.source).parent / Path(path).expanduser() if mark.line else Path(path).expanduser()
