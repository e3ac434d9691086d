"""A call of an autotuned kernel: what Triton refuses of its arguments, and which options have only their defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.triton.internals import autotuner


def run_of_tuner(plain: Callable[..., Any], noted: set[str]) -> Callable[..., Any]:
    """`Autotuner.run` that names parameters which are given and tuned. Options that have their defaults in all
    configurations are not the program's: `noted` has the options that need no note.
    """
    defaults = autotuner.Config({}).all_kwargs()

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuned = {name for config in self.configs for name in config.kwargs}
        twice = sorted(tuned & {*kwargs, *self.arg_names[: len(args)]})
        if twice:
            raise UsageError(
                f"kernel '{self.base_fn.__name__}' is given {', '.join(twice)}, which autotuning chooses",
                hint="leave it out of the launch, or out of the configurations",
            )
        unasked = {
            name for name, value in defaults.items()
            if name not in kwargs and all(config.all_kwargs().get(name) == value for config in self.configs)
        } - noted  # fmt: skip
        noted.update(unasked)
        try:
            return plain(self, *args, **kwargs)
        finally:
            noted.difference_update(unasked)

    return run
