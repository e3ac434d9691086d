"""Reference points of figures: published results of existing machines, from a data file that names each source.

A reference is a fraction of a peak, so that it compares with the same fraction of a machine that is not built; or, of
another simulator of the same machine, a plain figure (`of` is null). Figures take references only from here, and their
captions cite the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kernbench.common.errors import UsageError

SHIPPED = Path(__file__).with_name("references.yaml")


@dataclass(frozen=True, slots=True)
class Reference:
    """A published figure: `value`, out of `of` if there is one, in `unit`; how it was found, source and address."""

    name: str
    label: str
    value: float
    of: float | None
    unit: str
    how: str
    source: str
    address: str

    @property
    def share(self) -> float:
        assert self.of is not None
        return self.value / self.of

    @property
    def title(self) -> str:
        """The text in a legend."""
        return f"reference: {self.label}"

    def cited(self) -> str:
        """The text in a caption."""
        figures = f"{self.value:g} of {self.of:g} {self.unit}".replace("100 %", "100%") if self.of else ""
        figures = figures or f"{self.value:g} {self.unit}"
        return f"{self.label}: {figures}, {self.how} ({self.source}, {self.address})."


def reference(name: str, file: Path = SHIPPED) -> Reference:
    """A reference by name, from the package's file or another; raises UsageError for an unknown name or an invalid
    file.
    """
    known = _references(file)
    if name not in known:
        raise UsageError(f"no reference '{name}'", where=str(file), hint=f"use one of {', '.join(known)}")
    return known[name]


def shipped_references() -> Mapping[str, Reference]:
    return _references(SHIPPED)


@cache
def _references(file: Path) -> dict[str, Reference]:
    try:
        entries: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read references: {error}", where=str(file), hint="give a YAML list") from None
    if not isinstance(entries, list):
        raise UsageError("references are no list", where=str(file), hint="see kernbench/report/references.yaml")
    read = [_read(entry, f"{file} [{at}]") for at, entry in enumerate(entries)]
    return {each.name: each for each in read}


def _read(entry: Any, where: str) -> Reference:
    wanted = [field.name for field in fields(Reference)]
    has = list(entry) if isinstance(entry, dict) else []
    if sorted(map(str, has)) != sorted(wanted):
        wrong = [name for name in wanted if name not in has] or [str(name) for name in has if name not in wanted]
        raise UsageError(f"a reference needs exactly {', '.join(wanted)}", where=where, hint=f"see to {wrong[0]}")
    numbers = {name: entry[name] for name in ("value", "of")}
    for name, value in numbers.items():
        if name == "of" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"{name} is {value!r}", where=where, hint="give a number above zero")
    words = {name: str(entry[name]).strip() for name in wanted if name not in numbers}
    for name, text in words.items():
        if not text:
            raise UsageError(f"{name} is empty", where=where, hint="fill it in: a reference needs its source")
    of = None if entry["of"] is None else float(entry["of"])
    return Reference(**words, value=float(entry["value"]), of=of)
