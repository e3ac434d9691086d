"""`kernbench web`: runs, sweeps and machines in the browser."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from kernbench.cli.options import load_machine, machine_options
from kernbench.common.errors import UsageError


@click.command()
@click.argument("folders", nargs=-1, metavar="[RUN ...]")
@machine_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen there; 0 takes a free one.  [default]")
@click.option("--host", default="127.0.0.1", metavar="NAME", help="Listen on that address.  [default: 127.0.0.1]")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
def web(
    folders: tuple[str, ...], topology: str | None, settings: tuple[str, ...], port: int, host: str, no_open: bool
) -> int:
    """Look at runs (`kernbench run --save`), sweeps and evaluations in the browser, or at a machine only.

    A folder that holds such folders gives all of them. Ctrl-C ends it.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"the page needs {' and '.join(missing)}", hint="pip install 'kernbench[web]'")
    from kernbench.web.server import bind, serve
    from kernbench.web.shelf import Shelf

    shelf = Shelf([Path(folder) for folder in folders], load_machine(topology, settings))
    sock = bind(host, port)
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
