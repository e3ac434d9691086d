"""The interface between `torch.distributed` and whatever carries collectives out on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kernbench.ccl.calls import CallGroup, CollectiveCall
from kernbench.common.ipcq import Unreceived
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor


class PlannedCall(Protocol):
    """One rank's part of a collective: planned, and not started yet."""

    @property
    def signature(self) -> Mapping[str, object]:
        """What must be equal on every rank besides the call itself, by name: placement, algorithm."""

    def start(self, number: int) -> Launch:
        """Start this rank's part and return at once; the launch is done when the call's tensors may be used again. It
        holds the tensors for as long as it needs them.

        `number` identifies the call among those of the group, and a message among the group's messages.
        """


class Backend(Protocol):
    """A group is opened before its first call and closed after its last, by whichever rank is first or last.

    A call is planned, compared with the other ranks' calls, then started: when the launches of the calling rank that
    use its tensors are done, in the order of the rank's calls, and regardless of what other ranks do. A rank that
    needs another one waits for it on the device.
    """

    def open(self, group: CallGroup) -> None:
        """Prepare a group; raises KernBenchError where it cannot be served."""

    def close(self, group: CallGroup) -> None:
        """Release a group that no rank uses any more; its name may be used again. Its calls may still be running if a
        rank has failed.
        """

    def unreceived(self, group: CallGroup) -> Sequence[Unreceived]:
        """Messages that kernels of a group have sent and none has received."""

    def plan(self, call: CollectiveCall, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> PlannedCall:
        """Plan this rank's part of a call with these tensors; nothing is started.

        Raises KernBenchError, with the reason, for a call that cannot be carried out.
        """
