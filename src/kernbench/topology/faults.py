"""Turns problems of a description into faults with a key path, a line and a hint."""

from __future__ import annotations

import re

from kernbench.common.errors import Fault
from kernbench.common.frozen import frozen
from kernbench.topology.readers import closest, show
from kernbench.topology.record import Loc, Problem, Record, RecordError
from kernbench.topology.spec import MachineSpec
from kernbench.topology.yaml_marks import Marked, SourceMark

_INDEX = re.compile(r"\[(\d{1,6})\]")


def key_path(loc: Loc) -> str:
    """`sip.io_chiplets[0].side`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def key_loc(path: str) -> Loc:
    """Read a key path; list indices may be written `.0` or `[0]`."""
    parts = _INDEX.sub(r".\1", path).split(".")
    return tuple(int(part) if re.fullmatch(r"\d{1,6}", part) else part for part in parts)


def mark_at(tree: Marked, loc: Loc) -> SourceMark:
    """The source position of a key, or of the nearest enclosing key that exists."""
    node = tree
    for part in loc:
        child = child_of(node, part)
        if child is None:
            break
        node = child
    return node.mark


def child_of(node: Marked, part: str | int) -> Marked | None:
    if isinstance(node.value, dict):
        return node.value.get(str(part))
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


@frozen
class UnplacedFault:
    """A fault without its source line. `uses` are the other keys that the finding depends on. `is_lack`: of memory."""

    key: str
    what: str
    hint: str
    uses: tuple[str, ...] = ()
    is_lack: bool = False

    def fault(self, tree: Marked, inherited: str = "") -> Fault:
        """The fault with its line. If that line is in the `inherited` source, a value of the user's file is named."""
        loc = key_loc(self.key)
        mark = mark_at(tree, loc)
        if mark.source == inherited:
            for use in self.uses:
                own = _user_value(tree, key_loc(use), inherited)
                if own:
                    return Fault(self.what, str(mark_at(tree, own)), key_path(own), self.hint, self.is_lack)
        return Fault(self.what, str(mark), self.key, self.hint, self.is_lack)


def _user_value(tree: Marked, loc: Loc, inherited: str) -> Loc | None:
    """The first value at or below `loc` that does not come from the inherited source."""
    node = tree
    for part in loc:
        child = child_of(node, part)
        if child is None:
            return None
        node = child
    if isinstance(node.value, dict):
        for key in node.value:
            found = _user_value(tree, (*loc, key), inherited)
            if found:
                return found
        return None
    return loc if node.mark.source != inherited else None


def findings_of(error: RecordError, whole: type[Record] = MachineSpec) -> list[tuple[Loc, UnplacedFault]]:
    """Every problem of a description, with its location. `whole` is the record that was read."""
    return [(problem.loc, _finding(problem, whole)) for problem in error.problems]


def _finding(problem: Problem, whole: type[Record]) -> UnplacedFault:
    kind, loc, value = problem.kind, problem.loc, problem.value
    key, last = key_path(loc), str(loc[-1]) if loc else ""
    if kind == "unknown_key":
        known = _keys_at(loc[:-1], whole)
        hint = f"known keys here: {', '.join(known)}" if known else "delete it"
        return UnplacedFault(key, f"unknown key '{last[:60]}'{closest(last, known)}", hint)
    if kind == "unknown_part":
        known = _keys_at(loc[:-1], whole)
        hint = f"known keys here: {', '.join(known)}; a part of your own needs `impl: package.module:Class`"
        return UnplacedFault(key, f"unknown key '{last[:60]}'{closest(last, known)}", hint)
    if kind == "missing":
        return UnplacedFault(key, f"the key '{last}' is missing", f"add `{last}: ...` here")
    if kind == "no_mapping":
        known = _keys_at(loc, whole)
        hint = f"give some of the keys {', '.join(known)}, or delete this one to inherit" if known else "give keys"
        return UnplacedFault(key, f"expected keys and values, got {show(value)}", hint)
    if kind == "no_list":
        return UnplacedFault(key, f"expected a list, got {show(value)}", "write a list: [a, b]")
    if kind == "length":
        return UnplacedFault(
            key, "the list does not have the right length", "give as many entries as the shipped machine"
        )
    return UnplacedFault(key, problem.what, problem.hint)


def _keys_at(loc: Loc, whole: type[Record]) -> list[str]:
    """The keys of the record at a location."""
    record: type[Record] | None = whole
    for part in loc:
        if not isinstance(part, int):
            record = record.at_key(part) if record else None
    return list(record.model_fields) if record else []
