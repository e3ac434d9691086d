"""Collectives measured one by one, each on a machine of its own, for `kernbench ccl` and `kernbench tune-ccl`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kernbench.benches._collectives import Measured, Wanted, measure
from kernbench.ccl.config import CclSource, load_ccl_config, with_algorithm
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph


def measure_alone(
    graph: TopologyGraph,
    wanted: Wanted,
    *,
    algorithm: str | None = None,
    ccl: CclSource = None,
    settings: Mapping[str, object] | None = None,
    check: bool = True,
) -> Measured:
    """One collective on a fresh machine, by one algorithm or as the configuration says."""
    config = with_algorithm(load_ccl_config(ccl), wanted.collective, algorithm, settings)
    found: list[Measured] = []
    run(partial(_measure, wanted=wanted, config=config, check=check, found=found), graph, device="whole", data=check)
    return found[0]


def _measure(torch: RuntimeContext, wanted: Wanted, config: CclSource, check: bool, found: list[Measured]) -> None:
    torch.distributed.init_process_group("ahbm", ccl=config)
    found.append(measure(torch, wanted, check=check))
