"""Options that several commands share, and how they print JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

import click

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import plain_json
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

F = TypeVar("F", bound=Callable[..., Any])


def machine_options(command: F) -> F:
    """`--topology FILE` and `--set KEY=VALUE`."""
    command = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one value of the machine, e.g. --set system.sips.count=4. May be repeated.",
    )(command)
    return click.option(
        "--topology",
        metavar="FILE",
        default=None,
        help="A machine description in YAML; the shipped machine if left out.",
    )(command)


def load_machine(topology: str | None, settings: tuple[str, ...]) -> TopologyGraph:
    """The machine of `machine_options`."""
    overrides: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"--set takes KEY=VALUE, not '{setting}'", hint="write for example --set system.sips.count=4"
            )
        overrides.pop(key.strip(), None)  # the last one wins, also over settings below it in between
        overrides[key.strip()] = value
    if topology is not None and not topology.strip():
        raise UsageError("--topology takes a file, not an empty name", hint="leave it out for the shipped machine")
    return load_topology(topology, overrides)


def given_words() -> list[str]:
    """The command as it was given, by the shell or by a caller of `main`."""
    return ["kernbench", *click.get_current_context().meta["kernbench.words"]]


def refuse_two_scopes(launch: int | None, whole: bool) -> None:
    """Raise UsageError if both `--launch N` and `--whole` are given."""
    if whole and launch is not None:
        raise UsageError("--launch and --whole together", hint="give one of them, or neither: the launches, from "
                         "the first one's begin to the last one's end")  # fmt: skip


@contextmanager
def stdout_for_json(as_json: bool) -> Iterator[None]:
    """While user code runs, redirect its output to standard error if standard output is JSON."""
    if as_json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_json(data: Any) -> None:
    """Print deterministic JSON on standard output; infinity and NaN are null."""
    click.echo(json.dumps(plain_json(data), indent=2, allow_nan=False))
