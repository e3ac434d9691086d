"""The backend "ahbm": a rank's part of a collective is a kernel on its SIP that talks to the same kernel on others.

Which algorithm, on which PEs, is for `kernbench.ccl` to say. A group has rings of its own for each configuration of
rings that its algorithms ask for, and others for messages from rank to rank, so neither meets the messages of user
kernels. Collectives, messages sent and messages received are launched in streams of their own: they and compute
kernels run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from kernbench.ccl.calls import CallGroup, CollectiveCall
from kernbench.ccl.config import resolve_algorithm_config
from kernbench.ccl.config_spec import CclConfig
from kernbench.ccl.install import WORLD, Communicators
from kernbench.ccl.plans import LaunchPlan, plan
from kernbench.ccl.topologies import group_of
from kernbench.common.ipcq import RingConfig, Unreceived
from kernbench.common.messages import TensorArg
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import MachineSpec

MESSAGES = ("send", "recv")


class Launches(Protocol):
    """Who launches kernels."""

    def launch(self, name: str, /, *args: object, wait: bool | None = None, **named: object) -> Launch:
        """Run a kernel."""


class AhbmBackend:
    """Carries collectives out. See `ccl_backend.Backend`."""

    def __init__(self, host: Launches, spec: MachineSpec, communicators: Communicators, config: CclConfig) -> None:
        self._host = host
        self._spec = spec
        self._communicators = communicators
        self._config = config
        self._installed: dict[tuple[str, RingConfig, bool], str] = {}  # by group, rings, and whether for messages
        self._ended: dict[tuple[str, int], int] = {}  # by communicator and number of a call: ranks that are done

    def open(self, group: CallGroup) -> None:
        defaults = resolve_algorithm_config(self._config)
        self._communicators.set_sizes(defaults.ring_bytes, defaults.work_bytes)
        if not self._communicators.has(WORLD):
            self._communicators.install_world(defaults.rings)
        self._communicators.reserve(group_of(self._spec, group.sips))

    def close(self, group: CallGroup) -> None:
        for key, name in [(key, name) for key, name in self._installed.items() if key[0] == group.name]:
            del self._installed[key]
            if self._communicators.has(name):
                self._communicators.uninstall(name)

    def unreceived(self, group: CallGroup) -> list[Unreceived]:
        names = [name for key, name in self._installed.items() if key[0] == group.name]
        return [message for name in names for message in self._communicators.unreceived(name)]

    def agreement(self, call: CollectiveCall) -> Mapping[str, object]:
        return self._plan(call).signature

    def start(self, call: CollectiveCall, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Launch:
        chosen = self._plan(call)
        tensors = dict(zip(map(id, call.tensors), inputs + outputs, strict=True))

        def given(arg: TensorArg | int) -> object:
            return tensors[id(arg)] if isinstance(arg, TensorArg) else arg

        communicator = self._communicator(call, chosen.config.rings)
        launch = self._host.launch(
            chosen.name,
            chosen.kernel,
            *map(given, chosen.args),
            wait=False,
            sips=(call.sip,),
            target_cubes=chosen.target_cubes,
            target_pes=chosen.target_pes,
            communicator=communicator,
            stream=chosen.stream,
            tag=call.number,
            **{name: given(tensor) for name, tensor in chosen.named.items()},
        )
        ranks = 2 if call.name in MESSAGES else call.group.size
        launch.on_end.append(partial(self._part_ended, communicator, call.number, ranks))
        return launch

    def _part_ended(self, communicator: str, number: int, ranks: int, launch: Launch) -> None:
        """A rank's part of a call is over. With the last one it is known what nobody will receive: that one says so."""
        ended = self._ended.pop((communicator, number), 0) + 1
        if ended < ranks:
            self._ended[communicator, number] = ended
        elif not launch.unreceived:
            launch.unreceived = self._communicators.left_by_call(communicator, number, launch.name)

    def _plan(self, call: CollectiveCall) -> LaunchPlan:
        return plan(call, self._spec, self._config)

    def _communicator(self, call: CollectiveCall, rings: RingConfig) -> str:
        """The communicator of a call, installed where it is not yet."""
        key = (call.group.name, rings, call.name in MESSAGES)
        name = self._installed.get(key)
        if name is None:
            of_group = sum(1 for group, _, _ in self._installed if group == call.group.name)
            name = self._installed[key] = f"{call.group.name} {'messages' if key[2] else 'collectives'} {of_group}"
            self._communicators.install(name, group_of(self._spec, call.group.sips), rings)
        return name
