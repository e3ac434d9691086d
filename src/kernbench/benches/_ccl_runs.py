"""Collectives measured one by one, each on a new machine, for `kernbench ccl` and `kernbench tune-ccl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from kernbench.benches._collectives import Measured, WantedCollective, duration_ns, measure, span_of
from kernbench.ccl.config import CclSource, load_ccl_config, resolve_algorithm_config, with_algorithm
from kernbench.ccl.config_spec import AUTO
from kernbench.ccl.modules import load_algorithm
from kernbench.common.dtypes import dtype_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph


def check_algorithms(wanted: WantedCollective, algorithms: Sequence[str | None], ccl: CclSource = None) -> None:
    """Raise UsageError for an unknown algorithm, or one that does not implement the collective."""
    config = load_ccl_config(ccl)
    for name in algorithms:
        if name is not None and name != AUTO:
            for each in wanted.configured_as():
                load_algorithm(resolve_algorithm_config(config, name)).check_does(each)


def measure_alone(
    graph: TopologyGraph,
    wanted: WantedCollective,
    *,
    algorithm: str | None = None,
    ccl: CclSource = None,
    settings: Mapping[str, object] | None = None,
    check: bool = True,
) -> Measured:
    """One collective on a fresh machine, by one algorithm or as the configuration says."""
    config = load_ccl_config(ccl)
    for name in wanted.configured_as():
        config = with_algorithm(config, name, algorithm, settings)
    found: list[Measured] = []
    run(partial(_measure, wanted=wanted, config=config, check=check, found=found), graph, device="whole", data=check)
    return found[0]


def _measure(
    torch: RuntimeContext, wanted: WantedCollective, config: CclSource, check: bool, found: list[Measured]
) -> None:
    torch.distributed.init_process_group("ahbm", ccl=config)
    found.append(measure(torch, wanted, check=check))


def per_cube_ns(
    graph: TopologyGraph,
    nbytes: int,
    dtype: str = "f16",
    *,
    algorithm: str | None = None,
    ccl: CclSource = None,
    settings: Mapping[str, object] | None = None,
) -> float:
    """How long all_reduce(per="cube") takes on a fresh machine, of addends of so many bytes on one PE per cube."""
    config = with_algorithm(load_ccl_config(ccl), "all_reduce", algorithm, settings)
    found: list[tuple[float, float]] = []
    run(partial(_per_cube, nbytes=nbytes, dtype=dtype, config=config, found=found), graph, device="whole", data=False)
    return duration_ns(found)


def _per_cube(
    torch: RuntimeContext, nbytes: int, dtype: str, config: CclSource, found: list[tuple[float, float]]
) -> None:
    torch.distributed.init_process_group("ahbm", ccl=config)
    count = max(nbytes // dtype_of(dtype).itemsize, 1)

    def worker(_: int) -> None:
        placed = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
        x = torch.zeros(torch.spec.sip.n_cubes, count, dtype=dtype, dp=placed, name="x")
        torch.distributed.barrier()
        found.append(span_of(torch.distributed.all_reduce(x, per="cube", async_op=True)))

    torch.multiprocessing.spawn(worker, nprocs=torch.distributed.get_world_size())
