"""Raw requests move values as well as time: what a write leaves in memory, what a read finds there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import MessageError
from kernbench.common.messages import (
    CubeDmaMsg,
    HostMessage,
    KernelAbortMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    Pattern,
    PeDmaMsg,
)
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine, Handle
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import TopologyGraph, load_topology
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value


@cache
def machine() -> TopologyGraph:
    """One SIP of two cubes with 4 PEs each."""
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 2,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.pe_per_corner": 1,
        },
    )


def engine(**options: bool) -> GraphEngine:
    return GraphEngine(machine(), op_log=OpLog(), **options)  # type: ignore[arg-type]  # data only


def hbm(cube: int = 0, pe: int = 0, offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(0, cube, pe, offset, machine().spec.cube.hbm_slice_bytes).encode()


def done(run: GraphEngine, msg: HostMessage, value: Value | None = None) -> Handle:
    handle = run.submit(msg, value)
    assert run.wait(handle).ok
    return handle


def found(handle: Handle) -> list[list[int]]:
    return [array.view(np.uint8).tolist() for array in evaluate(handle.contents)]


def pe_dma(pa: int, nbytes: int = 4, write: bool = False, pattern: Pattern | None = None) -> PeDmaMsg:
    return PeDmaMsg(0, 0, 0, pa, nbytes, write, pattern=pattern or Pattern())


def host_write(pa: int, **fields: Any) -> MemoryWriteMsg:
    return MemoryWriteMsg(dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=pa, nbytes=4, **fields)


def host_read(pa: int, **fields: Any) -> MemoryReadMsg:
    return MemoryReadMsg(src_sip=0, src_cube=0, src_pe=0, src_pa=pa, nbytes=4, **fields)


def test_what_a_pe_writes_by_pattern_is_what_the_host_and_a_pe_read() -> None:
    run = engine()
    done(run, pe_dma(hbm(), write=True, pattern=Pattern("fill_u16", 0x0201)))
    assert found(done(run, host_read(hbm()))) == [[1, 2, 1, 2]]
    assert found(done(run, pe_dma(hbm(offset=1), nbytes=2))) == [[2, 1]]


def test_a_write_that_names_no_pattern_leaves_zeros_as_the_hosts_does() -> None:
    run = engine()
    for write in (pe_dma(hbm(), write=True), CubeDmaMsg(sip=0, offset=0, nbytes=4), host_write(hbm())):
        done(run, pe_dma(hbm(), write=True, pattern=Pattern("fill_u8", 9)))
        done(run, write)
        assert found(done(run, pe_dma(hbm()))) == [[0, 0, 0, 0]]


def test_a_write_leaves_the_value_that_it_is_submitted_with() -> None:
    run = engine()
    value = run.values.constant(np.array([1.0, -2.0], np.float16), "f16")
    done(run, pe_dma(hbm(pe=1), write=True), value)
    assert run.memory.read(hbm(pe=1), (2,), "f16") is value
    done(run, CubeDmaMsg(sip=0, offset=8, nbytes=4, target_pes=(2,)), value)
    assert [run.memory.read(hbm(cube, 2, 8), (2,), "f16") is value for cube in (0, 1)] == [True, True]


def test_a_cube_dma_write_is_for_every_slice_it_names_and_a_read_finds_each() -> None:
    run = engine()
    fill = CubeDmaMsg(sip=0, offset=0, nbytes=2, pattern=Pattern("fill_u8", 7), target_cubes=(1,), target_pes=(0, 3))
    done(run, fill)
    read = CubeDmaMsg(sip=0, offset=0, nbytes=2, is_write=False, target_pes=(0, 1, 3))
    nothing, seven = [0, 0], [7, 7]
    assert found(done(run, read)) == [nothing, nothing, nothing, seven, nothing, seven]  # by cube, then PE


def test_a_read_finds_what_was_there_when_it_was_done_whatever_comes_later() -> None:
    run = engine()
    done(run, pe_dma(hbm(), write=True, pattern=Pattern("fill_u8", 1)))
    read = done(run, pe_dma(hbm()))
    done(run, pe_dma(hbm(), write=True, pattern=Pattern("fill_u8", 2)))
    assert found(read) == [[1, 1, 1, 1]]


def test_a_read_that_the_host_discards_keeps_nothing() -> None:
    assert done(engine(), host_read(hbm(), dst_kind="discard")).contents == ()


def test_without_data_only_time_is_moved() -> None:
    run = engine(data=False)
    done(run, pe_dma(hbm(), write=True, pattern=Pattern("fill_u8", 1)))
    assert done(run, pe_dma(hbm())).contents == ()


@pytest.mark.parametrize(
    "write",
    [pe_dma(hbm(), write=True), CubeDmaMsg(sip=0, offset=0, nbytes=4, target_cubes=(0,), target_pes=(0,))],
    ids=["PeDma", "CubeDma"],
)
def test_bytes_that_a_raw_write_went_over_have_no_op_as_their_writer(write: HostMessage) -> None:
    run = engine()
    assert run.writers is not None
    run.writers.note(hbm(), 8, 5)
    done(run, write)
    assert run.writers.of(hbm(), 4) == ()
    assert run.writers.of(hbm(offset=4), 4) == (5,)


def test_a_value_that_does_not_fit_its_request_is_refused() -> None:
    run = engine()
    value = run.values.full((3,), 1, "i8")
    with pytest.raises(MessageError, match="PeDmaMsg writes 4 bytes, but its value has 3"):
        run.submit(pe_dma(hbm(), write=True), value)
    for msg in (pe_dma(hbm()), host_read(hbm()), KernelAbortMsg(sip=0, launch_id=("a", "b"))):
        with pytest.raises(MessageError, match="is submitted with a value, but writes nothing"):
            run.submit(msg, value)
    with pytest.raises(MessageError, match="'host_buffer_ref' has no value"):
        run.submit(host_write(hbm(), src_kind="host_buffer_ref", pattern=None))
