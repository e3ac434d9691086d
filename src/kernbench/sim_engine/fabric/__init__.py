"""Links, transit nodes and memory channels: passive things with parameters, moved by one exact engine.

Stands on its own: build a `Network`, put a `Fabric` on it, `inject` transfers, `run`. `FabricEnvironment` joins it to SimPy.
"""

from kernbench.sim_engine.fabric.environment import FabricEnvironment
from kernbench.sim_engine.fabric.flits import FlitHop, HopTimes, LinkCounters, Transfer
from kernbench.sim_engine.fabric.model import DelayRule, FlitArrival, Network
from kernbench.sim_engine.fabric.quiet import Fabric

__all__ = [
    "DelayRule",
    "Fabric",
    "FabricEnvironment",
    "FlitArrival",
    "FlitHop",
    "HopTimes",
    "LinkCounters",
    "Network",
    "Transfer",
]
