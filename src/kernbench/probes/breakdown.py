"""The time of one transfer by part of the machine; the parts sum to the total exactly.

Latencies are attributed to the part that charges them, for request and reply; the serialisation of the bytes on links
is `transfer`; the excess over the uncontended time is `contention`. Of many issuers, the last to finish is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kernbench.probes.formula import Charge, Prediction, latency_charges
from kernbench.topology.graph import UCIE_KINDS, EdgeKind, Node, TopologyGraph

_PART_OF_KIND = {
    "noc_router": "noc_ns",
    "channel_router": "noc_ns",
    "ucie": "ucie_ns",
    "ucie_conn": "ucie_ns",
    "io_ucie": "ucie_ns",
    "io_ucie_conn": "ucie_ns",
    "hbm_ctrl": "memory_ns",
    "sram": "memory_ns",
    "pe_tcm": "memory_ns",
    "far_memory": "memory_ns",
}
_IO_EDGES = (EdgeKind.IO_INTERNAL, EdgeKind.PCIE, EdgeKind.FAR_LINK)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of a total, in ns. `pe_setup_ns` is the DMA engine, `io_pcie_ns` IO chiplets, PCIe and the switch."""

    pe_setup_ns: float
    noc_ns: float
    ucie_ns: float
    io_pcie_ns: float
    transfer_ns: float
    memory_ns: float
    contention_ns: float

    @property
    def total_ns(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


LABELS = {
    "pe_setup_ns": "PE setup",
    "noc_ns": "NoC",
    "ucie_ns": "UCIe",
    "io_pcie_ns": "IO/PCIe",
    "transfer_ns": "Wire transfer",
    "memory_ns": "HBM/SRAM",
    "contention_ns": "Contention",
}


def break_down(graph: TopologyGraph, path: Sequence[str], uncontended: Prediction, total_ns: float) -> Breakdown:
    """Split `total_ns` of a transfer along `path`, whose prediction on an idle machine is `uncontended`."""
    latency = dict.fromkeys(LABELS, 0.0)
    for charge in latency_charges(graph, path):
        latency[_part_of(charge)] += charge.ns
    return Breakdown(
        pe_setup_ns=latency["pe_setup_ns"],
        noc_ns=latency["noc_ns"],
        ucie_ns=latency["ucie_ns"],
        io_pcie_ns=latency["io_pcie_ns"],
        transfer_ns=uncontended.drain_ns + uncontended.flit_ns,
        memory_ns=latency["memory_ns"] + uncontended.memory_ns,
        contention_ns=total_ns - uncontended.formula_ns,
    )


def _part_of(charge: Charge) -> str:
    where = charge.where
    if isinstance(where, Node):
        return _PART_OF_KIND.get(where.kind, "pe_setup_ns" if where.place.pe >= 0 else "io_pcie_ns")
    if where.kind in UCIE_KINDS:
        return "ucie_ns"
    if where.kind in _IO_EDGES:
        return "io_pcie_ns"
    return "pe_setup_ns" if where.kind is EdgeKind.PE_INTERNAL else "noc_ns"
