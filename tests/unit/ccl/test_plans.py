"""How kernels are given their facts."""

from __future__ import annotations

from kernbench.ccl.plans import _bound


def kernel(**facts: object) -> dict[str, object]:
    return facts


def test_a_kernel_with_the_same_facts_is_the_same_object_and_types_are_distinguished() -> None:
    one, yes = _bound(kernel, (("x", int, 1),)), _bound(kernel, (("x", bool, True),))
    assert one is _bound(kernel, (("x", int, 1),))
    assert yes()["x"] is True
    assert one()["x"] is not True
