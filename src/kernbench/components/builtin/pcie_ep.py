"""PCIe endpoint: where host requests enter a SIP, and what cross-SIP traffic passes. Store and forward.

A packet is taken whole, pays the overhead, and goes on. Host memory traffic goes straight from here to the memory;
commands go to the IO_CPU. Not modelled: TLPs, credits, retries, the host's own side of the link.
"""

from __future__ import annotations

from kernbench.common.errors import ComponentError
from kernbench.common.messages import CubeCommand, MemoryReadMsg, MemoryWriteMsg, Request
from kernbench.common.units import on_grid
from kernbench.components.base import ActiveComponent, Process, Served, TransferTrace
from kernbench.components.builtin.io_cpu import IoCpuComponent


class PcieEpComponent(ActiveComponent):
    """Serves what the host submits to this endpoint."""

    def serve(self, request: Request, trace: TransferTrace) -> Process:
        """Carry out a host request; returns the path that its bytes, or its command, took, and what was answered."""
        payload: object = None
        yield from self.pause(self.entry_ns)
        if isinstance(request, MemoryWriteMsg):
            path, address = self._memory_path(request.dst_pa)
            yield self.write(request, path, address, request.nbytes, trace)
            path = list(self.path_of(path, address, request.nbytes))
        elif isinstance(request, MemoryReadMsg):
            path, address = self._memory_path(request.src_pa)
            yield self.read(request, path, address, request.nbytes, trace)
            path = list(self.path_of(path, address, request.nbytes))
        else:
            assert isinstance(request, CubeCommand)
            path = self._command_path()
            answer = yield self.command(request, path, None, trace)
            payload = answer.payload
        return Served(tuple(path), payload)

    def lead_ns(self, command: CubeCommand) -> float:
        """From the instant at which the host submits a launch here until the last of its PEs has it."""
        path = self._command_path()
        io_cpu = self.ctx.component(path[-1])
        if not isinstance(io_cpu, IoCpuComponent):
            raise ComponentError(
                f"{path[-1]} cannot say how long a launch takes to reach its PEs",
                where=f"impl {io_cpu.node.impl}",
                hint="derive its class from kernbench.components.builtin.io_cpu.IoCpuComponent, or launch SIP by SIP",
            )
        return on_grid(self.entry_ns) + self.ctx.latency_ns(path) + io_cpu.dispatch_ns(command)

    def _command_path(self) -> list[str]:
        io_cpu = self.ctx.resolver.find_io_cpu(self.node.place.sip, self.node.place.io)
        return self.ctx.router.find_node_path(self.node.id, io_cpu)

    def _memory_path(self, pa: int) -> tuple[list[str], int]:
        address = self.ctx.resolver.address(pa)
        path = self.ctx.router.find_memory_path(self.node.id, self.ctx.resolver.resolve(address))
        return path, self.ctx.resolver.local_address(address)
