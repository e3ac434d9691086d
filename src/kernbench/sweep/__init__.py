"""Many runs of one function over values of its parameters and of the machine: grids, lists, searches.

The package can be called: `kernbench.sweep(fn, over={"m": [128, 256]})` gives rows. See `api.py`.
"""

from kernbench.sweep import callable_package
from kernbench.sweep.api import sweep
from kernbench.sweep.objectives import Objective, pareto_front, ranked, read_objectives
from kernbench.sweep.rows import SweepRow

__all__ = ["Objective", "SweepRow", "pareto_front", "ranked", "read_objectives", "sweep"]

callable_package.install(__name__, sweep)
