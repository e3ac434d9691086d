"""The data interface: the handlers of the routes under `/api` (docs/guides/look-at-a-run.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Final, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from kernbench.common.errors import UsageError
from kernbench.common.whole_numbers import whole_number
from kernbench.web.answers import arrays_answer, bytes_answer
from kernbench.web.flows import flows, message_totals
from kernbench.web.heat import heat
from kernbench.web.machine_map import TRAY, Json, MachineMap
from kernbench.web.op_view import longest_ops, op_at, op_details, selected_rows, totals
from kernbench.web.path_view import answer, difference, explanation, flags_of, path, path_sums
from kernbench.web.results_view import ResultsView
from kernbench.web.run_view import RunView
from kernbench.web.shelf import Damaged, Shelf
from kernbench.web.source_view import SEARCH_HITS, search, sources
from kernbench.web.tensor_view import tensors
from kernbench.web.tiles import MARKED, group_rows, tiles

PageView = TypeVar("PageView", RunView, ResultsView)
Handler = Callable[[Shelf, Request], "Response | Json | list[Json]"]


class NotThere(UsageError):
    """The requested object does not exist: 404, not 400."""


def _runs(shelf: Shelf, request: Request) -> Json:
    spec = shelf.machine.graph.spec
    return {"schema": 1, "runs": shelf.as_json(), "machine": {"id": shelf.machine_id, "name": spec.system.name}}


def _entry(shelf: Shelf, request: Request, kind: type[PageView], what: str) -> PageView:
    entry = shelf.find(request.path_params["r"])
    if isinstance(entry, Damaged):
        raise entry.error
    if not isinstance(entry, kind):
        raise NotThere(f"there {what} '{request.path_params['r'][:20]}' here", hint="/api/runs lists what there is")
    return entry


def _view(shelf: Shelf, request: Request) -> RunView:
    return _entry(shelf, request, RunView, "is no run")


def _map(shelf: Shelf, request: Request) -> MachineMap:
    return shelf.machine if request.path_params["r"] == shelf.machine_id else _view(shelf, request).machine


def _run(shelf: Shelf, request: Request) -> Json:
    return _view(shelf, request).as_json()


def _machine(shelf: Shelf, request: Request) -> Json:
    return _map(shelf, request).as_json(request.query_params.get("root", TRAY))


def _route(shelf: Shelf, request: Request) -> Json:
    return _map(shelf, request).route(_text(request, "from"), _text(request, "to"))


def _node(shelf: Shelf, request: Request) -> Json:
    return _map(shelf, request).about(_text(request, "id"))


def _search(shelf: Shelf, request: Request) -> Json:
    words = _text(request, "q")
    if request.path_params["r"] == shelf.machine_id:
        names, count = shelf.machine.search(words, SEARCH_HITS)
        hits = [{"id": name, "text": name} for name in names]
        return {"schema": 1, "q": words, "nodes": {"count": count, "hits": hits}}
    return search(_view(shelf, request), words)


def _tiles(shelf: Shelf, request: Request) -> Response:
    view = _view(shelf, request)
    flags = flags_of(view, request.query_params.get("scope"))
    if mark := request.query_params.get("mark"):
        flags = flags | np.where(selected_rows(view, mark), np.uint8(MARKED), np.uint8(0))
    header, arrays = tiles(view, int(_number(request, "k")), _ints(request, "i"), _ints(request, "lanes"), flags)
    return arrays_answer(request, header, arrays)


def _groups(shelf: Shelf, request: Request) -> Response:
    """`lanes=0,1,2;3,4`: groups of lanes, by `;`."""
    view = _view(shelf, request)
    texts = _text(request, "lanes").split(";")
    groups = [_some_ints(text, "lanes") for text in texts]
    known = len(view.run.lanes)
    if any(not 0 <= lane < known for group in groups for lane in group):
        raise UsageError(f"the run has lanes 0 to {known - 1}", hint="ask for those")
    t0, t1 = _window(request, view)
    header, arrays = group_rows(view, groups, t0, t1, int(_number(request, "bins", 512)))
    return arrays_answer(request, header, arrays)


def _heat(shelf: Shelf, request: Request) -> Response:
    view = _view(shelf, request)
    t0, t1 = _window(request, view)
    root = request.query_params.get("root", TRAY)
    bins = int(_number(request, "bins", 512))
    header, arrays = view.keep("heat", (root, t0, t1, bins), 8, lambda: heat(view, root, t0, t1, bins))
    return arrays_answer(request, header, arrays)


def _op(shelf: Shelf, request: Request) -> Json:
    text = request.path_params["op"]
    op = whole_number(text)
    if op is None:
        raise UsageError(f"'{text[:20]}' is no number of an op", hint="ask for /op/16")
    return op_details(_view(shelf, request), op)


def _totals(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    t0, t1 = _window(request, view)
    sums = path_sums(view, request.query_params.get("scope"), t0, t1)
    selection = request.query_params.get("sel")
    found = {**totals(view, t0, t1, selection), "path": sums}
    if selection and selection.startswith("launch:"):
        found["messages"] = message_totals(view, selection)
    return found


def _flows(shelf: Shelf, request: Request) -> Json:
    """`closed=sip0.cube1,...`: cubes drawn as one row."""
    view = _view(shelf, request)
    closed = frozenset(request.query_params.get("closed", "").split(","))
    px = int(_number(request, "px", 1024))
    return flows(view, *_window(request, view), px, request.query_params.get("sel"), closed)


def _sources(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    return sources(view, request.query_params.get("scope"), *_window(request, view))


def _busy(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    return {"schema": 1, "busy": view.busy_in(*_window(request, view))}


def _path(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    return path(view, request.query_params.get("scope"), *_window(request, view), int(_number(request, "px", 1024)))


def _answer(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    found = answer(view, request.query_params.get("scope"))
    step = shelf.next_step(view, str(found["cause"]))
    return {**found, "command": step.command, "change": step.change}


def _tensors(shelf: Shelf, request: Request) -> Json:
    return tensors(_view(shelf, request), request.query_params.get("scope"))


def _measurements(shelf: Shelf, request: Request) -> Json:
    return {"schema": 1, "measurements": shelf.measurements.of(_view(shelf, request).id)}


def _measure(shelf: Shelf, request: Request) -> Json:
    """Start a measurement: the only request that changes something."""
    shelf.measurements.start(_view(shelf, request), _text(request, "name"), request.query_params.get("scope"))
    return _measurements(shelf, request)


def _explain(shelf: Shelf, request: Request) -> Json:
    return explanation(_view(shelf, request), request.query_params.get("scope"), shelf.runs())


def _at(shelf: Shelf, request: Request) -> Json:
    return op_at(_view(shelf, request), int(_number(request, "lane")), _number(request, "t"))


def _ops(shelf: Shelf, request: Request) -> Json:
    view = _view(shelf, request)
    return longest_ops(view, *_window(request, view))


def _diff(shelf: Shelf, request: Request) -> Json:
    found = [shelf.find(_text(request, name)) for name in ("a", "b")]
    a, b = found
    if not isinstance(a, RunView) or not isinstance(b, RunView):
        raise NotThere("two runs are compared, and one of these is none", hint="/api/runs lists what there is")
    return difference(a, b, request.query_params.get("scope"))


def _results_view(shelf: Shelf, request: Request) -> ResultsView:
    return _entry(shelf, request, ResultsView, "are no results")


def _results(shelf: Shelf, request: Request) -> Json:
    return _results_view(shelf, request).as_json()


def _figure(shelf: Shelf, request: Request) -> Response:
    found = _results_view(shelf, request).figure(request.path_params["name"])
    if found is None:
        raise NotThere(f"there is no figure '{request.path_params['name'][:60]}'", hint="/api/results/ID lists them")
    return bytes_answer(request, found, "image/svg+xml")


ROUTES: Final[Mapping[str, Handler]] = {
    "/runs": _runs,
    "/runs/{r}": _run,
    "/runs/{r}/machine": _machine,
    "/runs/{r}/route": _route,
    "/runs/{r}/node": _node,
    "/runs/{r}/search": _search,
    "/runs/{r}/tiles": _tiles,
    "/runs/{r}/groups": _groups,
    "/runs/{r}/heat": _heat,
    "/runs/{r}/flows": _flows,
    "/runs/{r}/op/{op}": _op,
    "/runs/{r}/at": _at,
    "/runs/{r}/ops": _ops,
    "/runs/{r}/busy": _busy,
    "/runs/{r}/path": _path,
    "/runs/{r}/answer": _answer,
    "/runs/{r}/explain": _explain,
    "/runs/{r}/measurements": _measurements,
    "/runs/{r}/tensors": _tensors,
    "/runs/{r}/totals": _totals,
    "/runs/{r}/source": _sources,
    "/diff": _diff,
    "/results/{r}": _results,
    "/results/{r}/figure/{name}": _figure,
}
STARTS: Final[Mapping[str, Handler]] = {"/runs/{r}/measurements": _measure}  # by POST


# ---------------------------------------------------------------------------------------------------------- questions


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value or len(value) > 100_000:
        raise UsageError(f"{name}= is missing", where=request.url.path, hint=f"add ?{name}=...")
    return value


def _number(request: Request, name: str, default: float | None = None) -> float:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value) or abs(value) > 1e15:
        raise UsageError(f"{name}= is no number", where=request.url.path, hint=f"add ?{name}=NUMBER")
    return value


def _ints(request: Request, name: str) -> list[int]:
    return _some_ints(_text(request, name), name)


def _some_ints(text: str, name: str) -> list[int]:
    found = [whole_number(part) for part in text.split(",") if part]
    numbers = [number for number in found if number is not None]
    if len(numbers) != len(found):
        raise UsageError(f"{name}= takes numbers, with commas between them", hint=f"write {name}=0,1,2")
    return numbers


def _window(request: Request, view: RunView) -> tuple[float, float]:
    """`t0` and `t1`, or those of `scope`; inside the run."""
    low, high = view.scope(request.query_params.get("scope"))
    t0, t1 = _number(request, "t0", low), _number(request, "t1", high)
    t0, t1 = max(t0, 0.0), min(t1, view.t_end)
    if not t0 < t1:
        raise UsageError(f"no time from {t0} to {t1} ns", hint=f"the run takes {view.t_end} ns")
    return t0, t1
