"""`kernbench web`: runs, sweeps and machines in the browser."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli.options import load_machine, machine_options
from kernbench.common.errors import UsageError

if TYPE_CHECKING:
    from kernbench.report.run_command import NextStep
    from kernbench.report.runs.saved_run import SavedRun

PORT = 8765


@click.command()
@click.argument("folders", nargs=-1, metavar="[RUN ...]")
@machine_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Listen there; 0 takes a free one.  [default: {PORT}, or a free one where that is taken]",
)
@click.option("--host", default="127.0.0.1", metavar="NAME", help="Listen on that address.  [default: 127.0.0.1]")
@click.option(
    "--export", metavar="FILE.html", default=None, help="Write RUN as one page that needs no server, and end."
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
def web(
    folders: tuple[str, ...],
    topology: str | None,
    settings: tuple[str, ...],
    port: int | None,
    host: str,
    export: str | None,
    no_open: bool,
) -> int:
    """Look at runs (`kernbench run --save`), sweeps and evaluations in the browser, or at a machine only.

    A folder that holds such folders gives all of them. Ctrl-C ends it.
    """
    if export is not None:
        return _export(folders, export)
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"the page needs {' and '.join(missing)}", hint="pip install 'kernbench[web]'")
    from kernbench.web.server import bind, bind_usual, serve
    from kernbench.web.shelf import Shelf

    shelf = Shelf([Path(folder) for folder in folders], load_machine(topology, settings), _next_step)
    sock = bind_usual(host, PORT) if port is None else bind(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{sock.getsockname()[1]}/"

    def ready() -> None:
        for entry in shelf.damaged():
            click.echo(f"cannot open {entry.dir}: {entry.error.what}", err=True)
        click.echo(f"{shelf.summary()}\n{address}   (Ctrl-C ends it)")
        if not no_open:
            click.launch(address)

    serve(shelf, sock, host, ready)
    return 0


def _next_step(run: SavedRun, cause: str) -> NextStep:
    """What to run next. The server imports no user's file, so that only shipped benches advise parameters here."""
    from kernbench.cli.run_page import command_of
    from kernbench.report.run_command import RunCommand
    from kernbench.runtime_api.user_module import is_file, split_identifier

    folder, about = str(run.path), run.manifest
    if is_file(split_identifier(about.identifier)[0]):
        return RunCommand(about.command, about.bench, folder).next_step(cause)
    return command_of(run, folder).next_step(cause)


def _export(folders: tuple[str, ...], name: str) -> int:
    """Write the page of one saved run."""
    from kernbench.cli.run_page import write_page
    from kernbench.report.explain.headline import main_scope, scope_name
    from kernbench.report.runs.saved_run import open_run

    if len(folders) != 1:
        raise UsageError(f"--export is for one run, not {len(folders)}", hint="kernbench web RUN --export FILE.html")
    saved = open_run(folders[0])
    explanation = main_scope(saved)
    title = ", ".join(filter(None, (saved.name, scope_name(saved, explanation.scope))))
    write_page(saved, explanation, title, name, folders[0], "--export")
    click.echo(f"wrote {name}")
    return 0
