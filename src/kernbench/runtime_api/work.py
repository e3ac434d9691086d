"""Work: a collective under way, which `async_op=True`, `isend` and `irecv` return."""

from __future__ import annotations

from typing import Protocol

from kernbench.runtime_api.launches import Launch


class Waits(Protocol):
    """Who waits for launches."""

    def wait(self, what: Launch) -> object:
        """Return when a launch is done; raises LaunchError for one that failed."""


class Work:
    """One rank's part of a collective. Its tensors may be used when it is done: `wait()` first.

    `launch` is what runs on the device, with its times.
    """

    def __init__(self, host: Waits, launch: Launch, source_rank: int | None = None) -> None:
        self._host = host
        self._source_rank = source_rank
        self.launch = launch

    def wait(self) -> bool:
        """Return True when it is done; raises LaunchError when a kernel of it has failed."""
        self._host.wait(self.launch)
        return True

    def is_completed(self) -> bool:
        """Whether it is done already, well or not."""
        return self.launch.is_done

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self.launch.is_done and not self.launch.failures

    def source_rank(self) -> int | None:
        """Of a message that is received: the rank of the world that it comes from."""
        return self._source_rank

    def __repr__(self) -> str:
        return f"Work({self.launch.name!r}, {'done' if self.is_completed() else 'under way'})"
