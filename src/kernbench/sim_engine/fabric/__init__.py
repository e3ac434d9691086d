"""Links, transit nodes and memory channels: passive things with parameters, moved by one exact engine.

Stands on its own: build a `Network`, put a `Fabric` on it, `inject` transfers, `run`. `FabricEnvironment` joins it to
SimPy.
"""

from kernbench.common.flits import FlitArrival
from kernbench.sim_engine.fabric.buffers import Buffers
from kernbench.sim_engine.fabric.clock import FabricEnvironment
from kernbench.sim_engine.fabric.fabric import Fabric
from kernbench.sim_engine.fabric.joined_reads import JoinedRead
from kernbench.sim_engine.fabric.model import BETWEEN, DelayRule, Network
from kernbench.sim_engine.fabric.reservations import Reservation
from kernbench.sim_engine.fabric.transfers import (
    FlitHop,
    HopTimes,
    LinkCounters,
    Transfer,
)

__all__ = [
    "BETWEEN",
    "Buffers",
    "DelayRule",
    "Fabric",
    "FabricEnvironment",
    "FlitArrival",
    "FlitHop",
    "HopTimes",
    "JoinedRead",
    "LinkCounters",
    "Network",
    "Reservation",
    "Transfer",
]
