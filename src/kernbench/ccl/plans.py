"""From a rank's call of a collective to the kernel launch that carries it out, or to an error with the reason.

A kernel gets by position the arguments that `modules.py` lists, and by name those of the following that it declares:

    collective      its name, for modules that implement several
    op              "sum", "product", "max", "min" or "avg"; a kernel without it sums
    root, peer      ranks in the group
    per             "rank" or "cube": whether ranks or cubes have addends
    out             the output tensor, where it differs from the input
    part_0, ...     a tensor per rank, for collectives with a list of tensors (the kernel has **parts)
    cubes, pes      the numbers of the participating cubes and PEs, in order
    spread          None: every PE works on the part that it holds; else (over PEs, over cubes): they split the tensor
    shards          None, or the shards of the input and of the output, each with its cube, PE, first element and number
                    of elements: every PE then loads and stores what it holds
    replicas        (over PEs, over cubes): which hold the same part; without it each replica does all the work
    input_splits, output_splits   of all_to_all, in elements
    mesh_root       "center" or "corner" of the cube mesh
    chunk_bytes, work_bytes       the largest chunk, and the TCM for tensors
    slot_size       of the rings: a longer message takes several slots
    n_rings         how many directions a PE can use
    link_bytes_per_cycle          what a SIP can send to the others, per cycle of PE_CPU; 0.0 with direct links of SIPs
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from numbers import Real

from kernbench.ccl.calls import CollectiveCall, ReduceOp
from kernbench.ccl.config import choose, has_shipped_table, resolve_algorithm_config
from kernbench.ccl.config_spec import AUTO, AlgorithmConfig, CclConfig
from kernbench.ccl.modules import Algorithm, load_algorithm, place_of
from kernbench.ccl.over_levels import better_over_levels
from kernbench.ccl.topologies import group_of
from kernbench.ccl.work import LISTS, Assignment, work_of
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import ComponentError, KernBenchError, UsageError
from kernbench.common.launch import LaunchStream, TensorArg
from kernbench.sim_engine.communication_tcm import lease_of
from kernbench.topology.spec import MachineSpec
from kernbench.triton_emu.binding import signature_of
from kernbench.triton_emu.registry import Kernel

_OTHER_RINGS = 5  # rings in TCM kept free for the directions that other collectives use
_RINGS_ELSEWHERE = 64  # with rings in SRAM or HBM: as many as a PE has neighbours on most machines
_AFTER = 4  # positional arguments after those of `kernel_args`: the rank, and the grid of SIPs
_KERNELS = 256  # cache size: a kernel that is launched again is the same object


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch on the rank's SIP. `args` and `named` are the kernel's arguments; tensors are those of the call."""

    name: str
    kernel: Kernel
    args: tuple[TensorArg | int, ...]
    named: Mapping[str, TensorArg]
    target_cubes: tuple[int, ...]
    target_pes: tuple[int, ...]
    stream: LaunchStream
    config: AlgorithmConfig
    signature: Mapping[str, object] = field(repr=False)  # must be equal on every rank


def plan(
    call: CollectiveCall, spec: MachineSpec, cfg: CclConfig, algorithm: str | None = None, machine: str | None = None
) -> LaunchPlan:
    """The launch of a collective; with `machine`, a `machine_key`, `auto` finds that machine's own table. If the
    algorithm that `auto` chooses does not support the call, the first one that does is used; where ranks are below
    several switches of a level, `over_levels` may know a faster one. Raises UsageError if no
    algorithm, or not the requested one, supports it, or if the module cannot be loaded.
    """
    config = choose(
        cfg,
        call.name,
        message_bytes(call),
        per=call.per,
        algorithm=algorithm,
        ranks=call.group.size,
        machine=machine,
    )
    load_algorithm(config)
    is_auto = (algorithm or cfg.collectives[call.name]) == AUTO
    if is_auto and call.per == "rank" and has_shipped_table(cfg, call.name):
        name = better_over_levels(call.name, message_bytes(call), config, spec, call.group.sips, call.root or 0)
        if name in cfg.algorithms:
            with suppress(UsageError):
                return _plan(call, spec, resolve_algorithm_config(cfg, name, is_auto=True))
    try:
        return _plan(call, spec, config)
    except UsageError as unsupported:
        if not is_auto:
            raise
        for name in cfg.algorithms:
            with suppress(UsageError):
                return _plan(call, spec, resolve_algorithm_config(cfg, name))
        raise unsupported


def _plan(call: CollectiveCall, spec: MachineSpec, config: AlgorithmConfig) -> LaunchPlan:
    module = load_algorithm(config)
    _check_can(call, module)
    work = work_of(call, spec, module.names)
    why = module.refuse(work) if module.refuse is not None else None
    if why is not None:
        hint = "choose another in ccl.yaml, or with init_process_group(ccl={...})"
        raise UsageError(f"algorithm '{module.name}' cannot do this {call.name}: {why}", hint=hint)
    grid = group_of(spec, call.group.sips)
    on_grid = (0, 0) if grid.kind == "ring_1d" else (grid.w, grid.h)
    if grid.kind != "ring_1d" and module.kinds and grid.kind not in module.kinds:
        hint = f"it knows {', '.join(module.kinds)}: choose another algorithm, or another system.sips.topology"
        raise UsageError(f"algorithm '{module.name}' does not know SIPs in a {grid.kind}", hint=hint)
    own = own_args(module, call.group.size, work)
    after = (call.rank, module.kinds.get(grid.kind, 0), *on_grid)
    tensors = _tensors(call)
    first = tensors.pop("t_ptr", 0)
    facts = {name: fact for name, fact in _facts(call, spec, work, config).items() if name in module.names}
    named = {name: tensor for name, tensor in tensors.items() if name in module.names or module.takes_any}
    _check_takes(module.kernel, module.name, len(own), (*facts, *config.params, *named))
    return LaunchPlan(
        f"{call.name}.{module.name}",
        _bound(module.kernel, tuple((name, type(x), x) for name, x in sorted({**facts, **config.params}.items()))),
        (first, *own, *after),  # type: ignore[arg-type]  # numbers, or the launch says so
        named,
        work.cubes,
        work.pes,
        stream_of(call),
        config,
        {"algorithm": module.name, "chunk_bytes": config.chunk_bytes, "placement": work.signature},
    )


def own_args(module: Algorithm, world_size: int, work: Assignment) -> tuple[object, ...]:
    """The result of an algorithm's `kernel_args`; raises ComponentError if it is not a tuple, or if the function
    raises.
    """
    hint = "def kernel_args(world_size, n_elem, *, cube_w=4, cube_h=4): return n_elem, cube_w, cube_h, world_size"
    try:
        own = module.kernel_args(world_size, work.n_elem, cube_w=work.cube_w, cube_h=work.cube_h)
    except KernBenchError:
        raise
    except Exception as error:  # the user's function
        what = f"kernel_args of algorithm '{module.name}' failed: {type(error).__name__}: {error}"
        raise ComponentError(what, where=place_of(module.kernel_args, error), hint=hint) from error
    if not isinstance(own, tuple | list):
        what = f"kernel_args of algorithm '{module.name}' returns {own!r}, which is no tuple"
        more = f"one argument is `return {own!r},` with a comma; " if isinstance(own, Real) else ""
        raise ComponentError(what, where=place_of(module.kernel_args), hint=more + hint)
    return tuple(own)


@lru_cache(maxsize=_KERNELS)
def _check_takes(kernel: Kernel, algorithm: str, own: int, names: tuple[str, ...]) -> None:
    """Raise ComponentError for a kernel that does not take a tensor, `own` values and the arguments after them."""
    signature = signature_of(kernel)
    others = [parameter for parameter in signature.parameters.values() if parameter.name != "tl"]
    try:
        signature.replace(parameters=others).bind(*[None] * (1 + own + _AFTER), **dict.fromkeys(names))
    except TypeError as error:
        raise ComponentError(
            f"kernel{signature} of algorithm '{algorithm}' does not take what it is given: {error}",
            where=place_of(kernel),
            hint=f"it gets a tensor, the {own} values that kernel_args returns, then sip_rank, sip_topo_kind, "
            "sip_topo_w and sip_topo_h: def kernel(t_ptr, n_elem, ..., sip_rank, kind, w, h, *, tl)",
        ) from None


def stream_of(call: CollectiveCall) -> LaunchStream:
    """The stream of a call: sends and receives run concurrently with collectives and with each other."""
    streams: dict[str, LaunchStream] = {"send": "send", "recv": "receive"}
    return streams.get(call.name, "communication")


def message_bytes(call: CollectiveCall) -> int:
    """The size that `auto` uses: of a rank's tensor or a cube's addend; of blocks of all ranks, all of them. It is the
    same on all ranks: 0 where blocks differ in size.
    """
    if call.is_uneven:
        return 0
    if call.name in ("all_gather", "gather", "scatter"):  # where only the root, or not every rank, has all blocks
        return _own_tensor(call) * call.group.size
    nbytes = call.numel * dtype_of(call.dtype).itemsize if call.dtype is not None else 0
    if call.per != "cube":
        return nbytes
    return nbytes // max(len({shard.cube for shard in call.inputs[0].shards}), 1)


def _own_tensor(call: CollectiveCall) -> int:
    """The bytes of the one tensor that every rank has."""
    own = call.outputs[0] if call.name == "scatter" else call.inputs[0]
    return prod(own.shape) * dtype_of(own.dtype).itemsize


def _check_can(call: CollectiveCall, module: Algorithm) -> None:
    module.check_does(call.name)
    if call.op is None:
        return
    if call.dtype == "bool" and call.op not in (ReduceOp.MIN, ReduceOp.MAX):
        raise UsageError(
            f"{call.name} with {call.op.name} of bool tensors", hint="max is any of them, min is all of them"
        )
    if call.op is not ReduceOp.SUM and "op" not in module.names:
        raise UsageError(
            f"algorithm '{module.name}' can only sum, not {call.op.name}",
            hint="let its kernel take op=, or choose another algorithm",
        )


def _tensors(call: CollectiveCall) -> dict[str, TensorArg]:
    """The kernel's tensor arguments by name; `t_ptr` is the first by position."""
    many = getattr(call, LISTS[call.name]) if call.name in LISTS else ()
    if call.name in ("gather", "scatter") or len(many) > 1:
        own = call.outputs if call.name in ("scatter", "reduce_scatter") else call.inputs
        found = {"t_ptr": own[0], **{f"part_{rank}": tensor for rank, tensor in enumerate(many)}}
        return {**found, "out": own[0]} if call.name == "reduce_scatter" else found
    if call.name in ("all_gather", "reduce_scatter", "all_to_all"):
        return {"t_ptr": call.inputs[0], "out": call.outputs[0]}
    return dict(zip(("t_ptr",), call.inputs or call.outputs, strict=False))


def _facts(call: CollectiveCall, spec: MachineSpec, work: Assignment, config: AlgorithmConfig) -> dict[str, object]:
    ring = config.rings.n_slots * config.slot_size
    facts: dict[str, object] = {
        "collective": call.name,
        "per": call.per,
        "cubes": work.cubes,
        "pes": work.pes,
        "spread": work.spread,
        "replicas": work.replicas,
        "shards": work.shards,
        "mesh_root": config.root,
        "chunk_bytes": config.chunk_bytes,
        "work_bytes": lease_of(config.work_bytes, stream_of(call)).nbytes,
        "slot_size": config.slot_size,
        "n_rings": max(config.ring_bytes // ring - _OTHER_RINGS, 2)
        if config.buffer_kind == "tcm"
        else _RINGS_ELSEWHERE,
        "link_bytes_per_cycle": _link_bytes_per_cycle(spec),
    }
    if call.op is not None:
        facts["op"] = call.op.value
    for name in ("root", "peer"):
        if getattr(call, name) is not None:
            facts[name] = getattr(call, name)
    if call.name == "all_to_all":
        facts["input_splits"] = _splits(call, call.inputs[0], call.input_splits)
        facts["output_splits"] = _splits(call, call.outputs[0], call.output_splits)
    return facts


def _link_bytes_per_cycle(spec: MachineSpec) -> float:
    if spec.system.sips.links is not None:
        return 0.0
    clock_ghz = spec.cube.pe_template.components.pe_cpu.attrs.get("clock_ghz", 1.0)  # a class of the user's has none
    return spec.system.links.io_ep_to_switch.bw_gbs * len(spec.sip.io_chiplets) / float(str(clock_ghz))


def _splits(call: CollectiveCall, tensor: TensorArg, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The number of elements per rank; without splits, equally many."""
    if not rows:
        return (prod(tensor.shape) // call.group.size,) * call.group.size
    return tuple(n * prod(tensor.shape[1:]) for n in rows)


@lru_cache(maxsize=_KERNELS)
def _bound(kernel: Kernel, facts: tuple[tuple[str, type, object], ...]) -> Kernel:
    """A kernel with its keyword arguments bound. Types are part of the cache key, since True and 1.0 equal 1."""
    return partial(kernel, **{name: value for name, _, value in facts}) if facts else kernel
