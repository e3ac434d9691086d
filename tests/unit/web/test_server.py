"""The server answers to its own names, by GET, with what it was given and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("pyarrow")

from starlette.applications import Starlette
from starlette.types import Message
from tests.browser.generated_run import write_generated_run

from kernbench.cli.main import main
from kernbench.common.errors import UsageError
from kernbench.testing import tiny_machine
from kernbench.web.answers import packed
from kernbench.web.api import ROUTES
from kernbench.web.server import bind, bind_usual, make_app, static_files
from kernbench.web.shelf import Shelf

LOCAL = "127.0.0.1:8000"


def ask(
    app: Starlette, path: str, host: str = LOCAL, method: str = "GET", more: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[int, dict[str, str], bytes]:
    """One request, without a network: status, headers, body."""
    sent: list[Message] = []
    name, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": name, "raw_path": name.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", host.encode()), *more], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    # On a thread of its own: the browser tests leave a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, app(scope, receive, send)).result()
    headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    body = b"".join(m.get("body", b"") for m in sent[1:])
    return int(sent[0]["status"]), headers, body


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_generated_run(folder / "good", pes=2, rounds=5)
    write_generated_run(folder / "damaged", pes=1, rounds=2)
    (folder / "damaged" / "ops.parquet").write_bytes(b"short")
    return folder


@pytest.fixture(scope="module")
def app(runs: Path) -> object:
    return make_app(Shelf([runs], tiny_machine()))


def run_id(app: Starlette) -> str:
    listed = json.loads(ask(app, "/api/runs")[2])["runs"]
    return next(entry["id"] for entry in listed if entry["kind"] == "run")


def test_a_page_of_ours_is_served_with_headers_that_keep_it_to_itself(app: Starlette) -> None:
    status, headers, body = ask(app, "/")
    assert status == 200
    assert b"<html" in body
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", [LOCAL, "localhost:8000", "localhost", "[::1]:8000"])
def test_the_server_answers_to_its_own_names(app: Starlette, host: str) -> None:
    assert ask(app, "/", host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8000", "", "localhost.evil"])
def test_a_foreign_host_is_refused(app: Starlette, host: str) -> None:
    assert ask(app, "/api/runs", host)[0] == 421


def test_a_server_for_all_addresses_answers_to_addresses_but_not_to_foreign_names(runs: Path) -> None:
    app = make_app(Shelf([], tiny_machine()), "0.0.0.0")
    assert ask(app, "/", "10.0.0.1:8000")[0] == 200
    assert ask(app, "/", "evil.example")[0] == 421


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/server.py", "/static/app.js", "/api/none", "//etc/passwd",
     "/api/runs/../../etc", "/api/runs/aaaaaaaaaaaa", "/api/results/aaaaaaaaaaaa"],
)  # fmt: skip
def test_nothing_else_can_be_asked_for(app: Starlette, path: str) -> None:
    status, _, body = ask(app, path)
    assert status == 404
    assert set(json.loads(body)) == {"schema", "what", "where", "hint"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_get_is_answered(app: Starlette, method: str) -> None:
    assert ask(app, "/api/runs", method=method)[0] == 405


def test_figures_of_an_evaluation_are_its_own_regular_files(tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "results.json").write_text('{"bench": "x", "rows": [{"point": 0, "total_ns": 1.0}]}')
    (folder / "01-a.svg").write_text("<svg/>")
    (tmp_path / "secret.svg").write_text("secret")
    (folder / "02-b.svg").symlink_to(tmp_path / "secret.svg")
    shelf = Shelf([folder], tiny_machine())
    app, base = make_app(shelf), f"/api/results/{shelf.entries()[0].id}"
    assert json.loads(ask(app, base)[2])["figures"] == [{"name": "01-a.svg", "title": "01-a"}]
    status, headers, body = ask(app, f"{base}/figure/01-a.svg")
    assert (status, headers["content-type"], body) == (200, "image/svg+xml", b"<svg/>")
    assert "default-src 'none'" in headers["content-security-policy"]
    for wrong in ("02-b.svg", "results.json", "..%2fsecret.svg", "../secret.svg"):
        assert ask(app, f"{base}/figure/{wrong}")[0] == 404


@pytest.mark.parametrize(
    ("host", "more", "what"),
    [
        ("127.0.0.1", (), "only the page of this server starts a run"),
        ("0.0.0.0", ((b"x-kernbench-start", b"1"),), "other machines cannot start a run here"),
        ("127.0.0.1", ((b"x-kernbench-start", b"1"),), "no component 'rm' to make free"),
    ],
)
def test_a_run_is_started_by_the_own_page_only(runs: Path, host: str, more: Sequence[tuple[bytes, bytes]], what: str):
    shelf = Shelf([runs / "good"], tiny_machine())
    path = f"/api/runs/{shelf.runs()[0].id}/measurements"
    status, _, body = ask(make_app(shelf, host), f"{path}?name=rm", LOCAL, "POST", more)
    assert (status, json.loads(body)["what"]) == (400, what)
    assert json.loads(ask(make_app(shelf), path)[2])["measurements"] == []


def test_a_damaged_folder_is_listed_with_what_is_wrong_and_the_others_work(app: Starlette, runs: Path) -> None:
    listed = {Path(entry["dir"]).name: entry for entry in json.loads(ask(app, "/api/runs")[2])["runs"]}
    error = listed["damaged"]["error"]
    assert "ops.parquet has 5 bytes" in error["what"]
    assert error["where"] == str(runs / "damaged")
    assert "save the run again" in error["hint"]
    assert ask(app, f"/api/runs/{listed['damaged']['id']}")[0] == 400
    good = json.loads(ask(app, f"/api/runs/{listed['good']['id']}")[2])
    assert (good["ops"], len(good["lanes"]), good["total_ns"]) == (40, 8, 201.0)  # 2 PEs, 5 rounds of 40 ns, one later


def test_a_folder_that_breaks_its_reader_is_damaged_too(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "results.json").write_text("[" * 100_000)
    write_generated_run(tmp_path / "good", pes=1, rounds=1)
    listed = {Path(str(one["dir"])).name: one for one in Shelf([tmp_path], tiny_machine()).as_json()}
    assert (listed["deep"]["kind"], listed["good"]["kind"]) == ("damaged", "run")


def test_runs_that_were_looked_at_long_ago_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.web.shelf._MOST_OPS", 100)
    for n in range(4):
        write_generated_run(tmp_path / f"r{n}", pes=1, rounds=20 + n)  # 80 ops and more
    shelf = Shelf([tmp_path], tiny_machine())
    views = shelf.runs()
    for view in views:
        assert shelf.find(view.id) is view
        assert len(view.run.ops.t_end) >= 80
    kept = [view in shelf.runs() for view in views]
    assert kept == [False, True, True, True]  # the last two, and as many before as have 100 ops
    again = shelf.find(views[0].id)
    assert again is not None
    assert again is not views[0]


def test_what_an_evaluation_keeps_of_its_points_is_no_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "sweep.json").write_text("{}")
    under_way = Shelf([tmp_path], tiny_machine()).as_json()
    assert [(one["name"], one["kind"]) for one in under_way] == [("points", "damaged")]
    (tmp_path / "results.json").write_text(json.dumps({"rows": [{"m": 1}]}))
    assert [one["dir"] for one in Shelf([tmp_path], tiny_machine()).as_json()] == [str(tmp_path)]


def test_a_folder_that_is_written_later_is_found(tmp_path: Path) -> None:
    shelf = Shelf([tmp_path], tiny_machine())
    app = make_app(shelf)
    write_generated_run(tmp_path / "new", pes=1, rounds=1)
    assert "new" in {Path(entry["dir"]).name for entry in json.loads(ask(app, "/api/runs")[2])["runs"]}


def test_an_answer_that_is_being_made_when_the_server_closes_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def slow(shelf: Shelf, request: object) -> dict[str, object]:
        began.set()
        goes_on.wait(10)
        return {}

    monkeypatch.setitem(ROUTES, "/slow", slow)
    app = make_app(Shelf([runs], tiny_machine()))
    sent: list[dict[str, object]] = []

    async def close_meanwhile() -> None:
        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/api/slow", "query_string": b"", "root_path": "",
                 "headers": [(b"host", LOCAL.encode())]}  # fmt: skip
        task = asyncio.ensure_future(app(scope, None, send))  # type: ignore[arg-type]  # nothing is received
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        await task
        goes_on.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, close_meanwhile()).result()
    assert sent[0]["status"] == 503


def test_an_answer_that_has_not_changed_is_not_sent_again(app: Starlette) -> None:
    _, headers, body = ask(app, "/app.js")
    status, _, again = ask(app, "/app.js", more=[(b"if-none-match", headers["etag"].encode())])
    assert (status, again) == (304, b"")
    assert body == static_files()["app.js"]


@pytest.mark.parametrize(
    "question",
    ["tiles?k=99&i=0&lanes=0", "tiles?k=0&i=0&lanes=77", "tiles?k=0&i=zero&lanes=0", "tiles", "op/400", "op/x",
     "totals?t0=5&t1=5", "totals?sel=nothing", "heat?root=sip9", "path?scope=launch:7", "groups?lanes=0&bins=0",
     "machine?root=../..", "at?lane=99&t=0", "search", "route?from=host&to=nowhere"],
)  # fmt: skip
def test_a_wrong_question_is_answered_with_what_is_wrong(app: Starlette, question: str) -> None:
    status, _, body = ask(app, f"/api/runs/{run_id(app)}/{question}")
    assert status == 400
    assert json.loads(body)["what"]


def test_arrays_stand_at_multiples_of_eight_bytes() -> None:
    np = pytest.importorskip("numpy")
    body = packed({"schema": 1}, {"a": np.array([1, 2, 3], "u1"), "b": np.array([0.5, 1.5], "f4")})
    length = int.from_bytes(body[:4], "little")
    fields = json.loads(body[4 : 4 + length])["fields"]
    assert (4 + length) % 8 == 0
    assert [fields["a"]["offset"], fields["b"]["offset"], len(body) - 4 - length] == [0, 8, 16]
    assert np.frombuffer(body, "<f4", 2, 4 + length + 8).tolist() == [0.5, 1.5]


def test_the_usual_port_is_taken_where_it_is_free_and_another_where_it_is_not() -> None:
    first = bind("127.0.0.1", 0)
    first.listen()
    usual = first.getsockname()[1]
    with bind_usual("127.0.0.1", usual) as second:
        assert second.getsockname()[1] not in (0, usual)
    first.close()
    with bind_usual("127.0.0.1", usual) as third:
        assert third.getsockname()[1] == usual


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    first = bind("127.0.0.1", 0)
    first.listen()
    try:
        with pytest.raises(UsageError, match="cannot listen on"):
            bind("127.0.0.1", first.getsockname()[1])
    finally:
        first.close()


def test_answers_are_sent_without_waiting_for_the_client_to_acknowledge_their_head() -> None:
    """A connection that asyncio accepts on the socket has TCP_NODELAY: else each answer takes 40 ms more."""
    options: list[int] = []

    async def accept_one() -> None:
        done = asyncio.Event()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            done.set()

        listening = bind("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            await done.wait()
            writer.close()
            await writer.wait_closed()

    with ThreadPoolExecutor(1) as pool:  # browser tests may have left a loop in this thread
        pool.submit(asyncio.run, accept_one()).result()
    assert options == [1]


def test_a_folder_that_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["web", "/nowhere/at/all", "--no-open"])
    assert stopped.value.code == 2
    assert "there is no folder '/nowhere/at/all'" in capsys.readouterr().err


def test_a_run_whose_launches_are_damaged_is_one_row_of_the_list_and_the_others_work(tmp_path: Path) -> None:
    for n, name in enumerate(("broken", "deep", "good", "typed")):
        write_generated_run(tmp_path / name, pes=1, rounds=n + 1)
    (tmp_path / "broken" / "launches.json").write_bytes(
        b"\xff" * (tmp_path / "broken" / "launches.json").stat().st_size
    )
    (tmp_path / "deep" / "manifest.json").write_text('{"kind":' * 100_000)
    (tmp_path / "typed" / "manifest.json").write_text('{"schema": 1, "kind": "kernbench-run", "files": []}')
    app = make_app(Shelf([tmp_path], tiny_machine()))
    status, _, body = ask(app, "/api/runs")
    assert status == 200
    kinds = {Path(entry["dir"]).name: entry["kind"] for entry in json.loads(body)["runs"]}
    assert kinds == {"broken": "damaged", "deep": "damaged", "good": "run", "typed": "damaged"}


def test_a_folder_whose_name_is_not_utf_8_is_listed(tmp_path: Path) -> None:
    write_generated_run(tmp_path / os.fsdecode(b"run\xff"), pes=1, rounds=1)
    (tmp_path / os.fsdecode(b"bad\xff")).mkdir()
    (tmp_path / os.fsdecode(b"bad\xff") / "results.json").write_text("{")
    status, _, body = ask(make_app(Shelf([tmp_path], tiny_machine())), "/api/runs")
    assert status == 200
    assert [entry["kind"] for entry in json.loads(body)["runs"]] == ["damaged", "run"]


@pytest.mark.parametrize(
    "path",
    ["op/N", "tiles?k=N&i=0&lanes=0", "tiles?k=0&i=N&lanes=0", "tiles?k=0&i=0&lanes=N", "groups?lanes=0,N",
     "groups?lanes=0&bins=N", "heat?bins=N", "heat?t0=N", "heat?root=sipN", "heat?root=sip0.cubeN", "path?px=N",
     "path?scope=launch:N", "answer?scope=launch:N", "at?lane=N&t=0", "at?lane=0&t=N", "totals?sel=op:N",
     "totals?sel=line:kernel.py:N", "totals?sel=lane:N", "machine?root=sip0.cubeN",
     "route?from=sipN&to=sip0", "node?id=sip0.cube0.peN", "flows?px=N", "explain?scope=launch:N"],
)  # fmt: skip
def test_a_number_of_thousands_of_digits_is_refused_and_breaks_nothing(app: Starlette, path: str) -> None:
    run = run_id(app)
    for digits in ("9" * 5000, "9" * 400, "9" * 30):
        status, _, body = ask(app, f"/api/runs/{run}/{path.replace('N', digits)}")
        assert status == 400, body
        assert len(json.loads(body)["what"]) < 200


def test_a_search_for_thousands_of_digits_finds_nothing(app: Starlette) -> None:
    status, _, body = ask(app, f"/api/runs/{run_id(app)}/search?q={'9' * 5000}")
    assert (status, json.loads(body)["ops"]["count"]) == (200, 0)


def test_a_file_cut_short_under_an_open_server_is_an_error_and_no_crash(tmp_path: Path) -> None:
    write_generated_run(tmp_path / "run", pes=1, rounds=2000)
    app = make_app(Shelf([tmp_path], tiny_machine()))
    run = run_id(app)
    assert ask(app, f"/api/runs/{run}/tiles?k=0&i=0&lanes=0")[0] == 200
    os.truncate(tmp_path / "run" / "ops.parquet", 100)
    status, _, body = ask(app, f"/api/runs/{run}/op/5")
    assert (status, "ops.parquet" in json.loads(body)["what"]) == (400, True)
    assert ask(app, "/api/runs")[0] == 200
