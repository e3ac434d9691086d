"""What a validation set is, and how its errors are counted.

A set reads its cases from a folder, simulates them on a machine of `machines/`, and knows in which column of which file
the measurements are. `judge` puts both together: the driver has no way to see what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import as_file, files
from statistics import fmean, median
from typing import Literal

from kernbench.common.frozen import frozen
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.validation.data import DataFolder

ErrorUnit = Literal["pct", "points"]  # of an error: relative to what was measured, or a difference of shares in percent
CaseName = tuple[str, str]  # regime, name of the case
ShowProgress = Callable[[str], None]


@frozen
class OtherSimulator:
    """An error that another simulator reports for the same kind of measurement."""

    name: str
    error: str
    source: str


@frozen
class ValidationSet:
    """One set. `read` and `simulate` must not look at the columns of `measured`."""

    name: str
    title: str
    folder: str  # under the data, as in shared/validation
    machine: str  # a file of `machines/`, or "" where rows name their own
    quantity: str  # what is compared, with its unit
    unit: ErrorUnit
    fitted: tuple[str, ...]  # constants that were fitted, and to what
    differs: str  # why simulated and measured values differ
    peers: tuple[OtherSimulator, ...]
    source: str
    simulate: Callable[[DataFolder, ShowProgress], Mapping[CaseName, float]]
    measured: Callable[[DataFolder], Mapping[CaseName, float]]


@frozen
class ValidationRow:
    """One case: what was measured, what was simulated, and the error in the set's unit; None where it is unknown."""

    regime: str
    case: str
    measured: float | None
    simulated: float
    error: float | None


@frozen
class Regime:
    """Errors of one regime: of the absolute values the mean, the median and the worst, and the mean with sign."""

    name: str
    unit: ErrorUnit
    n: int
    mean: float | None
    bias: float | None
    median: float | None
    worst: float | None


@dataclass(frozen=True)
class SetVerdict:
    """A set, judged."""

    set: ValidationSet
    rows: Sequence[ValidationRow]
    regimes: Sequence[Regime] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.set.name,
            "title": self.set.title,
            "quantity": self.set.quantity,
            "regimes": [_plain(regime) for regime in self.regimes],
            "fitted": list(self.set.fitted),
            "peers": [_plain(peer) for peer in self.set.peers],
            "source": self.set.source,
            "rows": [_plain(row) for row in self.rows],
        }


def _plain(record: Regime | OtherSimulator | ValidationRow) -> dict[str, object]:
    return asdict(record)


def machine(name: str, overrides: Mapping[str, object] | None = None) -> TopologyGraph:
    """A machine of this package, built as any other, with values that a case gives."""
    with as_file(files("kernbench.validation") / "machines") as folder:  # one may be the base of another
        return load_topology(folder / name, overrides)


def judge(chosen: ValidationSet, data: DataFolder, show: ShowProgress) -> SetVerdict:
    """Simulate all cases of a set and compare them with what was measured."""
    simulated = chosen.simulate(data, show)
    measured = chosen.measured(data)
    rows = [
        ValidationRow(
            regime, case, measured.get((regime, case)), value, _error(measured.get((regime, case)), value, chosen.unit)
        )
        for (regime, case), value in simulated.items()
    ]
    names = dict.fromkeys(row.regime for row in rows)
    return SetVerdict(chosen, rows, [_regime(name, chosen.unit, rows) for name in names])


def _error(measured: float | None, simulated: float, unit: ErrorUnit) -> float | None:
    if measured is None:
        return None
    return simulated - measured if unit == "points" else 100.0 * (simulated - measured) / measured


def _regime(name: str, unit: ErrorUnit, rows: Sequence[ValidationRow]) -> Regime:
    errors = [row.error for row in rows if row.regime == name and row.error is not None]
    sizes = [abs(error) for error in errors]
    if not errors:
        return Regime(name, unit, 0, None, None, None, None)
    return Regime(name, unit, len(errors), fmean(sizes), fmean(errors), median(sizes), max(sizes))
