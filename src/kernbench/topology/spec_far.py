"""Far memory: nodes of memory behind links of their own, as CXL memory expanders are, that PEs load from by address.

A node is at each SIP, on a link to one of its IO chiplets, or at a switch, where the SIPs below it share it in equal
parts.
"""

from typing import Annotated

from kernbench.common.units import GIB, MIB
from kernbench.topology.readers import number, power_of_two, text, whole
from kernbench.topology.spec_base import Gbs, LinkSpec

MAX_FAR_GB = 1 << 20
AT_SIP, AT_TOP = "sip", "switch"


class FarMemorySpec(LinkSpec):
    """One node: the link to it, and the memory, channels with a bandwidth that reads and writes share."""

    at: Annotated[str, text(r"[A-Za-z]\w{0,30}", "sip, switch, or a level of system.switch_levels")] = AT_SIP
    io: Annotated[str, text(r"io[0-9]{1,2}", "io and a number of up to two digits, such as io0")] | None = None
    gb: Annotated[int, whole(1, MAX_FAR_GB)]
    channels: Annotated[int, power_of_two(1, 1024)]
    channel_bw_gbs: Gbs
    overhead_ns: Annotated[float, number(0.0, 1e6)] = 0.0  # of the controller, once for each access
    switch_penalty_ns: Annotated[float, number(0.0, 1e6)] = 0.0  # when a channel changes direction

    @property
    def gbs(self) -> float:
        """The bandwidth of the memory itself."""
        return self.channels * self.channel_bw_gbs

    def bytes_per_sip(self, nodes: int, n_sips: int) -> int:
        """The equal part of all nodes that each SIP has."""
        return self.gb * GIB * nodes // n_sips // MIB * MIB
