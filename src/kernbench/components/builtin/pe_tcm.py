"""A PE's tightly coupled memory: an endpoint of the fabric behind the PE's DMA, and two ports towards the registers.

A fetch takes the read port, a store the write port, for bytes / port bandwidth; each port serves one request at a
time, and the two do not contend. To the fabric the ports are the two directions of the pe_dma link. Not
modelled: banks, and contention for a port between the DMA, which is slower than it, and fetches and stores.
"""

from __future__ import annotations

from kernbench.common.declared_state import part
from kernbench.common.engine_declaration import EngineDeclaration
from kernbench.common.units import transfer_ns
from kernbench.components.base import Context, MemoryComponent
from kernbench.components.builtin.pipeline import ServerQueue, TileToken
from kernbench.topology.graph import Node


class PeTcmComponent(MemoryComponent):
    """Serves the fabric as any memory does, and its PE's fetches and stores."""

    declaration = EngineDeclaration(role="memory")

    STATE = (part("read_port"), part("write_port"))
    DERIVED = ("_both_ns", "_read_ns")

    __slots__ = ("_both_ns", "_read_gbs", "_read_ns", "_write_gbs", "read_port", "write_port")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        ports = ctx.graph.cube_at(node.id).pe_template.links
        self._read_gbs, self._write_gbs = ports.tcm_read_bw_gbs, ports.tcm_write_bw_gbs
        self.read_port, self.write_port = ServerQueue(), ServerQueue()
        self._read_ns: dict[int, float] = {}  # a kernel fetches few sizes, many times
        self._both_ns = 0.0  # for how long both ports are taken

    @property
    def busy_ns(self) -> float:
        """For how long at least one port was busy, including accesses that are already scheduled."""
        return self.read_port.busy_ns + self.write_port.busy_ns - self._both_ns

    def add_busy(self, read_ns: float, write_ns: float, busy_ns: float, *, is_communication: bool) -> None:
        """Add busy times of a replay, which bypasses this block: of each port, and of at least one (`busy_ns`)."""
        self.read_port.add_busy(read_ns, is_communication=is_communication)
        self.write_port.add_busy(write_ns, is_communication=is_communication)
        self._both_ns += read_ns + write_ns - busy_ns

    def fetch(self, token: TileToken, nbytes: int) -> float:
        """Use the read port for a token's stage; returns the end time."""
        ns = self._read_ns.get(nbytes)
        if ns is None:
            ns = self._read_ns[nbytes] = transfer_ns(nbytes, self._read_gbs)
        return self._served(token, self.read_port, self.write_port, ns)

    def store(self, token: TileToken, nbytes: int) -> float:
        """Use the write port for a token's stage; returns the end time."""
        return self._served(token, self.write_port, self.read_port, transfer_ns(nbytes, self._write_gbs))

    def _served(self, token: TileToken, port: ServerQueue, other: ServerQueue, ns: float) -> float:
        end = port.serve(token, self.env.now, ns)
        if other.free_ns > token.start_ns:
            shared_ns = min(end, other.free_ns) - token.start_ns  # it was taken before now
            if shared_ns > 0:
                self._both_ns += shared_ns
        return end
