"""Which kernels are found to send or receive."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.unit.triton_emu import message_helpers

from kernbench.triton_emu.message_use import sends


def quiet(tl: Any) -> None:
    tl.cycles(1)


def direct(tl: Any) -> None:
    tl.send("E", tl.zeros((1,), "f32"))


def who_is_there(tl: Any) -> None:
    tl.directions()


def by_name(tl: Any) -> None:
    direct(tl)


def of_a_module(tl: Any) -> None:
    message_helpers.exchange(tl)


def quiet_of_a_module(tl: Any) -> None:
    message_helpers.idle(tl)


def test_a_kernel_sends_if_it_or_a_function_that_it_calls_does() -> None:
    assert [sends(each) for each in (direct, by_name, of_a_module, partial(by_name), who_is_there)] == [True] * 5
    assert [sends(each) for each in (quiet, quiet_of_a_module)] == [False] * 2
