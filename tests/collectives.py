"""Collectives run as a process group runs them, without one: every rank's plan, launched on its SIP at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.calls import CallGroup, CollectiveCall, CollectiveName, ReduceOp
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.install import check_received
from kernbench.ccl.plans import LaunchPlan, plan
from kernbench.ccl.topologies import group_of
from kernbench.common.commands import Space
from kernbench.common.launch import TensorArg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Machine:
    """A small machine: SIPs of a few cubes, each of a few PEs."""

    sips: int = 2
    cube_w: int = 1
    cube_h: int = 1
    per_corner: int = 1
    topology: str = "ring_1d"
    sip_w: int | None = None
    sip_h: int | None = None
    address_model: str | None = None  # None: as the default machine has it
    further: tuple[tuple[str, object], ...] = ()

    def overrides(self) -> dict[str, object]:
        return {
            "system.sips.count": self.sips,
            "system.sips.topology": self.topology,
            "system.sips.w": self.sip_w,
            "system.sips.h": self.sip_h,
            "sip.cube_mesh.w": self.cube_w,
            "sip.cube_mesh.h": self.cube_h,
            "cube.pe_layout.pe_per_corner": self.per_corner,
            **({"system.address_model": self.address_model} if self.address_model else {}),
            **dict(self.further),
        }


def one_each(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """A tensor for each rank."""
    return [[tensor] for tensor in tensors]


def only(rank: int, tensors: Sequence[Tensor], n: int) -> list[Sequence[Tensor]]:
    """Tensors for one of n ranks."""
    return [tensors if each == rank else () for each in range(n)]


def total(arrays: Iterable[Array]) -> Array:
    """Their sum, rounded in their own type after each addend."""
    return reduce(add, arrays)


def contents(tensor: Tensor) -> Array:
    """What a tensor holds; all of its replicas must hold the same."""
    whole = tensor.numpy()
    parts = tensor.host.read_parts(tensor, range(len(tensor.placement)), timed=False)
    for place, part in zip(tensor.placement, parts, strict=True):
        np.testing.assert_array_equal(part, whole[place.index], err_msg=str(place))
    return whole


class World:
    """The ranks of one group on a machine."""

    def __init__(
        self,
        machine: Machine,
        ranks: Sequence[int] | None = None,
        ccl: Mapping[str, object] | Path | None = None,
        check_races: bool = False,
    ) -> None:
        self.engine = GraphEngine(load_topology(None, machine.overrides()), check_races=check_races)
        self.torch = RuntimeContext(self.engine)
        self.spec = self.engine.graph.spec
        self.sips = tuple(range(machine.sips)) if ranks is None else tuple(ranks)
        self.group = CallGroup("world" if ranks is None else "some", self.sips)
        self.ccl = load_ccl_config({} if ccl is None else ccl)
        self._installed: object = None
        self.plans: list[LaunchPlan] = []
        self.time_ns = 0.0
        self.tcm_peak_bytes = 0

    def tensors(self, arrays: Sequence[Array], dp: DPPolicy | None = None, space: Space = "hbm") -> list[Tensor]:
        """One for each rank, on its SIP."""
        made = []
        for sip, array in zip(self.sips, arrays, strict=True):
            self.torch.ahbm.set_device(sip)
            made.append(self.torch.from_numpy(array, dp=dp, space=space))
        return made

    def run(
        self,
        name: CollectiveName | Sequence[CollectiveName],
        inputs: Sequence[Sequence[Tensor]],
        outputs: Sequence[Sequence[Tensor]],
        *,
        algorithm: str | None = None,
        op: str | None = None,
        calls: Mapping[int, Mapping[str, Any]] | None = None,
        **facts: Any,
    ) -> None:
        """Every rank's call, with its tensors; `calls` has what a rank says differently."""
        launches = []
        self.plans = []
        for rank in range(len(self.sips)):
            ours, theirs = tuple(inputs[rank]), tuple(outputs[rank])
            call = CollectiveCall(
                name if isinstance(name, str) else name[rank],
                self.group,
                rank,
                tuple(t.as_arg() for t in ours),
                tuple(t.as_arg() for t in theirs),
                op=None if op is None else ReduceOp(op),
                **facts,
            )
            call = replace(call, **(calls or {}).get(rank, {}))
            made = plan(call, self.spec, self.ccl, algorithm)
            self.plans.append(made)
            by_place = {(t.as_arg().name, t.as_arg().shards): t for t in (*ours, *theirs)}

            def tensor_of(arg: object, by_place: dict[object, Tensor] = by_place) -> object:
                return by_place[arg.name, arg.shards] if isinstance(arg, TensorArg) else arg

            self._install(made)
            launches.append(
                self.torch.launch(
                    made.name,
                    made.kernel,
                    *(tensor_of(arg) for arg in made.args),
                    wait=False,
                    sips=(self.sips[rank],),
                    target_cubes=made.target_cubes,
                    target_pes=made.target_pes,
                    communicator=self.group.name,
                    stream="communication",
                    **{key: tensor_of(arg) for key, arg in made.named.items()},
                )
            )
        for launch in launches:
            self.torch.wait(launch)
        self.tcm_peak_bytes = max(pe.tcm_peak_bytes for launch in launches for pe in launch.pes)
        self.time_ns = max(launch.end_ns for launch in launches) - min(launch.start_ns for launch in launches)
        check_received(self.torch.communicators.unreceived())

    def _install(self, made: LaunchPlan) -> None:
        if self._installed != made.config.rings:
            group = group_of(self.spec, self.sips)
            self.torch.communicators.install(self.group.name, group, made.config.rings)
            self._installed = made.config.rings

    def all_reduce(
        self,
        arrays: Sequence[Array],
        dp: DPPolicy | None = None,
        *,
        op: str = "sum",
        per: str = "rank",
        algorithm: str | None = None,
        space: Space = "hbm",
    ) -> list[Array]:
        """What each rank has afterwards."""
        tensors = self.tensors(arrays, dp, space)
        each = one_each(tensors)
        self.run("all_reduce", each, each, op=op, per=per, algorithm=algorithm)
        return [contents(tensor) for tensor in tensors]
