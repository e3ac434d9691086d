"""`torch.ahbm` and `torch.accelerator`: which SIP the caller's tensors and launches go to.

Each rank has a device of its own; a program that never chose one uses the context's default.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError


class AhbmNamespace:
    """`torch.ahbm`."""

    def __init__(self, device_count: int, default: int = 0) -> None:
        self._count = device_count
        self._default = self._checked(default)
        self._chosen: WeakKeyDictionary[greenlet, int] = WeakKeyDictionary()

    def set_device(self, device: int) -> None:
        """From now on the calling rank works on that SIP."""
        self._chosen[getcurrent()] = self._checked(device)

    def current_device(self) -> int:
        """The SIP that the calling rank works on."""
        return self._chosen.get(getcurrent(), self._default)

    def device_count(self) -> int:
        """How many SIPs the machine has."""
        return self._count

    def is_available(self) -> bool:
        return True

    def _checked(self, device: int) -> int:
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device < self._count:
            raise UsageError(f"no device {device!r}", hint=f"this machine has SIPs 0 to {self._count - 1}")
        return device


class AcceleratorNamespace:
    """`torch.accelerator`: the same under PyTorch's device-neutral names."""

    def __init__(self, ahbm: AhbmNamespace) -> None:
        self._ahbm = ahbm

    def set_device_index(self, device: int) -> None:
        self._ahbm.set_device(device)

    def current_device_index(self) -> int:
        return self._ahbm.current_device()

    def device_count(self) -> int:
        return self._ahbm.device_count()

    def is_available(self) -> bool:
        return True
