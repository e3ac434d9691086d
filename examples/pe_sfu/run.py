"""A new engine in every PE: a special-function unit, added by one file (sfu.py) and one line of YAML (machine.yaml).

Two kernels on one PE of the shipped machine and of machine.yaml. Softmax step by step gains what the faster unit gains
on its exponents. The scores of attention, exp(q k' / 8) as one composite, gain more: while the unit takes the exponents
of one tile, GEMM and MATH go on with the next.

    python examples/pe_sfu/run.py        prints examples/expected/pe_sfu.txt
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import TopologyGraph, load_topology
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

HERE = Path(__file__).parent
ONE_PE = {
    "system.sips.count": 1,
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
}
ENGINES = ("pe_gemm", "pe_math", "pe_sfu")


def softmax(x: TensorPtr, out: TensorPtr, tl: TLContext) -> None:
    rows = tl.load(x)
    powers = tl.exp(rows - tl.max(rows, axis=1, keep_dims=True))
    tl.store(out, powers / tl.sum(powers, axis=1, keep_dims=True))


def scores(q: TensorPtr, k: TensorPtr, out: TensorPtr, tl: TLContext) -> None:
    epilogue = [{"op": "scale", "factor": 0.125}, {"op": "exp"}]
    tl.wait(tl.composite("gemm", tl.load(q), tl.load(k), out_ptr=out, epilogue=epilogue))


def measured(machine: TopologyGraph, kernel: object, *arrays: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """The last array after the kernel ran, and its time and that of the engines in ns."""
    log = OpLog()
    run = run_kernel(kernel, *arrays, topology=machine, op_log=log)  # type: ignore[arg-type]  # arrays, by position
    ops = [record for record in log.records if not record.op_name.startswith("composite")]
    busy = [sum(op.t_end - op.t_start for op in ops if op.component_id.endswith(name)) for name in ENGINES]
    return run.arrays[-1], [run.time_ns, *busy]


def main() -> None:
    shipped, with_sfu = load_topology(None, ONE_PE), load_topology(HERE / "machine.yaml", ONE_PE)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 512), np.float32)
    q, k = (rng.standard_normal(shape).astype(np.float16) for shape in ((256, 64), (64, 256)))
    cases = {
        "softmax of 64 x 512, f32": (softmax, (x, np.zeros_like(x)), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        "exp(q k' / 8), 256 x 64 x 256": (
            scores,
            (q, k, np.zeros((256, 256), np.float16)),
            np.exp(q.astype(np.float32) @ k.astype(np.float32) / 8),
        ),
    }
    print(f"{'ns on one PE':31}{'machine':10}{'kernel':>9}" + "".join(f"{name:>9}" for name in ENGINES))
    for name, (kernel, arrays, expected) in cases.items():
        for title, machine in (("shipped", shipped), ("with SFU", with_sfu)):
            out, times = measured(machine, kernel, *arrays)
            np.testing.assert_allclose(out.astype(np.float32), expected, rtol=2e-3, atol=1e-3)
            print(f"{name:31}{title:10}" + "".join(f"{ns:9.1f}" for ns in times))
            name = ""


if __name__ == "__main__":
    main()
