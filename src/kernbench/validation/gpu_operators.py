"""Operators on an A100 and an MI210, all-reduce and parts of a GPT-3 layer on four A100: calls of PyTorch.

An operator is one launch on all PEs of a card (`gpu_kernels.py`), from the host's request to its answer; what launching
costs by operator is a parameter of the machine (machine.csv of the data). An all-reduce is pieces that travel a ring of
cards, with each of NCCL's protocols; the faster one counts, as NCCL's own choice. Compared is the time of a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

from kernbench.common.errors import UsageError
from kernbench.common.ids import PeId
from kernbench.components.base import Process
from kernbench.components.builtin.unit_group import UnitGroupComponent
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder
from kernbench.validation.gpu_kernels import batch, gelu, layernorm, product, share_of, softmax

FOLDER = "4_gpu_operators"
MACHINES = {"A100": "a100-like.yaml", "MI210": "mi210-like.yaml"}
PROTOCOLS = ("a100x4-like.yaml", "a100x4-ll.yaml")
FP32_ROWS = ("MI210",)  # softmax and layernorm were measured in fp32 there
OPERATORS, ALL_REDUCE, PREFILL, DECODE = "operators", "all-reduce", "layer prefill", "layer decode"
# Rows of any of them in which launching takes more than half of the simulated time; of an all-reduce, all its software.
LAUNCHED = "launch overhead"
LAUNCH = "cube.pe_template.components.pe_cpu.attrs.overhead_ns"
EVERY_PE = DPPolicy(pe="row_wise", num_cubes=1)
THREADS = 2048  # of an SM or CU that are under way
LAYERNORM_THREADS = 128  # of a row: PyTorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu
WARP, MOST_THREADS, SHORT_ROW = 32, 1024, 1024  # softmax; rows up to the last stay in registers: its SoftMax.cu
TEMPORARIES = 32  # bytes of TCM that a kernel has for each element of a block
LOOP_BYTES = 24 * 4 * (2 << 20)  # NCCL: 24 channels x 4 ranks x chunks of 2 MiB are under way together


class OperatorCase(NamedTuple):
    """A row of a table, without what was measured."""

    regime: str
    name: str
    device: str
    operator: str
    sizes: tuple[int, ...]
    times: int = 1  # launches, one after another
    has_launch: bool = True


class Simulated(NamedTuple):
    """A time, and how much of it is launching."""

    us: float
    launch_us: float


# ------------------------------------------------------------------------------------------------------------- a card


class Card:
    """A machine of this set, for one kind of operator."""

    def __init__(self, device: str, operator: str, has_launch: bool) -> None:
        self.launch_ns = 1000.0 * launch_us(device)[operator] if has_launch else 0.0
        self.graph = machine(MACHINES[device], {LAUNCH: self.launch_ns})
        cube = self.graph.spec.cube
        self.pes = cube.n_pes
        self.group = UnitGroupComponent.cost_of(_given(cube.pe_template.components.pe_gemm.attrs))
        self.l2_bytes = cube.tcm_allocatable_bytes
        self.block = self.l2_bytes // TEMPORARIES
        self.dtype = "f32" if device in FP32_ROWS and operator in ("softmax", "layernorm") else "f16"

    def call_ns(self, operator: str, sizes: tuple[int, ...], times: int) -> float:
        """From the host's first request to its last answer, one call after another."""
        with RuntimeContext(GraphEngine(self.graph)) as torch:
            kernel, arguments = self._kernel(torch, operator, sizes)
            calls = [torch.launch(kernel, *arguments, target_cubes=0, target_pes=range(self.pes)) for _ in range(times)]
            return calls[-1].end_ns - calls[0].start_ns

    def _kernel(self, torch: RuntimeContext, operator: str, sizes: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
        if operator == "matmul":
            return self._product(torch, *sizes)
        x = torch.zeros(*sizes, dtype=self.dtype, dp=EVERY_PE, name="x", preset=True)
        y = torch.empty(*sizes, dtype=self.dtype, dp=EVERY_PE, name="y")
        if operator == "gelu":
            return gelu, (x, y, self.block)
        kernel = softmax if operator == "softmax" else layernorm
        return kernel, (x, y, self.block, self._keeps(operator, sizes[1]))

    def _keeps(self, operator: str, width: int) -> bool:
        """Whether a row is still in registers or in the L2, with what is written, when it is needed again."""
        itemsize = 4 if self.dtype == "f32" else 2
        threads = LAYERNORM_THREADS
        if operator == "softmax":
            if width <= SHORT_ROW:
                return True
            wanted, threads = min(width * itemsize // 16, MOST_THREADS) // 2, WARP
            while threads < wanted:
                threads *= 2
        return self.group.units * (THREADS // threads) * 2 * width * itemsize <= self.l2_bytes

    def _product(self, torch: RuntimeContext, m: int, k: int, n: int, count: int = 1) -> tuple[Any, tuple[Any, ...]]:
        """A batch is split over PEs. Of a single product the longer side of the result is; the operand of the other
        side lies in every PE's memory.
        """

        def placed(name: str, elements: int) -> Tensor:
            return torch.zeros(self.pes, elements, dtype="f16", dp=EVERY_PE, name=name, preset=True)

        group = self.group
        if count > 1:
            each, together = -(-count // self.pes), self._together(m, k, n)
            stacked = (m, n * together) if n >= m else (m * together, n)
            a, b, c = (placed(name, each * size) for name, size in (("a", m * k), ("b", k * n), ("c", m * n)))
            return batch, (a, b, c, m, k, n, count, together, group.tile(*stacked), group.units)
        tile, by_rows = group.tile(m, n), m >= n
        rows, columns = (share_of(m, tile[0], self.pes), n) if by_rows else (m, share_of(n, tile[1], self.pes))
        a, b, c = placed("a", rows * k), placed("b", columns * k), placed("c", rows * columns)
        return product, (a, b, c, m, k, n, tile, group.units, by_rows)

    def _together(self, m: int, k: int, n: int) -> int:
        """How many products of a batch fill the units of a PE, as far as their shorter operands fit the L2."""
        group = self.group
        height, width = group.tile(m, n)
        if n >= m:
            fills = max(group.units // -(-m // height), 1) * group.unit_n // n
        else:
            fills = max(group.units // -(-n // width), 1) * group.unit_m // m
        return max(min(fills, self.l2_bytes // (8 * min(m, n) * k)), 1)


def _given(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if value is not None}


@cache
def card(device: str, operator: str, has_launch: bool) -> Card:
    return Card(device, operator, has_launch)


@cache
def launch_us(device: str) -> dict[str, float]:
    """What launching takes, by operator: a parameter of the machine, of the shipped data."""
    name = f"{device}: launch overhead used by LLMCompass"
    (text,) = [row["value"] for row in DataFolder(FOLDER).rows("machine.csv") if row["parameter"] == name]
    return {operator: float(us) for operator, us in re.findall(r"(\w+) ([\d.]+)", text)}


# --------------------------------------------------------------------------------------------------------- all-reduce


class Ring:
    """A ring over all cards of a machine: each sends pieces to the next, whose software passes them on."""

    def __init__(self, graph: TopologyGraph) -> None:
        wiring, parts = wiring_of(graph), graph.spec.cube.pe_template.components.parts
        self._cards = graph.spec.n_sips
        self._start_ns = parts["pe_cpu"].number_attr("overhead_ns")
        self._wake_ns = parts["pe_ipcq"].number_attr("wake_ns")
        self._network = GraphEngine(graph).fabric.network
        ends = [
            (str(PeId(at, 0, 0)), wiring.resolver.find_hbm_ctrl((at + 1) % self._cards, 0, 0))
            for at in range(self._cards)
        ]
        self._routes = [self._network.route(wiring.router.find_path(*pair)) for pair in ends]

    @cached_property
    def empty_us(self) -> float:
        """What software takes: an all-reduce of next to nothing."""
        return self.all_reduce_us(self._cards)

    def all_reduce_us(self, nbytes: int) -> float:
        env = FabricEnvironment(Fabric(self._network))
        env.process(self._loops(env, nbytes))
        env.run()
        return float(env.now) / 1000.0

    def _loops(self, env: FabricEnvironment, nbytes: int) -> Process:
        """What is under way together, loop after loop: a piece of each card."""
        yield env.timeout(self._start_ns)
        for first in range(0, nbytes, LOOP_BYTES):
            piece = -(-min(LOOP_BYTES, nbytes - first) // self._cards)
            yield env.all_of([env.process(self._around(env, at, piece)) for at in range(self._cards)])

    def _around(self, env: FabricEnvironment, at: int, nbytes: int) -> Process:
        """Once around to be added to, once more to be copied."""
        for step in range(2 * (self._cards - 1)):
            yield env.transfer(self._routes[(at + step) % self._cards], nbytes)
            yield env.timeout(self._wake_ns)


@cache
def rings(cards: int) -> tuple[Ring, ...]:
    return tuple(Ring(machine(name, {"system.sips.count": cards})) for name in PROTOCOLS)


# -------------------------------------------------------------------------------------------------------------- tables


def read_calls(data: DataFolder) -> Iterator[tuple[OperatorCase, float | None]]:
    """The calls of all tables, with what was measured in us; raises UsageError for a row that is none."""
    readers = {
        "matmul.csv": _matmul, "softmax.csv": _normalised, "layernorm.csv": _normalised, "gelu.csv": _gelu,
        "allreduce_a100x4.csv": _all_reduce, "transformer_layer_a100x4.csv": _layer_part,
    }  # fmt: skip
    for name, read in readers.items():
        for row in data.rows(name):
            try:
                call = read(row, name.removesuffix(".csv"))
                if min(call.sizes) < 1 or call.times < 1:
                    raise ValueError(f"{call.name}: sizes are 1 or more")
            except (KeyError, TypeError, ValueError) as error:
                what = f"'{name}' has a row that cannot be simulated: {error}"
                raise UsageError(what, hint="the layout is that of the validation data: see its README") from None
            measured = row.get("latency_us") or row.get("latency_us_derived")
            yield call, float(measured) if measured else None


def _device(row: Mapping[str, str]) -> str:
    if row["device"] not in MACHINES:
        raise ValueError(f"device {row['device']!r} is none of {', '.join(MACHINES)}")
    return row["device"]


def _matmul(row: Mapping[str, str], operator: str) -> OperatorCase:
    m, k, n = (int(row[side]) for side in "mkn")
    return OperatorCase(OPERATORS, f"{_device(row)} matmul {m} x {k} x {n}", _device(row), operator, (m, k, n))


def _normalised(row: Mapping[str, str], operator: str) -> OperatorCase:
    rows, width = int(row["m_rows"]), int(row["n_normalised"])
    sweep = row.get("sweep", "")  # both sweeps may have the same sizes
    name = f"{_device(row)} {operator} {rows} x {width}, sweep {sweep}"
    return OperatorCase(OPERATORS, name, _device(row), operator, (rows, width))


def _gelu(row: Mapping[str, str], operator: str) -> OperatorCase:
    elements = int(row["elements"])
    return OperatorCase(OPERATORS, f"{_device(row)} gelu {elements}", _device(row), operator, (elements,))


def _all_reduce(row: Mapping[str, str], _: str) -> OperatorCase:
    n, nbytes = int(row["n"]), int(row["size_bytes"])
    if row["collective"] != "all_reduce" or n < 2:
        raise ValueError(f"{row['collective']} over {n}")
    return OperatorCase(ALL_REDUCE, f"all_reduce of {nbytes} B over {n}", "A100", "all_reduce", (nbytes, n))


FORMS = (
    (r"(?:(\d+) x \()?m=(\d+) k=(\d+) n=(\d+)\)?", "matmul"),
    (r"(\d+) rows of (\d+)", ""),
    (r"(\d+) B over (\d+)", "all_reduce"),
    (r"(\d+) elements", "gelu"),
)


def _layer_part(row: Mapping[str, str], _: str) -> OperatorCase:
    phase, part, shape = row["phase"], row["part"], row["shape_per_device"].strip()
    regime, name = {"prefill": PREFILL, "decode": DECODE}[phase], f"{phase} {part}, {shape}"
    has_launch = row.get("launch_overhead_subtracted") != "yes"
    for form, operator in FORMS:
        found = re.fullmatch(form, shape)
        if found and operator == "matmul":
            count, m, k, n = (int(size or 1) for size in found.groups())
            if part == "Q_K_V":  # one product, measured once and counted so many times
                return OperatorCase(regime, name, "A100", operator, (m, k, n), count, has_launch)
            return OperatorCase(regime, name, "A100", operator, (m, k, n, count), 1, has_launch)
        if found:
            operator = operator or ("softmax" if part.startswith("Softmax") else "layernorm")
            return OperatorCase(regime, name, "A100", operator, tuple(map(int, found.groups())), 1, has_launch)
    raise ValueError(f"shape {shape!r} of part {part}")


# ---------------------------------------------------------------------------------------------------------- the set


@cache
def simulated_us(device: str, operator: str, sizes: tuple[int, ...], times: int, has_launch: bool) -> Simulated:
    """How long a call takes, and how much of that is launching it."""
    if operator == "all_reduce":
        nbytes, cards = sizes
        return min(Simulated(ring.all_reduce_us(nbytes), ring.empty_us) for ring in rings(cards))
    found = card(device, operator, has_launch)
    return Simulated(found.call_ns(operator, sizes, times) / 1000.0, times * found.launch_ns / 1000.0)


def simulated(call: OperatorCase) -> tuple[CaseName, float]:
    """A call's case and time. Where launching takes more than half of the time, the row is of a regime of its own."""
    found = simulated_us(*call[2:])
    regime = LAUNCHED if 2 * found.launch_us > found.us else call.regime
    return (regime, call.name), found.us


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    calls = [call for call, _ in read_calls(data)]
    found: dict[CaseName, float] = {}
    for number, call in enumerate(calls, 1):
        show(f"gpu_operators {number}/{len(calls)}")
        case, us = simulated(call)
        found[case] = us
    order = (OPERATORS, ALL_REDUCE, PREFILL, DECODE, LAUNCHED)
    return dict(sorted(found.items(), key=lambda each: order.index(each[0][0])))


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    return {simulated(call)[0]: us for call, us in read_calls(data) if us is not None}


SET = ValidationSet(
    name="gpu_operators",
    title="Operators and a GPT-3 layer on GPUs",
    folder=FOLDER,
    machine="",
    quantity="time of a call, us",
    unit="pct",
    fitted=(
        "share of the A100's matrix peak 0.965 (products of 256 rows and more)",
        "share of the MI210's matrix peak 0.68 (products of 512 rows and more)",
        "share of the MI210's memory bandwidth 0.78 (layernorm of 4096 columns)",
        "share of the vector lanes' peak 0.7 on both (softmax on the A100)",
        "passes of an error function 49 on the MI210 (gelu there)",
    ),
    differs=(
        "all constants were fitted to rows of these tables. A PE stands for a quarter of a card: L2, warps and the "
        "insides of an SM are not modelled, and rows are read again or not by one rule. What libraries choose is not "
        "known: products of few rows take twice as long on the MI210 as its memory needs, and rows of 32768 elements "
        "are slower on both cards. Of NCCL's protocols LL128 is left out. The time of launching is LLMCompass's by "
        "operator, and rows that it dominates say little"
    ),
    peers=(
        OtherSimulator(
            "LLMCompass", "10.4 % operators, 4.1 % inference", "its own validation, on all of these measurements"
        ),
    ),
    source=(
        "PrincetonUniversity/LLMCompass, ae/figure5, commit 2e015fd; figures only, BSD-3-Clause, (c) 2024 Princeton "
        "University"
    ),
    simulate=simulate,
    measured=measured,
)
