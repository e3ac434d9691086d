"""Messages and collectives of ranks on the real backend: orders that are right must not wait for ever, and nothing that
was sent is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import SpawnException
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology


def tray(sips: int) -> RuntimeContext:
    """SIPs of one cube with four PEs."""
    small = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return RuntimeContext(GraphEngine(load_topology(None, {"system.sips.count": sips, **small})))


def spin(n: int, tl: Any) -> None:
    tl.cycles(n)


def test_messages_start_on_every_rank_in_the_order_in_which_they_were_matched() -> None:
    # 1 -> 0, 0 -> 2 and 2 -> 1. Ranks 0 and 1 go on at the same instant: rank 0 asks for what rank 1 has posted long
    # ago, and rank 1 then for what rank 2 has posted. Were rank 1 to receive first, it would wait for rank 2, which
    # waits for rank 0, which waits for rank 1.
    torch = tray(3)
    dist = torch.distributed
    dist.init_process_group("ahbm")
    got: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        x, y = torch.full((4,), rank, dtype="f32"), torch.zeros(4, dtype="f32")
        if rank == 0:
            torch.launch(spin, 1000, sips=0)
            works = [dist.irecv(y, 1), dist.isend(x, 2)]
        elif rank == 1:
            sent = dist.isend(x, 0)
            torch.launch(spin, 1000, sips=1)
            works = [dist.irecv(y, 2), sent]
        else:
            works = [dist.isend(x, 1), dist.irecv(y, 0)]
        for work in works:
            work.wait()
        got[rank] = y.numpy().tolist()

    torch.multiprocessing.spawn(worker, nprocs=3)
    assert got == {0: [1] * 4, 1: [2] * 4, 2: [0] * 4}


def test_a_message_that_was_not_waited_for_is_there_after_spawn() -> None:
    torch = tray(2)
    torch.distributed.init_process_group("ahbm")
    received = []

    def worker(rank: int) -> None:
        x = torch.full((4096,), 5 * (1 - rank), dtype="f32")
        if rank == 1:
            torch.distributed.irecv(x, 0)
            received.append(x)
        else:
            torch.launch(spin, 1000, sips=0)
            torch.distributed.send(x, 1)

    torch.multiprocessing.spawn(worker, nprocs=2)
    np.testing.assert_array_equal(received[0].numpy(), 5)


def test_a_receive_from_any_rank_takes_what_was_sent_first() -> None:
    torch = tray(3)
    torch.distributed.init_process_group("ahbm")
    senders = []

    def worker(rank: int) -> None:
        x = torch.full((4,), rank, dtype="f32")
        if rank:
            torch.launch(spin, 500 if rank == 1 else 100, sips=rank)
            torch.distributed.send(x, 0)
            return
        torch.launch(spin, 1000, sips=0)
        senders.extend(torch.distributed.recv(x) for _ in range(2))

    torch.multiprocessing.spawn(worker, nprocs=3)
    assert senders == [2, 1]


@pytest.mark.needs("addresses", reason="PEs share the work on parts of others")
def test_rings_that_are_made_again_take_no_further_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_EXACT", "tiles")  # a collective that is known needs no rings
    # Every PE sends to 3 others and receives from 3, and has room for 3 rings of 1 KiB: they take turns. What stays
    # is 3 rings and 3 credit words of 16 bytes.
    torch = tray(4)
    rings = {"ring_bytes": 4096, "n_slots": 2, "slot_size": 512}
    torch.distributed.init_process_group("ahbm", ccl={"defaults": rings})
    engine = torch.communicators._engine
    wrong = []

    def worker(rank: int) -> None:
        for turn in range(12):
            x = torch.from_numpy(np.arange(32, dtype=np.float32) + 100 * rank + turn)
            y = torch.zeros(32, dtype="f32")
            torch.distributed.all_to_all_single(y, x)
            right = np.concatenate([np.arange(8) + 8 * rank + 100 * other + turn for other in range(4)])
            wrong.append(np.count_nonzero(y.numpy() != right))

    torch.multiprocessing.spawn(worker, nprocs=4)
    assert wrong == [0] * 48
    assert [engine.communication_rings(sip, 0, 0).tcm.used_bytes for sip in range(4)] == [3 * 1024 + 3 * 16] * 4
    assert max(len(each.on_close) for each in engine.communicators.values()) == 4  # one for each PE that used it


def test_ranks_that_say_differently_how_collectives_run_are_refused() -> None:
    torch = tray(2)

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("ahbm", ccl={"defaults": {"n_slots": 2 + rank}})

    with pytest.raises(SpawnException, match=r"rank 1 gives ccl=.*'n_slots': 3"):
        torch.multiprocessing.spawn(worker, nprocs=2)
