"""Credits between SIPs, and answers that nothing waits for: what store-and-forward blocks on the way see of them."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import numpy as np

from kernbench.components.base import Packet, Process
from kernbench.components.builtin.pcie_ep import PcieEpComponent
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

SMALL = {"system.sips.count": 3, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


class WatchingEndpoint(PcieEpComponent):
    """Forwards as the built-in one does; a subclass with a `handle` of its own is sent every packet."""

    seen: ClassVar[list[Packet]] = []

    def handle(self, packet: Packet) -> Process | None:
        self.seen.append(packet)
        return super().handle(packet)


@cache
def all_reduce(impl: str) -> tuple[OpLog, list[Packet]]:
    """An all-reduce of three SIPs whose messages are longer than a ring, so that sends wait for credits."""
    WatchingEndpoint.seen.clear()
    log = OpLog()
    engine = GraphEngine(load_topology(None, {**SMALL, "io_chiplet.components.pcie_ep.impl": impl}), op_log=log)
    torch = RuntimeContext(engine)
    settings = {"algorithm": "ring_allreduce", "n_slots": 1, "slot_size": 256, "chunk_bytes": 1024}
    torch.distributed.init_process_group("ahbm", ccl={"defaults": settings})

    def worker(rank: int) -> None:
        torch.ahbm.set_device(rank)
        x = torch.from_numpy(np.full(1500, rank + 1, np.float16), dp=DPPolicy(), name="x")
        torch.distributed.all_reduce(x)
        assert (x.numpy() == 6).all()

    torch.multiprocessing.spawn(worker, nprocs=3)
    return log, list(WatchingEndpoint.seen)


def test_a_credit_that_is_one_event_arrives_when_one_that_is_forwarded_does() -> None:
    built_in, none = all_reduce("builtin.pcie_ep")
    watched, packets = all_reduce(f"{__name__}:WatchingEndpoint")
    credits = [packet for packet in packets if packet.is_posted and not packet.nbytes]
    assert not none
    assert credits  # the user's block is asked to forward them
    assert [each for each in built_in.records if each.op_name == "ipcq_send"]
    assert built_in.records == watched.records


def test_posted_writes_and_credits_are_not_answered() -> None:
    _, packets = all_reduce(f"{__name__}:WatchingEndpoint")
    assert not [packet for packet in packets if packet.is_posted and packet.is_reply]
    assert [packet for packet in packets if packet.is_posted and packet.nbytes]
