"""The backend "ahbm": a rank's part of a collective is a kernel on its SIP that exchanges messages with the same kernel
on other SIPs.

`kernbench.ccl` decides which algorithm runs on which PEs. A group has one set of rings per ring configuration that its
algorithms ask for, and separate rings for messages from rank to rank, so neither mixes with the messages of user
kernels. Collectives, messages sent and messages received are launched in one stream each: they run concurrently with
each other and with compute kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kernbench.ccl.calls import CallGroup, CollectiveCall
from kernbench.ccl.config import resolve_algorithm_config
from kernbench.ccl.config_spec import CclConfig
from kernbench.ccl.install import WORLD, Communicators
from kernbench.ccl.measured import machine_key
from kernbench.ccl.plans import LaunchPlan, plan
from kernbench.ccl.topologies import group_of
from kernbench.common.ipcq import RingConfig, Unreceived
from kernbench.common.messages import TensorArg
from kernbench.runtime_api.host_line import host_call
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import MachineSpec

MESSAGES = ("send", "recv")


class LaunchHost(Protocol):
    """The part of the host context that launches kernels."""

    def launch(self, name: str, /, *args: object, wait: bool | None = None, **named: object) -> Launch:
        """Run a kernel."""


class AhbmBackend:
    """Carries collectives out as kernel launches. See `ccl_backend.Backend`."""

    def __init__(self, host: LaunchHost, spec: MachineSpec, communicators: Communicators, config: CclConfig) -> None:
        self.host = host
        self._spec = spec
        self._communicators = communicators
        self._config = config
        self._machine = machine_key(spec)
        self._installed: dict[tuple[str, RingConfig, bool], str] = {}  # by group, rings, and whether for messages
        self._ended: dict[tuple[str, int], int] = {}  # ranks that are done, by communicator and call number

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

    def plan(self, call: CollectiveCall, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> AhbmCall:
        return AhbmCall(
            self, call, plan(call, self._spec, self._config, machine=self._machine), (*inputs, *outputs), host_call()
        )

    def part_ended(self, communicator: str, number: int, ranks: int, launch: Launch) -> None:
        """One rank's part of a call has ended. When the last one has, messages left in rings cannot be received any
        more: that launch reports them.
        """
        ended = self._ended.pop((communicator, number), 0) + 1
        if ended < ranks:
            self._ended[communicator, number] = ended
        elif not launch.unreceived:
            launch.unreceived = self._communicators.left_by_call(communicator, number, launch.name)

    def communicator(self, call: CollectiveCall, rings: RingConfig) -> str:
        """The communicator of a call, which is installed if it is not yet."""
        key = (call.group.name, rings, call.name in MESSAGES)
        name = self._installed.get(key)
        if name is None:
            of_group = sum(1 for group, _, _ in self._installed if group == call.group.name)
            name = self._installed[key] = f"{call.group.name} {'messages' if key[2] else 'collectives'} {of_group}"
            self._communicators.install(name, group_of(self._spec, call.group.sips), rings)
        return name


@dataclass(frozen=True, slots=True)
class AhbmCall:
    """A rank's part of a collective, planned as a kernel launch. See `ccl_backend.PlannedCall`."""

    backend: AhbmBackend
    call: CollectiveCall
    plan: LaunchPlan
    tensors: tuple[Tensor, ...]  # those of the call, in its order
    called_at: str  # the program's line; a message may be started later, by another one

    @property
    def signature(self) -> Mapping[str, object]:
        return self.plan.signature

    def start(self, number: int) -> Launch:
        call, chosen = self.call, self.plan

        def passed(arg: TensorArg | int) -> object:
            return next((own for of_call, own in zip(call.tensors, self.tensors, strict=True) if of_call is arg), arg)

        communicator = self.backend.communicator(call, chosen.config.rings)
        launch = self.backend.host.launch(
            chosen.name,
            chosen.kernel,
            *map(passed, chosen.args),
            wait=False,
            sips=(call.sip,),
            target_cubes=chosen.target_cubes,
            target_pes=chosen.target_pes,
            communicator=communicator,
            stream=chosen.stream,
            tag=number,
            **{name: passed(tensor) for name, tensor in chosen.named.items()},
        )
        launch.called_at = self.called_at
        ranks = 2 if call.name in MESSAGES else call.group.size
        launch.on_end.append(partial(self.backend.part_ended, communicator, number, ranks))
        return launch
