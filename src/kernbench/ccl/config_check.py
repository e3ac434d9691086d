"""Checks a merged tree of `ccl.yaml`: the result is a configuration, or one error with every fault."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast, get_args

from kernbench.ccl.config_layers import SECTIONS, SHIPPED, beside, shipped
from kernbench.ccl.config_spec import AUTO, COLLECTIVE_NAMES, PER_CUBE, AutoRow, CclConfig, Root, two_rings_fit
from kernbench.ccl.measured import measured_tables
from kernbench.common.errors import CclConfigError, Fault, KernBenchWarning
from kernbench.common.ipcq import BACKPRESSURES, BUFFER_KINDS
from kernbench.topology.readers import (
    closest,
    read_choice,
    read_power_of_two,
    read_scalar,
    read_text,
    read_whole,
    show,
)
from kernbench.topology.record import InvalidValue
from kernbench.topology.yaml_marks import Marked

_KIB, _MIB = 1 << 10, 1 << 20
_Read = Callable[[object], object]
_Rows = dict[str, tuple[AutoRow, ...]]  # by collective
SETTINGS: Final[Mapping[str, _Read]] = {
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
# Keys of other configurations of the same kind, whose meaning other keys have here.
REPLACED: Final[Mapping[str, str]] = {
    "world_size": "a rank is a SIP: system.sips.count of the machine, or torch.distributed.new_group for fewer",
    "topology": "the grid of SIPs is system.sips.topology of the machine",
    "n_elem": "a collective moves as many elements as its tensor has",
    "root_cube": "`root: center` (the default) or `root: corner`",
    "vc_chunk_size": "flits interleave on links: system.flit_bytes of the machine",
}
_OF_A_GROUP: Final = ("ring_bytes", "work_bytes")  # reserved once per group, so algorithms cannot set them


def _name(value: object) -> str:
    return read_text(value, r"[A-Za-z_][\w-]{0,59}", "a name of letters, digits, '_' and '-'")


def _multiple(value: object, step: int, low: int, high: int) -> int:
    whole = read_whole(value, low, high)
    if whole % step:
        raise InvalidValue(f"{whole} is not a multiple of {step}", f"give {whole - whole % step or step}, say")
    return whole


def checked(tree: Marked) -> CclConfig:
    """The configuration that a tree describes; raises CclConfigError with every fault."""
    return _Checked(tree).config()


class _Checked:
    """Reads a merged tree and collects its faults."""

    def __init__(self, tree: Marked) -> None:
        self._tree = tree
        self._faults: list[Fault] = []
        self._replaced: list[str] = []  # keys that are accepted and not used, with what replaces them

    def config(self) -> CclConfig:
        sections = self._mapping(self._tree, "", SECTIONS)
        defaults = self._mapping(sections["defaults"], "defaults", ("algorithm", *SETTINGS))
        others = tuple(name for name in COLLECTIVE_NAMES if name != "all_reduce")
        chosen = self._mapping(sections["collectives"], "collectives", others)
        entries = self._open(sections["algorithms"], "algorithms")
        algorithms = {name: self._algorithm(name, entry) for name, entry in entries.items()}
        names = (*algorithms, AUTO)
        collectives = {"all_reduce": self._known(defaults["algorithm"], "defaults.algorithm", names)}
        collectives |= {name: self._known(node, f"collectives.{name}", names) for name, node in chosen.items()}
        settings = {key: self._value(defaults[key], f"defaults.{key}", read) for key, read in SETTINGS.items()}
        tables = self._mapping(sections["auto"], "auto", (*COLLECTIVE_NAMES, PER_CUBE))
        own_tables, (ours, of_machines) = self._package_tables(), _package_rows(tuple(algorithms))
        auto = {
            name: ours[name] if node is own_tables.get(name) else self._table(name, node, tuple(algorithms))
            for name, node in tables.items()
        }
        measured = {
            machine: {name: rows for name, rows in found.items() if tables[name].mark.source == SHIPPED}
            for machine, found in of_machines.items()
        }
        if not self._faults:
            self._check_rings(settings, algorithms, defaults, entries)
        if self._faults:
            raise CclConfigError(self._faults)
        if self._replaced:
            warnings.warn("keys that are not used: " + "; ".join(self._replaced), KernBenchWarning, stacklevel=4)
        return CclConfig(settings, collectives, auto, algorithms, self._tree, measured)

    def _check_rings(
        self,
        settings: Mapping[str, object],
        algorithms: Mapping[str, Mapping[str, object]],
        defaults: Mapping[str, Marked],
        entries: Mapping[str, Marked],
    ) -> None:
        """Check that two rings, one per direction, and two credit words fit the TCM reserved for rings. The package's
        algorithms are exempt: where their rings do not fit, those of the defaults are used.
        """
        cases = [(settings, defaults["slot_size"], "defaults")]
        cases += [
            ({**settings, **own}, entries[name], f"algorithms.{name}")
            for name, own in algorithms.items()
            if entries[name].mark.source != SHIPPED
        ]
        for merged, node, key in cases:
            if not two_rings_fit(merged):
                what = f"two rings of {merged['n_slots']} slots of {merged['slot_size']} bytes, and their credits, do "
                what += f"not fit ring_bytes, {merged['ring_bytes']}"
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
        """The children with known names; missing ones come from the package's file."""
        children = self._without_replaced(self._open(node, key), key)
        for name in [name for name in children if name not in known]:
            path = f"{key}.{name}" if key else name
            hint = f"known keys here: {', '.join(known)}"
            if path == "collectives.all_reduce":
                hint = "the algorithm of all_reduce is defaults.algorithm"
            self._fault(children.pop(name), path, f"unknown key '{name[:60]}'{closest(name, known)}", hint)
        base = shipped()
        for part in key.split(".") if key else ():
            assert isinstance(base.value, dict)
            base = base.value.get(part, Marked({}, base.mark))
        assert isinstance(base.value, dict)
        return {**{name: child for name, child in base.value.items() if name in known}, **children}

    def _without_replaced(self, children: dict[str, Marked], key: str) -> dict[str, Marked]:
        """The keys of the defaults, or of an algorithm, less those that something else replaces: they are listed."""
        if not key.startswith(("defaults", "algorithms.")):
            return children
        for name, instead in REPLACED.items():
            if name in children:
                node = children.pop(name)
                self._value(node, f"{key}.{name}", read_scalar)
                self._replaced.append(f"{key}.{name} at {node.mark} ({instead})")
        return children

    def _value(self, node: Marked, key: str, read: _Read) -> object:
        try:
            return read(node.plain())
        except InvalidValue as wrong:
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
        children = self._without_replaced(self._open(node, key), key)
        known = ("module", "params", *(each for each in SETTINGS if each not in _OF_A_GROUP))
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
            named = str(beside(named, module.mark))
        return {
            "module": named,
            "where": f"{module.mark}  {key}.module",
            "params": {each: self._value(child, f"{key}.params.{each}", read_scalar) for each, child in params.items()},
            **{each: self._value(child, f"{key}.{each}", SETTINGS[each]) for each, child in children.items()},
        }

    def _package_tables(self) -> dict[str, Marked]:
        return self._open(self._open(shipped(), "")["auto"], "auto")

    def package_rows(self, algorithms: tuple[str, ...]) -> tuple[_Rows, dict[str, _Rows]]:
        """The rows of the package's tables: for all machines, and those measured, by machine."""
        known = (*COLLECTIVE_NAMES, PER_CUBE)
        ours = {name: self._table(name, node, algorithms) for name, node in self._package_tables().items()}
        measured = {
            machine: {
                name: self._table(name, rows, algorithms, is_whole=False)
                for name, rows in self._mapping(table, "", known).items()
                if name in ours
            }
            for machine, table in measured_tables()
        }
        if self._faults:
            raise CclConfigError(self._faults)
        return ours, measured

    def _table(
        self, name: str, node: Marked, algorithms: tuple[str, ...], *, is_whole: bool = True
    ) -> tuple[AutoRow, ...]:
        """The rows of a table; one that `is_whole` ends with a row for all that is larger."""
        key, rows = f"auto.{name}", node.value
        if not isinstance(rows, list) or not rows:
            self._fault(node, key, f"expected a list of rows, got {show(node.plain())}", "- { algorithm: tree }")
            return ()
        found: list[AutoRow] = []
        for at, row in enumerate(rows):
            here = f"{key}[{at}]"
            children, before = self._open(row, here), len(self._faults)
            known = ("up_to_ranks", "up_to_bytes", "algorithm", "chunk_bytes")
            for other in [other for other in children if other not in known]:
                hint = f"known keys here: {', '.join(known)}"
                self._fault(children.pop(other), f"{here}.{other}", f"unknown key '{other[:60]}'", hint)
            which = self._known(children.get("algorithm", Marked(None, row.mark)), f"{here}.algorithm", algorithms)
            ranks = self._whole(children.get("up_to_ranks"), f"{here}.up_to_ranks", 1 << 20)
            limit = self._whole(children.get("up_to_bytes"), f"{here}.up_to_bytes", 1 << 50)
            chunk = children.get("chunk_bytes")
            chunk_bytes = None if chunk is None else self._value(chunk, f"{here}.chunk_bytes", SETTINGS["chunk_bytes"])
            made = AutoRow(which, limit, cast("int | None", chunk_bytes), ranks)
            if len(self._faults) == before:
                self._check_order(row, here, made, found[-1] if found else None)
            found.append(made)
        if is_whole and (found[-1].up_to_bytes is not None or found[-1].up_to_ranks is not None):
            what = "the last row has no up_to_bytes and no up_to_ranks: it is for all that is larger"
            self._fault(rows[-1], f"{key}[{len(rows) - 1}]", what, "add a row with an algorithm alone")
        return tuple(found)

    def _whole(self, node: Marked | None, key: str, high: int) -> int | None:
        return None if node is None else cast("int | None", self._value(node, key, lambda x: read_whole(x, 0, high)))

    def _check_order(self, node: Marked, here: str, row: AutoRow, before: AutoRow | None) -> None:
        """Rows are ordered by ranks, and those of one number of ranks by size."""
        if before is None:
            return
        hint = "order rows by ranks, and those of one number of ranks by size"
        if row.up_to_ranks == before.up_to_ranks:
            if before.up_to_bytes is None or (row.up_to_bytes is not None and row.up_to_bytes <= before.up_to_bytes):
                what = f"{row.up_to_bytes} is not above {before.up_to_bytes}, the row before"
                if before.up_to_bytes is None:
                    what = "the row before has no up_to_bytes, so this one is never used"
                self._fault(node, f"{here}.up_to_bytes", what, hint)
        elif before.up_to_ranks is None or (row.up_to_ranks is not None and row.up_to_ranks <= before.up_to_ranks):
            self._fault(node, f"{here}.up_to_ranks", f"{row.up_to_ranks} is not above {before.up_to_ranks}", hint)


@lru_cache(maxsize=8)
def _package_rows(algorithms: tuple[str, ...]) -> tuple[_Rows, dict[str, _Rows]]:
    """Read once for all configurations with the same algorithms: it is most of the work of reading one."""
    return _Checked(shipped()).package_rows(algorithms)
