"""PEs that were to start and were not start late, as if they had started in time: logs, times, results and counters are
those of the plain run, whatever makes them start, at any instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from kernbench.common.messages import MemoryReadMsg, MemoryWriteMsg, PeDmaMsg, PeResult
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.observation import Observation, Observer, first_difference
from kernbench.sim_engine import machine as machine_module
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

PES = 3
HALF = 1 << 18  # bytes of each tensor on a PE
HELD = (1, 0)  # SIP and cube


def machine(**changes: object):
    small = {"system.name": "late", "system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
    return load_topology(None, {**small, **changes})


GRAPH = machine()


class LateStart:
    """Holds the PEs of the first launch on a SIP, or on one cube, and starts them when asked, or when interrupted."""

    def __init__(self, engine: GraphEngine, cube: int | None, answers: dict[tuple[int, ...], PeResult]) -> None:
        self._engine = engine
        self._cube = cube
        self._answers = answers
        self._turns: list[tuple[object, object]] = []
        self._reservation = None
        self._begin_ns = 0.0
        self.is_over = False
        self.from_ns: float | None = None  # when they were started, if that was late

    def begin(self, cpu, turn, at_ns: float) -> None:
        if self.is_over or cpu.key[0] != HELD[0] or self._cube not in (None, cpu.key[1]):
            self._engine.at(at_ns, cpu.start_job, turn)
            return
        if not self._turns:
            self._begin_ns = at_ns
            self._engine.at(at_ns, self._own, None)
        assert at_ns == self._begin_ns
        self._turns.append((cpu, turn))

    def interrupt(self, sips=None) -> None:
        """Asked for counters, or notified of an abort: this one starts for the network's sake only."""

    def start(self) -> None:
        if self._reservation is not None and not self.is_over:
            self._reservation.release()
            self._go_back(0.0)

    def _own(self, _: object) -> None:
        network, nodes = self._engine.fabric.network, self._engine.graph.nodes
        inside = {id_ for id_, node in nodes.items() if self._is_inside(node.place)}
        links = [
            link
            for link, (a, b) in enumerate(network.link_ends)
            if network.names[a] in inside and network.names[b] in inside and network.bw_gbs[link] is not None
        ]
        channels = [network.names[node] for node in self._engine.fabric.engine.groups if network.names[node] in inside]
        self._reservation = self._engine.fabric.reserve(links, channels, self._go_back)
        assert self._reservation is not None
        for cpu, turn in self._turns:
            if cpu.key in self._answers:
                self._engine.at(self._answers[cpu.key].end_ns, self._answer, (cpu, turn))

    def _is_inside(self, place) -> bool:
        return place.sip == HELD[0] and self._cube in (None, place.cube)

    def _answer(self, held) -> None:
        cpu, turn = held
        if not self.is_over:
            turn.is_answered = True
            turn.answer(self._answers[cpu.key])
            if all(held.is_answered for _, held in self._turns):
                self.start()  # the host may ask what they have done

    def _go_back(self, _: float) -> None:
        self.is_over = True
        self.from_ns = self._engine.fabric.now
        self._engine.env.rewind(self._begin_ns, self._start)

    def _start(self) -> None:
        for cpu, turn in self._turns:
            cpu.start_job(turn)


@dataclass
class Outcome:
    """What can be seen of a run."""

    seen: Observation
    late: LateStart | None
    begin_ns: float
    events: int

    @property
    def pes(self) -> Sequence[PeResult]:
        return self.seen.launches[0].pes

    def times(self) -> list[float]:
        """Every instant at which something began or ended on the SIP that is held."""
        assert self.seen.log is not None
        found = {
            ns
            for op in self.seen.log.records
            if op.component_id.startswith("sip1.cube")
            for ns in (op.t_start, op.t_end)
        }
        return sorted(ns for ns in found if ns > self.begin_ns)


Other = Callable[[GraphEngine, LateStart | None], object]  # what else happens, and its answer


def run(
    graph,
    program,
    *,
    late: bool = False,
    cube: int | None = None,
    other: tuple[float, Other] | None = None,
    by: str = "call",
    known: Outcome | None = None,
    fast: bool = True,
) -> Outcome:
    """A launch on both SIPs; at some time `other` happens, in a call, a process, or between two steps."""
    engine = GraphEngine(graph, op_log=OpLog(), data=False, fast=fast)
    results = {(r.sip, r.cube, r.pe): r for r in known.pes} if known is not None else {}
    held = LateStart(engine, cube, results) if late else None
    engine.launch_replayer = held
    handles = []

    def happen(_: object = None) -> None:
        assert other is not None
        handles.append(other[1](engine, held))

    def process(at_ns: float):
        yield engine.env.timeout(at_ns - engine.env.now)
        happen()

    def kernel(x0, y0, x1, y1, tl):
        sip = tl.program_id(2)
        x, y = ((x0, y0), (x1, y1))[sip]
        me = tl.program_id(1) * PES + tl.program_id(0)
        program(tl, sip, me, x + me * HALF, y + me * HALF, x1 + me % PES * HALF, held)

    with RuntimeContext(engine) as torch:
        dp = DPPolicy(cube="row_wise", pe="row_wise", num_pes=PES)
        tensors = []
        for sip in (0, 1):
            torch.ahbm.set_device(sip)
            tensors += [torch.empty(2 * PES, HALF // 2, dp=dp) for _ in range(2)]
        launch = torch.launch(
            "k", kernel, *tensors, sips=(0, 1), target_cubes=(0, 1), target_pes=range(PES), wait=False
        )
        begin_ns = engine.now_ns
        if other is not None:
            if by == "call":
                engine.at(other[0], happen, None)
            elif by == "process":
                engine.env.process(process(other[0]))
            else:
                while engine.env.peek() <= other[0]:
                    engine.env.step()
                happen()
        torch.wait(launch)
        for handle in handles:
            if handle is not None:
                torch.engine.wait(handle)
    seen = Observer(torch).take([handle.end_ns for handle in handles if handle is not None])
    return Outcome(seen, held, begin_ns, engine.fabric.events)


# ---- what kernels do


def random_program(
    seed: int, *, across: bool = False, crosses: bool = False, tells: bool = False, interferes_after: int = 0
):
    """Loads, stores, products, exponentials, of one's own slice and of others in the cube; the same on every run.

    `across`: of another cube, too. SIP 0 `crosses` to the other one, or `tells` those that are held to start; with
    `interferes_after`, the other cube of the held SIP crosses, after so many cycles.
    """

    def program(tl, sip, me, x, y, far, held) -> None:
        rng = random.Random(f"{seed}/{me}")  # both SIPs in step
        kinds = ["load", "store", "gemm", "gemm", "async", "exp", "strided", "cycles", "neighbour", "across"]
        steps = rng.randint(2, 4)
        if interferes_after and sip == 1 and me >= PES:
            tl.cycles(interferes_after)
            tl.load(far, (16, 64))  # a request that departs when it is there: an event of the fabric
        for step in range(steps):
            if (crosses or tells) and sip == 0 and step == steps // 2 and me == seed % (2 * PES):
                if crosses:
                    tl.load(far, (16, 64))
                elif held is not None:
                    held.start()
            what = rng.choice(kinds[: len(kinds) - (not across)])
            m, n = rng.choice([8, 32, 70]), rng.choice([16, 64, 200])
            if what == "load":
                tl.load(x + 64 * rng.randint(0, 9), (m, n))
            elif what == "store":
                tl.store(y, tl.zeros((m, n), "f16"))
            elif what in ("gemm", "async"):
                handle = tl.composite("gemm", tl.ref(x, (m, 128)), tl.ref(x, (128, n)), y + 4096)
                if what == "gemm":
                    tl.wait(handle)
            elif what == "exp":
                tl.store(y, tl.exp(tl.load(x, (m, n))))
            elif what == "strided":
                tl.load(x, (8, 32), strides=(200, 1))
            elif what == "neighbour":
                tl.load(x - HALF if me % PES else x + HALF, (m, n))
            elif what == "across":
                tl.load(x + (PES if me < PES else -PES) * HALF, (m, n))
            else:
                tl.cycles(rng.randint(1, 300))
        tl.wait()

    return program


def write_of_host(engine, _held):
    pa = PhysAddr.pe_hbm_addr(1, 0, 1, 4096, engine.graph.spec.cube.hbm_slice_bytes).encode()
    return engine.submit(MemoryWriteMsg(dst_sip=1, dst_cube=0, dst_pe=1, dst_pa=pa, nbytes=3000))


def read_of_host(engine, _held):
    pa = PhysAddr.pe_hbm_addr(1, 0, 0, 512, engine.graph.spec.cube.hbm_slice_bytes).encode()
    return engine.submit(MemoryReadMsg(src_sip=1, src_cube=0, src_pe=0, src_pa=pa, nbytes=2000))


def read_of_pe(engine, _held):
    pa = PhysAddr.pe_hbm_addr(1, 0, 0, 0, engine.graph.spec.cube.hbm_slice_bytes).encode()
    return engine.submit(PeDmaMsg(0, 0, 5, pa, 5000))


def tell(_engine, held):
    if held is not None:
        held.start()


def same(late: Outcome, plain: Outcome) -> None:
    assert late.late is not None
    assert late.late.is_over
    assert first_difference(plain.seen, late.seen) is None


# ---- any interfering access, at any instant


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("place", "by"), list(enumerate(["call", "process", "between"])))
def test_at_instants_of_a_launch(place, by, fast):
    """Started at the instants at which its ops begin and end: in a call, in a process, between two steps."""
    program = random_program(1)
    plain = run(GRAPH, program, fast=fast)
    for at_ns in plain.times()[2 * place + fast :: 36]:
        late = run(GRAPH, program, late=True, other=(at_ns, tell), by=by, known=plain, fast=fast)
        assert late.late.from_ns >= at_ns  # between steps: at what came next
        same(late, plain)


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@pytest.mark.parametrize(
    ("other", "cube", "compile_after"),
    [
        (write_of_host, None, 0),
        (write_of_host, 0, 1 << 30),
        (read_of_host, None, 399),
        (read_of_host, 0, 0),
        (read_of_pe, None, 1 << 30),
        (read_of_pe, 0, 399),
    ],
)
def test_an_interfering_access_changes_nothing(other, cube, compile_after, monkeypatch):
    """At an arbitrary moment, and so that it comes at the instant of an op; with and without a compiled loop."""
    monkeypatch.setattr(machine_module, "MANY_EVENTS", compile_after)
    seed = compile_after + (cube is None)
    program, fast = random_program(seed, across=cube is None), seed % 3 > 0
    times = (plain := run(GRAPH, program, fast=fast)).times()
    begin_ns = times[len(times) // 3] + 7.25
    for _ in range(2):
        plain = run(GRAPH, program, other=(begin_ns, other), fast=fast)
        late = run(GRAPH, program, late=True, cube=cube, other=(begin_ns, other), known=plain, fast=fast)
        same(late, plain)
        begin_ns += times[len(times) // 2] - late.late.from_ns


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@pytest.mark.parametrize(("seed", "cube"), [(3, None), (8, 0)])
@pytest.mark.parametrize("what", ["crosses", "tells"])
def test_a_kernel_of_another_sip_interferes(seed, cube, what):
    program = random_program(seed, across=cube is None, **{what: True})
    plain = run(GRAPH, program)
    late = run(GRAPH, program, late=True, cube=cube, known=plain)
    assert late.late.from_ns < max(pe.end_ns for pe in plain.pes if pe.sip == 1)
    same(late, plain)


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@pytest.mark.parametrize(("seed", "compile_after"), [(2, 0), (4, 399), (6, 1 << 30)])
def test_a_kernel_of_another_cube_interferes(seed, compile_after, monkeypatch):
    monkeypatch.setattr(machine_module, "MANY_EVENTS", compile_after)
    for cycles in (37, 160 + seed):
        program = random_program(seed, interferes_after=cycles)
        plain = run(GRAPH, program, fast=seed > 2)
        same(run(GRAPH, program, late=True, cube=0, known=plain, fast=seed > 2), plain)


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
def test_without_interference():
    """They start when the last of them has been answered for."""
    plain = run(GRAPH, random_program(5))
    late = run(GRAPH, random_program(5), late=True, known=plain)
    assert late.late.from_ns == max(pe.end_ns for pe in plain.pes if pe.sip == 1)
    same(late, plain)
