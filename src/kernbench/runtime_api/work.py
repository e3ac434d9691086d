"""Work: a running collective or message, which `async_op=True`, `isend` and `irecv` return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.ranks import Background


class WaitHost(Protocol):
    """The part of the host context that waits for launches."""

    def wait(self, what: Launch) -> object:
        """Return when a launch is done; raises LaunchError for one that failed."""


class Work(ABC):
    """One rank's part of a collective, or of a message. Its tensors may be used when it is done: `wait()` first."""

    def __init__(self, title: str, source_rank: int | None) -> None:
        self._title = title
        self._source_rank = source_rank

    @abstractmethod
    def wait(self) -> bool:
        """Return True when it is done; raises LaunchError when a kernel of it has failed."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether it is done, successfully or not."""

    @abstractmethod
    def is_success(self) -> bool:
        """Whether it is done, successfully."""

    def source_rank(self) -> int | None:
        """The global rank that sends a received message; None for other work."""
        return self._source_rank

    def __repr__(self) -> str:
        return f"Work({self._title!r}, {'done' if self.is_completed() else 'under way'})"


class LaunchedWork(Work):
    """Work that has been launched on the device; `launch` has its times."""

    def __init__(self, host: WaitHost, launch: Launch, source_rank: int | None = None) -> None:
        super().__init__(launch.name, source_rank)
        self._host = host
        self.launch = launch

    def wait(self) -> bool:
        self._host.wait(self.launch)
        return True

    def is_completed(self) -> bool:
        return self.launch.is_done

    def is_success(self) -> bool:
        return self.launch.is_done and not self.launch.failures


class UnmatchedMessage(Work):
    """A message posted before its other end. A background program starts the transfer once both ends are posted
    (`is_matched`).
    """

    def __init__(
        self, program: Background, title: str, source_rank: int | None, is_matched: Callable[[], bool]
    ) -> None:
        super().__init__(title, source_rank)
        self._program = program
        self.is_matched = is_matched

    def wait(self) -> bool:
        self._program.wait()
        return True

    def is_completed(self) -> bool:
        return self._program.is_over

    def is_success(self) -> bool:
        return self._program.is_over and not self._program.has_failed
