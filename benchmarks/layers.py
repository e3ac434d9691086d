"""What whole composites cost to simulate, as ratios of CPU time measured in one run.

    python benchmarks/layers.py            a table; exit code 1 when a bar does not hold
    python benchmarks/layers.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/layers.py --quick    small sizes, to see that it works; its figures mean nothing

Everything runs as a user has it: op log and garbage collector on; tensors without contents, as their size is not what
is measured. A row that says *first* forgets what is known of courses before every run; the others find the course that
an earlier run on the machine has worked out, as a second launch or a second engine does. Of several runs the best
counts. Tile by tile is `fast=False`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE))

from kernels import Row, cpu_s, row, table  # noqa: E402

from kernbench.policy.placement.dp import DPPolicy  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.sim_engine.op_log import OpLog  # noqa: E402
from kernbench.sim_engine.steady.foresight import known_courses  # noqa: E402
from kernbench.topology import load_topology  # noqa: E402
from kernbench.topology.graph import TopologyGraph  # noqa: E402

TILE = (32, 64, 32)


@dataclass(frozen=True)
class Sizes:
    small: int
    large: int
    contended: int
    cubes: int
    repeats: int


FULL = Sizes(small=256, large=4096, contended=256, cubes=16, repeats=5)
QUICK = Sizes(small=64, large=128, contended=64, cubes=1, repeats=1)


def gemm(a: Any, b: Any, c: Any, tl: Any) -> None:
    """Each PE its own product, all in its own memory."""
    left, right = tl.ref(a.local, a.local_shape), tl.ref(b.local, b.local_shape)
    tl.wait(tl.composite("gemm", left, right, out_ptr=c.local, tile_shape=TILE))


def shared(a: Any, b: Any, c: Any, tl: Any) -> None:
    """Each PE its own product; the operands of all lie in one memory."""
    left, right = tl.ref(a, a.local_shape), tl.ref(b, b.local_shape)
    tl.wait(tl.composite("gemm", left, right, out_ptr=c.local, tile_shape=TILE))


def launch_s(
    graph: TopologyGraph, kernel: Any, edge: int, cubes: int, pes: int, *, fast: bool = True, first: bool = False
) -> float:
    """CPU seconds of one launch."""
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    if first:
        known_courses.cache_clear()
    with RuntimeContext(GraphEngine(graph, op_log=OpLog(), data=False, fast=fast)) as torch:
        a, b, c = (torch.empty(edge * cubes * pes, edge, dp=dp) for _ in range(3))
        return cpu_s(lambda: torch.launch(kernel, a, b, c))


def best(repeats: int, *args: Any, **options: Any) -> float:
    return min(launch_s(*args, **options) for _ in range(repeats))


def rows(graph: TopologyGraph, sizes: Sizes) -> list[Row]:
    small, large, pes, repeats = sizes.small, sizes.large, graph.spec.cube.n_pes, sizes.repeats
    launch_s(graph, gemm, small, 1, 1)  # routes are found once
    small_first = best(repeats, graph, gemm, small, 1, 1, first=True)
    large_first = best(repeats, graph, gemm, large, 1, 1, first=True)
    small_later, large_later = best(repeats, graph, gemm, small, 1, 1), best(repeats, graph, gemm, large, 1, 1)
    everywhere = best(repeats, graph, gemm, large, sizes.cubes, pes, first=True)
    small_tiles = best(repeats, graph, gemm, small, 1, 1, fast=False)
    contended = best(repeats, graph, shared, sizes.contended, 1, pes, first=True)
    contended_tiles = best(repeats, graph, shared, sizes.contended, 1, pes, fast=False)
    name, all_pes = f"GEMM {large}^3 f16 on one PE", sizes.cubes * pes
    return [
        row(f"{name}, known", large_later / small_later, f"x {small}^3", 3),
        row(f"{name}, first", large_first / small_first, f"x {small}^3", 3),
        row(f"{name}, first", 1e3 * large_first, "ms"),
        row(f"GEMM {small}^3 f16 on one PE, first", small_first / small_tiles, "x tile by tile", 1),
        row(f"GEMM {large}^3 f16 on {all_pes} PEs in step", everywhere / large_first, "x one PE", 20),
        row(
            f"GEMM {sizes.contended}^3 f16 on {pes} PEs, one memory", contended / contended_tiles, "x tile by tile", 1.1
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What whole composites cost to simulate.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    options = parser.parse_args(arguments)
    graph = load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1} if options.quick else None)
    found = rows(graph, QUICK if options.quick else FULL)
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(item) for item in found]}, indent=1))
    else:
        print(table(found))
    return 0 if options.quick or all(item.ok for item in found) else 1


if __name__ == "__main__":
    sys.exit(main())
