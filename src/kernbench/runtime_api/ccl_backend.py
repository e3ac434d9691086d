"""What `torch.distributed` asks of whatever carries collectives out on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kernbench.ccl.calls import CallGroup, CollectiveCall
from kernbench.common.ipcq import Unreceived
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor


class Backend(Protocol):
    """Groups are opened before their first call and closed after the last one, by whichever rank comes first or last.

    A call is first agreed upon, then started. It is started when what the calling rank had running on its tensors is
    done, in the order of the rank's calls, and without regard to what other ranks do: those that have to wait for
    others do so on the device.
    """

    def open(self, group: CallGroup) -> None:
        """A group exists from now on; raises KernBenchError where it cannot be served."""

    def close(self, group: CallGroup) -> None:
        """No rank of a group calls any more, and its name may be used again. Its calls may still be under way if a
        rank has failed.
        """

    def unreceived(self, group: CallGroup) -> Sequence[Unreceived]:
        """Messages that kernels of a group have sent and none has received."""

    def agreement(self, call: CollectiveCall) -> Mapping[str, object]:
        """What else, beside the call itself, must be the same on every rank, by name: placement, algorithm.

        Raises KernBenchError, with the reason, for a call that cannot be carried out. Nothing is started.
        """

    def start(self, call: CollectiveCall, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Launch:
        """Start this rank's part, which is done when its tensors may be used again, and return at once.

        The tensors are those of the call; the launch keeps them as long as it needs them.
        """
