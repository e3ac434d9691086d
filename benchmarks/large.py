"""What a machine of 4,096 PEs costs to simulate, on two cores, in two shapes: 16 SIPs of 16 cubes with 16 PEs each, and
32 SIPs of the shipped machine.

    python benchmarks/large.py            a table; exit code 1 when a bar does not hold
    python benchmarks/large.py --json     {"schema": 1, "rows": [{"name", "value", "unit", "bar", "ok"}]}
    python benchmarks/large.py --quick    2 SIPs of one cube, to see that it works; its figures mean nothing
    python benchmarks/large.py --only decode   one part: decode, prefill or all_reduce
    python benchmarks/large.py --sips 16       one shape: 16 or 32

Each row is a `kernbench run` by itself, from its start to its end, as in `layers.py`: seconds on the wall count, so
the machine must have nothing else to do; CPU seconds of all processes stand beside them. A run is stopped after twice
its bar, or after 15 minutes where it has none: its row says so. The layer is one of llama2-70b, tensor parallel over
all SIPs: a decode step of one sequence after 2,048 tokens, and prefill of 2,048 tokens; the all-reduce adds one tensor
of 1 MiB per SIP. The bars were set when a machine had at most 16 SIPs of 16 cubes of 16 PEs, and are applied to both
shapes. Prefill has no bar: its two all-reduces are of 32 MiB each, and large models at prefill did not fit the
addresses of such a machine when the bars were set.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE))

from kernels import Row, row, table  # noqa: E402
from layers import run  # noqa: E402

SHAPES = {
    16: ("system.sips.count=16", "cube.pe_layout.pe_per_corner=4"),
    32: ("system.sips.count=32",),
}
UNBARRED_S = 900  # the most that a run without a bar is given
SMALL = ("system.sips.count=2", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1")


@dataclass(frozen=True)
class LargeRun:
    """A run, and the seconds that it may take on two cores, if there is a bar."""

    name: str
    bar_s: float | None
    bench: str
    params: tuple[str, ...]
    quick: tuple[str, ...]


RUNS = {
    "decode": LargeRun(
        "a layer of llama2-70b, decode", 60, "llm-layer", ("model=llama2-70b", "phase=decode"), ("phase=decode",)
    ),
    "prefill": LargeRun("a layer of llama2-70b, prefill", None, "llm-layer", ("model=llama2-70b",), ("tokens=16",)),
    "all_reduce": LargeRun(
        "all-reduce of 1 MiB", 40, "ccl-bench", ("min_bytes=1048576", "max_bytes=1048576"), ("max_bytes=1024",)
    ),
}


def rows_of(large: LargeRun, sips: int, *, quick: bool) -> list[Row]:
    arguments = ["--bench", large.bench]
    for setting in SMALL if quick else SHAPES[sips]:
        arguments += ["--set", setting]
    for param in large.quick if quick else large.params:
        arguments += ["--param", param]
    used = run(*arguments, limit_s=UNBARRED_S if large.bar_s is None else 2 * large.bar_s)
    machine = "2 SIPs" if quick else f"4,096 PEs on {sips} SIPs"
    name = f"{large.name}, {machine}{'' if used.is_over else ': stopped'}"
    return [
        row(name, used.wall_s, "s on two cores", large.bar_s),
        row(name, used.cpu_s, "CPU s of all processes"),
        row(name, used.gb, "GB"),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a machine of 4,096 PEs costs to simulate.")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--only", choices=tuple(RUNS), help="one part")
    parser.add_argument("--sips", type=int, choices=tuple(SHAPES), help="one shape")
    options = parser.parse_args(arguments)
    chosen = [RUNS[options.only]] if options.only else list(RUNS.values())
    shapes = [options.sips] if options.sips else list(SHAPES)[: 1 if options.quick else None]
    found = [each for sips in shapes for large in chosen for each in rows_of(large, sips, quick=options.quick)]
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(item) for item in found]}, indent=1))
    else:
        print(table(found))
    return 0 if options.quick or all(item.ok for item in found) else 1


if __name__ == "__main__":
    sys.exit(main())
