"""Kernels whose meta-parameters are chosen by simulated time: configurations to try, and what each of them took.

A configuration gives some parameters of the kernel by name. Which one is best is found once for each key: the machine,
the types of all tensors, and the values of the key's parameters. Configurations are timed by the
launcher (`runtime_api.autotuning`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import update_wrapper
from inspect import Parameter, signature

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.common.nearest import nearest
from kernbench.common.units import format_ns

Config = Mapping[str, object]


@frozen
class AutotuneTrial:
    """One configuration: the time that the slowest PE took, or why it failed."""

    config: Config
    ns: float | None
    error: str | None = None


class Autotuned:
    """A kernel with configurations. It is launched as the kernel is, without the parameters that they give."""

    def __init__(
        self, kernel: Callable[..., object], configs: Sequence[Config], key: Sequence[str], verbose: bool
    ) -> None:
        update_wrapper(self, kernel)
        self.kernel = kernel
        self.configs = tuple(configs)
        self.key = tuple(key)
        self.verbose = verbose
        self.trials: dict[Hashable, tuple[AutotuneTrial, ...]] = {}  # in the order of the configurations, by key
        self._last: Hashable = None

    def __call__(self, *args: object, **named: object) -> object:
        """Call the kernel directly, as a kernel does: all parameters must be given."""
        return self.kernel(*args, **named)

    @property
    def best_config(self) -> Config | None:
        """The configuration of the latest launch; None before the first."""
        return None if self._last is None else self.best(self._last)

    def best(self, key: Hashable) -> Config:
        """The fastest configuration of a key that was tuned; of equally fast ones the first."""
        self._last = key
        ran = [trial for trial in self.trials[key] if trial.ns is not None]
        return min(ran, key=_time_of).config

    def table(self) -> str:
        """Every configuration of the latest key, with its time or why it failed."""
        if self._last is None:
            return f"autotune of '{self.__name__}': not launched yet"  # type: ignore[attr-defined]  # update_wrapper set it
        best = self.best(self._last)
        rows = [(_in_words(trial.config), _outcome(trial, trial.config is best)) for trial in self.trials[self._last]]
        width = max(len(config) for config, _ in rows)
        lines = [f"  {config:<{width}}  {outcome}" for config, outcome in rows]
        return "\n".join((f"autotune of '{self.__name__}'", *lines))  # type: ignore[attr-defined]  # as above


def autotune(
    configs: Sequence[Config], key: Sequence[str] = (), *, verbose: bool = False
) -> Callable[[Callable[..., object]], Autotuned]:
    """Marks a kernel some of whose parameters are chosen from `configs`, each a dict of values by name: at the first
    launch with other values of the parameters in `key`, each configuration is simulated, on a machine of its own, and
    the fastest is used. `verbose` prints the table of times then; `kernel.table()` has it any time.

    Raises UsageError for configurations and keys that do not fit the kernel's parameters.
    """

    def mark(kernel: Callable[..., object]) -> Autotuned:
        if not callable(kernel):
            raise UsageError(f"autotune marks a kernel, not {kernel!r}", hint="give the function")
        _check(kernel, configs, key)
        return Autotuned(kernel, configs, key, verbose)

    return mark


def _check(kernel: Callable[..., object], configs: Sequence[Config], key: Sequence[str]) -> None:
    if isinstance(key, str) or not isinstance(configs, list | tuple) or not configs:
        raise UsageError(
            f"autotune with configs={configs!r} and key={key!r}",
            hint="give a list of one or more configs, say [{'BLOCK': 16}, {'BLOCK': 32}], and a list of names",
        )
    parameters = signature(kernel).parameters
    names = [name for name in parameters if name != "tl"]
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    for config in configs:
        if not isinstance(config, Mapping):
            raise UsageError(f"a config of autotune is {config!r}", hint="give dicts: {'BLOCK': 16}")
    for name in dict.fromkeys([*key, *(name for config in configs for name in config)]):
        if name not in names and not takes_any:
            near = nearest(str(name), names)
            raise UsageError(
                f"autotune names '{name}', which is no parameter of the kernel",
                hint=f"did you mean '{near}'?" if near else f"its parameters: {', '.join(names) or 'none'}",
            )


def _time_of(trial: AutotuneTrial) -> float:
    assert trial.ns is not None
    return trial.ns


def _in_words(config: Config) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items()) or "nothing"


def _outcome(trial: AutotuneTrial, is_best: bool) -> str:
    if trial.ns is None:
        return f"failed: {trial.error}"
    return format_ns(trial.ns) + ("  fastest" if is_best else "")
