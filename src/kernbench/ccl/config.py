"""How collectives run: `ccl.yaml` to checked, frozen data, or one error with every fault.

What comes with the package is the ground. On it lies the file that the caller names, or that KERNBENCH_CCL names, or
`ccl.yaml` in the current directory; on that a mapping, where the caller gives one. Mappings merge key by key, lists
replace. Which modules there are is seen when one is needed (`modules.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final, Literal, cast, get_args

from kernbench.ccl.calls import CollectiveName, Per
from kernbench.common.errors import CclConfigError, Fault, TopologyError, UsageError
from kernbench.common.ipcq import BACKPRESSURES, BUFFER_KINDS, Backpressure, BufferKind, RingConfig
from kernbench.topology.readers import (
    Wrong,
    closest,
    read_choice,
    read_power_of_two,
    read_scalar,
    read_text,
    read_whole,
    show,
)
from kernbench.topology.yaml_marks import MAX_CHARS, Marked, SourceMark, parse_yaml

Root = Literal["center", "corner"]
Param = float | int | str | bool

FILE: Final = "ccl.yaml"
SHIPPED: Final = "kernbench/ccl/ccl.yaml"
VARIABLE: Final = "KERNBENCH_CCL"
AUTO: Final = "auto"
COLLECTIVE_NAMES: Final = cast("tuple[CollectiveName, ...]", get_args(CollectiveName))
PER_CUBE: Final = "all_reduce_per_cube"

_KIB, _MIB = 1 << 10, 1 << 20
_Read = Callable[[object], object]
_SETTINGS: Final[Mapping[str, _Read]] = {
    "buffer_kind": lambda value: read_choice(value, BUFFER_KINDS),
    "backpressure": lambda value: read_choice(value, BACKPRESSURES),
    "n_slots": lambda value: read_whole(value, 1, 4096),
    "slot_size": lambda value: read_power_of_two(value, 256, _MIB),
    "ipcq_credit_size_bytes": lambda value: read_whole(value, 1, 4096),
    "ring_bytes": lambda value: _multiple(value, 256, 256, 2 * _MIB),
    "work_bytes": lambda value: _multiple(value, 256, 4 * _KIB, 2 * _MIB),
    "chunk_bytes": lambda value: _multiple(value, 256, 256, _MIB),
    "root": lambda value: read_choice(value, get_args(Root)),
}
_OF_A_GROUP: Final = ("ring_bytes", "work_bytes")  # reserved once, so no algorithm has its own
_SECTIONS: Final = ("defaults", "collectives", "auto", "algorithms")


def _name(value: object) -> str:
    return read_text(value, r"[A-Za-z_][\w-]{0,59}", "a name of letters, digits, '_' and '-'")


def _multiple(value: object, step: int, low: int, high: int) -> int:
    whole = read_whole(value, low, high)
    if whole % step:
        raise Wrong(f"{whole} is not a multiple of {step}", f"give {whole - whole % step or step}, say")
    return whole


@dataclass(frozen=True, slots=True)
class AutoRow:
    """Up to so many bytes, this algorithm; without a number, from there on."""

    algorithm: str
    up_to_bytes: int | None = None
    chunk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmConfig:
    """An algorithm with all that is set for it. `cfg["module"]` reads as `cfg.module`."""

    algorithm: str
    module: str
    buffer_kind: BufferKind
    backpressure: Backpressure
    n_slots: int
    slot_size: int
    ipcq_credit_size_bytes: int
    ring_bytes: int
    work_bytes: int
    chunk_bytes: int
    root: Root
    params: Mapping[str, Param] = field(default_factory=dict, hash=False)
    where: str = field(default="", compare=False)  # file and line of its entry

    def __getitem__(self, key: str) -> object:
        if key not in self.__slots__:
            raise KeyError(key)
        return getattr(self, key)

    @property
    def rings(self) -> RingConfig:
        """What a communicator is made by."""
        return RingConfig(
            self.n_slots, self.slot_size, self.buffer_kind, self.backpressure, self.ipcq_credit_size_bytes
        )


@dataclass(frozen=True, slots=True)
class CclConfig:
    """A whole configuration. `collectives` has every collective, all_reduce too."""

    settings: Mapping[str, object]
    collectives: Mapping[str, str]
    auto: Mapping[str, tuple[AutoRow, ...]]
    algorithms: Mapping[str, Mapping[str, object]]
    tree: Marked = field(repr=False, compare=False)


CclSource = str | Path | Mapping[str, object] | CclConfig | None


def load_ccl_config(source: CclSource = None) -> CclConfig:
    """The configuration that holds here; see the module for what lies on what. Raises CclConfigError with every
    fault.
    """
    if isinstance(source, CclConfig):
        return source
    layers = [_shipped()]
    if isinstance(source, str | Path):
        layers.append(_read(Path(source), "ccl="))
    elif os.environ.get(VARIABLE):
        layers.append(_read(Path(os.environ[VARIABLE]), VARIABLE))
    elif Path(FILE).is_file():
        layers.append(_read(Path(FILE), FILE))
    if isinstance(source, Mapping):
        layers.append(_marked(source, SourceMark("ccl=")))
    elif source is not None and not isinstance(source, str | Path):
        raise UsageError(f"ccl is {show(source)}", hint="give the path of a ccl.yaml, or a mapping with its keys")
    tree = layers[0]
    for layer in layers[1:]:
        tree = _merge(tree, _with_table(layer))
    return _Checked(tree).config()


def resolve_algorithm_config(cfg: CclConfig, name: str | None = None) -> AlgorithmConfig:
    """An algorithm by its name; without one, that of an all_reduce of no bytes. Raises UsageError for an unknown
    name.
    """
    if name is None:
        return choose(cfg, "all_reduce", 0)
    if name not in cfg.algorithms:
        raise UsageError(
            f"there is no algorithm '{name}'{closest(name, cfg.algorithms)}",
            hint=f"use one of {', '.join(cfg.algorithms)}, or add an entry under algorithms: in {FILE}",
        )
    own = cfg.algorithms[name]
    merged = {**cfg.settings, **own}
    return AlgorithmConfig(algorithm=name, **merged)  # type: ignore[arg-type]  # checked by _Checked


def choose(
    cfg: CclConfig, collective: CollectiveName, nbytes: int, *, per: Per = "rank", algorithm: str | None = None
) -> AlgorithmConfig:
    """The algorithm for a call: the one asked for, or the one that is set, or by size from the table of `auto`."""
    name = algorithm or cfg.collectives[collective]
    if name != AUTO:
        return resolve_algorithm_config(cfg, name)
    key = PER_CUBE if per == "cube" else collective
    rows = cfg.auto.get(key)
    if rows is None:
        raise UsageError(f"{collective} is 'auto', and there is no table auto.{key}", hint=f"add one to {FILE}")
    row = next(row for row in rows if row.up_to_bytes is None or nbytes <= row.up_to_bytes)
    found = resolve_algorithm_config(cfg, row.algorithm)
    return found if row.chunk_bytes is None else replace(found, chunk_bytes=row.chunk_bytes)


def with_algorithm(
    cfg: CclConfig, collective: CollectiveName, algorithm: str | None, settings: Mapping[str, object] | None = None
) -> CclConfig:
    """The same, but for the algorithm of one collective, and for some of the defaults."""
    if algorithm is not None and algorithm != AUTO:
        resolve_algorithm_config(cfg, algorithm)  # says what is wrong with it
    chosen = {**cfg.collectives, collective: algorithm or cfg.collectives[collective]}
    return replace(cfg, collectives=chosen, settings={**cfg.settings, **(settings or {})})


# ------------------------------------------------------------------------------------------------------------ layers


@cache
def _shipped() -> Marked:
    text = resources.files("kernbench.ccl").joinpath(FILE).read_text(encoding="utf-8")
    return parse_yaml(text, SHIPPED)


def _stop(where: object, key: str, what: str, hint: str) -> CclConfigError:
    return CclConfigError([Fault(what, str(where), key, hint)])


def _read(path: Path, named_by: object) -> Marked:
    """A file as a tree; `named_by` is who names it."""
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
        raise _stop(path, "", "it is empty, or too long", f"start with {', '.join(f'{s}:' for s in _SECTIONS)}")
    try:
        return parse_yaml(text, str(path))
    except TopologyError as error:
        raise CclConfigError(error.faults) from None


def _marked(value: object, mark: SourceMark) -> Marked:
    if isinstance(value, Mapping):
        return Marked({str(key): _marked(child, mark) for key, child in value.items()}, mark)
    if isinstance(value, list | tuple):
        return Marked([_marked(child, mark) for child in value], mark)
    if value is None or isinstance(value, str | int | float):
        return Marked(value, mark)
    if isinstance(value, Path):
        return Marked(str(value), mark)
    raise _stop(mark, "", f"{show(value)} cannot stand in a configuration", "use numbers, text, lists and mappings")


def _merge(under: Marked, over: Marked) -> Marked:
    if isinstance(under.value, dict) and isinstance(over.value, dict):
        merged = dict(under.value)
        for key, child in over.value.items():
            merged[key] = _merge(merged[key], child) if key in merged else child
        return Marked(merged, over.mark)
    return over


def _with_table(layer: Marked) -> Marked:
    """A layer in which `auto: FILE` is replaced by that file's own `auto`."""
    if not isinstance(layer.value, dict):
        raise _stop(
            layer.mark, "", f"expected keys and values, got {show(layer.plain())}", f"start with {_SECTIONS[0]}:"
        )
    children = dict(layer.value)
    named = children.get("auto")
    if named is not None and isinstance(named.value, str):
        table = _read(_beside(named.value, named.mark), named.mark)
        found = table.value.get("auto") if isinstance(table.value, dict) else None
        if found is None or not isinstance(found.value, dict):
            raise _stop(table.mark, "auto", "there is no table `auto:` in it", "write it with kernbench tune-ccl")
        children["auto"] = found
    return Marked(children, layer.mark)


def _beside(path: str, mark: SourceMark) -> Path:
    """A path relative to the file that names it."""
    return Path(mark.source).parent / Path(path).expanduser() if mark.line else Path(path).expanduser()


# ---------------------------------------------------------------------------------------------------------- checking


class _Checked:
    """Reads a merged tree and gathers what is wrong with it."""

    def __init__(self, tree: Marked) -> None:
        self._tree = tree
        self._faults: list[Fault] = []

    def config(self) -> CclConfig:
        sections = self._mapping(self._tree, "", _SECTIONS)
        defaults = self._mapping(sections["defaults"], "defaults", ("algorithm", *_SETTINGS))
        others = tuple(name for name in COLLECTIVE_NAMES if name != "all_reduce")
        chosen = self._mapping(sections["collectives"], "collectives", others)
        entries = self._open(sections["algorithms"], "algorithms")
        algorithms = {name: self._algorithm(name, entry) for name, entry in entries.items()}
        names = (*algorithms, AUTO)
        collectives = {"all_reduce": self._known(defaults["algorithm"], "defaults.algorithm", names)}
        collectives |= {name: self._known(node, f"collectives.{name}", names) for name, node in chosen.items()}
        settings = {key: self._value(defaults[key], f"defaults.{key}", read) for key, read in _SETTINGS.items()}
        tables = self._mapping(sections["auto"], "auto", (*COLLECTIVE_NAMES, PER_CUBE))
        auto = {name: self._table(name, node, tuple(algorithms)) for name, node in tables.items()}
        if not self._faults:
            self._check_rings(settings, algorithms, defaults, entries)
        if self._faults:
            raise CclConfigError(self._faults)
        return CclConfig(settings, collectives, auto, algorithms, self._tree)

    def _check_rings(
        self,
        settings: Mapping[str, object],
        algorithms: Mapping[str, Mapping[str, object]],
        defaults: Mapping[str, Marked],
        entries: Mapping[str, Marked],
    ) -> None:
        """At least two rings, and the words of two credits, fit the TCM that is kept for them: one each way."""
        cases = [(settings, defaults["slot_size"], "defaults")]
        cases += [({**settings, **own}, entries[name], f"algorithms.{name}") for name, own in algorithms.items()]
        for merged, node, key in cases:
            n_slots, slot_size, ring_bytes = (cast(int, merged[k]) for k in ("n_slots", "slot_size", "ring_bytes"))
            credits = 2 * cast(int, merged["ipcq_credit_size_bytes"])
            if merged["buffer_kind"] == "tcm" and 2 * n_slots * slot_size + credits > ring_bytes:
                what = f"two rings of {n_slots} slots of {slot_size} bytes, and their credits, do not fit ring_bytes, "
                what += str(ring_bytes)
                self._fault(node, key, what, "use smaller rings, more ring_bytes, or buffer_kind: sram or hbm")
                return

    def _fault(self, node: Marked, key: str, what: str, hint: str) -> None:
        self._faults.append(Fault(what, str(node.mark), key, hint))

    def _open(self, node: Marked, key: str) -> dict[str, Marked]:
        if isinstance(node.value, dict):
            return dict(node.value)
        self._fault(node, key, f"expected keys and values, got {show(node.plain())}", "give keys, or delete this one")
        return {}

    def _mapping(self, node: Marked, key: str, known: tuple[str, ...]) -> dict[str, Marked]:
        """The children with known names; what is missing is that of the package."""
        children = self._open(node, key)
        for name in [name for name in children if name not in known]:
            path = f"{key}.{name}" if key else name
            hint = f"known keys here: {', '.join(known)}"
            if path == "collectives.all_reduce":
                hint = "the algorithm of all_reduce is defaults.algorithm"
            self._fault(children.pop(name), path, f"unknown key '{name[:60]}'{closest(name, known)}", hint)
        shipped = _shipped()
        for part in key.split(".") if key else ():
            assert isinstance(shipped.value, dict)
            shipped = shipped.value.get(part, Marked({}, shipped.mark))
        assert isinstance(shipped.value, dict)
        return {**{name: child for name, child in shipped.value.items() if name in known}, **children}

    def _value(self, node: Marked, key: str, read: _Read) -> object:
        try:
            return read(node.plain())
        except Wrong as wrong:
            self._fault(node, key, wrong.what, wrong.hint)
            return None

    def _known(self, node: Marked, key: str, names: tuple[str, ...]) -> str:
        value = node.plain()
        if isinstance(value, str) and value in names:
            return value
        near = closest(value, names) if isinstance(value, str) else ""
        hint = f"use one of {', '.join(names)}; further ones are entries under algorithms:"
        self._fault(node, key, f"{show(value)} is no algorithm{near}", hint)
        return ""

    def _algorithm(self, name: str, node: Marked) -> dict[str, object]:
        key = f"algorithms.{name}"
        self._value(Marked(name, node.mark), key, _name)
        if name == AUTO:
            self._fault(node, key, "'auto' stands for the table auto:", "give the algorithm another name")
        children = self._open(node, key)
        known = ("module", "params", *(each for each in _SETTINGS if each not in _OF_A_GROUP))
        for other in [other for other in children if other not in known]:
            path = f"{key}.{other}"
            hint = f"known keys here: {', '.join(known)}; arguments of its kernel belong under params:"
            if other in _OF_A_GROUP:
                hint = f"all algorithms of a process group share it: set defaults.{other}"
            self._fault(children.pop(other), path, f"unknown key '{other[:60]}'{closest(other, known)}", hint)
        module = children.pop("module", None)
        if module is None:
            self._fault(node, key, f"algorithm '{name}' has no module", "add `module: package.module`, or a path")
            module = Marked("none", node.mark)
        params = self._open(children.pop("params"), f"{key}.params") if "params" in children else {}
        named = self._value(module, f"{key}.module", lambda value: read_text(value, r".{1,400}", "a module or a path"))
        if isinstance(named, str) and named.endswith(".py"):
            named = str(_beside(named, module.mark))
        return {
            "module": named,
            "where": f"{module.mark}  {key}.module",
            "params": {each: self._value(child, f"{key}.params.{each}", read_scalar) for each, child in params.items()},
            **{each: self._value(child, f"{key}.{each}", _SETTINGS[each]) for each, child in children.items()},
        }

    def _table(self, name: str, node: Marked, algorithms: tuple[str, ...]) -> tuple[AutoRow, ...]:
        key, rows = f"auto.{name}", node.value
        if not isinstance(rows, list) or not rows:
            self._fault(node, key, f"expected a list of rows, got {show(node.plain())}", "- { algorithm: tree }")
            return ()
        found: list[AutoRow] = []
        for at, row in enumerate(rows):
            here = f"{key}[{at}]"
            children, before = self._open(row, here), len(self._faults)
            known = ("up_to_bytes", "algorithm", "chunk_bytes")
            for other in [other for other in children if other not in known]:
                hint = f"known keys here: {', '.join(known)}"
                self._fault(children.pop(other), f"{here}.{other}", f"unknown key '{other[:60]}'", hint)
            which = self._known(children.get("algorithm", Marked(None, row.mark)), f"{here}.algorithm", algorithms)
            limit = self._limit(children.get("up_to_bytes"), here, found, row)
            chunk = children.get("chunk_bytes")
            chunk_bytes = None if chunk is None else self._value(chunk, f"{here}.chunk_bytes", _SETTINGS["chunk_bytes"])
            if len(self._faults) == before and (limit is None) != (at == len(rows) - 1):
                what = "only the last row has no up_to_bytes, and it must not have one"
                self._fault(row, here, what, "order rows by size; the last one is for all that is larger")
            found.append(AutoRow(which, limit, cast("int | None", chunk_bytes)))
        return tuple(found)

    def _limit(self, node: Marked | None, here: str, before: list[AutoRow], row: Marked) -> int | None:
        if node is None:
            return None
        limit = self._value(node, f"{here}.up_to_bytes", lambda value: read_whole(value, 0, 1 << 50))
        last = before[-1].up_to_bytes if before else None
        if isinstance(limit, int) and last is not None and limit <= last:
            self._fault(
                row, f"{here}.up_to_bytes", f"{limit} is not above {last}, the row before", "order rows by size"
            )
        return cast("int | None", limit)
