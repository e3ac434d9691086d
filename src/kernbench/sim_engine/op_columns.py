"""The columns of an op log: rows of records as they were written, and the order in which they get their ids.

Rows that end at one instant are ordered by the place of their blocks in the machine, so ids do not depend on the order
of simulation within an instant. Rows that no later one can precede stay where they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from kernbench.components.recording import NO_REF, Causes, OpDescriber
from kernbench.sim_engine.op_rows import RecordIds, natural


class OpColumns:
    """Rows of records: what describes each, its times, its causes and what it waited for."""

    def __init__(self) -> None:
        self._describers: list[OpDescriber] = []
        self._subjects: list[object] = []
        self._firsts = array("q")  # of each row, that of its first record: an id once it is in order, else a number
        self._starts = array("q")  # of each row: which of `_times` is its first record's
        self._times = array("d")
        self._causes = array("d")  # of all rows, see `Causes`
        self._cause_ends = array("q")  # of each row: where its causes end there
        self._depends = array("q")  # the one record that a row waited for, or which of `_several`, counted from -1 down
        self._several: list[tuple[int, ...]] = []
        self._token_firsts = array("q")  # number of each token's first record; -1, or none yet: it is not recorded
        self._ids = RecordIds()
        self._ordered = 0  # rows, the first ones, that are in order for good
        self.before_order: list[Callable[[], None]] = []  # called while rows are still in the order of recording

    def _append(
        self,
        describer: OpDescriber,
        subject: object,
        times: Sequence[float],
        dependency_ids: tuple[int, ...],
        token: int,
        causes: Causes,
        first: int,
    ) -> None:
        self._describers.append(describer)
        self._subjects.append(subject)
        self._starts.append(len(self._times) // 2)
        self._times.extend(times)
        self._causes.extend(causes)
        self._cause_ends.append(len(self._causes))
        if len(dependency_ids) == 1:
            self._depends.append(dependency_ids[0])
        else:
            several = self._several  # tiles of one command have the same
            if not several or several[-1] is not dependency_ids:
                several.append(dependency_ids)
            self._depends.append(-len(several))
        if token >= 0:
            known = self._token_firsts
            if token >= len(known):
                known.extend([NO_REF] * (token + 1 - len(known)))
            known[token] = first
        self._firsts.append(first)

    def _put_in_order(self, until_ns: float) -> None:
        """Give ids to the rows that end before `until_ns`: no other will."""
        done, rows = self._ordered, len(self._firsts)
        if done == rows:
            return
        for notify in self.before_order:
            notify()
        ends = array("q", [*self._starts[done + 1 :], len(self._times) // 2])
        keys = [
            (self._times[2 * end - 1], natural(self._describers[done + at].pe), self._firsts[done + at])
            for at, end in enumerate(ends)
        ]
        places = [at for at, key in enumerate(keys) if key[0] < until_ns]
        final, places = len(places), sorted(places, key=keys.__getitem__)
        self._ordered += final
        if final < len(keys):
            places += [at for at, key in enumerate(keys) if key[0] >= until_ns]
        following = self._ids.given
        firsts = [self._firsts[done + at] for at in places]
        sizes = [ends[at] - self._starts[done + at] for at in places]
        for at in range(final):
            self._ids.give(firsts[at], sizes[at])
            firsts[at], following = following, following + sizes[at]
        if places != list(range(len(places))):
            self._move_rows(done, places, ends)
        self._firsts[done:] = array("q", firsts)

    def _move_rows(self, done: int, places: list[int], ends: array[int]) -> None:
        """Put the rows from `done` on in another order."""
        starts, times = self._starts[done:], array("d")
        causes, cause_ends = array("d"), array("q")
        cause_base = self._cause_ends[done - 1] if done else 0
        time_base = starts[0]
        new_starts = array("q")
        for at in places:
            row = done + at
            new_starts.append(time_base + len(times) // 2)
            times += self._times[2 * starts[at] : 2 * ends[at]]
            causes += self._causes[self._cause_ends[row - 1] if row else 0 : self._cause_ends[row]]
            cause_ends.append(cause_base + len(causes))
        self._times[2 * time_base :] = times
        self._causes[cause_base:] = causes
        self._starts[done:], self._cause_ends[done:] = new_starts, cause_ends
        self._describers[done:] = [self._describers[done + at] for at in places]
        self._subjects[done:] = [self._subjects[done + at] for at in places]
        self._depends[done:] = array("q", [self._depends[done + at] for at in places])

    def _drop(self, rows: int) -> None:
        """Forget the records of the first `rows` rows; their ids stay taken."""
        records = self._starts[rows] if rows < len(self._starts) else len(self._times) // 2
        causes = self._cause_ends[rows - 1]
        self._ordered -= rows
        kept = [self._several[-one - 1] if one < 0 else None for one in self._depends[rows:]]
        del self._times[: 2 * records], self._causes[:causes], self._several[:]
        for column in (self._describers, self._subjects, self._firsts, self._starts, self._cause_ends, self._depends):
            del column[:rows]
        for row, several in enumerate(kept):
            self._cause_ends[row] -= causes
            self._starts[row] -= records
            if several is not None:
                self._several.append(several)
                self._depends[row] = -len(self._several)
