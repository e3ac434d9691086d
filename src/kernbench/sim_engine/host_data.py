"""The contents of raw transfers: what a request of the host, a PE's DMA or an M_CPU writes or reads.

A write stores the value that it was submitted with, or its pattern, at each of its addresses; a read returns what the
bytes hold, zeros where nothing has been written. Both take effect at the instant at which the request is done.
"""

from __future__ import annotations

from kernbench.common.dtypes import I8
from kernbench.common.errors import MessageError
from kernbench.common.messages import CubeDmaMsg, HostMessage, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.patterns import pattern_value
from kernbench.topology.spec import MachineSpec
from kernbench.values.graph import Value, ValueGraph

DataMessage = MemoryWriteMsg | MemoryReadMsg | PeDmaMsg | CubeDmaMsg


def is_write(msg: HostMessage) -> bool:
    """Whether a request writes memory."""
    return isinstance(msg, MemoryWriteMsg) or (isinstance(msg, PeDmaMsg | CubeDmaMsg) and msg.is_write)


def check_value(msg: HostMessage, value: Value | None) -> None:
    """Raise MessageError for a value that its request cannot carry, and for a write that lacks the one it needs."""
    name = type(msg).__name__
    if value is None:
        if isinstance(msg, MemoryWriteMsg) and msg.src_kind == "host_buffer_ref":
            raise MessageError(
                "MemoryWriteMsg of src_kind 'host_buffer_ref' has no value",
                hint="submit(msg, value), or src_kind='pattern'",
            )
        return
    if not isinstance(msg, DataMessage) or not is_write(msg):
        raise MessageError(f"{name} is submitted with a value, but writes nothing", hint="leave the value out")
    if value.nbytes != msg.nbytes:
        raise MessageError(
            f"{name} writes {msg.nbytes} bytes, but its value has {value.nbytes}", hint="make nbytes and value agree"
        )


def addresses_of(spec: MachineSpec, msg: DataMessage) -> list[int]:
    """Where the bytes of a request lie: one address, or one in each HBM slice by cube and PE."""
    if isinstance(msg, MemoryReadMsg):
        return [msg.src_pa]
    if isinstance(msg, MemoryWriteMsg | PeDmaMsg):
        return [msg.dst_pa]
    layout = spec.address_layout
    return [
        PhysAddr.pe_hbm_addr(
            msg.sip, cube, pe, msg.offset, spec.cube_of(msg.sip, cube).hbm_slice_bytes, layout
        ).encode()
        for cube in msg.cubes(spec.sip.n_cubes)
        for pe in msg.pes(spec.cube.n_pes)
    ]


def value_to_write(values: ValueGraph, msg: DataMessage, given: Value | None) -> Value:
    """The value that a write stores at each of its addresses."""
    if given is not None:
        return given
    assert not isinstance(msg, MemoryReadMsg)
    assert msg.pattern is not None
    return pattern_value(values, msg.pattern, msg.nbytes)


def read_contents(memory: MemoryStore, spec: MachineSpec, msg: DataMessage) -> tuple[Value, ...]:
    """What a read returns now, as bytes, for each of its addresses; nothing where the host did not ask for contents."""
    if isinstance(msg, MemoryReadMsg) and msg.dst_kind == "discard":
        return ()
    return tuple(memory.read(pa, (msg.nbytes,), I8, zero_fill=True) for pa in addresses_of(spec, msg))
