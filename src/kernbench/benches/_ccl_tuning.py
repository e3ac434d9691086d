"""Which algorithm is the fastest at which size, on a given machine: measured, each run on a new machine.

Every algorithm of a collective is tried at every size with its own chunks. Where messages are long enough for chunks to
matter, the two fastest are tried with other chunks too. Runs carry no data: times do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernbench.benches._ccl_runs import measure_alone, per_cube_ns
from kernbench.benches._collectives import WantedCollective
from kernbench.ccl.config import choose, resolve_algorithm_config
from kernbench.ccl.config_spec import AUTO, PER_CUBE, AutoRow, CclConfig
from kernbench.ccl.measured import machine_key
from kernbench.ccl.modules import load_algorithm
from kernbench.ccl.tuned import Measurement, choose_rows
from kernbench.common.errors import UsageError
from kernbench.topology.graph import TopologyGraph

TABLES = (
    *("all_reduce", PER_CUBE, "reduce", "broadcast"),
    *("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
)
DTYPE = "f16"
CHUNKS_FROM_BYTES = 128 * 1024  # of a message, before other chunks are tried
FASTEST = 2  # of the algorithms, that are tried with other chunks

Say = Callable[[str], None]


class Tuned(NamedTuple):
    """One table. `chosen` and `before` are the choices of it and of the current table at each size."""

    table: str
    rows: tuple[AutoRow, ...]
    chosen: tuple[Measurement, ...]
    before: tuple[Measurement, ...]
    trials: tuple[Measurement, ...]


def tune(
    graph: TopologyGraph, table: str, sizes: Sequence[int], chunks: Sequence[int], config: CclConfig, say: Say
) -> Tuned:
    """Measure the algorithms of one table; `say` is called with each measurement. Raises UsageError if none is
    possible.
    """
    machine = _CollectiveRuns(graph, table, config)
    trials: list[Measurement] = []
    before: list[Measurement] = []
    for nbytes in sizes:
        say(f"{table} of {nbytes} bytes")
        here = [machine.trial(nbytes, name) for name in machine.algorithms]
        if nbytes >= CHUNKS_FROM_BYTES:
            fastest = sorted(here, key=lambda trial: trial.time_ns)[:FASTEST]
            others = [(trial.algorithm, chunk) for trial in fastest for chunk in machine.other_chunks(trial, chunks)]
            here += [machine.trial(nbytes, name, chunk) for name, chunk in others]
        trials += here
        before.append(machine.present(nbytes, here))
    rows, chosen = choose_rows(trials, before)
    return Tuned(table, rows, chosen, tuple(before), tuple(trials))


class _CollectiveRuns:
    """Runs of one collective."""

    def __init__(self, graph: TopologyGraph, table: str, config: CclConfig) -> None:
        self._graph = graph
        self._table = table
        self._config = config
        self.algorithms = [name for name in config.algorithms if self._can(name)]
        if not self.algorithms:
            raise UsageError(f"no algorithm of the configuration does {table}", hint="see algorithms: in ccl.yaml")

    @property
    def _collective(self) -> str:
        return "all_reduce" if self._table == PER_CUBE else self._table

    def _can(self, name: str) -> bool:
        module = load_algorithm(resolve_algorithm_config(self._config, name))
        if self._collective not in module.collectives:
            return False
        # Addends per cube need algorithms that distinguish cubes: those whose kernel declares the mesh root or `per`.
        return self._table != PER_CUBE or "mesh_root" in module.names or "per" in module.names

    def other_chunks(self, trial: Measurement, chunks: Sequence[int]) -> list[int]:
        own = resolve_algorithm_config(self._config, trial.algorithm).chunk_bytes
        if "chunk_bytes" in self._config.algorithms[trial.algorithm]:
            return []  # its entry says which
        return [chunk for chunk in chunks if chunk != own]

    def trial(self, nbytes: int, algorithm: str, chunk_bytes: int | None = None) -> Measurement:
        settings = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
        if self._table == PER_CUBE:
            time_ns = per_cube_ns(self._graph, nbytes, DTYPE, algorithm=algorithm, ccl=self._config, settings=settings)
        else:
            wanted = WantedCollective(self._collective, nbytes, DTYPE)  # type: ignore[arg-type]  # a name of TABLES
            time_ns = measure_alone(
                self._graph, wanted, algorithm=algorithm, ccl=self._config, settings=settings, check=False
            ).time_ns
        return Measurement(nbytes, algorithm, chunk_bytes, time_ns)

    def present(self, nbytes: int, here: Sequence[Measurement]) -> Measurement:
        """What the configuration takes at this size as it is."""
        per = "cube" if self._table == PER_CUBE else "rank"
        now = choose(
            self._config,
            self._collective,  # type: ignore[arg-type]  # names of TABLES
            nbytes,
            per=per,  # type: ignore[arg-type]
            algorithm=AUTO,
            ranks=self._graph.spec.n_sips,
            machine=machine_key(self._graph.spec),
        )
        own = resolve_algorithm_config(self._config, now.algorithm).chunk_bytes
        chunk_bytes = None if now.chunk_bytes == own else now.chunk_bytes
        same = [trial for trial in here if trial[1:3] == (now.algorithm, chunk_bytes)]
        return same[0] if same else self.trial(nbytes, now.algorithm, chunk_bytes)
