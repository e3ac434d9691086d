"""A send ends when its last byte has left the PE, behind what is on the link from PE_DMA to its router before it; to
another SIP, when its last byte has left the SIP.

That link takes 1 ns for a flit of 256 bytes.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_replayed_launches import CUBES, Run, machine, outcome, same

import kernbench
from kernbench import repeatable
from kernbench.policy.placement.dp import DPPolicy
from kernbench.sim_engine.op_log import OpRecord

ENGINES = "cube.pe_template.components.pe_dma.attrs.engines_per_direction"


@repeatable
def store_and_send(y: Any, store_rows: int, sends: int, tl: Any) -> None:
    """PE 0 stores rows of 128 bytes, and 3 ns later sends 1 KiB to some of the others, each."""
    me = tl.program_id(0)
    if me == 0:
        if int(store_rows):
            tl.store_async(y.local, tl.zeros((int(store_rows), 64)))
        tl.cycles(3)
        for other in range(1, int(sends) + 1):
            tl.send_async(f"intra_{other}", tl.zeros((8, 64)))
        tl.wait()
    elif me <= int(sends):
        tl.recv("intra_0", (8, 64))


def program_of(store_rows: int, sends: int) -> Any:
    def program(run: Run) -> None:
        run.torch.install_ipcq()
        (y,) = run.tensors(count=1, shape=(512, 256))
        for _ in range(2):
            run.launch(store_and_send, y, store_rows, sends)

    return program


def of_pe_0(store_rows: int, sends: int, **changes: object) -> tuple[list[OpRecord], list[OpRecord]]:
    """What the first launch records of its stores, and of its sends."""
    run = outcome(program_of(store_rows, sends), machine(**changes), fast=False)
    mine = [op for op in run.log.records if op.component_id.startswith("sip0.cube0.pe0.")]
    stores, sent = ([op for op in mine if op.op_name == name] for name in ("dma_write", "ipcq_send"))
    return stores[: len(stores) // 2], sent[: len(sent) // 2]


def test_a_send_that_is_alone_takes_its_flits() -> None:
    _, (send,) = of_pe_0(0, 1)
    assert send.t_end - send.t_start == 4.0  # 1024 / 256


@pytest.mark.needs("n_to_one", reason="the requests of a store alternate on the link, and the send goes between them")
def test_a_send_behind_a_store_waits_for_the_link() -> None:
    """The store has 64 x 128 / 256 = 32 flits, which leave first; the send asks for the link long before they have."""
    (store,), (send,) = of_pe_0(64, 1)
    assert store.t_start < send.t_start < store.t_start + 32
    assert send.t_end == store.t_start + 32 + 4


def test_two_sends_at_once_share_the_link() -> None:
    """With two engines per direction both depart at one instant: one has the link after the other."""
    _, (first, second) = of_pe_0(0, 2, **{ENGINES: 2})
    assert first.t_start == second.t_start
    assert [first.t_end - first.t_start, second.t_end - second.t_start] == [4.0, 8.0]


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("store_rows", [0, 8, 64])
def test_replayed_sends_end_at_the_same_times(store_rows: int, engines: int) -> None:
    assert same(program_of(store_rows, 3), machine(**{ENGINES: engines})) == 2 * CUBES


@pytest.mark.parametrize("store_rows", [0, 64])
def test_replayed_receives_with_blocking_credits_end_at_the_same_times(store_rows: int) -> None:
    blocking = machine(**{"cube.pe_template.components.pe_ipcq.attrs.credit": "blocking"})
    assert same(program_of(store_rows, 3), blocking) == 2 * CUBES


def test_a_tensor_sent_to_another_rank_takes_as_long_as_the_link_between_the_sips() -> None:
    """256 KiB, spread over 16 PEs, over one link of 128 GB/s: 2,048 ns at least until the sender may go on."""
    took: list[float] = []

    def worker(rank: int, torch: Any) -> None:
        x = torch.zeros((1 << 16,), dtype="f32", dp=DPPolicy(cube="row_wise", pe="row_wise"))
        torch.distributed.barrier()
        started = torch.now_ns
        if rank == 0:
            torch.distributed.send(x, dst=1)
            took.append(torch.now_ns - started)
        else:
            torch.distributed.recv(x, src=0)

    def program(torch: Any) -> None:
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)

    kernbench.run(program, overrides={"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    assert took[0] > (1 << 18) / 128 == 2048
