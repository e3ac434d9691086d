"""Energy of a run and of its launches, by block: the work counted for timing, times the machine's coefficients.

- MACs and vector ops by element type, and bytes between TCM and the rest of its PE: from the engines' work.
- Bytes on links: a byte is charged on every link of its path. UCIe links are those from die to die, PCIe links those of
  the switch; all other links belong to the NoC.
- Bytes of HBM and far memory in whole bursts, with `area.hbm_place: sram` those of HBM as bytes of SRAM; bytes of SRAM
  as carried by its port, and so those of TCM where tensors lie in it.
- Static power of every block of the machine over the whole run; for a launch, of the blocks of its SIPs over the
  execution time of its kernel.

Work without a coefficient is listed in `not_counted`. A launch is charged for the links of its SIPs while it runs, so
launches that overlap on a SIP both count the link bytes; the figures of the run count everything once, host transfers
included. The peak is the highest average power of a launch or of the run. TCM bytes of messages where tensors lie
elsewhere, register files, instruction control and clock trees are not counted (`kernbench fidelity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import fsum

from kernbench.common.frozen import frozen
from kernbench.common.work_units import BYTES, MACS, VECTOR_OPS
from kernbench.report.link_classes import DIE_TO_DIE, OFF_PACKAGE
from kernbench.report.ranges import FigureRange, exactly, range_of, total
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.launches import Launch
from kernbench.topology.coefficients import coefficient_of
from kernbench.topology.graph import EdgeKind, TopologyGraph
from kernbench.topology.spec import MachineSpec

COMPUTE = {MACS: "pj_per_mac", VECTOR_OPS: "pj_per_vector_op"}
STATIC = "static"

Amounts = dict[str, float]  # key of the coefficient -> MACs, ops or bytes


@frozen
class Energy:
    """Joules by block: `macs`, `vector_ops`, a kind of link or memory, `static`."""

    joules: Mapping[str, float]
    not_counted: tuple[str, ...]  # keys of missing coefficients, for work that was done
    span_ns: float
    low_j: float = 0.0  # with every coefficient at the low end of its range
    high_j: float = 0.0

    @property
    def total_j(self) -> float:
        return fsum(self.joules.values())

    @property
    def work_j(self) -> FigureRange:
        """Without static power."""
        static = self.joules.get(STATIC, 0.0)
        return FigureRange(self.low_j - static, self.total_j - static, self.high_j - static)

    @property
    def average_w(self) -> float:
        return self.total_j / self.span_ns * 1e9 if self.span_ns else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "total_j": self.total_j,
            "low_j": self.low_j,
            "high_j": self.high_j,
            "average_w": self.average_w,
            "joules": dict(self.joules),
            "not_counted": list(self.not_counted),
        }


@frozen
class RunEnergy:
    """A run's energy, that of each launch, and the highest average power of any of them."""

    run: Energy
    launches: tuple[Energy, ...]

    @property
    def peak_w(self) -> float:
        return max(energy.average_w for energy in (self.run, *self.launches))

    def as_json(self) -> dict[str, object]:
        return {**self.run.as_json(), "peak_w": self.peak_w}


def energy_of(result: BenchResult) -> RunEnergy:
    """The energy of a finished run."""
    engine, graph = result.engine, result.engine.graph
    done = _engine_amounts(result.launches)
    for (src, dst), counters in engine.link_counters().items():
        _add_link(done, graph, str(src), str(dst), counters.nbytes)
    hbm = sum(engine.hbm_bytes(sip) for sip in range(graph.spec.n_sips))
    _add(done, _hbm_key(graph.spec), hbm)
    _add(done, "energy.pj_per_byte.far", engine.far_bytes())
    static_w = static_w_of(graph)
    run = _charged(done, graph.spec, result.total_ns, static_w)
    sip_w = {sip: static_w_of(graph, sip) for sip in range(graph.spec.n_sips)}
    return RunEnergy(
        run,
        tuple(_launch_energy(each, graph, fsum(sip_w[sip] for sip in each.sips)) for each in result.launches),
    )


def launches_energy(launches: Iterable[Launch], graph: TopologyGraph, span_ns: float) -> float:
    """Joules of finished launches, plus the static power of the whole machine over `span_ns`."""
    done = fsum(_launch_energy(launch, graph, 0.0).total_j for launch in launches)
    return done + static_w_of(graph) * span_ns * 1e-9


def launches_work(launches: Iterable[Launch], graph: TopologyGraph) -> FigureRange:
    """Joules of the counted work of finished launches, without static power."""
    each = [_launch_energy(launch, graph, 0.0) for launch in launches]
    return total(FigureRange(energy.low_j, energy.total_j, energy.high_j) for energy in each)


def _launch_energy(launch: Launch, graph: TopologyGraph, static_w: float) -> Energy:
    done = _engine_amounts([launch])
    for (src, dst), busy_ns in launch.links.items():
        _add_link(done, graph, src, dst, busy_ns * (graph.edge(src, dst).bw_gbs or 0.0))
    _add(done, _hbm_key(graph.spec), launch.bytes_hbm)
    _add(done, "energy.pj_per_byte.far", launch.bytes_far)
    return _charged(done, graph.spec, launch.exec_ns, static_w)


def _engine_amounts(launches: Iterable[Launch]) -> Amounts:
    """Work of the PEs' engines, and bytes moved between TCM and other memories or registers."""
    done: Amounts = {}
    for launch in launches:
        for use in launch.engines.values():
            for unit, amount in use.amounts.items():
                kind, _, dtype = unit.partition("/")
                _add(done, "energy.pj_per_byte.tcm" if unit == BYTES else f"energy.{COMPUTE[kind]}.{dtype}", amount)
    return done


def _add(done: Amounts, key: str, amount: float) -> None:
    if amount:
        done[key] = done.get(key, 0.0) + amount


def _hbm_key(spec: MachineSpec) -> str:
    """The coefficient of HBM's bytes; where HBM stands for SRAM and has no coefficient of its own, that of SRAM."""
    own = spec.energy.pj_per_byte.hbm is not None
    return f"energy.pj_per_byte.{'sram' if spec.area.hbm_is_sram and not own else 'hbm'}"


def _add_link(done: Amounts, graph: TopologyGraph, src: str, dst: str, nbytes: float) -> None:
    kind = graph.edge(src, dst).kind
    if kind is EdgeKind.ROUTER_TO_CHANNEL:  # inside the PE's router
        return
    if kind is EdgeKind.PE_INTERNAL and graph.spec.cube.home.space == "tcm":  # tensors are there, or arrive there
        _add(done, "energy.pj_per_byte.tcm", nbytes)
        return
    name = "ucie" if kind in DIE_TO_DIE else "pcie" if kind in OFF_PACKAGE else "noc"
    _add(done, f"energy.pj_per_byte.{name}", nbytes)
    if kind is EdgeKind.ROUTER_TO_SRAM:
        _add(done, "energy.pj_per_byte.sram", nbytes)


def _charged(done: Amounts, spec: MachineSpec, span_ns: float, static_w: float) -> Energy:
    joules: dict[str, float] = {}
    missing: list[str] = []
    ranges: list[FigureRange] = [exactly(static_w * span_ns * 1e-9)]
    for key, amount in sorted(done.items()):
        coefficient = coefficient_of(spec, key)
        if coefficient is None:
            missing.append(key)
            continue
        block = _block_of(key)
        joules[block] = joules.get(block, 0.0) + amount * coefficient.value * 1e-12
        ranges.append(range_of(coefficient) * (amount * 1e-12))
    if static_w:
        joules[STATIC] = static_w * span_ns * 1e-9
    else:
        missing.append("energy.static_w")
    ends = total(ranges)
    return Energy(joules, tuple(missing), span_ns, ends.low, ends.high)


def _block_of(key: str) -> str:
    _, group, name = key.split(".")
    return {"pj_per_mac": MACS, "pj_per_vector_op": VECTOR_OPS}.get(group, name)


def static_w_of(graph: TopologyGraph, sip: int | None = None) -> float:
    """Static power of the whole machine, or of the blocks of one SIP."""
    static_w, counts = graph.spec.energy.static_w, dict[str, int]()
    if static_w:
        prefix = "" if sip is None else f"sip{sip}."
        counts = Counter(node.kind for node in graph.nodes.values() if node.id.startswith(prefix))
    return fsum(watts * counts.get(kind, 0) for kind, watts in sorted(static_w.items()))
