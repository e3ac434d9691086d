"""Tables of the rows that a bench returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby


def rows_as_text(rows: Sequence[Mapping[str, object]], digits: int = 4) -> str:
    """A column for each key, in order of appearance; numbers have four digits and are right-aligned. Rows with other
    keys than the rows before them start another table.
    """
    return "\n\n".join(_table(list(same), digits) for _, same in groupby(rows, key=_keys))


def _keys(row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(row)


def _table(rows: Sequence[Mapping[str, object]], digits: int) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name), digits) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    is_text = [all(isinstance(row.get(name), str | None) for row in rows) for name in names]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
