"""The server: the files of the page and the data interface, by GET; a measurement is started by POST.

It listens on 127.0.0.1 by default, and accepts only its own names in the Host header: a page of another site whose name
resolves to this address is rejected (DNS rebinding). Files of the package are read once, by name; nothing else on the
disk can be requested except the content of the given folders.
"""

from __future__ import annotations

import ipaddress
import socket
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from importlib.resources import files
from logging import getLogger

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.web.answers import bytes_answer, error_answer, json_answer
from kernbench.web.api import ROUTES, STARTS, Handler, NotThere
from kernbench.web.machine_map import Json
from kernbench.web.shelf import Shelf

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_SAFE = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
     b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip
_WORKERS = 4  # concurrent responses: each may hold its own columns for a while
START_HEADER = "x-kernbench-start"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class KnownHosts:
    """Rejects requests whose Host header is not a name of this server; adds security headers."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._names = {*_LOOPBACK, host.lower()}
        self._any_address = host in ("0.0.0.0", "::")
        if self._any_address:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers")
                message["headers"] = [*(headers if isinstance(headers, list) else ()), *_SAFE]
            await send(message)

        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1 or not self._knows(given[0]):
            refusal = UsageError(
                "this server does not answer to that name",
                where=f"Host: {given[0][:80] if given else ''}",
                hint="open the address that `kernbench web` printed, or give the name by --host",
            )
            await error_answer(refusal, 421)(scope, receive, send_safe)
            return
        await self._app(scope, receive, send_safe)

    def _knows(self, host: str) -> bool:
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name in self._names:
            return True
        return self._any_address and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make_app(shelf: Shelf, host: str = "127.0.0.1") -> Starlette:
    """The application; `host` is the name it listens on."""
    pages = static_files()

    def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in pages:
            return error_answer(UsageError(f"there is no page '{name[:60]}'", hint="open /"), 404)
        return bytes_answer(request, pages[name], _TYPES[name.rpartition(".")[2]])

    workers = CapacityLimiter(_WORKERS)
    routes = [
        Route(f"/api{path}", _answering(shelf, handler, workers), methods=["GET"]) for path, handler in ROUTES.items()
    ]
    routes += [
        Route(f"/api{path}", _answering(shelf, _from_this_page(handler, host), workers), methods=["POST"])
        for path, handler in STARTS.items()
    ]
    routes += [Route("/", page, methods=["GET"]), Route("/{name}", page, methods=["GET"])]
    return Starlette(
        routes=routes,
        middleware=[Middleware(KnownHosts, host=host)],
        exception_handlers={HTTPException: _not_found, Exception: _failed},
    )


def _from_this_page(handler: Handler, host: str) -> Handler:
    """A handler that refuses other pages, which cannot set the header, and other machines."""

    def checked(shelf: Shelf, request: Request) -> Response | Json | list[Json]:
        if host not in _LOOPBACK:
            raise UsageError("other machines cannot start a run here", hint="use the command that Explain shows")
        if request.headers.get(START_HEADER) != "1":
            raise UsageError("only the page of this server starts a run", hint="press Measure in Explain")
        return handler(shelf, request)

    return checked


def _answering(shelf: Shelf, handler: Handler, workers: CapacityLimiter) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that runs in a thread and turns errors into responses."""

    def answer(request: Request) -> Response:
        try:
            found = handler(shelf, request)
        except NotThere as error:
            return error_answer(error, 404)
        except KernBenchError as error:
            return error_answer(error, 400)
        return found if isinstance(found, Response) else json_answer(request, found)

    async def endpoint(request: Request) -> Response:
        try:
            return await to_thread.run_sync(answer, request, limiter=workers, abandon_on_cancel=True)
        except CancelledError:  # Ctrl-C while the response was computed
            return error_answer(UsageError("the server is closing", hint="start `kernbench web` again"), 503)

    return endpoint


def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    what = "only GET is answered" if status == 405 else f"there is nothing at '{request.url.path[:80]}'"
    return error_answer(UsageError(what, hint="open /"), status)


def _failed(request: Request, error: Exception) -> Response:
    what = f"the server failed: {type(error).__name__}: {error}"
    return error_answer(UsageError(what, where=request.url.path, hint="report this; other views still work"), 500)


def static_files() -> dict[str, bytes]:
    """The files of the page in the package, by name."""
    folder = files("kernbench.web") / "static"
    pages = {
        entry.name: _without_comments(entry.read_bytes())
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.is_file() and entry.name.rpartition(".")[2] in _TYPES
    }
    # Modules are preloaded together: found one by one through imports, each would wait for the one before.
    links = "\n".join(f'<link rel="modulepreload" href="{name}">' for name in pages if name.endswith(".js"))
    pages["index.html"] = pages["index.html"].replace(b"<!-- modules -->", links.encode())
    return pages


def _without_comments(text: bytes) -> bytes:
    """A file without indentation and comment lines, which a browser does not need; lines keep their numbers."""
    lines = (line.lstrip() for line in text.split(b"\n"))
    return b"\n".join(b"" if line.startswith(b"//") else line for line in lines)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to that address; raises UsageError if that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With an explicit protocol, asyncio sets TCP_NODELAY. Otherwise the body of each response would wait for the
        # acknowledgement of its head, 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            where="--host, --port",
            hint="leave --port out, and one that is free is taken",
        ) from error
    return sock


def bind_usual(host: str, port: int) -> socket.socket:
    """A socket bound to that port, or to a free one where it is taken; raises UsageError for an invalid host."""
    try:
        return bind(host, port)
    except UsageError:
        return bind(host, 0)


def serve(shelf: Shelf, sock: socket.socket, host: str, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called when requests are accepted."""
    config = uvicorn.Config(
        make_app(shelf, host), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
    )
    # Ctrl-C while a response is computed is not an error.
    getLogger("uvicorn.error").addFilter(lambda record: "graceful shutdown" not in record.getMessage())
    server = _Server(config, ready)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:
        return
    finally:
        sock.close()
        shelf.measurements.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
