"""Expected results that a program states with `torch.check`, compared after the simulation.

A statement captures the values that a tensor holds at that moment; values are immutable, so later writes to the tensor
do not matter. All values are computed together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.dtypes import DType
from kernbench.common.frozen import frozen
from kernbench.policy.placement.dp import ShardSpec
from kernbench.runtime_api.host_numbers import real_numbers
from kernbench.sim_engine.data_executor import DataCheck, DataExecutor, compare
from kernbench.values.graph import Value

ExpectedNumbers = ArrayLike | Callable[[], ArrayLike]


@frozen
class _Statement:
    name: str
    shape: tuple[int, ...]
    element: DType
    parts: Sequence[tuple[ShardSpec, Value]]
    reference: ExpectedNumbers
    rtol: float | None
    atol: float | None
    missing: str | None  # the part of it that was never written, if any


class Checks:
    """The statements of one run. With `name_devices`, names of tensors include their device."""

    def __init__(self, *, enabled: bool, name_devices: bool = False) -> None:
        self.enabled = enabled
        self._name_devices = name_devices
        self._statements: list[_Statement] = []

    def __len__(self) -> int:
        return len(self._statements)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        element: DType,
        parts: Sequence[tuple[ShardSpec, Value]],
        reference: ExpectedNumbers,
        rtol: float | None,
        atol: float | None,
        missing: str | None = None,
    ) -> None:
        """State that a tensor made of `parts` equals a reference; the check fails if part of it is `missing`."""
        if self._name_devices:
            name = f"{name}@sip{parts[0][0].sip}"
        self._statements.append(_Statement(name, shape, element, parts, reference, rtol, atol, missing))

    def verify(self, executor: DataExecutor) -> list[DataCheck]:
        """Compute and compare; raises DataError for a reference of another shape, or one that is not real numbers."""
        arrays = iter(executor.run([value for one in self._statements for _, value in one.parts]))
        found: list[DataCheck] = []
        for one in self._statements:
            actual = np.empty(one.shape, one.element.numpy)
            for part, _ in one.parts:
                actual[part.index] = next(arrays)
            wanted = one.reference() if callable(one.reference) else one.reference
            reference = real_numbers(wanted, f"torch.check of tensor '{one.name}'")
            check = compare(one.name, one.element, actual, reference, one.rtol, one.atol)
            if one.missing is not None:
                check = replace(check, ok=False, max_abs_err=inf, reason=one.missing, mismatch=None)
            found.append(check)
        return found
