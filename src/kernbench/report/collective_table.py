"""Collectives by size, as a table in the manner of nccl-tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Row = Mapping[str, object]

HEAD = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "algorithm")
UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "")


def collective_table(rows: Sequence[Row]) -> str:
    """The rows that `kernbench ccl --json` has, for people."""
    lines = [HEAD, UNITS, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEAD))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def summary_line(rows: Sequence[Row]) -> str:
    """What nccl-tests ends with."""
    bandwidths = [float(str(row["busbw_gbs"])) for row in rows]
    wrong = sum(int(str(row["wrong"])) for row in rows if row["wrong"] is not None)
    verdict = "OK" if not wrong else "FAILED"
    if all(row["wrong"] is None for row in rows):
        verdict = "not checked"
    average = sum(bandwidths) / len(bandwidths) if bandwidths else 0.0
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:.4g} GB/s"


def _cells(row: Row) -> tuple[str, ...]:
    def number(name: str, digits: int) -> str:
        return f"{float(str(row[name])):.{digits}f}"

    def text(name: str, missing: str) -> str:
        return missing if row[name] is None else str(row[name])

    return (
        str(row["size_bytes"]),
        str(row["count"]),
        str(row["dtype"]),
        text("op", "none"),
        text("root", "-1"),
        number("time_us", 2),
        number("algbw_gbs", 2),
        number("busbw_gbs", 2),
        text("wrong", "N/A"),
        str(row["algorithm"]),
    )
