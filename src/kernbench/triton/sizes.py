"""Which sizes of a `triton.testing.perf_report` are run: `--benchmarks 3`, or `--benchmarks N=1024,2048`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kernbench.common.errors import UsageError

_NAMED = re.compile(r"([A-Za-z_]\w*)=([^,=\s]+(?:,[^,=\s]+)*)")


class BenchmarkSizes(NamedTuple):
    """The first so many sizes; those where the argument `name` has one of some values; or, with neither, all."""

    first: int | None = None
    name: str = ""
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> BenchmarkSizes:
        """As the command line has it. Raises UsageError for any other text."""
        if text is None:
            return cls()
        if text.isascii() and text.isdigit():
            return cls(int(text))
        if (named := _NAMED.fullmatch(text)) is None:
            raise UsageError(
                f"--benchmarks {text} names no sizes",
                hint="give a number of sizes, --benchmarks 3, or values of an argument, --benchmarks N=1024,2048",
            )
        return cls(None, named[1], tuple(named[2].split(",")))

    def of(self, names: Sequence[str], values: Sequence[Any], report: str) -> list[list[Any]]:
        """The sizes of a report that are run, each with a value for every name. Raises UsageError if none is left."""
        rows = [list(x) if isinstance(x, (tuple, list)) else [x] * len(names) for x in values]
        if not self.name:
            return rows[: self.first]
        if self.name not in names:
            raise UsageError(
                f"'{report}' has no sizes called {self.name}", hint=f"--benchmarks takes its {', '.join(names)}"
            )
        at = list(names).index(self.name)
        if kept := [row for row in rows if str(row[at]) in self.values]:
            return kept
        has = ", ".join(dict.fromkeys(str(row[at]) for row in rows))
        raise UsageError(f"'{report}' has no {self.name} of {', '.join(self.values)}", hint=f"it has {has}")


ALL_SIZES = BenchmarkSizes()
