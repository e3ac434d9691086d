"""The command of a run, and commands to run next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class NextStep(NamedTuple):
    """A command to run next, and the parameters of the bench that it changes, in words; empty if it changes none."""

    command: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The command of a run, without `--save`, and the folder that the run was saved to."""

    command: Sequence[str]
    bench: str
    saved: str | None = None
    advised: Callable[[str], Mapping[str, object]] = lambda _cause: {}  # parameters to change against a cause
    meanings: Mapping[str, str] = field(default_factory=dict)  # of the bench's parameters
    is_explained: bool = False  # whether its explanation is at hand already

    @property
    def is_triton(self) -> bool:
        """Whether it runs a program with Triton kernels."""
        return "--triton" in self.command

    @property
    def folder(self) -> str:
        """The folder of the run, or a name for it."""
        return self.saved or f"{self.bench.replace(':', '-')}-run"

    def advice(self, cause: str) -> str | None:
        """The command of the run with the parameters that the bench advises; None if it advises none."""
        changed = self.advised(cause)
        words = list(self.command)
        for name in changed:  # a parameter is set once
            while any(_sets(word, name) for word in words):
                at = next(at for at, word in enumerate(words) if _sets(word, name))
                del words[at - 1 : at + 1]
        words += [word for name, value in changed.items() for word in ("--param", f"{name}={_text(value)}")]
        return shlex.join(words) if changed else None

    def change(self, cause: str) -> str:
        """What the advised command changes: `fused=true: one tl.softmax instead of its steps`; empty without advice."""
        return "; ".join(
            f"{name}={_text(value)}" + (f": {self.meanings[name]}" if self.meanings.get(name) else "")
            for name, value in self.advised(cause).items()
        )

    def next_step(self, cause: str) -> NextStep:
        """What to run next, and what that changes."""
        return NextStep(self.next_command(cause), self.change(cause))

    def next_command(self, cause: str) -> str:
        """What to run next: as advised, else the command that saves the run; of a saved one its explanation, and then
        its timeline. It never changes the machine.
        """
        folder = shlex.quote(self.folder)
        advice = self.advice(cause)
        if advice is not None:
            return advice
        if self.saved is None:
            return f"{shlex.join(self.command)} --save {folder}"
        return f"kernbench {'web' if self.is_explained else 'explain'} {folder}"


def _sets(word: str, name: str) -> bool:
    """Whether a word of a command, after `--param`, sets a parameter."""
    return word.partition("=")[0].strip().replace("-", "_") == name and "=" in word


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
