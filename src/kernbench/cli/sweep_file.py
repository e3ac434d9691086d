"""A sweep as a YAML file: what `kernbench sweep` takes as options, under the same names.

    bench: matmul-composite            # a name, or a file.py[:name], near this file; or scenario: mix.yaml
    over:                              # or points: a list of such settings
      m: [128, 256, 512]               # or a text as on the command line: 128..512*2
      machine:system.sips.count: [1, 2]
    where: ["m <= 256"]                # conditions that points satisfy
    sensitivity: true                  # each axis alone
    mode: grid                         # or zip
    param: { k: 256 }
    set: { cube.links.router_bw_gbs: 512 }
    topology: machine.yaml
    search: { method: optuna, trials: 40, seed: 1, batch: 8, storage: study.db }
    objective: [total_ns:min, cost:min]
    cost: costs.py:price
    device: sip:0
    verify_data: true
    workers: 4
    point_timeout: 600                 # seconds
    cluster: tcp://host:8786
    out: results

Faults are reported with their line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.sweep.points import JsonValue, plain_value
from kernbench.topology.yaml_file import read_yaml
from kernbench.topology.yaml_marks import Marked

TEXTS = ("bench", "scenario", "topology", "cost", "device", "cluster", "out", "mode")
KEYS = {  # key -> meaning
    "bench": "a name or number of `kernbench list`, or FILE.py:NAME",
    "scenario": "a file of workloads with weights, in place of a bench",
    "topology": "the machine's YAML file; the shipped machine without it",
    "cost": "MODULE:FUNCTION that gives a machine's cost, for the objective `cost`",
    "device": "all, whole, or one SIP: sip:0",
    "cluster": "address of a dask scheduler; without it, processes of this computer",
    "out": "the folder for rows, tables and plot",
    "mode": "how axes are combined: grid or zip",
    "over": "axes: a parameter of the bench, or machine:KEY, and its values as a list or as text such as 1..8",
    "points": "a list of settings, in place of axes",
    "param": "parameters of the bench that all points share",
    "set": "keys of the machine that all points share",
    "search": "method, trials, seed, batch and storage of a search, in place of a grid",
    "objective": "columns to rank by, such as [total_ns:min, cost:min]",
    "where": "conditions that points satisfy, such as [machine:cube.ucie.n_connections * 128 <= 512]",
    "sensitivity": "true: vary each axis alone, from the machine as it is",
    "verify_data": "true: compute the tensors of every point and check them",
    "workers": "how many processes; one per core without it",
    "point_timeout": "seconds after which a point is ended",
}
SEARCH_KEYS = ("method", "trials", "seed", "batch", "storage")


@dataclass(slots=True)
class SweepFile:
    """The content of a file. `over` has a list of values or a text for each axis; `places` has the line of each key."""

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    over: dict[str, list[JsonValue] | str] = field(default_factory=dict)
    points: list[dict[str, JsonValue]] | None = None
    param: dict[str, JsonValue] = field(default_factory=dict)
    set: dict[str, JsonValue] = field(default_factory=dict)
    search: dict[str, JsonValue] = field(default_factory=dict)
    objective: str | None = None
    verify_data: bool = False
    where: tuple[str, ...] = ()
    sensitivity: bool = False
    workers: int | None = None
    point_timeout: float | None = None
    places: dict[str, str] = field(default_factory=dict)

    def near(self, name: str) -> str:
        """A path that the file names, as seen from where the command runs."""
        place, colon, rest = name.partition(":")
        path = Path(place)
        if path.is_absolute() or not (place.endswith((".py", ".yaml", ".yml", ".db")) or "/" in place):
            return name
        return f"{self.path.parent / path}{colon}{rest}"


def read_sweep_file(name: str) -> SweepFile:
    """The sweep that a file describes; raises UsageError or TopologyError for what cannot be read."""
    root = read_yaml(name, "sweep", "bench: gemm-single-pe, and over: { m: [128, 256] }")
    keys = _mapping(root, "the file", "bench, over, ...")
    found = SweepFile(Path(name))
    for key, node in keys.items():
        if key not in KEYS:
            close = nearest(key, KEYS)
            suggestion = f"; did you mean '{close}'?" if close else ""
            raise _wrong(node, key, f"unknown key '{key[:40]}'{suggestion}", f"known keys: {', '.join(KEYS)}")
        found.places[key] = f"{node.mark}  {key}"
        _take(found, key, node)
    return found


def _take(found: SweepFile, key: str, node: Marked) -> None:
    value = plain_value(node.plain(), f"{node.mark}  {key}")
    if key in TEXTS:
        if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
            raise _wrong(node, key, f"{key} is {value!r}", "give a text")
        found.texts[key] = str(value)
    elif key == "over":
        for name, values in _mapping(node, key, "m: [128, 256]").items():
            found.over[name] = _axis(name, values)
            found.places[f"over.{name}"] = f"{values.mark}  over.{name}"
    elif key == "points":
        if not isinstance(node.value, list) or not node.value:
            raise _wrong(node, key, f"points is {value!r}", "give a list of settings: [{m: 128}, {m: 256}]")
        found.points = [_settings(item, f"points[{at}]") for at, item in enumerate(node.value)]
    elif key in ("param", "set", "search"):
        settings = _settings(node, key)
        if key == "search" and (unknown := [name for name in settings if name not in SEARCH_KEYS]):
            raise _wrong(node, key, f"unknown key '{unknown[0]}'", f"known keys: {', '.join(SEARCH_KEYS)}")
        setattr(found, key, settings)
    elif key == "objective":
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in parts) or not parts:
            raise _wrong(node, key, f"objective is {value!r}", "write [total_ns:min, cost:min]")
        found.objective = ",".join(str(part) for part in parts)
    elif key == "where":
        conditions = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in conditions):
            raise _wrong(node, key, f"where is {value!r}", "write [m <= 256]")
        found.where = tuple(str(part) for part in conditions)
    elif key in ("verify_data", "sensitivity"):
        if not isinstance(value, bool):
            raise _wrong(node, key, f"{key} is {value!r}", "give true or false")
        setattr(found, key, value)
    elif key == "point_timeout":
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise _wrong(node, key, f"point_timeout is {value!r}", "give seconds, more than 0")
        found.point_timeout = float(value)
    else:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(node, key, f"workers is {value!r}", "give a whole number, 1 or more")
        found.workers = value


def _axis(name: str, node: Marked) -> list[JsonValue] | str:
    value = plain_value(node.plain(), f"{node.mark}  over.{name}")
    if isinstance(value, list):
        return value
    if value is None or isinstance(value, dict):
        raise _wrong(node, f"over.{name}", f"the axis has {value!r} for its values", "give a list: [128, 256]")
    return value if isinstance(value, str) else [value]


def _settings(node: Marked, key: str) -> dict[str, JsonValue]:
    keys = _mapping(node, key, "name: value")
    return {name: plain_value(child.plain(), f"{child.mark}  {key}.{name}") for name, child in keys.items()}


def _mapping(node: Marked, key: str, example: str) -> dict[str, Marked]:
    if not isinstance(node.value, dict):
        raise _wrong(node, "" if key == "the file" else key, f"{key} has no keys and values", f"write {example}")
    return node.value


def _wrong(node: Marked, key: str, what: str, hint: str) -> UsageError:
    return UsageError(what, where=f"{node.mark}  {key}".rstrip(), hint=hint)
