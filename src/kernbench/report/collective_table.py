"""Collectives by size, as a table in the format of nccl-tests: its columns, its names of types, `#` before comments.
Columns have fixed widths, so rows can be printed one by one. The last columns are not in nccl-tests: times with the
launch, and the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernbench.common.units import format_bytes

CollectiveRow = Mapping[str, object]

COMMON = (("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 8), ("redop", "", 6), ("root", "", 6))
FIGURES = (("time", "(us)", 8), ("algbw", "(GB/s)", 7), ("busbw", "(GB/s)", 7), ("#wrong", "", 6))
LAUNCHED = (("out", "(us)", 8), ("in", "(us)", 8))
GROUPS = (("", COMMON), ("out-of-place", FIGURES), ("in-place", FIGURES), ("with launch", LAUNCHED))
COLUMNS = tuple(column for _, columns in GROUPS for column in columns)
FORMS = ("out_of_place", "in_place")  # of a row, each with its figures or None
TYPES = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
}  # fmt: skip


def table_head() -> str:
    """The three header lines."""
    groups = "  ".join(title.center(sum(w for _, _, w in columns) + 2 * len(columns) - 2) for title, columns in GROUPS)
    names = _line([*(name for name, _, _ in COLUMNS), "algorithm"])
    units = _line([*(unit for _, unit, _ in COLUMNS), ""])
    return "\n".join("#" + line[1:].rstrip() for line in (groups, names, units))


def table_row(row: CollectiveRow) -> str:
    """One row of `kernbench ccl --json`, as text."""
    figures = [_figures(row, form) for form in FORMS]
    launched = [time_us(_number(each, "time_with_launch_us")) if each else "N/A" for each in figures]
    return _line(
        [
            str(row["size_bytes"]),
            str(row["count"]),
            "none" if row["dtype"] is None else TYPES.get(str(row["dtype"]), str(row["dtype"])),
            "none" if row["op"] is None else str(row["op"]),
            "-1" if row["root"] is None else str(row["root"]),
            *(cell for each in figures for cell in _cells(each)),
            *launched,
            str(row["algorithm"]),
        ]
    )


def _figures(row: CollectiveRow, form: str) -> CollectiveRow | None:
    found = row[form]
    assert found is None or isinstance(found, Mapping)
    return found


def _number(row: CollectiveRow, name: str) -> float:
    return float(str(row[name]))


def _cells(figures: CollectiveRow | None) -> tuple[str, ...]:
    """Time, two bandwidths and wrong elements; N/A where a collective has no such form, or nothing was checked."""
    if figures is None:
        return ("N/A",) * len(FIGURES)
    wrong = "N/A" if figures["wrong"] is None else str(figures["wrong"])
    gbs = [f"{_number(figures, name):.2f}" for name in ("algbw_gbs", "busbw_gbs")]
    return time_us(_number(figures, "time_us")), *gbs, wrong


def csv_lines(rows: Sequence[CollectiveRow]) -> Iterator[str]:
    """The rows as CSV, after a line of names: figures of both forms have the form's name in front."""
    own = ("collective", "algorithm", "size_bytes", "count", "dtype", "op", "root")
    measured = ("time_us", "time_with_launch_us", "algbw_gbs", "busbw_gbs", "wrong")
    yield ",".join([*own, *(f"{form}_{name}" for form in FORMS for name in measured)])
    for row in rows:
        figures = [_figures(row, form) or dict.fromkeys(measured) for form in FORMS]
        cells = [*(row[name] for name in own), *(each[name] for each in figures for name in measured)]
        yield ",".join("" if cell is None else str(cell) for cell in cells)


def time_us(us: float) -> str:
    """At least four digits: `0.1234`, `12.34`, `123.4`, `12345`."""
    digits = next((digits for below, digits in ((10, 4), (100, 2), (10_000, 1)) if us < below), 0)
    return f"{us:.{digits}f}"


def summary_line(rows: Sequence[CollectiveRow]) -> str:
    """The last lines of nccl-tests."""
    figures = [each for row in rows for form in FORMS if (each := _figures(row, form)) is not None]
    bandwidths = [_number(each, "busbw_gbs") for each in figures]
    checked = [int(str(each["wrong"])) for each in figures if each["wrong"] is not None]
    verdict = "not checked" if not checked else "FAILED" if any(checked) else "OK"
    average = sum(bandwidths) / len(bandwidths) if bandwidths else 0.0
    return f"# Out of bounds values : {sum(checked)} {verdict}\n# Avg bus bandwidth    : {average:.4g} GB/s"


def memory_line(rows: Sequence[CollectiveRow]) -> str:
    """The most memory that a row took on a SIP, as nccl-tests prints it with -M 1."""
    uses = [each["memory"] for row in rows for form in FORMS if (each := _figures(row, form)) is not None]
    names = {"tensors_bytes": "tensors", "rings_bytes": "rings", "kernels_bytes": "kernels"}
    most = {name: max(int(str(use[name])) for use in uses if isinstance(use, Mapping)) for name in names}
    listed = " | ".join(f"{names[name]} {format_bytes(nbytes)}" for name, nbytes in most.items())
    return f"# Memory of a SIP      : {listed} | total {format_bytes(sum(most.values()))}"


def listing(algorithms: Sequence[CollectiveRow], chosen: Mapping[str, str]) -> Iterator[str]:
    """The output of `kernbench ccl --list`: collectives with their algorithms, then all algorithms."""
    yield "# collectives, and the algorithm that each takes (auto: by size, from the table auto: in ccl.yaml)"
    width = max(len(name) for name in chosen)
    yield from (f"{name:<{width}}  {algorithm}" for name, algorithm in chosen.items())
    yield "# algorithms, and what they do"
    width = max(len(str(row["algorithm"])) for row in algorithms)
    for row in algorithms:
        yield f"{row['algorithm']:<{width}}  {row['summary'] or 'does ' + ', '.join(map(str, _names(row)))}"


def _names(row: CollectiveRow) -> Sequence[object]:
    names = row["collectives"]
    assert isinstance(names, list)
    return names


def _line(cells: Sequence[str]) -> str:
    *columns, last = cells
    widths = [width for _, _, width in COLUMNS]
    return ("  ".join(cell.rjust(width) for cell, width in zip(columns, widths, strict=True)) + f"  {last}").rstrip()
