"""Writes a saved run as one HTML page, with the command to run next."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.ccl.config_spec import ParamValue
from kernbench.cli.run_triton import triton_program_again
from kernbench.common.errors import KernBenchError, UsageError
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.page import run_as_html
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.run_command import NextStep, RunCommand
from kernbench.report.runs.saved_run import SavedRun
from kernbench.runtime_api.user_module import is_file, split_identifier


def write_page(saved: SavedRun, explanation: Explanation, title: str, name: str, folder: str, option: str) -> None:
    """Write a saved run as one page; `folder` is where the run is, for commands."""
    write_file(name, run_as_html(saved, explanation, title, next_of(saved, explanation, folder)), ".html", option)


def next_of(saved: SavedRun, explanation: Explanation, folder: str) -> NextStep:
    """What to run next, after an explanation."""
    verdict = verdict_of(explanation)
    command = replace(command_of(saved, folder), is_explained=True)
    return command.next_step(verdict.cause)


def command_of(saved: SavedRun, folder: str) -> RunCommand:
    """The command of a saved run, with the advice of its bench if the bench is still there."""
    about = saved.manifest
    try:
        spec, params = bench_of(saved)
    except KernBenchError:
        return RunCommand(_without_save(about.command), about.bench, folder)
    words = _without_save(about.command)
    return RunCommand(words, about.bench, folder, lambda cause: spec.advised(cause, params), spec.meanings)


def bench_of(saved: SavedRun) -> tuple[BenchSpec, dict[str, ParamValue]]:
    """The bench of a saved run and its parameters; a file is found from any directory.

    Raises UsageError if it is gone.
    """
    about = saved.manifest
    identifier = _identifier(saved)
    program = about.raw.get("program")
    if program is not None:
        return triton_program_again(identifier, program, saved.path), {}
    spec = resolve(identifier)
    return spec, read_params(spec.params, [f"{name}={value}" for name, value in about.params.items()], {})


def _identifier(saved: SavedRun) -> str:
    """That of the bench, with a file's path from here."""
    identifier = saved.manifest.identifier
    place, _ = split_identifier(identifier)
    if is_file(place) and not Path(place).is_absolute() and not Path(place).exists():
        return str(Path(os.path.normpath(saved.path / str(saved.manifest.raw.get("directory", ".")))) / identifier)
    return identifier


def refuse_edited(saved: SavedRun) -> None:
    """Raises UsageError where a source of the run's kernels is not what it was: another program would be measured."""
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = dict.fromkeys(path for path in (split_identifier(_identifier(saved))[0], *modules) if path)
    linecache.checkcache()
    for source in saved.sources:
        there = [path for path in files if f"/{Path(path).as_posix()}".endswith(f"/{source.name}")]
        if (
            source.text is not None
            and there
            and all("".join(linecache.getlines(path)) != source.text for path in there)
        ):
            raise UsageError(
                f"{source.name} was edited since the run was saved", where=str(saved.path),
                hint="run it again with --save, and measure that run",
            )  # fmt: skip


def _without_save(command: Sequence[str]) -> list[str]:
    """The words of a command without `--save DIR` and `--json`."""
    words: list[str] = []
    for at, word in enumerate(command):
        is_value = at > 0 and command[at - 1] == "--save"
        if not is_value and word not in ("--save", "--json") and not word.startswith("--save="):
            words.append(word)
    return words


def write_file(name: str, text: str, suffix: str, option: str) -> None:
    """Write a file whole; raises UsageError where it cannot be written."""
    target = Path(name)
    if target.suffix.lower() != suffix or not target.parent.is_dir() or target.is_dir():
        raise UsageError(
            "the file cannot be written there",
            where=f"{option} {name}",
            hint=f"name a {suffix} file in a folder that exists",
        )
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise UsageError(f"the file cannot be written: {error.strerror}", where=f"{option} {name}") from error
