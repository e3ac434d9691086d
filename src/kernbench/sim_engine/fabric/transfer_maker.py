"""Makes transfers: what was asked for is checked, cut into flits and given its place in the order of injections."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.routes import CONTROL, Route
from kernbench.sim_engine.fabric.transfers import Transfer


class TransferMaker:
    """For one fabric. `seq` is the order of injections: ties are broken by sequence number where times are equal."""

    __slots__ = ("_groups", "_network", "seq")

    def __init__(self, network: Network, groups: dict[int, ChannelGroup]) -> None:
        self._network = network
        self._groups = groups
        self.seq = count()

    def make(
        self,
        route: Route,
        nbytes: int,
        at_ns: float,
        on_done: Callable[[Transfer], None] | None = None,
        tag: object = None,
        header_bytes: int = 0,
        read_from: int | None = None,
        write_to: int | None = None,
        seq: int | None = None,
        granules: int = 0,
        is_control: bool = False,
        on_left: Callable[[float], None] | None = None,
    ) -> Transfer:
        """A transfer that has yet to be sent, whose last burst touches so many `granules`; 0: as many as its bytes
        fill. One that `is_control` is counted on links alone. Raises FabricError for a path or size that the network
        cannot carry.
        """
        if nbytes < 0 or header_bytes < 0:
            raise FabricError(f"a transfer of {nbytes} bytes with a header of {header_bytes}", hint="give 0 or more")
        transfer = Transfer(next(self.seq) if seq is None else seq, route, nbytes, at_ns, on_done, tag, on_left)
        if read_from is not None:
            transfer.source, transfer.block = self._channels_at(route.nodes[0], read_from, header_bytes)
        if write_to is not None:
            if read_from is not None:
                raise FabricError("a transfer that both reads and writes memory", hint="inject a read, then a write")
            transfer.sink, transfer.block = self._channels_at(route.nodes[-1], write_to, header_bytes)
        wire_bytes = nbytes + header_bytes
        if wire_bytes:
            if route.control_only_link is not None:
                self._refuse(route.control_only_link)
            flit_bytes = self._network.flit_bytes
            transfer.last = last = (wire_bytes - 1) // flit_bytes
            transfer.flits = last + 1
            last_bytes = wire_bytes - last * flit_bytes
            group = transfer.source or transfer.sink
            if group is not None and group.per_burst > 1:
                transfer.spare = group.per_burst - granules if granules else group.spare_of(last_bytes)
            spare = CONTROL if is_control else transfer.spare
            transfer.last_flit = last_flit = route.last_flit(self._network, wire_bytes, spare)
            transfer.traversals, transfer.last_traversals = route.traversals, last_flit.traversals
        return transfer

    def _refuse(self, link: int) -> None:
        a, b = (self._network.names[node] for node in self._network.link_ends[link])
        raise FabricError(f"the link from {a!r} to {b!r} carries control only", hint="give it a bandwidth")

    def _channels_at(self, node: int, address: int, header_bytes: int) -> tuple[ChannelGroup, int]:
        """The memory channels at `node`, and the address in bursts."""
        group = self._groups.get(node)
        if group is None:
            raise FabricError(f"node {self._network.names[node]!r} has no memory channels", hint="add_channels there")
        if header_bytes:
            raise FabricError("a memory access with a header", hint="leave header_bytes out: a flit is a burst")
        if address < 0:
            raise FabricError(f"a memory access at address {address}", hint="give 0 or more")
        return group, group.block_of(address)
