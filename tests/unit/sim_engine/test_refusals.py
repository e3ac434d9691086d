"""Requests that the machine cannot serve are refused when they are submitted, and say why."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kernbench.common.errors import AddressError, ComponentError, KernBenchError, MessageError, RoutingError
from kernbench.common.messages import CubeDmaMsg, HostMessage, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import McpuSubUnit, PeSubUnit, PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

SMALL = {
    "system.sips.count": 2,
    "sip.cube_mesh.w": 2,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.corners": ["NW"],
}


@cache
def machine() -> TopologyGraph:
    return load_topology(None, SMALL)


SLICE = machine().spec.cube.hbm_slice_bytes


def hbm(sip: int = 0, cube: int = 0, pe: int = 0, offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(sip, cube, pe, offset, SLICE).encode()


def write(pa: int, sip: int = 0, cube: int = 0, pe: int = 0, nbytes: int = 64, **more: Any) -> MemoryWriteMsg:
    return MemoryWriteMsg(dst_sip=sip, dst_cube=cube, dst_pe=pe, dst_pa=pa, nbytes=nbytes, **more)


def read(pa: int, sip: int = 0, cube: int = 0, pe: int = 0, nbytes: int = 64) -> MemoryReadMsg:
    return MemoryReadMsg(src_sip=sip, src_cube=cube, src_pe=pe, src_pa=pa, nbytes=nbytes)


def dma(pa: int, sip: int = 0, cube: int = 0, pe: int = 0, nbytes: int = 64) -> PeDmaMsg:
    return PeDmaMsg(src_sip=sip, src_cube=cube, src_pe=pe, dst_pa=pa, nbytes=nbytes)


SRAM = PhysAddr.cube_sram_addr(0, 0, 0).encode()
TCM = PhysAddr.pe_tcm_addr(0, 0, 0, 0).encode()


@pytest.mark.parametrize(
    ("msg", "error", "says"),
    [
        # the tag and the address disagree
        (write(hbm(sip=1)), MessageError, "names sip 0, cube 0, pe 0, but its address"),
        (write(hbm(cube=1)), MessageError, "is in sip 0, cube 1, pe 0"),
        (write(hbm(pe=1)), MessageError, "is in sip 0, cube 0, pe 1"),
        (read(hbm(pe=1)), MessageError, "is in sip 0, cube 0, pe 1"),
        (read(SRAM, cube=1), MessageError, "is in sip 0, cube 0"),
        (read(SRAM, pe=2), MessageError, "names sip 0, cube 0, pe 2"),
        (write(SRAM, dst_mem_kind="HBM"), MessageError, "is for HBM, but its address .* is in SRAM"),
        (write(hbm(), target_device="sip:1"), MessageError, "for device 'sip:1', but names sip 0"),
        # an address of no memory
        (dma(PhysAddr.mcpu_resource_addr(0, 0, McpuSubUnit.MCPU_SFR, 0).encode()), MessageError, "not in a memory"),
        (dma(PhysAddr.pe_resource_addr(0, 0, 0, PeSubUnit.IPCQ, 0).encode()), MessageError, "not in a memory"),
        (dma(PhysAddr.iocpu_resource_addr(0, 16, 5, 0).encode()), MessageError, "not in a memory"),
        (dma(PhysAddr.ual_addr(0, 16, 1 << 31).encode()), AddressError, "UAL"),
        (write(TCM), MessageError, "host traffic does not go"),
        # an address that does not decode, or lies beyond what the machine has
        (dma(1 << 51), AddressError, "an address is 0x8000000000000"),
        (dma(PhysAddr.hbm_addr(0, 0, 2 * SLICE).encode()), AddressError, "HBM slice 2"),
        (dma(hbm(offset=SLICE - 32)), AddressError, "run past the end of HBM slice 0"),
        (dma(PhysAddr.cube_sram_addr(0, 0, (32 << 20) - 1).encode()), AddressError, "run past the end of the SRAM"),
        (dma(PhysAddr.pe_tcm_addr(0, 0, 1, (2 << 20) - 1).encode()), AddressError, "run past the end of the TCM"),
        (write(hbm(), nbytes=SLICE + 1), AddressError, "run past the end of HBM slice 0"),
        (dma(PhysAddr.hbm_addr(2, 0, 0).encode()), AddressError, "SIP 2"),
        (dma(PhysAddr.hbm_addr(0, 2, 0).encode()), AddressError, "cube 2"),
        (dma(PhysAddr.pe_tcm_addr(0, 0, 2, 0).encode()), AddressError, "PE 2"),
        # an issuer that the machine does not have
        (dma(hbm(), sip=2), RoutingError, "no node 'sip2.cube0.pe0.pe_dma'"),
        (dma(hbm(), cube=2), RoutingError, "no node 'sip0.cube2.pe0.pe_dma'"),
        (dma(hbm(), pe=2), RoutingError, "no node 'sip0.cube0.pe2.pe_dma'"),
        # commands
        (CubeDmaMsg(sip=2, offset=0, nbytes=64), RoutingError, "no node 'sip2.io0.pcie_ep'"),
        (CubeDmaMsg(sip=0, offset=0, nbytes=64, target_cubes=(0, 2)), MessageError, "no cube 2"),
        (CubeDmaMsg(sip=0, offset=0, nbytes=64, target_pes=(2,)), MessageError, "no pe 2"),
        (CubeDmaMsg(sip=0, offset=SLICE - 32, nbytes=64), MessageError, "run past an HBM slice"),
    ],
)
def test_refused(msg: HostMessage, error: type[KernBenchError], says: str) -> None:
    engine = GraphEngine(machine())
    with pytest.raises(error, match=says) as caught:
        engine.submit(msg)
    assert type(caught.value) is error
    assert caught.value.hint
    assert engine.now_ns == 0


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(MessageError, match="cannot take a str"):
        GraphEngine(machine()).submit("read everything")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("pe", [0, 1])
def test_sram_belongs_to_every_pe_of_its_cube(pe: int) -> None:
    engine = GraphEngine(machine())
    assert engine.wait(engine.submit(write(SRAM, pe=pe, dst_mem_kind="SRAM"))).ok


def test_last_bytes_of_a_slice_are_served() -> None:
    engine = GraphEngine(machine())
    assert engine.wait(engine.submit(dma(hbm(offset=SLICE - 64)))).ok


# ---- blocks that cannot do what is asked of them


def with_impl(key: str, impl: str) -> TopologyGraph:
    return load_topology(None, {**SMALL, f"{key}.impl": impl})


def test_impl_that_cannot_be_found_names_a_node() -> None:
    with pytest.raises(ComponentError, match="No module named 'no_such_blocks'") as caught:
        GraphEngine(with_impl("cube.components.sram", "no_such_blocks:Sram"))
    assert caught.value.where == "sip0.cube0.sram, a sram"


@pytest.mark.parametrize("impl", ["json:JSONDecoder", "kernbench.components.base:Nothing"])
def test_impl_that_is_no_component_is_refused(impl: str) -> None:
    with pytest.raises(ComponentError, match=f"'{impl}'"):
        GraphEngine(with_impl("cube.components.sram", impl))


def test_block_without_serve_cannot_be_an_entry() -> None:
    engine = GraphEngine(with_impl("io_chiplet.components.pcie_ep", "kernbench.components.base:ActiveComponent"))
    with pytest.raises(ComponentError, match=r"sip0\.io0\.pcie_ep serves no requests"):
        engine.submit(write(hbm()))


def test_transit_block_cannot_stand_where_packets_end() -> None:
    engine = GraphEngine(with_impl("io_chiplet.components.io_cpu", "kernbench.components.base:TransitComponent"))
    handle = engine.submit(CubeDmaMsg(sip=0, offset=0, nbytes=64))
    with pytest.raises(ComponentError, match=r"sip0\.io0\.io_cpu is sent a CubeDmaMsg and takes no packets"):
        engine.wait(handle)


def test_active_block_that_is_no_memory_refuses_bytes() -> None:
    engine = GraphEngine(with_impl("cube.components.sram", "kernbench.components.base:ActiveComponent"))
    with pytest.raises(MessageError, match="not in a memory"):
        engine.submit(dma(SRAM))


def test_class_that_cannot_be_made_says_what_it_was_given(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picky_block.py").write_text(
        "from kernbench.components.base import MemoryComponent\n"
        "class Picky(MemoryComponent):\n"
        "    def __init__(self, node, ctx):\n"
        "        super().__init__(node, ctx)\n"
        "        self.banks = node.attrs['banks']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ComponentError, match="Picky cannot be made: KeyError: 'banks'") as caught:
        GraphEngine(with_impl("cube.components.sram", "picky_block:Picky"))
    assert caught.value.hint is not None
    assert "overhead_ns" in caught.value.hint
