"""`torch.ahbm` and `torch.accelerator`: which SIP the caller's tensors and launches go to.

Each rank has its own current device; a program that never selects one uses the context's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError


class AhbmNamespace:
    """`torch.ahbm`, with the names that `torch.cuda` has. `finish` waits for the caller's launches on a SIP."""

    def __init__(self, device_count: int, default: int, finish: Callable[[int], None]) -> None:
        self._count = device_count
        self._default = self._checked(default)
        self._finish = finish
        self._chosen: WeakKeyDictionary[greenlet, int] = WeakKeyDictionary()

    def set_device(self, device: int) -> None:
        """Make a SIP the calling rank's current device."""
        self._chosen[getcurrent()] = self._checked(device)

    def current_device(self) -> int:
        """The calling rank's current device."""
        return self._chosen.get(getcurrent(), self._default)

    @contextmanager
    def device(self, device: int) -> Iterator[None]:
        """`with torch.ahbm.device(1):` makes that SIP the current device within the block."""
        before, me = self.current_device(), getcurrent()
        self.set_device(device)
        try:
            yield
        finally:
            self._chosen[me] = before

    def synchronize(self, device: int | None = None) -> None:
        """Return when all of the caller's launches on a SIP, its current one by default, are done.

        Raises LaunchError if one of them failed.
        """
        self._finish(self.current_device() if device is None else self._checked(device))

    def device_count(self) -> int:
        """How many SIPs the machine has."""
        return self._count

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _checked(self, device: object) -> int:
        if isinstance(device, bool) or not isinstance(device, Integral) or int(device) not in range(self._count):
            raise UsageError(f"no device {device!r}", hint=f"this machine has SIPs 0 to {self._count - 1}")
        return int(device)


class AcceleratorNamespace:
    """`torch.accelerator`: the same under PyTorch's device-neutral names."""

    def __init__(self, ahbm: AhbmNamespace) -> None:
        self._ahbm = ahbm

    def set_device_index(self, device: int) -> None:
        self._ahbm.set_device(device)

    def current_device_index(self) -> int:
        return self._ahbm.current_device()

    @contextmanager
    def device_index(self, device: int) -> Iterator[None]:
        with self._ahbm.device(device):
            yield

    def synchronize(self, device: int | None = None) -> None:
        self._ahbm.synchronize(device)

    def device_count(self) -> int:
        return self._ahbm.device_count()

    def is_available(self) -> bool:
        return True
