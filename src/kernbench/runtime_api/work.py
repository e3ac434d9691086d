"""Work: a running collective or message, which `async_op=True`, `isend` and `irecv` return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from kernbench.common.errors import KernBenchError
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.not_modelled import WORK_NAMES, refuse_name
from kernbench.runtime_api.ranks import Background
from kernbench.runtime_api.tensor import Tensor


class WaitHost(Protocol):
    """The part of the host context that waits for launches."""

    def wait(self, what: Launch) -> object:
        """Return when a launch is done; raises LaunchError for one that failed."""


class Work(ABC):
    """One rank's part of a collective, or of a message. Its tensors may be used when it is done: `wait()` first."""

    def __init__(self, title: str, source_rank: int | None = None, outputs: Sequence[Tensor] = ()) -> None:
        self._title = title
        self._source_rank = source_rank
        self._outputs = list(outputs)

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names what to use instead."""
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("Work", name, WORK_NAMES.get(name), dir(type(self)))

    @abstractmethod
    def _finish(self) -> None:
        """Return when it is done; raises LaunchError when a kernel of it has failed."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True when it is done; raises LaunchError when a kernel of it has failed. `timeout` is accepted for
        compatibility: a wait that cannot end is reported at once.
        """
        self._finish()
        return True

    def synchronize(self) -> None:
        self._finish()

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether it is done, successfully or not."""

    @abstractmethod
    def is_success(self) -> bool:
        """Whether it is done, successfully."""

    def exception(self) -> BaseException | None:
        """Why it failed; None if it is not done, or has not failed."""
        if not self.is_completed() or self.is_success():
            return None
        try:
            self._finish()
        except KernBenchError as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        """The tensors that it writes, when it is done."""
        self._finish()
        return self._outputs

    def get_future(self) -> Future:
        """The same as a future, whose value is `result()`."""
        return Future(self.result, self.is_completed)

    def source_rank(self) -> int | None:
        """The global rank that sends a received message; None for other work."""
        return self._source_rank

    def __repr__(self) -> str:
        return f"Work({self._title!r}, {'done' if self.is_completed() else 'under way'})"


class Future:
    """A value that is there when work is done. It is computed when it is waited for."""

    def __init__(self, value: Callable[[], Any], is_done: Callable[[], bool]) -> None:
        self._value = value
        self._is_done = is_done

    def wait(self) -> Any:
        """The value, when it is there."""
        return self._value()

    value = wait

    def done(self) -> bool:
        return self._is_done()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of what the callback makes of this one; it is called when that is waited for."""
        found: list[Any] = []

        def value() -> Any:
            if not found:
                found.append(callback(self))
            return found[0]

        return Future(value, self._is_done)


class FinishedWork(Work):
    """Work that needs nothing to be done: there are no elements."""

    def _finish(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


class CombinedWork(Work):
    """Several works as one; `end` is called once, when all are done."""

    def __init__(
        self,
        title: str,
        works: Sequence[Work],
        outputs: Sequence[Tensor] = (),
        end: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(title, None, outputs)
        self._works = tuple(works)
        self._end = end

    def _finish(self) -> None:
        for work in self._works:
            work.wait()
        if self._end is not None:
            self._end()
            self._end = None

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)


class LaunchedWork(Work):
    """Work that has been launched on the device; `launch` has its times."""

    def __init__(
        self, host: WaitHost, launch: Launch, source_rank: int | None = None, outputs: Sequence[Tensor] = ()
    ) -> None:
        super().__init__(launch.name, source_rank, outputs)
        self._host = host
        self.launch = launch

    def _finish(self) -> None:
        self._host.wait(self.launch)

    def is_completed(self) -> bool:
        return self.launch.is_done

    def is_success(self) -> bool:
        return self.launch.is_done and not self.launch.failures


class UnmatchedMessage(Work):
    """A message posted before its other end. A background program starts the transfer once both ends are posted
    (`is_matched`).
    """

    def __init__(
        self,
        program: Background,
        title: str,
        source_rank: int | None,
        is_matched: Callable[[], bool],
        outputs: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(title, source_rank, outputs)
        self._program = program
        self.is_matched = is_matched

    def _finish(self) -> None:
        self._program.wait()

    def is_completed(self) -> bool:
        return self._program.is_over

    def is_success(self) -> bool:
        return self._program.is_over and not self._program.has_failed
