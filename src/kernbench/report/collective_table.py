"""Collectives by size, as a table in the format of nccl-tests: its columns, its names of types, `#` before comments.
Columns have fixed widths, so rows can be printed one by one. The algorithm, which nccl-tests does not print, is the
last column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Row = Mapping[str, object]

HEAD = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "algorithm")
UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "")
WIDTHS = (12, 12, 8, 6, 6, 8, 7, 7, 6)  # the last column has no fixed width
TYPES = {
    "f16": "half",
    "bf16": "bfloat16",
    "f32": "float",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "u32": "uint32",
}


def table_head() -> str:
    """The two header lines."""
    return "\n".join("#" + _line(cells)[1:] for cells in (HEAD, UNITS))


def table_row(row: Row) -> str:
    """One row of `kernbench ccl --json`, as text."""

    def number(name: str, digits: int) -> str:
        return f"{float(str(row[name])):.{digits}f}"

    def text(name: str, missing: str) -> str:
        return missing if row[name] is None else str(row[name])

    cells = (
        str(row["size_bytes"]),
        str(row["count"]),
        TYPES.get(str(row["dtype"]), str(row["dtype"])),
        text("op", "none"),
        text("root", "-1"),
        time_us(float(str(row["time_us"]))),
        number("algbw_gbs", 2),
        number("busbw_gbs", 2),
        text("wrong", "N/A"),
        str(row["algorithm"]),
    )
    return _line(cells)


def time_us(us: float) -> str:
    """At least four digits: `0.1234`, `12.34`, `123.4`, `12345`."""
    digits = next((digits for below, digits in ((10, 4), (100, 2), (10_000, 1)) if us < below), 0)
    return f"{us:.{digits}f}"


def summary_line(rows: Sequence[Row]) -> str:
    """The last lines of nccl-tests."""
    bandwidths = [float(str(row["busbw_gbs"])) for row in rows]
    wrong = sum(int(str(row["wrong"])) for row in rows if row["wrong"] is not None)
    verdict = "OK" if not wrong else "FAILED"
    if all(row["wrong"] is None for row in rows):
        verdict = "not checked"
    average = sum(bandwidths) / len(bandwidths) if bandwidths else 0.0
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:.4g} GB/s"


def listing(algorithms: Sequence[Row], chosen: Mapping[str, str]) -> Iterator[str]:
    """The output of `kernbench ccl --list`: collectives with their algorithms, then all algorithms."""
    yield "# collectives, and the algorithm that each takes (auto: by size, from the table auto: in ccl.yaml)"
    width = max(len(name) for name in chosen)
    yield from (f"{name:<{width}}  {algorithm}" for name, algorithm in chosen.items())
    yield "# algorithms, and what they do"
    width = max(len(str(row["algorithm"])) for row in algorithms)
    for row in algorithms:
        yield f"{row['algorithm']:<{width}}  {row['summary'] or 'does ' + ', '.join(map(str, _names(row)))}"


def _names(row: Row) -> Sequence[object]:
    names = row["collectives"]
    assert isinstance(names, list)
    return names


def _line(cells: Sequence[str]) -> str:
    *columns, last = cells
    return ("  ".join(cell.rjust(width) for cell, width in zip(columns, WIDTHS, strict=True)) + f"  {last}").rstrip()
