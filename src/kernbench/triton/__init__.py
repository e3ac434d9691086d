"""Triton kernels, unmodified, on a simulated machine. Needs the extra `kernbench[triton]`.

import kernbench.triton

with kernbench.triton.simulate() as sim:
    kernel[grid](x, y, n, BLOCK=1024)
print(sim.table())
"""

from __future__ import annotations

from kernbench.triton.api import SimulatedRun, simulate
from kernbench.triton.internals import TESTED

__all__ = ["TESTED", "SimulatedRun", "simulate"]
