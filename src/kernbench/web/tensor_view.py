"""The view of tensors: where they are, which PEs access them, how full memories are, and the roofline of launches."""

from __future__ import annotations

from dataclasses import asdict

from kernbench.report.explain.launch_rooflines import launch_rooflines
from kernbench.report.explain.occupancy import MOST_OPS, occupancy
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.web.machine_map import Json
from kernbench.web.run_view import RunView

BINS = 240


def tensors(view: RunView, scope: str | None) -> Json:
    """Tensors and memories of a scope, and the roofline of every launch; computed once."""
    name = scope or "run"
    t0, t1 = view.scope(name)

    def make() -> Json:
        kind, _, number = name.partition(":")
        uses = tensor_uses(view.run, int(number) if kind == "launch" else -1)
        full = occupancy(view.run, t0, t1, BINS)
        cube = view.run.graph.spec.cube
        capacity = {"tcm": cube.tcm_bytes, "sram": cube.sram_bytes, "hbm": cube.hbm_bytes}
        stacks = view.run.graph.spec.sip.hbm_stacks
        if stacks is not None:  # those of a SIP are counted together
            capacity["hbm"] = view.run.graph.spec.sip.n_cubes * cube.hbm_bytes
        return {
            "schema": 1,
            "scope": name,
            "tensors": [{**use.as_json(), "cubes": use.cubes} for use in uses],
            "occupancy": None if full is None else asdict(full),
            "most_ops": MOST_OPS,
            "capacity": capacity,
            "rooflines": view.keep("rooflines", "all", 1, lambda: [asdict(one) for one in launch_rooflines(view.run)]),
        }

    return view.keep("tensor view", name, 8, make)
