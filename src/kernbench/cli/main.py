"""The `kernbench` command. Subcommands are imported when they are called, so that starting up stays quick.

Exit codes: 0 all well, 1 a check failed, 2 the input was wrong (one message that says what, where and how to mend it).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from kernbench import __version__
from kernbench.common.errors import KernBenchError

# name -> (where the command is, one line for the help page)
COMMANDS = {
    "run": ("kernbench.cli.run:run", "Run a bench: its time, what bounds it, and whether its data is right."),
    "list": ("kernbench.cli.list_benches:list_benches", "The benches there are, and the parameters of one."),
    "probe": (
        "kernbench.cli.probe:probe",
        "Measure how long bytes take between places of a machine, alone and under load.",
    ),
    "topology": ("kernbench.cli.topology:topology", "Describe a machine; --emit draws it."),
    "fidelity": ("kernbench.cli.fidelity:fidelity", "What is exact, what is approximated, and in which direction."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

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
    """Run the command line; never shows a traceback for what a user can mend."""
    try:
        code = kernbench.main(args=args, prog_name="kernbench", standalone_mode=False)
    except KernBenchError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone: nothing more to say, and Python must not try at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
