"""What let each op start: the log says it for every op, and the chain of causes explains a launch from end to start."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.topology import load_topology

BENCHES = [
    ("softmax", {}),
    ("flash-attention", {"pes": 0}),
    ("gelu-mlp", {}),
    ("qkv-gemm", {}),
    ("matmul-composite", {"variant": "ref"}),
    ("matmul-composite", {"variant": "load", "m": 256}),
]


def records_of(bench: str, params: dict[str, object], **settings: object) -> dict[int, OpRecord]:
    log = OpLog()
    graph = load_topology(None, {"system.sips.count": 1, **settings})
    run_bench(resolve(bench).run, graph, RunOptions(op_log=log), params=params)
    return dict(log.items())


def path_of(records: dict[int, OpRecord]) -> list[int]:
    """From the op that ended last (of equal ones the first) back along what let each start."""
    at: int | None = min(records, key=lambda number: (-records[number].t_end, number))
    path = []
    while at is not None:
        path.append(at)
        at = records[at].released_by
    return path


def engine_ops(records: dict[int, OpRecord]) -> dict[int, OpRecord]:
    """Ops of engines: a composite's own record spans its tiles', and the host is not a PE."""
    return {
        number: r for number, r in records.items() if ".pe" in r.component_id and "pe_scheduler" not in r.component_id
    }


@pytest.mark.parametrize(("bench", "params"), BENCHES, ids=lambda value: str(value))
def test_asked_ready_start_and_end_come_in_this_order(bench, params):
    for record in records_of(bench, params).values():
        assert record.t_asked <= record.t_ready <= record.t_start <= record.t_end


@pytest.mark.parametrize(("bench", "params"), BENCHES, ids=lambda value: str(value))
def test_an_op_starts_when_what_released_it_ends_and_one_that_was_issued_a_scheduler_step_later(bench, params):
    """On the default machine engines have no overhead and the scheduler has 1 ns."""
    records = records_of(bench, params)
    for record in engine_ops(records).values():
        if record.released_by is None:
            assert record.release in ("launch", "host")
            continue
        gap_ns = record.t_start - records[record.released_by].t_end
        by_command = "tile_id" not in record.params
        assert gap_ns in ((0.0,) if record.release in ("lane", "slot", "barrier") else (0.0, 1.0))
        assert gap_ns == 1.0 or not by_command or record.release == "lane"


@pytest.mark.parametrize(("bench", "params"), BENCHES, ids=lambda value: str(value))
def test_the_chain_of_causes_reaches_the_launch_and_leaves_only_issue_steps_unexplained(bench, params):
    records = engine_ops(records_of(bench, params))
    path = path_of(records)
    assert records[path[-1]].release == "launch"
    begin = min(record.t_start for record in records.values()) - 1.0  # PE_SCHEDULER's step before the first op
    end = max(record.t_end for record in records.values())
    worked = sum(records[number].t_end - records[number].t_start for number in path)
    steps = [records[later].t_start - records[earlier].t_end for later, earlier in pairwise(path)]
    steps.append(records[path[-1]].t_start - begin)
    assert worked + sum(steps) == end - begin
    assert set(steps) <= {0.0, 1.0}  # a command that the kernel issues takes the scheduler 1 ns


def test_a_second_read_that_waits_for_the_only_channel_is_released_by_the_first():
    records = records_of("matmul-composite", {"variant": "ref", "m": 32, "k": 128, "n": 32})
    reads = [(number, r) for number, r in records.items() if r.op_name == "TileToken/DMA_READ"]
    (first_a, a0), (first_b, b0), (_, a1), _ = reads
    assert (a0.release, a0.released_by) == ("launch", None)
    assert (b0.release, b0.released_by, b0.t_asked) == ("data", first_a, a0.t_end)  # the tile's next operand follows
    assert (a1.release, a1.released_by) == ("lane", first_b)
    assert a1.t_asked == a0.t_asked < a1.t_start == b0.t_end  # it was let in at once and queued at the channel


def test_a_fetch_that_waits_for_registers_is_released_by_the_op_that_gave_them_back():
    """A register file with room for one tile: 4 KiB + 4 KiB of operands and a 4 KiB accumulator."""
    key = "cube.pe_template.components.pe_fetch_store.attrs.register_file_bytes"
    records = records_of("matmul-composite", {"variant": "load", "m": 64, "k": 64, "n": 32}, **{key: 12288})
    first, second = (r for r in records.values() if r.op_name == "TileToken/FETCH")
    store = next((number, r) for number, r in records.items() if r.op_name == "TileToken/STORE")
    assert second.release == "slot"
    assert second.released_by == store[0]
    assert second.t_start == store[1].t_end > first.t_end


# ---- the host


@pytest.mark.parametrize(("model", "maps"), [("va", "mmu_map mmu_unmap"), ("la", "baaw_install baaw_remove")])
def test_host_writes_and_mappings_are_ops_and_loads_depend_on_what_the_host_wrote(model, maps):
    def kernel(x, tl):
        tl.load(x)

    log = OpLog()
    one = {"system.sips.count": 1, "system.address_model": model}
    with RuntimeContext(GraphEngine(load_topology(None, one), op_log=log)) as torch:
        x = torch.from_numpy(np.ones(64, np.float32), name="x")
        torch.launch("k", kernel, x)
        x.cpu()
    mapped, unmapped = maps.split()
    records = dict(log.items())
    names = [(r.op_name, r.params.get("tensor"), r.release) for r in records.values() if r.op_kind == "host"]
    assert names == [
        ("host_write", "x", "host"),  # both depart at once, and the bytes are there first
        (mapped, "x", "host"),
        ("host_read", "x", "host"),
        (unmapped, "", "host"),
    ]
    write = next(number for number, r in records.items() if r.op_name == "host_write")
    assert records[write].component_id == "sip0.io0.pcie_ep"
    assert records[write].params["nbytes"] == 256
    (load,) = (r for r in records.values() if r.op_name == "dma_read")
    assert load.dependency_ids == (write,)
    assert (load.release, load.released_by) == ("launch", None)
