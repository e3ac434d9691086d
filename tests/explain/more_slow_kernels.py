"""More kernels that are slow for one reason each. `CAUSES` has the cause that the verdict on each must name."""

from __future__ import annotations

import numpy as np

from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy

ONE_CUBE = DPPolicy(pe="row_wise", num_cubes=1)
FOUR_CUBES = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=4)
CAUSES = {
    "far-writes": "distance",
    "shared-table": "distance",
    "whole-tensor": "distance",
    "causal": "imbalance",
    "reduce-on-one": "imbalance",
    "one-of-eight": "imbalance",
    "early-return": "imbalance",
    "two-of-eight": "imbalance",
    "early-return-far": "distance",
    "early-return-small": "small_transfers",
    "chain-of-products": "chain",
    "phases": "chain",
    "stream": "overlap",
    "columns": "small_transfers",
    "panels": "small_transfers",
    "writes-to-one-slice": "memory",
    "one-channel": "memory",
    "shared-weights": "memory",
    "blocks-of-one-slice": "memory",
    "weights-of-cube-0": "distance",
    "load-then-compute": "overlap",
    "atomics": "memory",
    "across": "link",
    "steps": "launch",
    "ping-pong": "messages",
    "barriers": "messages",
    "scalars": "issue",
    "one-pe": "compute",
}


def ones(torch, shape, name, dp=None):
    placed = {} if dp is None else {"dp": dp}  # without one, in cube 0
    return torch.from_numpy(np.ones(shape, np.float16), name=name, **placed)


def far_writes(x, out, tl):
    block = tl.load(x.local, shape=(16, 64))
    for at in range(8):
        tl.store(out + (24 + at) * 16 * 64 * 2, block)


@bench(name="far-writes", description="PE 0 of cube 0 writes to cube 3")
def bench_far_writes(torch):
    out = torch.zeros((512, 64), dtype="f16", name="out", dp=FOUR_CUBES)
    torch.launch("far_writes", far_writes, ones(torch, (16, 64), "x"), out, target_cubes=(0,), target_pes=(0,))


def one_of_eight(x, out, tl):
    if tl.program_id(0) == 5:
        for _ in range(4):
            tl.store(out.local, tl.exp(tl.load(x.local, shape=(64, 64))))
    else:
        tl.cycles(1)


@bench(name="one-of-eight", description="PE 5 does what eight PEs could")
def bench_one_of_eight(torch):
    x, out = (torch.zeros((512, 64), dtype="f16", name=name, dp=ONE_CUBE) for name in ("x", "out"))
    torch.launch("one_of_eight", one_of_eight, x, out, target_cubes=(0,), target_pes="all")


def early_return(x, out, workers, tl):
    if tl.program_id(0) >= workers:
        return
    for at in range(8 // workers):
        at_byte = (tl.program_id(0) * 8 // workers + at) * 64 * 128 * 2
        tl.store(out + at_byte, tl.exp(tl.load(x + at_byte, shape=(64, 128))) * 2.0)


@bench(name="early-return", description="of eight PEs, all but one return at once")
def bench_early_return(torch, workers: int = 1):
    x, out = (ones(torch, (512, 128), name, ONE_CUBE) for name in ("x", "out"))
    torch.launch("early_return", early_return, x, out, workers)


@bench(name="two-of-eight", description="of eight PEs, all but two return at once")
def bench_two_of_eight(torch):
    bench_early_return(torch, 2)


def early_return_far(x, out, tl):
    if tl.program_id(1) != 3 or tl.program_id(0):
        return
    for at in range(8):
        tl.store(out + at * 4096, tl.load(x + at * 4096, shape=(16, 128)) + 1)


@bench(name="early-return-far", description="of 32 PEs in four cubes, one of cube 3 works on what lies in cube 0")
def bench_early_return_far(torch):
    torch.launch("early_return_far", early_return_far, *(ones(torch, (512, 128), name, FOUR_CUBES) for name in "xy"))


def early_return_small(x, out, tl):
    if tl.program_id(0):
        return
    for at in range(32):
        tl.store(out + at * 64, tl.load(x + at * 64, shape=(32,)))


@bench(name="early-return-small", description="one of eight PEs copies, 64 bytes at a time")
def bench_early_return_small(torch):
    torch.launch("early_return_small", early_return_small, *(ones(torch, (512, 32), name, ONE_CUBE) for name in "xy"))


def shared_weights(w, x, out, tl):
    weights = tl.load(w)
    tl.store(out.local, tl.dot(tl.load(x.local), weights, out_dtype="f16"))


@bench(name="shared-weights", description="the PEs of four cubes load the same weights from one slice")
def bench_shared_weights(torch):
    x, out = (ones(torch, (512, 64), name, FOUR_CUBES) for name in ("x", "out"))
    torch.launch("shared_weights", shared_weights, ones(torch, (64, 64), "w"), x, out)


def blocks_of_one_slice(x, out, tl):
    for at in range(8):
        block = tl.load(x.local + at * 2048, shape=(4, 256)) if x.local_shape[0] == 32 else None
        if block is None:
            at_byte = (tl.program_id(0) * 8 + at) * 2048
            tl.store(out + at_byte, tl.exp(tl.load(x + at_byte, shape=(4, 256))))
        else:
            tl.store(out.local + at * 2048, tl.exp(block))


@bench(name="blocks-of-one-slice", description="eight PEs read and write 2 KiB at a time, all in the slice of PE 0")
def bench_blocks_of_one_slice(torch, spread: bool = False):
    x, out = (ones(torch, (256, 256), name, ONE_CUBE if spread else None) for name in ("x", "out"))
    torch.launch("blocks_of_one_slice", blocks_of_one_slice, x, out, target_pes=tuple(range(8)))


def weights_of_cube_0(x, w, out, tl):
    block, total = tl.load(x.local), tl.zeros(out.local_shape, tl.float32)
    for at in range(4):
        total = tl.dot(block[:, at * 64 : at * 64 + 64], tl.load(w + at * 8192, (64, 64)), total)
    tl.store(out.local, total.to(out.dtype))


@bench(name="weights-of-cube-0", description="one PE of each of four cubes reads the weights in cube 0")
def bench_weights_of_cube_0(torch, copies: bool = False):
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_pes=1, num_cubes=4)
    x, out = (ones(torch, (64, columns), name, dp) for name, columns in (("x", 256), ("out", 64)))
    w = ones(torch, (256, 64), "w", DPPolicy(cube="replicate", num_pes=1, num_cubes=4) if copies else None)
    torch.launch("weights_of_cube_0", weights_of_cube_0, x, w, out)


def load_then_compute(x, w, out, tl):
    tl.store(out.local, tl.dot(tl.load(x.local), tl.load(w.local), out_dtype="f16"))


@bench(name="load-then-compute", description="each PE loads everything, multiplies, stores: nothing is concurrent")
def bench_load_then_compute(torch):
    x, out = (ones(torch, (8 * 64, 128), name, ONE_CUBE) for name in ("x", "out"))
    torch.launch("load_then_compute", load_then_compute, x, ones(torch, (8 * 128, 128), "w", ONE_CUBE), out)


def atomics(x, count, tl):
    for _ in range(8):
        tl.atomic_add(count, 1)
    tl.store(x.local, tl.load(x.local) + 1)


@bench(name="atomics", description="eight PEs count in one word")
def bench_atomics(torch):
    torch.launch("atomics", atomics, ones(torch, (64, 64), "x", ONE_CUBE), torch.zeros((1,), dtype="i32", name="count"))


def whole_tensor(x, out, tl):
    total = tl.zeros((512, 4), "f16")
    for _ in range(4):
        total = total + tl.load(x.across, shape=(512, 4))
    tl.store(out, total)


@bench(name="whole-tensor", description="PE 0 of cube 3 reads a tensor that lies over four cubes, its own among them")
def bench_whole_tensor(torch):
    x, out = ones(torch, (512, 4), "x", FOUR_CUBES), ones(torch, (512, 4), "out")
    torch.launch("whole_tensor", whole_tensor, x, out, target_cubes=(3,), target_pes=(0,))


def shared_table(table, out, tl):
    if tl.program_id(0) == 0:
        total = tl.zeros((16, 64), "f32")
        for at in range(6):
            total = total + tl.exp(tl.load(table + at * 2048, shape=(16, 64)))
        tl.store(out.local, total)


@bench(name="shared-table", description="PE 0 of each cube reads a table in cube 0")
def bench_shared_table(torch):
    out = torch.zeros((512, 64), dtype="f32", name="out", dp=FOUR_CUBES)
    torch.launch("shared_table", shared_table, ones(torch, (96, 64), "table"), out)


def causal(q, k, out, tl):
    block, total = tl.load(q.local), tl.zeros((32, 64), "f32")
    for _ in range(tl.program_id(0) + 1):
        keys = tl.load(k.local)
        total = total + tl.dot(tl.exp(tl.dot(block, keys)), keys)
    tl.store(out.local, total)


@bench(name="causal", description="PE i has i + 1 blocks")
def bench_causal(torch):
    q, k = ones(torch, (256, 64), "q", ONE_CUBE), ones(torch, (64, 64), "k", DPPolicy(num_cubes=1))
    torch.launch("causal", causal, q, k, torch.zeros((256, 64), dtype="f32", name="out", dp=ONE_CUBE))


def reduce_on_one(x, part, out, tl):
    tl.store(part.local, tl.load(x.local))
    tl.barrier()
    if tl.program_id(0) == 0:
        total = tl.zeros((64, 128), "f32")
        for at in range(8):
            total = total + tl.exp(tl.load(part + at * 64 * 128 * 2, shape=(64, 128)))
        tl.store(out, total)


@bench(name="reduce-on-one", description="PE 0 adds what the others stored")
def bench_reduce_on_one(torch):
    x, part = (ones(torch, (512, 128), name, ONE_CUBE) for name in ("x", "part"))
    torch.launch("reduce_on_one", reduce_on_one, x, part, torch.zeros((64, 128), dtype="f32", name="out"))


def chain_of_products(w, x, out, tl):
    pe = tl.program_id(0)
    block = tl.load(x) if pe == 7 else tl.recv("intra_E", (32, 64), "f16")
    block = tl.dot(block, tl.load(w.local), out_dtype="f16")
    if pe:
        tl.send("intra_W", block)
    else:
        tl.store(out, block)


@bench(name="chain-of-products", description="each of eight PEs multiplies what the one before it sends")
def bench_chain_of_products(torch):
    w, x = ones(torch, (512, 64), "w", ONE_CUBE), ones(torch, (32, 64), "x")
    torch.launch("chain_of_products", chain_of_products, w, x, torch.zeros((32, 64), dtype="f16", name="out"))


def phases(x, tl):
    block = tl.load(x.local)
    for phase in range(4):
        if tl.program_id(0) == phase:
            for _ in range(6):
                block = tl.exp(block) * 0.5
        tl.barrier()
    tl.store(x.local, block)


@bench(name="phases", description="one PE works between two barriers, then another")
def bench_phases(torch):
    torch.launch("phases", phases, ones(torch, (256, 128), "x", ONE_CUBE))


def stream(x, out, tl):
    for at in range(12):
        block = tl.load(x.local + at * 8192, shape=(32, 128))
        tl.store(out.local + at * 8192, tl.exp(block))


@bench(name="stream", description="load, compute, store, one after the other on every PE")
def bench_stream(torch):
    x, out = (ones(torch, (8 * 12 * 32, 128), name, ONE_CUBE) for name in ("x", "out"))
    torch.launch("stream", stream, x, out)


def columns(x, out, tl):
    total = tl.zeros((128, 1), "f32")
    for at in range(16):
        total = total + tl.load(x + at * 2, shape=(128, 1), strides=(128, 1))
    tl.store(out, total)


@bench(name="columns", description="columns of a matrix that is stored by rows, an element per row")
def bench_columns(torch):
    out = torch.zeros((128, 1), dtype="f32", name="out")
    torch.launch("columns", columns, ones(torch, (128, 128), "x"), out, target_pes=(0,))


def panels(x, out, tl):
    for at in range(8):
        panel = tl.load(x + at * 64, shape=(128, 32), strides=(256, 1))
        tl.store(out + at * 64, tl.exp(panel), strides=(256, 1))


@bench(name="panels", description="64 bytes of each row at a time, which also lie in half of the channels")
def bench_panels(torch):
    x, out = (ones(torch, (128, 256), name) for name in ("x", "out"))
    torch.launch("panels", panels, x, out, target_pes=(0,))


def writes_to_one_slice(x, out, tl):
    tl.store(out + tl.program_id(0) * 16384, tl.exp(tl.load(x.local)))


@bench(name="writes-to-one-slice", description="eight PEs write to the slice of PE 0")
def bench_writes_to_one_slice(torch):
    out = torch.zeros((512, 128), dtype="f16", name="out")
    torch.launch("writes_to_one_slice", writes_to_one_slice, ones(torch, (512, 128), "x", ONE_CUBE), out)


def one_channel(x, out, tl):
    total = tl.zeros((64, 128), "f32")
    for _ in range(4):
        total = total + tl.load(x, shape=(64, 128), strides=(1024, 1))
    tl.store(out, total)


@bench(name="one-channel", description="256 bytes of every 2 KiB: all in the first of eight channels")
def bench_one_channel(torch):
    out = torch.zeros((64, 128), dtype="f32", name="out")
    torch.launch("one_channel", one_channel, ones(torch, (64, 1024), "x"), out, target_pes=(0,))


def across(x, out, tl):
    block = tl.load(x + tl.program_id(0) * 65536, shape=(128, 256))
    tl.store(out.local, tl.sum(tl.exp(block), axis=1))


@bench(name="across", description="the PEs of cube 1 read the slices of cube 0")
def bench_across(torch):
    x, dp = ones(torch, (1024, 256), "x", ONE_CUBE), DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2)
    torch.launch("across", across, x, torch.zeros((2048, 1), dtype="f16", name="out", dp=dp), target_cubes=(1,))


def step(x, tl):
    tl.store(x.local, tl.exp(tl.load(x.local)))


@bench(name="steps", description="eight launches, one after the other")
def bench_steps(torch):
    x = ones(torch, (64, 64), "x", ONE_CUBE)
    for _ in range(8):
        torch.launch("step", step, x)


@bench(name="small-step", description="one launch with little to do")
def bench_small_step(torch):
    torch.launch("step", step, ones(torch, (8, 64), "x", ONE_CUBE))


def ping_pong(x, tl):
    block = tl.load(x.local)
    for _ in range(10):
        if tl.program_id(0) == 0:
            tl.send("intra_E", block)
            block = tl.recv("intra_E", (1, 16), "f16")
        else:
            block = tl.recv("intra_W", (1, 16), "f16")
            tl.send("intra_W", block)
    tl.store(x.local, block)


@bench(name="ping-pong", description="ten times there and back")
def bench_ping_pong(torch):
    torch.launch("ping_pong", ping_pong, ones(torch, (2, 16), "x", DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)))


def barriers(x, tl):
    for _ in range(12):
        tl.store(x.local, tl.load(x.local) + 1)
        tl.barrier()


@bench(name="barriers", description="a barrier after every row")
def bench_barriers(torch):
    torch.launch("barriers", barriers, ones(torch, (8, 32), "x", ONE_CUBE))


def scalars(x, tl):
    block = tl.load(x)
    for _ in range(60):
        block = block * 1.5 + 1.0
    tl.store(x, block)


@bench(name="scalars", description="ops on sixteen numbers")
def bench_scalars(torch):
    torch.launch("scalars", scalars, ones(torch, (16,), "x"), target_pes=(0,))


def one_pe(x, tl):
    block = tl.load(x)
    for _ in range(8):
        block = tl.exp(block) * 0.5
    tl.store(x, block)


@bench(name="one-pe", description="all rows on one PE")
def bench_one_pe(torch):
    torch.launch("one_pe", one_pe, ones(torch, (128, 256), "x"), target_pes=(0,))
