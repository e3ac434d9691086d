"""What kernels of `test_message_use` call as functions of a module."""

from __future__ import annotations

from typing import Any


def exchange(tl: Any) -> None:
    tl.recv("W", (1,), "f32")


def idle(tl: Any) -> None:
    tl.cycles(1)
