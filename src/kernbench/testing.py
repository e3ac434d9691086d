"""Unit tests of kernels: run one on a tiny machine, without a bench.

    arrays, ns = run_kernel(add, a, b, np.zeros_like(a), n=len(a), grid=(2,))

Arrays become tensors in the memory of one PE, which all PEs of the grid share as a Triton kernel's programs share
global memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.address_layout import RECORD_LAYOUT
from kernbench.common.argument_types import SWITCH, check_arguments, instance_of
from kernbench.common.errors import RaceError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launch_call import OPTIONS
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph


class KernelRun(NamedTuple):
    """The contents of a kernel's array arguments afterwards, in order, those passed by name last, and its time on the
    slowest PE.
    """

    arrays: list[NDArray[np.generic]]
    time_ns: float


_KINDS = {
    "topology": instance_of(TopologyGraph, "a machine: load_topology(...) gives one"),
    "op_log": instance_of(OpLog, "an OpLog"),
    "check_races": SWITCH,
}


def run_kernel(
    fn: Callable[..., object],
    *args: object,
    grid: int | tuple[int, ...] = (1,),
    dp: DPPolicy | None = None,
    topology: TopologyGraph | None = None,
    op_log: OpLog | None = None,
    check_races: bool = False,
    max_time_ns: float | None = None,
    **named: object,
) -> KernelRun:
    """Run `fn(*args, **named, tl=tl)` on a grid of (PEs,) or (PEs, cubes); arrays are passed as tensors, numbers as
    they are. A program is a PE: a kernel for more blocks than there are PEs loops over them.

    `dp` spreads the arrays over PEs instead; `topology` is another machine than the tiny one. Raises LaunchError, with
    the kernel line, when the kernel fails, with `check_races` RaceError when PEs access the same bytes without
    ordering, and TimeLimitError when the run needs more simulated time than `max_time_ns`.
    """
    check_arguments("run_kernel", _KINDS, locals())
    for name in named:
        if name in OPTIONS:
            raise UsageError(f"'{name}' is an option of launch", hint="pass the kernel's argument by position")
    pes, cubes = _grid(grid)
    _check_room(pes, cubes, topology)
    graph = topology or tiny_machine(pes, cubes)
    engine = GraphEngine(graph, op_log=op_log, check_races=check_races)
    engine.limit_time(max_time_ns)
    with _abandoned_by_errors(engine), RuntimeContext(engine) as torch:

        def passed(arg: object) -> object:
            return torch.from_numpy(arg, dp=dp) if isinstance(arg, np.ndarray) else arg

        by_position = [passed(arg) for arg in args]
        by_name = {name: passed(arg) for name, arg in named.items()}
        launch = torch.launch(fn, *by_position, target_cubes=range(cubes), target_pes=range(pes), **by_name)  # type: ignore[arg-type]  # no name is `wait`
        arrays = [arg.numpy() for arg in (*by_position, *by_name.values()) if isinstance(arg, Tensor)]
    races = engine.found_races()
    if races:
        raise RaceError(
            "\n".join(str(race) for race in races),
            races,
            where=races[0].second.where,
            hint="let each PE have bytes of its own, use atomics, or launch one kernel after the other",
        )
    return KernelRun(arrays, launch.pe_exec_ns_max)


@contextmanager
def _abandoned_by_errors(engine: GraphEngine) -> Iterator[None]:
    """Abandon the engine if the run fails, so that kernels that never end do not outlive it."""
    try:
        yield
    except BaseException:
        engine.abandon()
        raise


DEFAULT_PER_CORNER = 2  # PEs in a corner of a cube of the shipped machine


@lru_cache(maxsize=4)
def tiny_machine(pes: int = 1, cubes: int = 1) -> TopologyGraph:
    """One SIP of `cubes` cubes in a row, each with `pes` PEs or a few more."""
    per_corner = max(-(-pes // 4), DEFAULT_PER_CORNER)  # PEs stand where they do on the shipped machine
    return load_topology(
        None,
        {
            "system.name": "tiny",
            "system.sips.count": 1,
            "sip.cube_mesh.w": cubes,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": per_corner,
        },
    )


def _check_room(pes: int, cubes: int, topology: TopologyGraph | None) -> None:
    """Raise UsageError for a grid with more PEs or cubes than a machine can have."""
    if topology is None:
        whose, most_pes, most_cubes = "a machine has at most", RECORD_LAYOUT.n_pes, RECORD_LAYOUT.n_cube_dies
    else:
        spec = topology.spec
        whose, most_pes, most_cubes = f"machine {spec.system.name} has", spec.cube.n_pes, spec.sip.n_cubes
    if pes > most_pes or cubes > most_cubes:
        raise UsageError(
            f"grid ({pes}, {cubes}) does not fit: {whose} {most_pes} PEs per cube and {most_cubes} cubes",
            hint=f"a program is a PE, not a block: use grid=({min(pes, most_pes)}, {min(cubes, most_cubes)}) or less "
            "and loop in the kernel: for block in range(tl.program_id(0), blocks, tl.num_programs(0))",
        )


def _grid(grid: int | tuple[int, ...]) -> tuple[int, int]:
    sizes = tuple(grid) if isinstance(grid, list | tuple) else (grid,)
    if not 1 <= len(sizes) <= 2 or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise UsageError(f"grid is {grid!r}", hint="give (PEs,) or (PEs, cubes), each 1 or more")
    return int(sizes[0]), int(sizes[1]) if len(sizes) == 2 else 1
