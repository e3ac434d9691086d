"""The page of a results folder: `kernbench report`."""

from __future__ import annotations

import os
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.common.regular_files import read_regular
from kernbench.evaluation.contract import Row
from kernbench.evaluation.results import EvaluationResults, figure_stems, read_results
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.results_page import Figure, Page, page_as_html
from kernbench.sweep.folder import write_atomically

PAGE = "report.html"
ENERGY_FACTS = ("energy",)  # of `kernbench fidelity`: every row has joules


def write_page(folder: Path, target: Path | None = None) -> Path:
    """One HTML file of a folder's results; raises UsageError if it has none."""
    results = read_results(folder)
    page = Page(
        title=f"{results.bench} on machine {results.topology}",
        about=results.description,
        origin=f"{results.origin()}; {len(results.rows)} points.",
        parameters=results.parameters,
        figures=[_figure(stem) for stem in figure_stems(folder)],
        groups=_groups(results),
        machine=machine_facts_of(results.graph()),
        facts=(*results.facts, *ENERGY_FACTS),
    )
    path = folder / PAGE if target is None else target
    write_atomically(path, page_as_html(page).encode())
    return path


def _figure(stem: Path) -> Figure:
    caption_file = stem.with_suffix(".md")
    words = _text(caption_file) if os.path.lexists(caption_file) else f"# {stem.name}"
    title, _, caption = words.partition("\n")
    return Figure(read_regular(stem.with_suffix(".svg")), title.removeprefix("# ").strip(), caption.strip())


def _text(file: Path) -> str:
    try:
        return read_regular(file).decode("utf-8")
    except ValueError:
        raise UsageError("the caption is not UTF-8 text", where=str(file), hint="draw the figures again") from None


def _groups(results: EvaluationResults) -> dict[str, list[Row]]:
    """Rows by `part`, where an evaluation has parts."""
    groups: dict[str, list[Row]] = {}
    for row in results.rows:
        groups.setdefault(str(row.get("part") or results.bench), []).append(row)
    return groups
