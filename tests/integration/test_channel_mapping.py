"""HBM channels behind one link (n_to_one) and with a request, a router and a link each (one_to_one).

One cube. A router takes 2 ns, a flit of 256 B takes 1 ns at 256 GB/s and 8 ns on a channel's 32 GB/s, as does a burst.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import RaceError
from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.energy import energy_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.graph import EdgeKind

MODE = "cube.memory_map.hbm_mapping_mode"
SMALL: dict[str, Any] = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.sips.count": 1, MODE: "n_to_one"}
ONE_TO_ONE = {**SMALL, MODE: "one_to_one"}
BURST, ROUND = 256, 8 * 256
Access = tuple[int, int, int, int]  # PE, slice, offset, bytes


def engine_after(machine: dict[str, Any], *accesses: Access, is_write: bool = False) -> tuple[GraphEngine, list[float]]:
    """An engine that has served DMA requests, all submitted at 0; how long each took."""
    engine = GraphEngine(load_topology(None, machine))
    slice_bytes = engine.graph.spec.cube.hbm_slice_bytes
    handles = [
        engine.submit(
            PeDmaMsg(
                src_sip=0,
                src_cube=0,
                src_pe=pe,
                dst_pa=PhysAddr.pe_hbm_addr(0, 0, owner, offset, slice_bytes).encode(),
                nbytes=nbytes,
                is_write=is_write,
            )
        )
        for pe, owner, offset, nbytes in accesses
    ]
    engine.wait_all()
    return engine, [float(engine.get_completion(handle)[1]["total_ns"]) for handle in handles]


def times(machine: dict[str, Any], *accesses: Access, is_write: bool = False) -> list[float]:
    return engine_after(machine, *accesses, is_write=is_write)[1]


# ------------------------------------------------------------------------------------------------------- the machine


@pytest.mark.parametrize(("pseudo", "per_corner", "channels"), [(64, 2, 8), (32, 2, 4), (64, 1, 16)])
def test_a_slice_has_a_router_and_a_link_for_each_channel(pseudo: int, per_corner: int, channels: int) -> None:
    """Pseudo channels over PEs: 64 / 8, 32 / 8, 64 / 4. All links of a slice together are as wide as its one link."""
    graph = load_topology(
        None,
        {
            **ONE_TO_ONE,
            "cube.memory_map.hbm_pseudo_channels": pseudo,
            "cube.memory_map.hbm_channels_per_pe": None,
            "cube.pe_layout.pe_per_corner": per_corner,
        },
    )
    routers = [node.id for node in graph.nodes.values() if node.kind == "channel_router" and node.place.pe == 1]
    assert routers == [f"sip0.cube0.pe1.ch_r{channel}" for channel in range(channels)]
    to_memory = [edge for edge in graph.edges if edge.dst == "sip0.cube0.hbm_ctrl.pe1"]
    assert [(edge.src, edge.kind, edge.bw_gbs) for edge in to_memory] == [
        (router, EdgeKind.ROUTER_TO_HBM, 32.0) for router in routers
    ]


def test_without_channel_routers_the_machine_has_none() -> None:
    graph = load_topology(None, SMALL)
    assert not [node for node in graph.nodes.values() if node.kind == "channel_router"]
    assert not [edge for edge in graph.edges if edge.kind is EdgeKind.ROUTER_TO_CHANNEL]


# ------------------------------------------------------------------------------------------- worked examples, in time


def test_4_kib_travel_as_8_requests_of_512_bytes() -> None:
    """Each channel's link and router carries 512 B, and the 16 bursts arrive over the PE's one link."""
    engine, _ = engine_after(ONE_TO_ONE, (0, 0, 0, 4096))
    carried = {ends: use.nbytes for ends, use in engine.link_counters().items()}
    for channel in range(8):
        router = f"sip0.cube0.pe0.ch_r{channel}"
        assert carried["sip0.cube0.hbm_ctrl.pe0", router] == carried[router, "sip0.cube0.noc.r0c0"] == 512
    assert carried["sip0.cube0.noc.r0c0", "sip0.cube0.pe0.pe_dma"] == 4096
    assert [use.nbytes for use in engine.channel_counters("sip0.cube0.hbm_ctrl.pe0")] == [512] * 8


@pytest.mark.parametrize("is_write", [False, True])
def test_4_kib_take_one_flit_on_a_channel_longer_than_behind_one_link(is_write: bool) -> None:
    """Behind one link: the router twice, a burst of 8, 16 flits on one link and one on the other: 4 + 8 + 16 + 1 = 29.
    Each channel: bursts until 16, their flits over its link until 24, 1 to the PE's router; then 8 over the PE's link,
    together 2 + 24 + 1 + 2 + 8 = 37. A write takes the same steps the other way.
    """
    assert times(SMALL, (0, 0, 0, 4096), is_write=is_write) == [29.0]
    assert times(ONE_TO_ONE, (0, 0, 0, 4096), is_write=is_write) == [37.0]


def test_bandwidth_is_the_same_in_both_modes() -> None:
    """1 MiB is 4,096 flits: 4,096 ns at the slice's 256 GB/s, and 13 or 21 ns that do not grow with the size."""
    for is_write in (False, True):
        assert times(SMALL, (0, 0, 0, 1 << 20), is_write=is_write) == [4096 + 13]
        assert times(ONE_TO_ONE, (0, 0, 0, 1 << 20), is_write=is_write) == [4096 + 21]


def test_a_burst_uses_one_channel_and_a_partial_burst_its_bytes_of_the_links() -> None:
    """256 B: 2 + 8 + 1 + 2 + 1 = 14, with channels 2 + 8 + 8 + 1 + 2 + 1 = 22. 64 B take a quarter of each link's time:
    2 + 8 + 0.25 + 2 + 0.25, with channels 2 + 8 + 2 + 0.25 + 2 + 0.25; the channel is busy for a whole burst.
    """
    assert (times(SMALL, (0, 0, 0, BURST)), times(ONE_TO_ONE, (0, 0, 0, BURST))) == ([14.0], [22.0])
    assert (times(SMALL, (0, 0, 0, 64)), times(ONE_TO_ONE, (0, 0, 0, 64))) == ([12.5], [14.5])
    engine, _ = engine_after(ONE_TO_ONE, (0, 0, 3 * BURST, 64))
    assert [use.busy_ns for use in engine.channel_counters("sip0.cube0.hbm_ctrl.pe0")] == [0, 0, 0, 8, 0, 0, 0, 0]


def strided(x: Any, stride: int, tl: Any) -> None:
    """Eight bursts, `stride` bytes from one to the next."""
    tl.load(x, (8, BURST), "i8", strides=(stride, 1))


def test_a_stride_of_a_round_makes_one_channel_hot_and_one_burst_more_spreads_it() -> None:
    """Hot: 8 bursts on one channel end at 64, its link is one flit behind. Spread: all bursts end at 8, and their flits
    follow one another on the PE's link. Strides cost 49 ns either way: 70 - 21 and 78 - 29.
    """

    def exec_ns(machine: dict[str, Any], stride: int) -> float:
        def program(torch: RuntimeContext) -> float:
            x = torch.zeros(8 * (ROUND + BURST), dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
            return torch.launch("strided", strided, x, stride).pes[0].dma_ns

        return float(kernbench.run(program, None, machine).returned[0])  # type: ignore[arg-type]  # a number

    assert (exec_ns(SMALL, ROUND), exec_ns(SMALL, ROUND + BURST)) == (70, 21)
    assert (exec_ns(ONE_TO_ONE, ROUND), exec_ns(ONE_TO_ONE, ROUND + BURST)) == (78, 29)


def test_a_hot_channel_holds_up_the_requests_to_it_and_no_others() -> None:
    """PE 1 is 2.2 ns from PE 0's slice (a router and 2 mm), so PE 0's burst goes first. On the same channel PE 1 is
    served 8 - 2.2 ns later, on another channel as if alone.
    """
    (alone,) = times(ONE_TO_ONE, (1, 0, 0, BURST))
    assert times(ONE_TO_ONE, (1, 0, 0, BURST), (0, 0, BURST, BURST)) == [alone, 22.0]
    assert times(ONE_TO_ONE, (1, 0, 0, BURST), (0, 0, ROUND, BURST)) == [pytest.approx(alone + 5.8, abs=1e-5), 22.0]


def test_other_pes_and_the_host_reach_a_slice_by_its_channel_routers() -> None:
    """Another PE's path is one router longer each way, as with one link."""
    near, far = times(ONE_TO_ONE, (0, 0, 0, 4096)), times(ONE_TO_ONE, (1, 0, 0, 4096))
    assert far[0] - near[0] == times(SMALL, (1, 0, 0, 4096))[0] - times(SMALL, (0, 0, 0, 4096))[0]
    with RuntimeContext(GraphEngine(load_topology(None, ONE_TO_ONE))) as torch:
        torch.zeros(4096, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
        used = {ends[0]: use.nbytes for ends, use in torch.engine.link_counters().items() if "ch_r" in ends[0]}
    assert used == {f"sip0.cube0.pe0.ch_r{channel}": 512 for channel in range(8)}


# --------------------------------------------------------------------------------- everything else is as with one link


def scaled(x: Any, y: Any, out: Any, tl: Any) -> None:
    tl.store(out.local, tl.load(x.local, x.local_shape) + 2 * tl.load(y, x.local_shape))


def program(torch: RuntimeContext) -> Any:
    dp = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
    x = torch.full((12, 100), 1.0, dp=dp)
    y = torch.full((3, 100), 3.0, dp=DPPolicy(num_cubes=1, num_pes=4))
    out = torch.empty(12, 100, dp=dp)
    for _ in range(3):
        torch.launch("scaled", scaled, x, y, out)
    return out.numpy()


@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_contents_energy_and_hbm_traffic_do_not_depend_on_the_mode(model: str) -> None:
    results = [
        kernbench.run(program, None, {**SMALL, MODE: mode, "system.address_model": model}, check_races=True)
        for mode in ("n_to_one", "one_to_one")
    ]
    for result in results:
        assert result.ok
        assert np.all(result.returned[0] == np.float64(7))
    energies = [energy_of(result) for result in results]
    assert energies[0].run.joules == energies[1].run.joules
    launches = [[pe.hbm for launch in result.launches for pe in launch.pes] for result in results]
    assert launches[0] == launches[1]


@pytest.mark.parametrize("mode", ["n_to_one", "one_to_one"])
@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_a_race_is_found_at_its_lines(model: str, mode: str) -> None:
    def races(x: Any, tl: Any) -> None:
        tl.store(x, tl.load(x, (4, 64)) + 1)

    machine = load_topology(None, {**SMALL, MODE: mode, "system.address_model": model})
    with pytest.raises(RaceError) as raised:
        run_kernel(races, np.zeros((4, 64), np.float32), grid=(2,), topology=machine, check_races=True)
    assert {race.kind for race in raised.value.races} == {"read-write", "write-write"}  # type: ignore[attr-defined]  # errors know them as objects


def test_the_op_log_has_the_same_ops_in_both_modes() -> None:
    """An access is one row, however many requests it is."""
    logs = []
    for mode in ("n_to_one", "one_to_one"):
        log = OpLog()
        kernbench.run(program, None, {**SMALL, MODE: mode}, op_log=log)
        logs.append([(op.component_id, op.op_kind, op.op_name, op.params, op.dependency_ids) for op in log.records])
    assert logs[0] == logs[1]
    assert logs[0]
