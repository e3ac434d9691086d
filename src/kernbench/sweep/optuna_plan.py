"""A search with Optuna: its TPE sampler proposes a batch of trials from the rows of the batches before.

Proposals depend on the seed, the batch size and the rows; not on the number of workers, nor on interruptions: every
trial has a separate sampler, seeded by its number, and the study is on disk. Numeric axes are ordinal, others
categorical. A trial may propose a point again; it is not run again.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import Axes, JsonValue, Point, point_of
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.search import Search

SEED_STEP = 1_000_003  # between the seeds of two searches; trials count below it


class OptunaPlan:
    """A plan whose points a study proposes; raises UsageError if Optuna or its storage is not available."""

    def __init__(
        self,
        axes: Axes,
        params: Mapping[str, JsonValue],
        search: Search,
        objectives: Sequence[Objective],
        storage: str | None,
        identity: str,
    ) -> None:
        self._axes = axes
        self._params = params
        self._search = search
        self._objectives = objectives
        self._optuna = _import_optuna()
        self._study = self._open(storage, identity)
        self._next = 0
        self._batch: list[Any] = []  # its trials

    @property
    def total(self) -> int:
        return self._search.trials

    def next_batch(self) -> Sequence[Point]:
        end = min(self._next + self._search.batch, self._search.trials)
        known = self._guarded(lambda: self._study.get_trials(deepcopy=False))
        self._batch = [self._trial(number, known) for number in range(self._next, end)]
        self._next = end
        return [point for _, point in self._batch]

    def report(self, rows: Sequence[SweepRow]) -> None:
        for (trial, _), row in zip(self._batch, rows, strict=True):
            if trial is None:
                continue  # it was reported in an earlier call
            worths = [objective.worth(row) for objective in self._objectives]
            failed = any(worth is None for worth in worths)
            state = self._optuna.trial.TrialState.FAIL if failed else None
            self._guarded(lambda t=trial, w=worths, s=state: self._study.tell(t, None if s is not None else w, s))

    def _trial(self, number: int, known: Sequence[Any]) -> tuple[Any, Point]:
        """A trial to report, or None if it is finished already, and its point."""
        if number < len(known):
            found = known[number]
            trial = self._optuna.trial.Trial(self._study, found._trial_id)
            over = found.state.is_finished()
            return (None, self._point(found.params)) if over else (trial, self._suggest(trial, number))
        self._study.sampler = self._sampler(number)
        trial = self._guarded(self._study.ask)
        return trial, self._suggest(trial, number)

    def _suggest(self, trial: Any, number: int) -> Point:
        self._study.sampler = self._sampler(number)
        chosen: dict[str, Any] = {}
        for name, values in self._axes.items():
            if _is_ordered(values):
                chosen[name] = self._guarded(lambda n=name, v=values: trial.suggest_int(n, 0, len(v) - 1))
            else:
                labels = [json.dumps(value) for value in values]
                chosen[name] = self._guarded(lambda n=name, c=labels: trial.suggest_categorical(n, c))
        return self._point(chosen)

    def _point(self, chosen: Mapping[str, Any]) -> Point:
        settings: dict[str, JsonValue] = {}
        for name, values in self._axes.items():
            if _is_ordered(values):
                numbers = sorted(value for value in values if isinstance(value, int | float))
                settings[name] = numbers[chosen[name]]
            else:
                settings[name] = json.loads(chosen[name])
        return point_of(settings, self._params)

    def _sampler(self, number: int) -> Any:
        seed = (self._search.seed * SEED_STEP + number) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its interface may change
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _open(self, storage: str | None, identity: str) -> Any:
        about: list[object] = [
            identity,
            {name: list(values) for name, values in self._axes.items()},
            dict(self._params),
        ]
        about += [self._search.seed, self._search.batch, [str(objective) for objective in self._objectives]]
        name = "kernbench-" + sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        url = storage if storage is None or "://" in storage else f"sqlite:///{storage}"
        return self._guarded(
            lambda: self._optuna.create_study(
                storage=url, study_name=name, directions=["minimize"] * len(self._objectives), load_if_exists=True
            ),
            storage,
        )

    def _guarded(self, call: Any, storage: str | None = None) -> Any:
        """The result of `call`; errors of the storage become UsageError."""
        try:
            return call()
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:
            raise UsageError(
                f"Optuna's study cannot be used: {type(error).__name__}: {str(error).splitlines()[0][:200]}",
                where=storage or self._search.storage,
                hint="delete its storage: rows are kept, and the search proposes the same points again",
            ) from error


def _is_ordered(values: Sequence[JsonValue]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UsageError("this search needs Optuna", hint="pip install 'kernbench[dse]'") from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna
