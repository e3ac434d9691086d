"""The `kernbench` command. Subcommands are imported when they are called, for a fast start.

Exit codes: 0 success, 1 a check failed, 2 invalid input (one message with what, where and how to fix it).
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from io import TextIOWrapper
from typing import TextIO

import click

from kernbench import __version__
from kernbench.cli.failures import failed_outside
from kernbench.common.errors import FastCheckError, KernBenchError, KernBenchWarning, StoppedRun, UsageError
from kernbench.common.nearest import nearest
from kernbench.sim_engine.gc_threshold import collect_seldom, end_without_gc, paused_gc, raised_gc_threshold

# name -> (module:function, one line for the help page)
COMMANDS = {
    "run": ("kernbench.cli.run:run", "Run a bench: its time, what bounds it, and whether its data is right."),
    "runs": ("kernbench.cli.runs:runs", "The runs that `run --save` wrote."),
    "explain": (
        "kernbench.cli.explain:explain",
        "Where the time of a saved run went, and what would bound it instead.",
    ),
    "trace": ("kernbench.cli.trace:trace", "A saved run as a trace for Perfetto."),
    "query": ("kernbench.cli.query:query", "SQL over the ops, launches, links and tensors of a saved run."),
    "diff": ("kernbench.cli.diff:diff", "What changed between two saved runs, and where."),
    "sweep": ("kernbench.cli.sweep:sweep", "Run a bench over values of its parameters and of the machine."),
    "compare": ("kernbench.cli.compare:compare", "Machines side by side: rooflines, area, price, probes, workloads."),
    "report": ("kernbench.cli.report:report", "Make one HTML file of the results of an evaluation or a sweep."),
    "list": ("kernbench.cli.list_benches:list_benches", "List the benches, or the parameters of one."),
    "probe": (
        "kernbench.cli.probe:probe",
        "Measure transfers between places of a machine, uncontended and under load.",
    ),
    "web": ("kernbench.cli.web:web", "Look at runs, sweeps and machines in the browser."),
    "topology": ("kernbench.cli.topology:topology", "Describe a machine; --emit draws it."),
    "ccl": ("kernbench.cli.ccl:ccl", "Measure collectives by size, with the options and the table of nccl-tests."),
    "tune-ccl": ("kernbench.cli.tune_ccl:tune_ccl", "Measure which algorithm is fastest at which size, for `auto`."),
    "validate": ("kernbench.cli.validate:validate", "How far the model is from measured hardware."),
    "fidelity": ("kernbench.cli.fidelity:fidelity", "What is exact, what is approximated, and in which direction."),
}


class LazyGroup(click.Group):
    """A group that imports a command only to run it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["kernbench.words"] = tuple(args)  # for `given_words`
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        if module not in sys.modules:
            with paused_gc():
                import_module(module)
        command = getattr(sys.modules[module], name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        unknown = bool(args) and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # shell completion must print nothing
            near = nearest(args[0].lower(), COMMANDS)
            suggestion = f"; did you mean '{near}'?" if near else ""
            raise UsageError(f"no such command '{args[0][:40]}'{suggestion}", hint=f"use one of {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has exited
            _drop(sys.stdout)
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kernbench")
def kernbench() -> None:
    """How long a kernel takes on an accelerator that is not built yet.

    Every command works on the default machine; --topology FILE takes another, --set KEY=VALUE changes one value of it.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line; errors that a user can fix show no traceback."""
    _prepare_output()
    warnings.showwarning = _show_warning
    end_without_gc()
    if args is None and sys.argv[1:2] == ["run"]:
        collect_seldom()
    try:
        with raised_gc_threshold():
            code = kernbench.main(args=args, prog_name="kernbench", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        code = _refuse(_in_house_style(error))
    except FastCheckError as error:
        _refuse(error)
        code = 1
    except KernBenchError as error:
        code = _refuse(error)
    except (click.Abort, KeyboardInterrupt) as stopped:
        stop = stopped.__cause__ if isinstance(stopped, click.Abort) else stopped  # click converts one to the other
        click.echo(str(stop) if isinstance(stop, StoppedRun) else "stopped", err=True)
        code = 130
    except OSError as error:
        where = str(error.filename) if error.filename else None
        code = _refuse(UsageError(f"cannot read or write: {error.strerror or error}", where=where))
    except Exception as error:
        outside = failed_outside(error)
        if outside is None:
            raise  # a fault of KernBench: the traceback is needed for a report
        code = _refuse(outside)
    code = _end_output(code if isinstance(code, int) else 0)
    if args is None and "triton" in sys.modules:  # its library reports its own leaks at exit, on standard error
        os._exit(code)
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as errors are printed; those of other packages with their line."""
    is_ours = issubclass(category, KernBenchWarning)
    click.echo(f"warning: {message}" if is_ours else f"{filename}:{lineno}: {category.__name__}: {message}", err=True)


def _prepare_output() -> None:
    """Exit with an error if stdout is closed; run without stderr if that is closed. Characters that the encoding lacks,
    as in names that are not UTF-8, are escaped.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process lasts
    if sys.stdout is None:
        sys.exit(_refuse(UsageError("stdout is closed", hint="let it lead to a file, or to /dev/null")))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _end_output(code: int) -> int:
    """Flush the output; returns the exit code. Output that cannot be written is dropped, so that Python does not try
    again at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            _drop(stream)
            if not code and not isinstance(error, BrokenPipeError):
                code = _refuse(UsageError(f"cannot read or write: {error.strerror or error}"))
    return code


def _drop(stream: TextIO) -> None:
    """Redirect a stream, with its buffer, to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _refuse(error: KernBenchError) -> int:
    try:
        click.echo(f"error: {error}", err=True)
    except OSError:  # stderr cannot be written
        _drop(sys.stderr)
    return 2


def _in_house_style(error: click.ClickException) -> UsageError:
    """An error of click in the format of all other errors."""
    ctx = getattr(error, "ctx", None)
    hint = f"`{ctx.command_path} --help` lists what there is" if ctx else None
    return UsageError(error.format_message().rstrip("."), hint=hint)
