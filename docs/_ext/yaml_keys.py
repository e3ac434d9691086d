"""Tables of every key of the YAML files: unit, default and range, read from the code that checks them.

A range is what the reader of a value says when it refuses one. A unit is the suffix of the key's name. What a key means
is the comment that stands beside it in the shipped file, or the part `NAME: meaning` of the comment of its block.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from kernbench.ccl import config_check
from kernbench.cli import sweep_file
from kernbench.common.engine_declaration import TIME_NS, Attribute
from kernbench.topology import attrs as part_attrs
from kernbench.topology.record import InvalidValue, ReadBy, Record
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_base import ComponentSpec
from kernbench.topology.spec_cube import CubeSpec
from kernbench.topology.yaml_marks import Marked, parse_yaml

UNITS = {
    "_gbs": "GB/s", "_ns": "ns", "_per_ns": "1/ns", "ns_per_mm": "ns/mm", "_mm": "mm", "_bytes": "bytes",
    "_gb_per_cube": "GiB", "_mb_per_cube": "MiB", "_mb_per_pe": "MiB", "_mb": "MiB", "_ghz": "GHz", "_w": "W", "_mm2": "mm²", "_usd": "USD", "_bits": "bits",
    "page_size": "bytes", "slot_size": "bytes", "point_timeout": "s",
}  # fmt: skip
BLOCK_UNITS = {
    "energy.pj_per_byte": "pJ/byte", "energy.pj_per_mac": "pJ", "energy.pj_per_vector_op": "pJ", "energy.static_w": "W",
    "area.mm2": "mm²", "area.mm2_per_mib": "mm²/MiB", "area.um2_per_mac": "µm²",
    "area.um2_per_lane": "µm²", "area.mm2_per_gbs": "mm² s/GB", "area.mm_per_gbs": "mm s/GB",
    "power.static_w_per_mm2": "W/mm²", "power.far_w_per_gb": "W/GiB", "cost.memory_usd_per_gb": "USD/GiB",
    "cost.far_usd_per_gb": "USD/GiB", "cube.geometry": "mm", "io_chiplet.size_mm": "mm",
}  # fmt: skip
# Of keys that several blocks have.
COMMON = {
    "impl": "the class that models the block",
    "overhead_ns": "charged to what enters the block",
    "clock_ghz": "work takes whole cycles of this clock, rounded up",
    "queue_depth": "stages that wait in front of the engine before the scheduler stalls",
    "bw_gbs": "bandwidth of each direction",
    "distance_mm": "length of the wire; it delays a flit and does not occupy the link",
    "per_connection_bw_gbs": "bandwidth of each direction of one connection",
    "n_connections": "connections of one UCIe port, side by side",
}


class Key(NamedTuple):
    """One row of a table."""

    path: str
    unit: str
    default: str
    accepted: str
    meaning: str


def unit_of(path: str) -> str:
    """The unit that the name of a key, or of its block, states; nothing for counts and choices."""
    for block, unit in BLOCK_UNITS.items():
        if path == block or path.startswith(f"{block}."):
            return unit
    found = [suffix for suffix in UNITS if path.rpartition(".")[2].endswith(suffix)]
    return UNITS[max(found, key=len)] if found else ""


def accepted_by(read: Callable[[object], object]) -> str:
    """What a reader accepts, in the words of its refusal."""
    refusals = [wrong for probe in (object(), 3, 768, 258, 5000) if (wrong := refused(read, probe)) is not None]
    if not refusals:
        return "any value"
    text = re.sub(r"^(give|use) (an? )?", "", refusals[0].hint)
    text = re.sub(r"[\d.]+e\+\d+", lambda number: f"{float(number[0]):.0f}", text)
    if any("not a power of two" in wrong.what for wrong in refusals):
        return text.replace("whole number", "power of two")
    steps = [found[0] for wrong in refusals if (found := re.search(r"multiple of \d+", wrong.what))]
    return f"{text}, a {steps[0]}" if steps else text


def refused(read: Callable[[object], object], value: object) -> InvalidValue | None:
    """How a reader refuses a value, if it does."""
    try:
        read(value)
    except InvalidValue as wrong:
        return wrong
    return None


def accepted(annotation: Any) -> str:
    """What an annotation of a record accepts."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = [mark for mark in arguments[1:] if isinstance(mark, ReadBy)]
        return accepted_by(marks[0].read) if marks else ""
    if origin in (Union, types.UnionType):
        (inner,) = [each for each in arguments if each is not type(None)]
        return f"{accepted(inner)}, or null"
    if origin is tuple:
        each = accepted(arguments[0])
        return f"a list; each: {each}" if arguments[1:] == (...,) else f"{len(arguments)} values; each: {each}"
    if origin is not None and issubclass(origin, Mapping):
        return f"by name; each: {accepted(arguments[1])}"
    return ""


# ------------------------------------------------------------------------------------------------- comments of a file


class Comments:
    """The comments of a YAML file: of a line, with those of the lines below that continue it."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def at(self, line: int) -> str:
        found = [self._of(line)]
        if not found[0]:
            return ""
        for below in range(line + 1, len(self._lines) + 1):
            if not self._lines[below - 1].lstrip().startswith("#") or not self._of(below):
                break
            found.append(self._of(below))
        return " ".join(found)

    def above(self, line: int) -> str:
        """The comment lines right above a line."""
        found: list[str] = []
        for at in range(line - 1, 0, -1):
            if not self._lines[at - 1].lstrip().startswith("#"):
                break
            found.insert(0, self._of(at))
        return " ".join(found)

    def _of(self, line: int) -> str:
        match = re.search(r"(?:^|\s)#\s*(.*)$", self._lines[line - 1])
        return match[1].strip() if match else ""


def part_of_comment(name: str, comment: str) -> str:
    """`meaning` of `NAME: meaning; OTHER: meaning`, or nothing."""
    match = re.search(rf"\b{re.escape(name)}: (.+?)(?:; \w+: |$)", comment)
    return match[1].rstrip(";.") if match else ""


# ------------------------------------------------------------------------------------------------------- the machine


def machine_keys() -> list[Key]:
    """Every key of a machine description, in the order of the shipped file."""
    text = (files("kernbench.topology") / "default.yaml").read_text(encoding="utf-8")
    return list(_record_keys(MachineSpec, parse_yaml(text, "default.yaml"), "", Comments(text), ""))


def _record_keys(record: type[Record], node: Marked | None, path: str, comments: Comments, about: str) -> Iterator[Key]:
    children = node.value if node is not None and isinstance(node.value, dict) else {}
    for name, annotation in record.model_fields.items():
        key, child = f"{path}.{name}" if path else name, children.get(name)
        comment = comments.at(child.mark.line) if child is not None else ""
        own = part_of_comment(name, comment) or part_of_comment(name, about)
        inner = record.at_key(name)
        if inner is ComponentSpec and child is None:  # of a block that is off
            yield Key(key, "", "as built in", "a mapping with `impl` and `attrs`", own or "the block at each end")
        elif inner is ComponentSpec:
            yield from _component_keys(key, name, child, comments)
        elif inner is not None and get_origin(annotation) is tuple:
            yield Key(key, "", "as shipped", "a list of mappings", own or comment)
            yield from _record_keys(inner, None, f"{key}[]", comments, comment)
        elif inner is not None and get_origin(annotation) is Mapping:
            keys = "the keys of cube that differ" if inner is CubeSpec else "keys as in the comment"
            yield Key(key, "", "{}", f"by name; each: {keys}", own or comment)
        elif inner is not None:
            if child is not None and child.value is None:  # a block that is off
                yield Key(key, "", "null", "the keys below, or null", own or comment)
            yield from _record_keys(inner, child, key, comments, comment)
        else:
            flat = child is not None and node is not None and child.mark.line == node.mark.line
            is_given = child is not None or hasattr(record, name)
            value = child.plain() if child is not None else getattr(record, name, None)
            default = _shown(value) if is_given else "required"
            meaning = own or (about if flat else comment) or COMMON.get(name, "")
            yield Key(key, unit_of(key), default, accepted(annotation), meaning)


def _component_keys(path: str, name: str, node: Marked | None, comments: Comments) -> Iterator[Key]:
    """`impl` of a block and its attrs, with the bounds that its class declares."""
    assert node is not None
    assert isinstance(node.value, dict)
    impl, attrs = node.value["impl"], node.value["attrs"]
    comment = comments.at(node.mark.line) or comments.above(node.mark.line)
    about = "" if re.search(r"\b\w+: ", comment) else comment
    kind = str(node.value["kind"].plain())
    yield Key(
        f"{path}.impl", "", _shown(impl.plain()), "`builtin.NAME` or `package.module:Class`", about or COMMON["impl"]
    )
    known, _ = part_attrs.known_attrs(kind, str(impl.plain()))
    assert isinstance(attrs.value, dict)
    for attr, bounds in {"overhead_ns": TIME_NS, **known}.items():
        meaning = part_of_comment(attr, comment) or COMMON.get(attr, "")
        given = attrs.value.get(attr)
        default = _shown(given.plain()) if given is not None else _shown(bounds.default)
        yield Key(f"{path}.attrs.{attr}", unit_of(attr), default, _bounds(bounds), meaning)


def _bounds(attribute: Attribute) -> str:
    form = "whole number" if attribute.form == "whole" else attribute.form
    return f"{form} from {attribute.low:.10g} to {attribute.high:.10g}"


# ------------------------------------------------------------------------------------ collectives and sweeps


def ccl_keys() -> list[Key]:
    """Every key of `ccl.yaml`."""
    text = (files("kernbench.ccl") / "ccl.yaml").read_text(encoding="utf-8")
    tree, comments = parse_yaml(text, "ccl.yaml"), Comments(text)
    assert isinstance(tree.value, dict)
    found = []
    for section, node in tree.value.items():
        assert isinstance(node.value, dict)
        heading = 1 + text.splitlines().index(f"{section}:")
        found.append(Key(section, "", "as shipped", "keys and values", comments.above(heading)))
        if section in ("auto", "algorithms"):
            continue
        for name, child in node.value.items():
            reader = config_check.SETTINGS.get(name) if section == "defaults" else None
            takes = accepted_by(reader) if reader else "an algorithm's name, or `auto`"
            meaning = comments.at(child.mark.line) or comments.above(child.mark.line)
            found.append(Key(f"{section}.{name}", unit_of(name), _shown(child.plain()), takes, meaning))
    found += [
        Key("auto.COLLECTIVE[].up_to_ranks", "", "none", "whole number", "the row holds up to this number of ranks"),
        Key("auto.COLLECTIVE[].up_to_bytes", "bytes", "none", "whole number", "the row holds up to this size"),
        Key("auto.COLLECTIVE[].algorithm", "", "required", "an algorithm's name", ""),
        Key("auto.COLLECTIVE[].chunk_bytes", "bytes", "defaults.chunk_bytes", "as `defaults.chunk_bytes`", ""),
        Key("algorithms.NAME.module", "", "required", "an importable module, or a path", ""),
        Key("algorithms.NAME.params", "", "{}", "keys and values", "arguments that its kernel has by name"),
    ]
    return found


def sweep_keys() -> list[Key]:
    """Every key of a sweep file."""
    return [Key(name, unit_of(name), "none", "", meaning) for name, meaning in sweep_file.KEYS.items()]


# ------------------------------------------------------------------------------------------------------------- tables


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "{}" if not value else "[" + ", ".join(map(_shown, value)) + "]" if isinstance(value, list) else "..."
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(keys: list[Key]) -> str:
    """The keys as Markdown, a table for each block of the file."""
    blocks: dict[str, list[Key]] = {}
    for key in keys:
        blocks.setdefault(block_of(key.path), []).append(key)
    lines: list[str] = []
    for block, rows in blocks.items():
        lines += ["", f"## `{block}`", "", "| key | unit | default | accepted | meaning |", "|---|---|---|---|---|"]
        for row in rows:
            cells = (f"`{row.path.removeprefix(block + '.')}`", row.unit, row.default, row.accepted, row.meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def block_of(path: str) -> str:
    """The part of the file that a key is listed under."""
    parts = path.split(".")
    if path.startswith("cube.pe_template.components."):
        return ".".join(parts[:4])
    return ".".join(parts[:2]) if len(parts) > 2 else parts[0]
