"""`torch.ahbm` and `torch.accelerator`: which SIP the caller's tensors and launches go to.

Each rank has its own current device; a program that never selects one uses the context's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError
from kernbench.runtime_api.not_modelled import DEVICE_NAMES, refuse_name

KINDS = ("cuda", "ahbm", "sip", "accelerator")  # names of the device that programs use


class Device:
    """A device: `torch.device("cuda", 1)` and `x.device`. It equals its name, "sip:1"; without a number it is the
    current device. "cpu" is the host, where `x.to` can copy to, but no tensor is. Raises UsageError for a name that is
    no device here.
    """

    def __init__(self, device: object = "cuda", index: int | None = None) -> None:
        self.type = "cuda"
        self.index: int | None = index
        if isinstance(device, Device):
            self.type, self.index = device.type, device.index
        elif isinstance(device, str):
            kind, _, digits = device.partition(":")
            self.type = "cpu" if kind == "cpu" else "cuda"
            if kind not in (*KINDS, "cpu") or (digits and not digits.isdecimal()):
                raise UsageError(f"no device {device!r}", hint='use "cuda", "cuda:1", "sip:1", or a number')
            self.index = int(digits) if digits else index
        elif isinstance(device, Integral) and not isinstance(device, bool):
            self.index = int(device)
        else:
            raise UsageError(f"no device {device!r}", hint='use "cuda", "cuda:1", "sip:1", or a number')

    @property
    def sip(self) -> int | None:
        """The number of a device that tensors are on."""
        if self.type == "cpu":
            raise UsageError(
                "tensors of the host (device 'cpu') are not modelled",
                hint="leave device out; numpy holds what is on the host, and torch.from_numpy moves it",
            )
        return self.index

    def __str__(self) -> str:
        name = "cpu" if self.type == "cpu" else "sip"
        return name if self.index is None else f"{name}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and other.partition(":")[0] in (*KINDS, "cpu"):
            other = Device(other)
        return isinstance(other, Device) and (other.type, other.index) == (self.type, self.index)

    def __hash__(self) -> int:
        return hash(self.index)


def is_device(what: object) -> bool:
    """Whether an argument of `x.to` is a device, and not a dtype."""
    if isinstance(what, Integral):
        return True
    return isinstance(what, Device) or (isinstance(what, str) and what.partition(":")[0] in (*KINDS, "cpu"))


def is_host(what: object) -> bool:
    """Whether an argument of `x.to` is the host."""
    return isinstance(what, str | Device) and str(what).partition(":")[0] == "cpu"


class AhbmNamespace:
    """`torch.ahbm`, with the names that `torch.cuda` has. `finish` waits for the caller's launches on a SIP."""

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names what to use instead."""
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("torch.ahbm", name, DEVICE_NAMES.get(name), dir(type(self)))

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
        if isinstance(device, str):
            device = Device(device).sip
        if isinstance(device, bool) or not isinstance(device, Integral) or int(device) not in range(self._count):
            raise UsageError(f"no device {device!r}", hint=f"this machine has SIPs 0 to {self._count - 1}")
        return int(device)


def sip_of(ahbm: AhbmNamespace, device: object) -> int:
    """The SIP of a device in any spelling; the current one for None."""
    number = None if device is None else Device(device).sip
    if number is None:
        return ahbm.current_device()
    return ahbm._checked(number)


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
