"""`torch.autocast("cuda")` for tensors that PyTorch has on the CPU: the rules of its CPU backend, with that type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

CLASS = torch.amp.autocast_mode.autocast
_BEFORE = "_kernbench_before"  # of the CPU backend, for each time that a region was entered


def methods() -> dict[str, Callable[..., Any]]:
    """What enters and leaves a region while programs are simulated."""
    enter, leave = CLASS.__enter__, CLASS.__exit__

    def enter_both(self: Any) -> Any:
        found = enter(self)
        if self.device == "cuda":
            before = self.__dict__.setdefault(_BEFORE, [])
            before.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            _set(self._enabled, self.fast_dtype)
        return found

    def leave_both(self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            _set(*getattr(self, _BEFORE).pop())
        return leave(self, *error)

    return {"__enter__": enter_both, "__exit__": leave_both}


def _set(enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)
