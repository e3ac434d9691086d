"""A machine description as a stack of layers: the shipped machine, the files along the `base:` chain, the overrides.

Mappings merge key by key; lists and scalars replace; null deletes named entries of a base (`NAMED`). If a layer sets
one of two keys that are derived from each other, the inherited value of the other is cleared (see
`_clear_superseded`). Every value keeps its source line.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import NoReturn

from kernbench.common.errors import Fault, TopologyError
from kernbench.topology.cube_types import differences
from kernbench.topology.faults import child_of, key_loc, key_path
from kernbench.topology.readers import show
from kernbench.topology.record import Loc
from kernbench.topology.spec import MachineSpec
from kernbench.topology.yaml_marks import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_VALUES,
    Marked,
    SourceMark,
    merge,
    parse_yaml,
    shipped_yaml,
)

Source = str | Path | MachineSpec | Mapping[str, object] | None
Overrides = Mapping[str, object]

SHIPPED = "default"
SHIPPED_FILE = "kernbench/topology/default.yaml"
_MAX_BASES = 16
NAMED = (  # mappings of entries that the shipped machine has none of: null deletes what a base has
    ("system", "switch_levels"),
    ("system", "sips", "types"),
    ("sip", "cube_types"),
    ("cube_types",),
    ("sip_types",),
)


def stacked(source: Source, overrides: Overrides) -> Marked:
    """All layers merged; raises TopologyError for a layer that cannot be read."""
    return _with_types(_without_nulls(_override(_stack(source), overrides)))


def _without_nulls(tree: Marked) -> Marked:
    """The tree in which null in place of named entries is none of them, and null in place of one is not that one."""
    for path in NAMED:
        holder = _children(tree, *path[:-1])
        node = holder.get(path[-1])
        if node is None or not (node.value is None or isinstance(node.value, dict)):
            continue
        kept = {key: child for key, child in (node.value or {}).items() if child.value is not None}
        if kept != node.value:
            tree = _replaced(tree, path, Marked(kept, node.mark))
    return tree


def _replaced(tree: Marked, path: tuple[str, ...], node: Marked) -> Marked:
    """The tree with another node at a path."""
    if not path:
        return node
    children = _children(tree)
    return Marked({**children, path[0]: _replaced(children[path[0]], path[1:], node)}, tree.mark)


def _with_types(tree: Marked) -> Marked:
    """The tree with every type of cube filled in: `cube`, and over it what the type names."""
    types = _children(tree, "cube_types")
    if not types or not _children(tree, "cube"):
        return tree
    cube = _children(tree)["cube"]
    whole = {}
    for name, own in types.items():
        both = Marked({"cube": merge(cube, own)}, own.mark)
        cleared = _clear_superseded(both, Marked({"cube": own}, own.mark)) if isinstance(own.value, dict) else both
        whole[name] = _children(cleared)["cube"] if isinstance(own.value, dict) else own
    mark = _children(tree)["cube_types"].mark
    return Marked({**_children(tree), "cube_types": Marked(whole, mark)}, tree.mark)


def _dump(spec: MachineSpec) -> dict[str, object]:
    """A spec as a layer: of each type of cube, what differs from `cube`, so that overrides of `cube` hold for it."""
    values = spec.model_dump()
    values["cube_types"] = {name: differences(values["cube"], cube) for name, cube in values["cube_types"].items()}
    return values


def network_tree(source: Source, overrides: Overrides) -> Marked | None:
    """The description of a plain network, which inherits nothing; None where the source describes a machine."""
    if isinstance(source, str | Path) and source != SHIPPED:
        tree = _read(Path(source), SourceMark(str(source)))
    elif isinstance(source, Mapping):
        tree = _marked(source, SourceMark("the mapping given"))
    else:
        return None
    if not isinstance(tree.value, dict) or "network" not in tree.value:
        return None
    return _override(tree, overrides)


def _stop(mark: SourceMark | str, key: str, what: str, hint: str) -> NoReturn:
    raise TopologyError([Fault(what, str(mark), key, hint)])


# ------------------------------------------------------------------------------------------------------------ layers


@cache
def shipped() -> Marked:
    """The machine that comes with the package, as a tree."""
    return shipped_yaml("kernbench.topology", "default.yaml")


def _stack(source: Source) -> Marked:
    if source is None or source == SHIPPED:
        return shipped()
    if isinstance(source, str | Path):
        path = Path(source)
        layers = _with_base(_read(path, SourceMark(str(path))), path, [])
    elif isinstance(source, MachineSpec):
        layers = [_marked(_dump(source), SourceMark("the machine's spec"))]
    elif isinstance(source, Mapping):
        layers = _with_base(_marked(source, SourceMark("the mapping given")), Path("mapping"), [])
    else:
        _stop("load_topology", "", f"cannot load a machine from {show(source)}", "give a path, a mapping or a spec")
    tree = layers[0]
    for layer in layers[1:]:
        tree = _clear_superseded(merge(tree, layer), layer)
    return tree


def _with_base(layer: Marked, path: Path, above: list[Path]) -> list[Marked]:
    """The layers of a file: the shipped machine, the chain of bases, the file itself."""
    if not isinstance(layer.value, dict):
        what = f"expected keys and values, got {show(layer.plain())}"
        _stop(layer.mark, "", what, "start with `system:`, `sip:`, `io_chiplet:`, `cube:` or `base:`")
    base = layer.value.get("base")
    own = Marked({key: child for key, child in layer.value.items() if key != "base"}, layer.mark)
    if base is None or base.value == SHIPPED:
        return [shipped(), own]
    if not isinstance(base.value, str) or not base.value:
        what = f"expected the path of another machine, got {show(base.plain())}"
        _stop(base.mark, "base", what, "give a path relative to this file, or `default`")
    target = path.parent / base.value
    chain = [*above, path]
    if any(_same(target, seen) for seen in chain):
        _stop(base.mark, "base", f"'{base.value}' leads back to itself", "break the circle of bases")
    if len(chain) > _MAX_BASES:
        _stop(base.mark, "base", f"more than {_MAX_BASES} bases stand on each other", "merge some of them")
    return [*_with_base(_read(target, base.mark, "base"), target, chain), own]


def _same(a: Path, b: Path) -> bool:
    try:
        return a.resolve() == b.resolve()
    except (OSError, RuntimeError, ValueError):
        return a == b


def _read(path: Path, mark: SourceMark, key: str = "") -> Marked:
    """Parse a file; `mark` is where it was named, for errors if it cannot be read."""
    try:
        path = path.expanduser()
        if not path.exists():
            _stop(mark, key, f"there is no file '{path}'", "check the path; without one, the shipped machine is used")
        if not path.is_file():
            _stop(mark, key, f"'{path}' is not a file", "give a YAML file")
        with path.open("rb") as file:
            data = file.read(MAX_CHARS * 4 + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "the name is not a file name"
        _stop(mark, key, f"cannot read {show(str(path))}: {reason}", "check the path and its permissions")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _stop(SourceMark(str(path), line), "", "this is not UTF-8 text", "save the file as UTF-8")
    return parse_yaml(text, str(path))


def _marked(value: object, mark: SourceMark) -> Marked:
    """A Python value as a tree in which every node has the same mark."""
    budget = [MAX_VALUES]

    def build(part: object, depth: int) -> Marked:
        budget[0] -= 1
        if depth > MAX_DEPTH or budget[0] < 0:
            _stop(mark, "", "the value is nested too deep or too large", "a machine needs a few hundred values")
        if isinstance(part, Mapping):
            return Marked({str(key): build(child, depth + 1) for key, child in part.items()}, mark)
        if isinstance(part, list | tuple):
            return Marked([build(child, depth + 1) for child in part], mark)
        if part is None or isinstance(part, str | int | float | bool):
            return Marked(part, mark)
        if isinstance(part, Integral):
            return Marked(int(part), mark)  # numpy integers are not `int`
        _stop(mark, "", f"{show(part)} cannot stand in a machine description", "use numbers, text, lists and mappings")

    return build(value, 1)


# --------------------------------------------------------------------------------------------------------- overrides


def _override(tree: Marked, overrides: Overrides) -> Marked:
    faults: list[Fault] = []
    layer = Marked({}, tree.mark)
    if not isinstance(overrides, Mapping):
        _stop("load_topology", "", f"cannot override with {show(overrides)}", 'give {"system.sips.count": 4}')
    for key, value in overrides.items():
        try:
            step = _override_layer(tree, key, value)
        except TopologyError as error:
            faults += error.faults
            continue
        tree, layer = merge(tree, step), merge(layer, step)
    if faults:
        raise TopologyError(faults)
    return _clear_superseded(tree, layer)


def _override_layer(tree: Marked, key: str, value: object) -> Marked:
    """One override as a layer that holds nothing else."""
    if not isinstance(key, str):
        _stop("load_topology", "", f"{show(key)} is not a key path", 'give {"system.sips.count": 4}')
    shown = value if isinstance(value, str) else str(value)
    where = f"--set {key[:80]}={shown if len(shown) <= 60 else shown[:57] + '...'}"
    mark = SourceMark(where)
    loc = key_loc(key)
    if "" in loc or len(loc) > MAX_DEPTH:
        _stop(mark, key[:80], f"'{key[:80]}' is not a key path", "write it as system.sips.count=4")
    if isinstance(value, str):
        try:
            node = _remark(parse_yaml(value, where), mark) if value.strip() else Marked(None, mark)
        except TopologyError as error:
            raise TopologyError([Fault(f.what, where, key, f.hint, f.is_lack) for f in error.faults]) from None
    else:
        node = _marked(value, mark)
    return _nest(tree, loc, 0, node, mark)


def _remark(node: Marked, mark: SourceMark) -> Marked:
    if isinstance(node.value, dict):
        return Marked({key: _remark(child, mark) for key, child in node.value.items()}, mark)
    if isinstance(node.value, list):
        return Marked([_remark(child, mark) for child in node.value], mark)
    return Marked(node.value, mark)


def _nest(under: Marked | None, loc: Loc, at: int, node: Marked, mark: SourceMark) -> Marked:
    """`node` at `loc`, inside the mappings on the way there; a list on the way is copied with one item changed."""
    if at == len(loc):
        return node
    part = loc[at]
    value = under.value if under else None
    if isinstance(value, list):
        if not isinstance(part, int) or part >= len(value):
            what = f"'{key_path(loc[:at])}' is a list of {len(value)}, it has no entry '{part}'"
            _stop(mark, key_path(loc), what, "count entries from 0, or set the whole list")
        item = merge(value[part], _nest(value[part], loc, at + 1, node, mark))
        return Marked([*value[:part], item, *value[part + 1 :]], mark)
    if under is not None and not isinstance(value, dict) and value is not None:
        what = f"'{key_path(loc[:at])}' is a single value, it has no key '{part}'"
        _stop(mark, key_path(loc), what, f"set {key_path(loc[:at])} itself")
    child = child_of(under, part) if under else None
    return Marked({str(part): _nest(child, loc, at + 1, node, mark)}, mark)


def _clear_superseded(tree: Marked, layer: Marked) -> Marked:
    """Set inherited values to null where a layer's new values supersede them, so that they are derived again.

    A new PE layout clears slices and pseudo channels. Of pseudo channels and channels per PE, the one that the layer
    sets clears the other. A new SIP count clears the old grid's w and h.
    """
    named = _children(layer, "cube", "memory_map")
    kept = _children(tree, "cube", "memory_map")
    slices, pseudo, channels = "hbm_slices_per_cube", "hbm_pseudo_channels", "hbm_channels_per_pe"
    cleared: dict[str, SourceMark] = {}
    layout = _children(layer, "cube", "pe_layout")
    if layout:
        mark = next(iter(layout.values())).mark
        cleared[slices] = mark
        if channels in kept and kept[channels].value is not None:
            cleared[pseudo] = mark
    if pseudo in named and named[pseudo].value is not None:
        cleared[channels] = named[pseudo].mark
    elif channels in named and named[channels].value is not None:
        cleared[pseudo] = named[channels].mark
    tree = _set_null(tree, ("cube", "memory_map"), {key: mark for key, mark in cleared.items() if key not in named})
    sips = _children(layer, "system", "sips")
    if "count" in sips and "w" not in sips and "h" not in sips:
        tree = _set_null(tree, ("system", "sips"), dict.fromkeys(("w", "h"), sips["count"].mark))
    return tree


def _children(node: Marked, *path: str) -> dict[str, Marked]:
    for part in path:
        if not isinstance(node.value, dict) or part not in node.value:
            return {}
        node = node.value[part]
    return node.value if isinstance(node.value, dict) else {}


def _set_null(tree: Marked, path: tuple[str, str], keys: dict[str, SourceMark]) -> Marked:
    present = _children(tree, *path)
    nulls = {key: Marked(None, mark) for key, mark in keys.items() if key in present}
    if not nulls:
        return tree
    first, second = path
    inner = Marked({first: Marked({second: Marked(nulls, tree.mark)}, tree.mark)}, tree.mark)
    return merge(tree, inner)
