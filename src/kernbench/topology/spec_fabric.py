"""Options of how links carry and buffer flits, as checked data; rules: `sim_engine.fabric.buffers`, `memory_ports`."""

from typing import Annotated, Literal

from kernbench.topology.readers import choice, number, whole
from kernbench.topology.record import Record


class BuffersSpec(Record):
    """A finite buffer at the far end of every link. Null in `FabricSpec`: queues have no limit."""

    slots: Annotated[int, whole(1, 1 << 16)]  # flits per virtual channel
    credit_ns: Annotated[float, number(0.0, 1e6)] = 0.0
    channels: Annotated[int, whole(1, 16)] = 1  # virtual channels per layer
    order: Annotated[Literal["fifo", "voq"], choice("fifo", "voq")] = "fifo"
    ownership: Annotated[Literal["flit", "packet"], choice("flit", "packet")] = "flit"
    packet_bytes: Annotated[int, whole(0, 1 << 30)] = 0  # 0: a transfer is one packet
    arbitration: Annotated[Literal["asking", "round_robin"], choice("asking", "round_robin")] = "asking"


class FabricSpec(Record):
    buffers: BuffersSpec | None = None
    control_bytes: Annotated[int, whole(0, 4096)] = 0  # of requests, acknowledgements and credits; 0: no bandwidth
