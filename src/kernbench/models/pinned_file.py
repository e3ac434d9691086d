"""Reads a file that pins a choice: what it says is checked on its own, then against the layer and the machine of a run.
Each fault names the file, the line and the key, and what is allowed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from kernbench.common.errors import CapacityError, TopologyError, UsageError
from kernbench.models.mapper import LayerSize
from kernbench.models.pinned_records import ENTRIES, ChoiceEntry, ProductEntry
from kernbench.models.product_size import PRODUCTS
from kernbench.topology.faults import findings_of, key_path, mark_at
from kernbench.topology.readers import closest, read_choice, read_whole, show
from kernbench.topology.record import InvalidValue, Loc, Record, RecordError
from kernbench.topology.yaml_file import read_yaml
from kernbench.topology.yaml_marks import Marked

R = TypeVar("R", bound=Record)
FROM_REPORT = "give a file that --mapping-report=FILE.yaml wrote"
CHOOSE = "leave --param mapping out to choose again, and write that with --mapping-report=FILE.yaml"


class PinnedFile:
    """A file whose keys and values are valid by themselves. Raises UsageError for the first that is not."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._tree: Marked = read_yaml(path, "mapping", "what --mapping-report=FILE.yaml writes")
        except TopologyError as error:
            where = None if error.where == path else error.where
            raise UsageError(f"{path}: {error.what}", where=where, hint=FROM_REPORT) from None
        except UsageError as error:
            raise UsageError(f"{path}: {error.what}", hint=FROM_REPORT) from None
        if not isinstance(self._tree.value, dict) or "products" not in self._tree.value:
            raise UsageError(f"{path} pins no products", hint=FROM_REPORT)
        self.entry = self._read(ChoiceEntry, ())
        self.products = {name: self._product(name, given) for name, given in self.entry.products.items()}
        for name in PRODUCTS:
            if name not in self.products:
                raise self.fault(("products",), f"product '{name}' is missing", f"pin all of {', '.join(PRODUCTS)}")

    def fault(self, loc: Loc, what: str, hint: str, kind: type[UsageError] = UsageError) -> UsageError:
        """The error of a key."""
        return kind(what, where=f"{mark_at(self._tree, loc)}  {key_path(loc)}".rstrip(), hint=hint)

    def check_whole(self, loc: Loc, value: int, low: int, high: int, why: str) -> None:
        """Raise UsageError unless a value is from `low` to `high`; `why` says where the limit comes from."""
        try:
            read_whole(value, low, high)
        except InvalidValue as wrong:
            raise self.fault(loc, f"{key_path(loc[-1:])}: {wrong.what}", f"{wrong.hint}: {why}") from None

    def check_divides(self, loc: Loc, value: int, number: int, of_what: str) -> None:
        """Raise UsageError unless a value divides a number."""
        if number % value:
            fitting = ", ".join(str(each) for each in range(1, number + 1) if number % each == 0)
            what = f"{key_path(loc[-1:])}: {value} does not divide the {number} {of_what}"
            raise self.fault(loc, what, f"use one of {fitting}")

    @property
    def is_fused(self) -> bool:
        """Whether it pins a decode step in one launch."""
        return self.entry.fused is not None

    def check_work(self, work: Mapping[str, Any], size: LayerSize) -> None:
        """Raise UsageError for a file that was written for other work: it has the values and products of this run."""
        found = self.entry.work.model_dump()
        other = [name for name in work if found[name] != work[name]]
        if other:
            of_file, of_run = (", ".join(f"{name} {of[name]}" for name in other) for of in (found, work))
            raise self.fault(("work", other[0]), f"the file is for {of_file}, this run has {of_run}", CHOOSE)
        for own in size.products:
            entry, loc = self.products[own.name], ("products", own.name)
            for key in ("rows", "k", "n", "x_by"):
                if getattr(entry, key) != getattr(own, key):
                    what = f"{key} of '{own.name}' is {getattr(entry, key)}, in this run {getattr(own, key)}"
                    raise self.fault((*loc, key), what, f"write {key}: {getattr(own, key)}, or choose again")
            if own.experts > 1 and entry.kind == "blocks":
                raise self.fault((*loc, "kind"), "kind: blocks for a product of experts", "use columns or split_k")
        if self.entry.attention == "online" and size.attention is None:
            raise self.fault(("attention",), "attention: online at decode", "use stored; online is for prefill")

    def capacity(self, loc: Loc, error: UsageError) -> UsageError:
        """The error of a plan that cannot be made, at its key."""
        return self.fault(loc, error.what, error.hint or CHOOSE, type(error))

    def too_large(self, loc: Loc, what: str, hint: str) -> UsageError:
        """The error of a plan that does not fit TCM."""
        return self.fault(loc, what, hint, CapacityError)

    # ---- reading

    def _read(self, record: type[R], loc: Loc) -> R:
        """The record at a location."""
        node = self._at(loc)
        try:
            return record.model_validate(node.plain())
        except RecordError as error:
            found = findings_of(error, record)
            at, first = next((each for each in found if each[1].what.startswith("unknown key")), found[0])
            path = (*loc, *at)
            what = first.what if not at or f"'{at[-1]}'" in first.what else f"{at[-1]}: {first.what}"
            raise self.fault(path, what, first.hint) from None

    def _at(self, loc: Loc) -> Marked:
        node = self._tree
        for part in loc:
            assert isinstance(node.value, dict)
            node = node.value[str(part)]
        return node

    def _product(self, name: str, given: object) -> ProductEntry:
        loc = ("products", name)
        if name not in PRODUCTS:
            raise self.fault(loc, f"no product '{name[:60]}'{closest(name, PRODUCTS)}", f"use {', '.join(PRODUCTS)}")
        if not isinstance(given, dict) or "kind" not in given:
            raise self.fault(loc, f"product '{name}' is {show(given)} without a kind", f"use {', '.join(ENTRIES)}")
        try:
            kind = read_choice(given["kind"], tuple(ENTRIES))
        except InvalidValue as wrong:
            raise self.fault((*loc, "kind"), f"kind: {wrong.what}", wrong.hint) from None
        return self._read(ENTRIES[kind], loc)
