"""Matrix products on the cores of a Wormhole and a Blackhole, issued again: reads, multicasts and products of blocks.

Core (x, y) of the grid makes some tiles of the result, block by block along k. One core of each row reads the row's
blocks of the first operand from DRAM, or has them in its L1, and multicasts them along the row; one of each column does
so with the second operand. Blocks have two buffers, so reading, sending and multiplying overlap. How products are
blocked is given for tuned ones; those out of the box follow the vendor's rule. Compared are the cycles of the math
kernel, as a mean over cores: it waits for operands, and results are on their way when it ends. Of many passes over the
result the first three are simulated, and the others repeat the third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from simpy.events import Event

from kernbench.common.errors import UsageError
from kernbench.components.base import Process
from kernbench.components.builtin.tile_core import TileCore
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, Network, Transfer
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.plain_network import plain_network
from kernbench.topology.network import NetworkTopology, TilePosition
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder

SIDE = 32  # of a tile, in elements
TILE_BYTES = {"BFLOAT16": 2048, "BFLOAT8_B": 1088, "BFLOAT4_B": 576}
MACHINES = {"n150": "wormhole-tensix.yaml", "p150": "blackhole-tensix.yaml"}
BUFFERS = 2  # blocks of an operand that a core holds
SIMULATED_PASSES = 3  # over the result; a further one repeats the last of these
COARSE_TILES, COARSE_BYTES = 64, 2048  # where the blocks of a step have so many tiles, a flit is a whole tile
MOST_K = 4  # tiles of a k block out of the box
WIDE = 4  # times as wide as high: the first operand goes to all cores where every one gets whole columns of tiles
FIRST_NOC, SECOND_NOC = "NOC_1", "NOC_0"


class ProductCase(NamedTuple):
    """A row of the table, without what was measured: sizes in tiles."""

    board: str
    m: int
    k: int
    n: int
    columns: int  # of cores
    rows: int
    tile_bytes: int
    fidelity: str
    first_in: str  # "shards" in the L1 of the cores that send them, or tiles in turn in "L1" or "DRAM"
    second_in: str
    is_written: bool  # the result goes to DRAM
    core_m: int
    core_n: int
    k_block: int
    out_h: int  # passes over the result
    out_w: int
    is_wide: bool  # the first operand goes to all cores, and each reads its own part of the second


class Blocks(NamedTuple):
    """One operand of some cores: its sender and receivers, and which tiles a block has."""

    noc: str
    sender: Callable[[int], int]
    members: Sequence[int]
    tiles: Callable[[int], Sequence[int]] | None  # none where they are in the sender's L1
    memory: str
    n_tiles: int  # of a block
    arrived: list[Event]
    used: list[Event]
    left: list[int]


class Multiply:
    """One product on a machine that does nothing else."""

    def __init__(self, topology: NetworkTopology, network: Network, product: ProductCase) -> None:
        self._topology, self._network, self._product = topology, network, product
        cores = topology.network.cores
        assert cores is not None
        self._cores = cores
        macs_per_ns = {each.name: each.macs_per_ns for each in cores.fidelities}[product.fidelity]
        self._core = TileCore(
            macs_per_ns,
            cores.side,
            cores.tile_overhead_ns,
            cores.pack_ns,
            cores.operand_gbs,
            cores.issue_ns,
            cores.clock_ghz,
        )
        self._env = FabricEnvironment(Fabric(network))
        self._at: list[TilePosition] = [
            (cores.columns[x], cores.rows[y]) for y in range(product.rows) for x in range(product.columns)
        ]
        banks = next(kind.at for kind in topology.network.tiles if kind.name == "dram")
        self._banks: dict[str, Sequence[TilePosition]] = {"DRAM": banks, "L1": self._at}
        self._k_blocks = -(-product.k // product.k_block)
        self._passes = product.out_h * product.out_w
        simulated = min(self._passes, SIMULATED_PASSES)
        self._steps = self._k_blocks * simulated
        self._height, self._width = -(-product.core_m // product.out_h), -(-product.core_n // product.out_w)
        self._written = [self._env.event() for _ in range(simulated)]
        self._unwritten = [len(self._at)] * len(self._written)
        self._ends: list[list[float]] = [[] for _ in range(simulated)]  # of each pass, one for each core
        self._routes: dict[tuple[int, str, TilePosition], tuple[Route, Route]] = {}

    def time_ns(self) -> float:
        """How long the cores multiply, on the mean. Passes that repeat the last simulated one take as long as that."""
        env, feeds = self._env, [*self._operands()]
        for blocks in feeds:
            env.process(self._send(blocks))
        of_core: list[list[Blocks]] = [[] for _ in self._at]
        for blocks in feeds:
            for core in blocks.members:
                of_core[core].append(blocks)
        for core, operands in enumerate(of_core):
            env.process(self._multiply(core, operands))
        env.run()
        ends = [fmean(each) for each in self._ends]
        for _ in range(self._passes - len(ends)):
            ends.append(ends[-1] + (ends[-1] - ends[-2]))
        return ends[-1]

    # ---- senders and receivers

    def _operands(self) -> Iterator[Blocks]:
        p, env = self._product, self._env
        everyone = range(p.columns * p.rows)

        def blocks(noc: str, sender: Callable[[int], int], members: Sequence[int], tiles: Any, count: int) -> Blocks:
            memory = p.first_in if noc == FIRST_NOC else p.second_in
            arrived, used = ([env.event() for _ in range(self._steps)] for _ in range(2))
            return Blocks(noc, sender, members, tiles, memory, count, arrived, used, [len(members)] * self._steps)

        first, second = self._height * p.k_block, self._width * p.k_block
        if p.is_wide:
            yield blocks(FIRST_NOC, _always(0), everyone, self._first_tiles(0), first)
            for core in everyone:
                yield blocks(SECOND_NOC, _always(core), [core], self._second_tiles(core), second)
            return
        for y in range(p.rows):
            row = everyone[y * p.columns : (y + 1) * p.columns]
            if p.first_in == "shards":
                yield blocks(FIRST_NOC, partial(self._holder_in, row), row, None, first)
            else:
                yield blocks(FIRST_NOC, _always(row[0]), row, self._first_tiles(y), first)
        for x in range(p.columns):
            column = everyone[x :: p.columns]
            yield blocks(SECOND_NOC, _always(x), column, self._second_tiles(x), second)

    def _holder_in(self, row: Sequence[int], step: int) -> int:
        return row[self._holder(step)]

    def _holder(self, step: int) -> int:
        """Which core of a row has a block of the first operand in its L1."""
        p = self._product
        return min((step % self._k_blocks) * p.k_block // -(-p.k // p.columns), p.columns - 1)

    def _first_tiles(self, y: int) -> Callable[[int], list[int]]:
        p = self._product

        def tiles(step: int) -> list[int]:
            over, k = divmod(step, self._k_blocks)
            top, left = y * p.core_m + (over // p.out_w) * self._height, k * p.k_block
            return [(top + i) * p.k + left + j for i in range(self._height) for j in range(p.k_block)]

        return tiles

    def _second_tiles(self, x: int) -> Callable[[int], list[int]]:
        p = self._product

        def tiles(step: int) -> list[int]:
            over, k = divmod(step, self._k_blocks)
            top, left = k * p.k_block, x * p.core_n + (over % p.out_w) * self._width
            return [(top + i) * p.n + left + j for i in range(p.k_block) for j in range(self._width)]

        return tiles

    # ---- processes

    def _send(self, blocks: Blocks) -> Process:
        """One operand of a row or column, block by block."""
        env, cores = self._env, self._cores
        yield env.timeout(cores.start_ns)
        for step in range(self._steps):
            if step >= BUFFERS:
                yield blocks.used[step - BUFFERS]
            over, k = divmod(step, self._k_blocks)
            if over and not k and blocks.noc == SECOND_NOC:
                yield self._written[over - 1]  # the processor that reads the second operand writes results
            sender = blocks.sender(step)
            if blocks.tiles is not None:
                yield env.process(self._read(sender, blocks.noc, blocks.memory, blocks.tiles(step)))
            others = [core for core in blocks.members if core != sender]
            if others:
                paths = [self._topology.path(blocks.noc, self._at[sender], self._at[core]) for core in others]
                yield env.multicast(paths, blocks.n_tiles * self._product.tile_bytes)
            blocks.arrived[step].succeed()

    def _read(self, core: int, noc: str, memory: str, tiles: Sequence[int]) -> Process:
        """Tiles from the banks that they are in: requests are issued one by one, and data arrive meanwhile."""
        env, network = self._env, self._topology.network
        pieces, arrived = self._by_bank(memory, tiles), env.event()
        left = len(pieces)

        def count_down(_: Transfer) -> None:
            nonlocal left
            left -= 1
            if not left:
                arrived.succeed()

        for bank, count in pieces:
            yield env.timeout(self._core.requests_ns(count))
            request, data = self._read_routes(core, noc, bank)
            answer = partial(self._answer, data, count * self._product.tile_bytes, count_down)
            env.fabric.inject(request, 0, env.now, on_done=answer)
        yield arrived
        yield env.timeout(network.barriers.after_data_ns)

    def _answer(self, data: Route, nbytes: int, arrived: Callable[[Transfer], None], request: Transfer) -> None:
        """The bank has a request: data leave for the core."""
        self._env.fabric.inject(data, nbytes, request.done_ns, on_done=arrived)

    def _read_routes(self, core: int, noc: str, bank: TilePosition) -> tuple[Route, Route]:
        """The way of a request, and that of the data."""
        found = self._routes.get((core, noc, bank))
        if found is None:
            topology, at = self._topology, self._at[core]
            [(request, _)] = topology.requests(noc, at, bank)
            route = self._network.route
            found = route(request), route(topology.path(noc, bank, at))
            self._routes[core, noc, bank] = found
        return found

    def _by_bank(self, memory: str, tiles: Sequence[int]) -> list[tuple[TilePosition, int]]:
        """Tiles lie in one bank after the other."""
        banks, counts = self._banks[memory], dict[int, int]()
        for tile in tiles:
            bank = tile % len(banks)
            counts[bank] = counts.get(bank, 0) + 1
        return [(banks[bank], count) for bank, count in counts.items()]

    def _multiply(self, core: int, operands: Sequence[Blocks]) -> Process:
        env, p = self._env, self._product
        sides = self._height * SIDE, p.k_block * SIDE, self._width * SIDE
        ns = self._core.product_ns(*sides, p.tile_bytes)
        for step in range(self._steps):
            for blocks in operands:
                yield blocks.arrived[step]
            yield env.timeout(ns)
            for blocks in operands:
                blocks.left[step] -= 1
                if not blocks.left[step]:
                    blocks.used[step].succeed()
            if (step + 1) % self._k_blocks == 0:
                self._ends[step // self._k_blocks].append(env.now)
                env.process(self._write(core, step // self._k_blocks))

    def _write(self, core: int, over: int) -> Process:
        """What a pass over the result has made goes to DRAM."""
        env, p = self._env, self._product
        if p.is_written and over + 1 < len(self._written):  # the last results leave when the math kernel has ended
            first = (over * len(self._at) + core) * self._height * self._width
            for bank, count in self._by_bank("DRAM", range(first, first + self._height * self._width)):
                yield env.transfer(self._topology.path(SECOND_NOC, self._at[core], bank), count * p.tile_bytes)
        self._unwritten[over] -= 1
        if not self._unwritten[over]:
            self._written[over].succeed()


def read_products(data: DataFolder) -> Iterator[tuple[ProductCase, CaseName, dict[str, str]]]:
    """The rows of both tables; raises UsageError for one that names no machine of this set, or no product."""
    for board in MACHINES:
        for row in data.rows(f"{board}_matmul.csv"):
            try:
                product = _product(row)
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"'{board}_matmul.csv' has a row that cannot be simulated: {error}",
                    hint="the layout is that of the validation data: see its README",
                ) from None
            places = "-".join(row[name] for name in ("in0_in", "in1_in", "out_in"))
            regime = f"{board} {row['config'].replace('_', ' ')}, in0 in {row['in0_in']}"
            shape = f"{row['m']} x {row['k']} x {row['n']} on {row['grid']}"
            name = f"{shape}, {row['dtype']} {row['math_fidelity']}, {places}"
            trace = ", traced" if row.get("host_trace") == "True" else ""
            yield product, (regime, name + trace), row


def _product(row: Mapping[str, str]) -> ProductCase:
    m, k, n = (-(-int(row[name]) // SIDE) for name in "mkn")
    columns, rows = (int(each) for each in row["grid"].split("x"))
    memories = row["in0_in"], row["in1_in"], row["out_in"]
    if min(m, k, n, columns, rows) < 1 or row["board"] not in MACHINES or not {*memories} <= {"L1", "DRAM"}:
        raise ValueError(f"{row['m']} x {row['k']} x {row['n']} on {row['grid']} of '{row['board']}', in {memories}")
    first_in = "shards" if row["in0_in"] == "L1" and row.get("in0_sharded") != "False" else row["in0_in"]
    bare = ProductCase(row["board"], m, k, n, columns, rows, TILE_BYTES[row["dtype"]], row["math_fidelity"], first_in,
                   row["in1_in"], row["out_in"] == "DRAM", -(-m // rows), -(-n // columns), 1, 1, 1, False)  # fmt: skip
    if row.get("k_block_tiles"):
        names = ("per_core_m_tiles", "per_core_n_tiles", "k_block_tiles", "out_blocks_h", "out_blocks_w")
        core_m, core_n, k_block, out_h, out_w = (int(row[name]) for name in names)
        if min(core_m, core_n, k_block, out_h, out_w) < 1:
            raise ValueError(f"blocks of {core_m} x {core_n} x {k_block} tiles in {out_h} x {out_w} passes")
        return bare._replace(core_m=core_m, core_n=core_n, k_block=k_block, out_h=out_h, out_w=out_w)
    if first_in != "shards" and n >= WIDE * m and n % (columns * rows) == 0:
        return bare._replace(core_m=m, core_n=n // (columns * rows), is_wide=True)
    return bare._replace(k_block=next(block for block in range(MOST_K, 0, -1) if k % block == 0))


class Boards:
    """The machines, in fine and coarse flits."""

    def __init__(self) -> None:
        self._networks: dict[tuple[str, bool], tuple[NetworkTopology, Network]] = {}

    def cycles(self, product: ProductCase) -> float:
        """How many cycles a product takes; raises UsageError for one that does not fit on the machine."""
        step_tiles = (-(-product.core_m // product.out_h) + -(-product.core_n // product.out_w)) * product.k_block
        is_coarse = step_tiles >= COARSE_TILES
        found = self._networks.get((product.board, is_coarse))
        if found is None:
            size = {"network.flit_bytes": COARSE_BYTES} if is_coarse else None
            found = plain_network(machine(MACHINES[product.board], size))
            self._networks[product.board, is_coarse] = found
        cores = found[0].network.cores
        assert cores is not None
        if product.columns > len(cores.columns) or product.rows > len(cores.rows):
            raise UsageError(f"{product.columns} x {product.rows} cores on '{product.board}'",
                             hint=f"it has {len(cores.columns)} x {len(cores.rows)}")  # fmt: skip
        if product.fidelity not in [each.name for each in cores.fidelities]:
            raise UsageError(f"no fidelity '{product.fidelity}' on '{product.board}'",
                             hint=f"use {', '.join(each.name for each in cores.fidelities)}")  # fmt: skip
        return Multiply(*found, product).time_ns() * cores.clock_ghz


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    products = [(product, case) for product, case, _ in read_products(data)]
    boards = Boards()
    known: dict[ProductCase, float] = {}  # traced or not, the device does the same
    found: dict[CaseName, float] = {}
    for number, (product, case) in enumerate(products, 1):
        show(f"matmul_tensix {number}/{len(products)}")
        if product not in known:
            known[product] = boards.cycles(product)
        found[case] = known[product]
    return dict(sorted(found.items()))


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    column = "device_cycles_derived"
    return {case: float(row[column]) for _, case, row in read_products(data) if row.get(column)}


SET = ValidationSet(
    name="matmul_tensix",
    title="Matrix products on the cores of a Wormhole and a Blackhole",
    folder="3_matmul_tensix",
    machine="",
    quantity="math kernel, mean over cores, cycles",
    unit="pct",
    fitted=(
        "software of one read 45 cycles on both boards (products of small blocks)",
        "software before the first read 1350 cycles on both boards (smallest products)",
        "between two products of tiles 1.8 cycles on both boards (largest products)",
        "to add a tile to partial sums 4.2 cycles on both boards (products with short and with long k blocks)",
        "operands from L1 to the engine of a Wormhole 44 B per cycle (largest bf16 products at HiFi2)",
    ),
    differs=(
        "how products out of the box were blocked is not published: the vendor's rule for k is followed, and for which "
        "of them the first operand goes to all cores was chosen with the rows in view; of more than three passes over "
        "the result three are simulated, and the others take as long as the third; results that do not fit in L1, "
        "subblocks of the engine, semaphores, finite buffers and bank conflicts of DRAM are not modelled; what is not "
        "published of the Blackhole's network and DRAM is taken from the Wormhole"
    ),
    peers=(
        OtherSimulator(
            "LLMCompass", "10.4 % over operators, on GPUs", "arXiv 2312.03134; none was found for this chip"
        ),
    ),
    source=(
        "tenstorrent/tt-metal, tech_reports/GEMM_FLOPS/GEMM_FLOPS.md and "
        "tests/ttnn/unit_tests/benchmarks/test_benchmark.py, commit e4f9f0b; figures only, Apache-2.0"
    ),
    simulate=simulate,
    measured=measured,
)


def _always(core: int) -> Callable[[int], int]:
    """The same sender in every step."""
    return lambda _: core
