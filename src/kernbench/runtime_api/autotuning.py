"""Times the configurations of an autotuned kernel, each on a separate machine: the run's clock does not advance.

That machine is idle and has tensors like those of the launch: same shapes, types and placement, and, where the run
keeps contents, what memory holds at that moment. A configuration that fails is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.runtime_api.launch_call import LaunchCall
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.machine_hash import machine_hash
from kernbench.triton_emu.autotune import Autotuned, AutotuneTrial, Config
from kernbench.triton_emu.binding import positional_names
from kernbench.triton_emu.repeatable import is_repeatable, repeatable
from kernbench.values.evaluate import evaluate


class DeviceSelector(Protocol):
    """The part of a host that chooses the SIP of its tensors."""

    def set_device(self, device: int) -> None: ...
    def current_device(self) -> int: ...


class TuningHost(Protocol):
    """The part of a host (`RuntimeContext`) needed here: of the run's own, and of those that time configurations."""

    @property
    def engine(self) -> GraphEngine: ...
    @property
    def ahbm(self) -> DeviceSelector: ...
    @property
    def launch(self) -> Callable[..., Launch]: ...
    @property
    def empty(self) -> Callable[..., Tensor]: ...


NewHost = Callable[[GraphEngine], AbstractContextManager[TuningHost]]


def tuned(torch: TuningHost, call: LaunchCall, new_host: NewHost) -> LaunchCall:
    """The launch of an autotuned kernel with its fastest configuration, which is measured on first use.

    Raises UsageError for arguments that a configuration sets too, and when every configuration fails.
    """
    kernel = call.kernel
    assert isinstance(kernel, Autotuned)
    if is_repeatable(kernel):
        repeatable(kernel.kernel)
    given = {**dict(zip(positional_names(kernel), call.args, strict=False)), **call.named}
    twice = next((name for config in kernel.configs for name in config if name in given), None)
    if twice is not None:
        raise UsageError(
            f"argument '{twice}' of kernel '{call.name}' is passed, and also set by autotune",
            hint="leave it out, or launch the kernel without autotune",
        )
    key = _key(torch, kernel, call, given)
    if key not in kernel.trials:
        trials = tuple(_trial(torch, call, config, new_host) for config in kernel.configs)
        _check_some_ran(call.name, trials)
        kernel.trials[key] = trials
        kernel.best(key)
        if kernel.verbose:
            print(kernel.table())
    return _with(call, kernel.best(key))


def _with(call: LaunchCall, config: Config) -> LaunchCall:
    kernel = call.kernel
    assert isinstance(kernel, Autotuned)
    return replace(call, kernel=kernel.kernel, named={**call.named, **config})


def _key(torch: TuningHost, kernel: Autotuned, call: LaunchCall, given: Mapping[str, object]) -> Hashable:
    """The cache key: everything the choice depends on."""
    values = tuple((name, _as_key(given.get(name))) for name in kernel.key)
    dtypes = tuple(tensor.dtype for tensor in call.tensors)
    options = call.options
    return (
        machine_hash(torch.engine.graph.spec),
        values,
        dtypes,
        (options.sips, options.target_cubes, options.target_pes),
    )


def _as_key(value: object) -> Hashable:
    """An argument as part of a cache key: a tensor counts by its shape and placement."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.space, tuple(value.local_shapes.items())
    return type(value).__name__, repr(value)


def _trial(torch: TuningHost, call: LaunchCall, config: Config, new_host: NewHost) -> AutotuneTrial:
    try:
        return AutotuneTrial(config, _time_ns(torch, _with(call, config), new_host))
    except KernBenchError as error:
        return AutotuneTrial(config, None, error.what)


def _time_ns(torch: TuningHost, call: LaunchCall, new_host: NewHost) -> float:
    """How long the slowest PE takes."""
    engine = torch.engine
    with _machine_like(engine, new_host) as trial:
        copies = {tensor: _copy(engine, trial, tensor) for tensor in call.tensors}

        def passed(arg: object) -> object:
            return copies[arg] if isinstance(arg, Tensor) else arg

        trial.ahbm.set_device(torch.ahbm.current_device())
        args = [passed(arg) for arg in call.args]
        named = {name: passed(arg) for name, arg in call.named.items()}
        options = call.options
        launch = trial.launch(
            call.name,
            call.kernel,
            *args,
            sips=options.sips,
            target_cubes=options.target_cubes,
            target_pes=options.target_pes,
            **named,
        )
        return launch.pe_exec_ns_max


@contextmanager
def _machine_like(engine: GraphEngine, new_host: NewHost) -> Iterator[TuningHost]:
    """A new machine of the same description, with its own host; kernels that never end are abandoned with it."""
    made = GraphEngine(engine.graph, data=engine.data)
    try:
        with new_host(made) as torch:
            yield torch
    except BaseException:
        made.abandon()
        raise


def _copy(engine: GraphEngine, trial: TuningHost, tensor: Tensor) -> Tensor:
    """A copy of a tensor on the machine of a trial."""
    trial.ahbm.set_device(tensor.allocation.sip)
    dtype, space = tensor.element, tensor.space
    made = trial.empty(*tensor.shape, dtype=dtype, dp=tensor.dp, name=tensor.name, space=space)
    if engine.data:
        values = [
            engine.memory.read(shard.pa, part.local_shape, dtype, zero_fill=True)
            for shard, part in zip(tensor.shards, tensor.placement, strict=True)
        ]
        graph = engine.values
        arrays = evaluate(values, backend=graph.backend, keep_inputs=graph.sites is not None)
        for shard, array in zip(made.shards, arrays, strict=True):
            trial.engine.memory.write(shard.pa, trial.engine.values.constant(array))
    return made


def _check_some_ran(name: str, trials: tuple[AutotuneTrial, ...]) -> None:
    if all(trial.ns is None for trial in trials):
        raise UsageError(
            f"autotune of kernel '{name}': all of its {len(trials)} configs fail, the first with: {trials[0].error}",
            hint="launch the kernel with one config, without autotune, to see where it fails",
        )
