"""What whole composites, whole layers and starting up cost, as ratios of CPU time measured in one run.

    python benchmarks/layers.py            a table; exit code 1 when a bar does not hold
    python benchmarks/layers.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/layers.py --quick    small sizes, to see that it works; its figures mean nothing
    python benchmarks/layers.py --only startup    one part: composites, startup or models

Everything runs as a user has it: op log and garbage collector on; tensors without contents, as their size is not what
is measured. A row that says *first* drops all recordings before every run; the others find the recording that
an earlier run on the machine has made, as a second launch or a second engine does. Of several runs the best
counts. Tile by tile is `fast=False`.

Starting up and layers of models are `kernbench run` by itself, on two cores. Of start-up CPU seconds count, as they
would be on a machine that does 0.5 M SimPy time-outs per second. Of a layer, which uses both cores, seconds on the wall
count, so the machine must have nothing else to do; memory is that of all its processes. A layer is given twice its bar
and then stopped: its row says so, and shows what it was given.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE))

from kernels import Row, cpu_s, row, table, timeout_s  # noqa: E402

from kernbench.models.machine_model import machine_model  # noqa: E402
from kernbench.models.mapper import LayerSize, candidates_of, choose_layer  # noqa: E402
from kernbench.models.mapping import COLUMNS  # noqa: E402
from kernbench.models.plans import SipShape  # noqa: E402
from kernbench.models.product_size import ProductSize  # noqa: E402
from kernbench.policy.placement.dp import DPPolicy  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.sim_engine.memo.composite_memo import composite_recordings  # noqa: E402
from kernbench.sim_engine.op_log import OpLog  # noqa: E402
from kernbench.topology import load_topology  # noqa: E402
from kernbench.topology.graph import TopologyGraph  # noqa: E402

TILE = (32, 64, 32)
USUAL_TIMEOUT_S = 2e-6  # CPU seconds of a SimPy time-out on the machine that start-up's bar is for


@dataclass(frozen=True)
class Sizes:
    small: int
    large: int
    contended: int
    cubes: int
    repeats: int
    timeouts: int


FULL = Sizes(small=256, large=4096, contended=256, cubes=16, repeats=5, timeouts=200_000)
QUICK = Sizes(small=64, large=128, contended=64, cubes=1, repeats=1, timeouts=2_000)


@dataclass(frozen=True)
class LayerRun:
    """A layer, and what it may cost."""

    name: str
    bar_s: float
    arguments: tuple[str, ...]
    bar_gb: float | None = None


LAYERS = (
    LayerRun("gpt3-175b prefill, 2,048 tokens, 2 SIPs, TP 2", 60, ("model=gpt3-175b",), 2.0),
    LayerRun(
        "gpt3-175b decode, batch 32, 4k context, 2 SIPs, TP 2",
        10,
        ("model=gpt3-175b", "phase=decode", "batch=32", "context=4096"),
    ),
    LayerRun("llama3-8b prefill, 4k tokens, one SIP", 20, ("model=llama3-8b", "tokens=4096", "system.sips.count=1")),
)
ONE_CUBE = ("system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")
QUICK_LAYERS = (LayerRun("tiny-llama prefill, one cube", 60, ("model=tiny-llama", *ONE_CUBE), 2.0),)


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
        composite_recordings.cache_clear()
    with RuntimeContext(GraphEngine(graph, op_log=OpLog(), data=False, fast=fast)) as torch:
        a, b, c = (torch.empty(edge * cubes * pes, edge, dp=dp) for _ in range(3))
        return cpu_s(lambda: torch.launch(kernel, a, b, c))


def best(repeats: int, *args: Any, **options: Any) -> float:
    return min(launch_s(*args, **options) for _ in range(repeats))


# ---- processes of their own


class Used(NamedTuple):
    """What a `kernbench run` took: on the wall, of all its processes, and of memory at the most."""

    wall_s: float
    cpu_s: float
    gb: float
    is_over: bool  # whether it came to its end


def run(*arguments: str, limit_s: float | None = None) -> Used:
    """A `kernbench run` in a process of its own, on two cores."""

    def limited() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

    path = os.pathsep.join(filter(None, (str(HERE.parent / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "kernbench", "run", "--json", *arguments]
    began, most, status = time.perf_counter(), 0.0, 0
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=environment, preexec_fn=limited, start_new_session=True
    )
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        wall_s = time.perf_counter() - began
        if pid:
            break
        if limit_s is not None and wall_s > limit_s:
            os.killpg(process.pid, signal.SIGKILL)
        if limit_s is not None:
            most = max(most, memory_gb(process.pid))
        time.sleep(0.2 if limit_s is not None else 0.002)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return Used(wall_s, used.ru_utime + used.ru_stime, max(most, used.ru_maxrss * 1024 / 1e9), process.returncode == 0)


def memory_gb(session: int) -> float:
    """What the processes of a session hold; pages that several share count once."""
    found = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                found += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return found / 1e9


def startup_rows(sizes: Sizes) -> list[Row]:
    def engine_s(graph: TopologyGraph) -> float:
        return cpu_s(lambda: GraphEngine(graph))

    engines = []
    for number in range(sizes.repeats):
        graph = load_topology(None, {"system.name": f"machine {number}"})
        engines.append((engine_s(graph), engine_s(graph)))
    first, second = (min(found) for found in zip(*engines, strict=True))
    run("--bench", "gemm-single-pe")  # compiled files are written
    alone = min(run("--bench", "gemm-single-pe").cpu_s for _ in range(sizes.repeats))
    usual = alone * USUAL_TIMEOUT_S / min(timeout_s(sizes.timeouts) for _ in range(sizes.repeats))
    return [
        row("a second engine on a machine", second / first, "x the first", 0.1),
        row("kernbench run of a small bench", usual, "s at 0.5 M time-outs per s", 0.7),
    ]


def layer_rows(layers: tuple[LayerRun, ...]) -> list[Row]:
    found = []
    for layer in layers:
        arguments = ["--bench", "llm-layer"]
        for setting in layer.arguments:
            arguments += ["--set" if setting.startswith(("system.", "sip.")) else "--param", setting]
        used = run(*arguments, limit_s=2 * layer.bar_s)
        name = layer.name if used.is_over else f"{layer.name}: stopped"
        found.append(row(name, used.wall_s, "s on two cores", layer.bar_s))
        found.append(row(name, used.cpu_s, "CPU s of all processes"))
        if layer.bar_gb is not None:
            found.append(row(name, used.gb, "GB", layer.bar_gb))
    return found


def choice_rows(repeats: int) -> list[Row]:
    """What the mapper takes to choose for all products of a layer, with nothing kept from earlier choices."""
    graph = load_topology(str(HERE.parent / "examples/machines/one-die-64.yaml"))
    mesh, cube = graph.spec.sip.cube_mesh, graph.spec.cube
    sip = SipShape(mesh.w, mesh.h, cube.n_pes, cube.tcm_allocatable_bytes)
    machine = machine_model(graph, sip)
    products = (
        ProductSize("qkv", 2048, 4096, 6144, 1, "rows"),
        ProductSize("out_proj", 2048, 4096, 4096, 1, "columns"),
        ProductSize("mlp_up", 2048, 4096, 14336, 2, "rows"),
        ProductSize("mlp_down", 2048, 14336, 4096, 1, "columns"),
    )

    def choose() -> None:
        candidates_of.cache_clear()
        choose_layer.cache_clear()
        choose_layer(machine, LayerSize(products), COLUMNS, 4)

    return [row("mapping of llama3-8b on 64 PEs", min(cpu_s(choose) for _ in range(repeats)), "CPU s", 5)]


# ---- composites


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
    parser.add_argument("--only", choices=("composites", "startup", "models"), help="one part")
    options = parser.parse_args(arguments)
    sizes, found = QUICK if options.quick else FULL, list[Row]()
    if options.only in (None, "composites"):
        graph = load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1} if options.quick else None)
        found += rows(graph, sizes)
    if options.only in (None, "startup"):
        found += startup_rows(sizes)
    if options.only in (None, "models"):
        found += choice_rows(1) + layer_rows(QUICK_LAYERS if options.quick else LAYERS)
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(item) for item in found]}, indent=1))
    else:
        print(table(found))
    return 0 if options.quick or all(item.ok for item in found) else 1


if __name__ == "__main__":
    sys.exit(main())
