"""Kernels that are slow for one reason each. The name of a bench is the cause that its verdict must name."""

from __future__ import annotations

import numpy as np

from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy

ROWS, COLS = 16, 256
BLOCK = ROWS * COLS * 2  # bytes of a block of f16


def read_far(x, out, tl):
    total = tl.zeros((ROWS, COLS), "f32")
    for block in range(6):
        total = total + tl.load(x + (24 + block) * BLOCK, shape=(ROWS, COLS))
    tl.store(out, total)


@bench(name="distance", description="PE 0 of cube 0 reads blocks of cube 3")
def distance(torch):
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=4)
    x = torch.from_numpy(np.ones((32 * ROWS, COLS), np.float16), name="x", dp=dp)
    out = torch.zeros((ROWS, COLS), dtype="f32", name="out")
    torch.launch("read_far", read_far, x, out, target_cubes=(0,), target_pes=(0,))


def uneven(x, out, tl):
    total = tl.zeros((ROWS, COLS), "f32")
    for _ in range(12 if tl.program_id(0) == 2 else 1):
        total = total + tl.exp(tl.load(x.local, shape=(ROWS, COLS)))
    tl.store(out.local, total)


@bench(name="imbalance", description="PE 2 has twelve times the blocks of the others")
def imbalance(torch):
    dp = DPPolicy(pe="row_wise", num_cubes=1)
    x = torch.from_numpy(np.ones((8 * ROWS, COLS), np.float16), name="x", dp=dp)
    out = torch.zeros((8 * ROWS, COLS), dtype="f32", name="out", dp=dp)
    torch.launch("uneven", uneven, x, out)


def relay(x, out, tl):
    pe = tl.program_id(0)
    total = tl.zeros((1, 1), "f32") if pe == 0 else tl.recv("intra_W", (1, 1), "f32")
    part = tl.load(x.local)
    for _ in range(3):
        part = tl.exp(part) * 0.25
    total = total + tl.sum(tl.sum(part, axis=1), axis=0)
    if pe < 3:
        tl.send("intra_E", total)
    else:
        tl.store(out, total)


@bench(name="chain", description="each of four PEs waits for the sum of the one before it")
def chain(torch):
    x = torch.from_numpy(np.ones((256, 64), np.float16), name="x", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4))
    out = torch.zeros((1, 1), dtype="f32", name="out")
    torch.launch("relay", relay, x, out)


def alternate(x, w, out, tl):
    right = tl.load(w)
    total = tl.zeros((64, 64), "f32")
    for block in range(8):
        left = tl.load(x + block * 64 * 64 * 2, shape=(64, 64))
        total = total + tl.dot(left, right, out_dtype="f32")
    tl.store(out, total)


@bench(name="overlap", description="loads and products take turns")
def overlap(torch):
    x = torch.from_numpy(np.ones((512, 64), np.float16), name="x")
    w = torch.from_numpy(np.ones((64, 64), np.float16), name="w")
    out = torch.zeros((64, 64), dtype="f32", name="out")
    torch.launch("alternate", alternate, x, w, out, target_pes=(0,))


def by_lines(x, out, tl):
    total = tl.zeros((64,), "f16")
    for line in range(48):
        total = total + tl.load(x + line * 128, shape=(64,))
    tl.store(out, total)


@bench(name="small-transfers", description="128 bytes per load")
def small_transfers(torch):
    x = torch.from_numpy(np.ones((48, 64), np.float16), name="x")
    out = torch.zeros((64,), dtype="f16", name="out")
    torch.launch("by_lines", by_lines, x, out, target_pes=(0,))


def one_slice(x, marks, tl):
    block = tl.load(x + tl.program_id(0) * BLOCK, shape=(ROWS, COLS))
    tl.store(marks.local, tl.sum(tl.exp(block), axis=1))


@bench(name="memory", description="all PEs of a cube read one HBM slice")
def memory(torch):
    x = torch.from_numpy(np.ones((8 * ROWS, COLS), np.float16), name="x")
    marks = torch.zeros((8 * ROWS,), dtype="f16", name="marks", dp=DPPolicy(pe="row_wise", num_cubes=1))
    torch.launch("one_slice", one_slice, x, marks)


def from_cube_0(x, marks, tl):
    block = tl.load(x + tl.program_id(0) * 4 * BLOCK, shape=(4 * ROWS, COLS))
    tl.store(marks.local, tl.sum(block, axis=1))


@bench(name="link", description="the PEs of three cubes each read the slice of their number in cube 0")
def link(torch):
    x = torch.from_numpy(np.ones((32 * ROWS, COLS), np.float16), name="x", dp=DPPolicy(pe="row_wise", num_cubes=1))
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=4)
    marks = torch.zeros((4 * 32 * ROWS,), dtype="f16", name="marks", dp=dp)
    torch.launch("from_cube_0", from_cube_0, x, marks, target_cubes=(1, 2, 3))


def increment(x, tl):
    tl.store(x, tl.load(x) + 1)


@bench(name="launch", description="six small launches, one after the other")
def launch(torch):
    x = torch.zeros((64,), dtype="f16", name="x")
    for _ in range(6):
        torch.launch("increment", increment, x, target_pes=(0,))


def product(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.load(a), tl.load(b), out_ptr=c))


@bench(name="compute", description="one large product: its engine is the bound")
def compute(torch):
    a, b = (torch.from_numpy(np.ones((256, 256), np.float16), name=name) for name in "ab")
    c = torch.zeros((256, 256), dtype="f16", name="c")
    torch.launch("product", product, a, b, c, target_pes=(0,))
