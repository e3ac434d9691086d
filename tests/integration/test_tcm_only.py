"""Machines without HBM whose tensors lie in the TCM of the PEs: times by hand, values, fast paths, refusals."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from tests.home_memory import program_in

import kernbench
from kernbench.benches.llm_layer import llm_layer
from kernbench.benches.registry import resolve
from kernbench.cli.main import main
from kernbench.common.errors import AllocationError, KernBenchError, TopologyError, UsageError
from kernbench.common.messages import PeDmaMsg
from kernbench.models.bounds import Need, rates_of
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.probes.probe import run_probe
from kernbench.report.diagrams import machine_views
from kernbench.report.energy import energy_of
from kernbench.report.explain.hints import own_memory
from kernbench.report.memory_times import home_name
from kernbench.report.roofline import peak_of, roofline_of
from kernbench.report.silicon import area_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

HBM_KEY, HOME_KEY = "cube.memory_map.hbm_total_gb_per_cube", "cube.memory_map.tcm_home_mb_per_pe"
AT_HOME_IN_TCM = {HBM_KEY: 0, HOME_KEY: 0.5}  # of 2 MiB; the scheduler has 1
ONE_CUBE = {
    **AT_HOME_IN_TCM,
    "system": {"sips": {"count": 1}, "ns_per_mm": 0.0},
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
}
TWO_SIPS = {
    **AT_HOME_IN_TCM,
    "system.sips.count": 2,
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
}
NARROW = {"cube.pe_template.links": {"tcm_read_bw_gbs": 128, "tcm_write_bw_gbs": 64}}


def times_of(machine: dict[str, Any], *accesses: tuple[int, int], is_write: bool = False) -> list[float]:
    """When accesses of 8 KiB are done that begin together, each by a PE to the TCM of a PE."""
    engine = GraphEngine(load_topology(None, machine))
    layout = engine.graph.spec.address_layout
    handles = [
        engine.submit(
            PeDmaMsg(
                src_sip=0, src_cube=0, src_pe=pe, nbytes=8192, is_write=is_write,
                dst_pa=PhysAddr.pe_tcm_addr(0, 0, holder, 8192 * pe, layout).encode(),
            )
        )
        for pe, holder in accesses
    ]  # fmt: skip
    for handle in handles:
        engine.wait(handle)
    return [engine.get_completion(handle)[1]["total_ns"] for handle in handles]


def test_a_pe_reads_and_writes_its_own_tcm_at_the_rate_of_its_ports() -> None:
    """No router is passed: bytes over the port, and nothing else."""
    assert times_of(ONE_CUBE | NARROW, (0, 0)) == [8192 / 128]
    assert times_of(ONE_CUBE | NARROW, (0, 0), is_write=True) == [8192 / 64]


def test_the_tcm_of_another_pe_is_reached_over_the_noc() -> None:
    """Two routers of 2 ns there and back; the narrowest link is the DMA port of 256 GB/s; a flit on the others."""
    (ns,) = times_of(ONE_CUBE, (1, 0))
    assert ns == 2 * 2 * 2 + 8192 / 256 + 256 / 512 + 256 / 256 + 256 / 256


def test_a_pe_and_its_neighbour_share_the_port_of_a_tcm() -> None:
    """Both read 8 KiB over 128 GB/s. The own request is there first; the bytes of the other follow it, and then cross
    two routers of 2 ns, and three links that are faster.
    """
    own, of_the_other = times_of(ONE_CUBE | NARROW, (0, 0), (1, 0))
    assert own == 8192 / 128
    assert of_the_other == 16384 / 128 + 2 * 2 + 3 * 256 / 256


def test_the_formula_of_the_probe_holds() -> None:
    report = run_probe(load_topology(None, TWO_SIPS), None, 4096, sweep=False)
    assert [check.name for check in report.checks if not check.ok] == []
    names = {
        "h2d-1hop",
        "d2h-1hop",
        "pe-tcm",
        "pe-same-cube-tcm-write",
        "pe-cross-cube-tcm",
        "pe-cross-sip-tcm",
        "contention-all-to-tcm",
    }
    assert names <= {case.name for case in report.cases}


@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_kernels_and_collectives_are_right_and_fast_paths_change_nothing(model: str) -> None:
    machine = TWO_SIPS | {HOME_KEY: 0.25, "system.address_model": model}
    assert kernbench.run(program_in("tcm"), overrides=machine, device="whole", check_fast=True).ok


def test_a_kernel_cannot_have_the_part_of_tensors() -> None:
    """2 MiB less 1 of the scheduler and 0.5 of tensors, whether or not there are any."""

    def fill(x: Any, n: int, tl: Any) -> None:
        tl.zeros((n,), "i8")

    with RuntimeContext(GraphEngine(load_topology(None, ONE_CUBE))) as torch:
        x = torch.zeros(8, dtype="f32")
        torch.launch("fits", fill, x, 512 * 1024)
        with pytest.raises(KernBenchError, match="TCM overflow"):
            torch.launch("too much", fill, x, 512 * 1024 + 16)


def test_products_stream_their_operands_from_tcm() -> None:
    def product(a: Any, b: Any, c: Any, tl: Any) -> None:
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c))

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    with RuntimeContext(GraphEngine(load_topology(None, ONE_CUBE))) as torch:
        left, right = torch.from_numpy(a), torch.from_numpy(b)
        out = torch.empty(64, 64)
        torch.launch("product", product, left, right, out, target_pes=1)  # all three are at home on PE 0
        assert (out.numpy() == a.astype(np.float32) @ b).all()


@pytest.mark.parametrize("bench", ["gemm-single-pe", "matmul-composite"])
def test_shipped_products_run_with_their_defaults(bench: str) -> None:
    """The default layout says how tiles lie in HBM; it was refused for TCM."""
    assert kernbench.run(resolve(bench).run, overrides=ONE_CUBE, params={"m": 32, "k": 32, "n": 32}).ok


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda torch: torch.zeros(8, space="hbm"), UsageError, "a tensor in HBM, and this machine has none"),
        (lambda torch: torch.zeros(600 << 10, dtype="i8"), AllocationError, "sip0.cube0.pe0 TCM for tensors overflow"),
        (
            lambda torch: torch.zeros(8, 8, space="sram", dp=DPPolicy(pe="row_wise")),
            UsageError,
            "a tensor in SRAM with",
        ),
    ],
    ids=["space", "room", "split"],
)
def test_what_does_not_fit_is_refused(make: Any, error: type[KernBenchError], what: str) -> None:
    with RuntimeContext(GraphEngine(load_topology(None, ONE_CUBE))) as torch, pytest.raises(error, match=what):
        make(torch)


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        ({HBM_KEY: 48}, HBM_KEY, "0.5 MB of each TCM are to be the home of tensors, and they lie in HBM"),
        (
            {HOME_KEY: 1.5},
            HOME_KEY,
            "1 MB kept and 1.5 MB for tensors of a TCM of 2 MB leaves nothing",
        ),
        (
            {HOME_KEY: 8, "cube.memory_map.tcm_scheduler_reserved_mb": 1},
            HOME_KEY,
            "1 MB kept and 8 MB for tensors of a TCM of 2 MB leaves nothing",
        ),
        (
            {"cube_types.bare.memory_map.tcm_home_mb_per_pe": 0, "sip.cube_types.bare": [0]},
            "cube_types.bare.memory_map.tcm_home_mb_per_pe",
            "the type 'bare' differs from cube in tcm_home_mb_per_pe",
        ),
    ],
    ids=["hbm", "nothing left", "too large", "types"],
)
def test_a_description_that_contradicts_itself_is_refused(changes: dict[str, Any], key: str, what: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, ONE_CUBE | changes)
    (fault,) = caught.value.faults
    assert (fault.key, fault.what) == (key, what)


LAYER = {
    **AT_HOME_IN_TCM,
    "system.sips.count": 1,
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.memory_map.tcm_mb_per_pe": 4,
    "cube.pe_layout.pe_per_corner": 1,
}


@pytest.mark.parametrize(
    ("phase", "tcm_mb"),
    [("prefill", 1.75), ("decode", 4)],  # with 1.75 kernels have 0.25, less than collectives would keep
)
def test_llm_layer_keeps_its_weights_in_tcm(phase: Literal["prefill", "decode"], tcm_mb: float) -> None:
    rows: list[Any] = []

    def bench(torch: RuntimeContext) -> None:
        rows[:] = llm_layer(torch, phase=phase, **({"tokens": 4} if phase == "prefill" else {}))

    machine = {**LAYER, "cube.memory_map.tcm_mb_per_pe": tcm_mb}
    result = kernbench.run(bench, overrides=machine, device="whole", verify_data=True, check_fast=True)
    assert result.ok
    figures = {row["figure"]: row["value"] for row in rows if "figure" in row}
    assert figures["fits"] is True
    assert figures["memory there per SIP"] == 2 * 4 * 2**19 / 1e9
    assert figures["fullest TCM, this layer"] > 0.1
    parts = [row for row in rows if "part" in row and row["bound"] != "-"]
    assert {row["bound"] for row in parts} <= {"TCM", "compute"}
    assert "TCM" in {row["bound"] for row in parts}
    assert all(0 < row["bound_us"] <= row["mapping_bound_us"] <= row["time_us"] for row in parts)
    assert sum(launch.bytes_hbm for launch in result.launches) == 0
    graph = result.engine.graph
    rooflines = [roofline_of(launch, graph) for launch in result.launches]
    assert {roofline.memory for roofline in rooflines} == {"TCM"}
    assert all(0 <= roofline.share <= 1 for roofline in rooflines)
    assert max(roofline.memory_ns / roofline.exec_ns for roofline in rooflines if roofline.exec_ns) > 0.2


@pytest.mark.parametrize("mapping", ["auto", "columns", "decode"])
def test_one_sip_with_little_tcm_runs_a_layer_in_parts_without_the_tcm_of_collectives(mapping: str) -> None:
    """As examples/machines/ipu-like.yaml, of whose PEs kernels have 240 KiB; experts are never one launch."""
    machine = {**LAYER, "cube.memory_map.tcm_mb_per_pe": 1.75}

    def bench(torch: RuntimeContext) -> None:
        llm_layer(torch, model="tiny-mixtral", phase="decode", batch=2, mapping=mapping)

    assert kernbench.run(bench, overrides=machine, device="whole", verify_data=True).ok


def test_the_bound_of_a_layer_takes_the_ports_of_tcm() -> None:
    """Eight PEs read 128 GB/s each and write 64, without the port of their DMA."""
    spec = load_topology(None, LAYER | NARROW).spec
    rates = rates_of(spec)
    assert (rates.memory, rates.hbm_bytes, rates.port_bytes, rates.written_bytes) == ("TCM", 1536.0, 1024.0, 512.0)
    assert Need(read_bytes=10240.0, written_bytes=1024.0).bound(rates) == ("TCM", 10.0)
    assert Need(read_bytes=1024.0, written_bytes=10240.0).bound(rates) == ("TCM", 20.0)
    assert peak_of(spec).gbs == 1024.0


def test_a_layer_that_does_not_fit_is_refused_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", "llm-layer", "--param", "model=llama3-8b", "--param", "tp=1", "--set", f"{HBM_KEY}=0",
              "--set", f"{HOME_KEY}=0.5"])  # fmt: skip
    assert stopped.value.code == 2
    what = "one layer of llama3-8b has 416.0 MiB of weights, and the TCM of 1 SIP of 'default' has 64 MiB"
    assert what in capsys.readouterr().err


def test_reports_name_the_memory() -> None:
    graph = load_topology(None, TWO_SIPS)
    assert (home_name(graph.spec), own_memory(graph.spec)) == ("TCM", "the PE's own TCM")
    details = {node.detail for node in machine_views(graph.spec)["sip"].nodes if node.kind == "cube"}
    assert details == {"2 PEs, 1 MB TCM"}


def test_the_bits_of_tcm_are_counted_once_and_its_home_bytes_cost_energy() -> None:
    """The silicon of a TCM that is all scratch. A load reads its bytes in one part and writes them in the other, and
    passes no link of the NoC.
    """

    def load(x: Any, tl: Any) -> None:
        tl.load(x.local, (64, 64))

    def bench(torch: Any) -> None:
        x = torch.zeros(64, 64, dtype="f16")
        torch.launch("load", load, x, target_pes=0)

    machines = ONE_CUBE, ONE_CUBE | {HOME_KEY: 0}
    found = [energy_of(kernbench.run(bench, overrides=each, device="whole")).launches[0].joules for each in machines]
    in_tcm, in_sram = found
    assert in_tcm["tcm"] == 2 * in_sram["tcm"] > 0
    assert "noc" not in in_tcm
    assert in_sram["noc"] > 0
    areas = [area_of(load_topology(None, ONE_CUBE | {HOME_KEY: mb})).counted for mb in (0, 0.5)]
    assert areas[0] == areas[1]
