"""The page *Rates and rules*: what a kernel is charged, with the numbers of a machine, enough to predict it by hand.

`kernbench topology --rates` prints it for any machine; docs/guides/rates-and-rules.md is the page of the shipped one.
The rules are text here beside the figures that they use; a commit that changes how time is charged changes the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernbench.common.dtypes import DTYPES
from kernbench.common.units import format_bytes
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.policy.placement.dp import SPLITS
from kernbench.report.rates_examples import Example, access, burst_ns, examples_of, figure
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.triton_emu.epilogues import EPILOGUES

HEAD = """\
# Rates and rules

What a kernel is charged for, and how much: enough to predict one by hand. Figures are those of machine `{name}`;
`kernbench topology --rates` prints this page for any machine ([Model a machine](model-a-machine.md)), and what the
rules leave out is in [fidelity](../fidelity.md). GB/s are bytes per ns.

```console
$ kernbench topology --rates --set cube.pe_template.components.pe_gemm.attrs.macs_per_ns=8192
```
"""

ROUNDING = """\
## Rounding

- **Engines** (GEMM, MATH and further compute engines) work whole cycles of their clock (`clock_ghz`, {clock} GHz:
  {cycle} ns), rounded up, at least one for every op. A composite rounds every tile. Rates are per ns; the clock
  only sets the resolution.
- **Bytes** over a link or a port take bytes / bandwidth, not rounded.
- **Links** carry flits of {flit} bytes; the last flit of a transfer is as short as its bytes.
- **HBM** works whole bursts of {flit} bytes. A load, a store or an atomic is one request: it asks for every byte
  once, in ascending order, and pays for every burst that it touches once, however its lanes are ordered or share it.
  Links carry the bytes that were asked for.
- All durations lie on a grid of 2^-20 ns, so that sums do not depend on their order.
"""

ACCESS = """\
## Loads and stores

A request of PE 0 to its own HBM slice takes **{latency} ns + bytes / {gbs}**, uncontended. The latency is the
router there and back ({router} ns each), one burst on a channel ({burst} ns) and a flit on {links}. Other
memories have more routers, wires and ports on the path (`kernbench probe` lists them), and UCIe has
{ucie} GB/s for one connection.

- A slice has {channels} channels of {channel} GB/s. A burst's channel is bits of its address:
  `(address >> {shift}) & {mask}`. Whole rows that follow one another use all channels; rows {stride} bytes apart that
  are one burst long use half of them, {wide} bytes apart only one.
- The DMA has {places} request under way for each direction (`engines_per_direction` x `outstanding`), which holds
  its place until the last byte of a read is there, or a write is acknowledged. Loads and stores can overlap each
  other; two loads cannot.
- `tl.load`, `tl.store`, `tl.dot` and vector ops are simple commands: the kernel waits for each, and each costs
  {issue} ns of issue. `tl.load_async` and `tl.store_async` return at once, and `tl.wait` waits.
- Reads and writes share the channels, and have their own direction of every link.
"""

COMPUTE = """\
## Products, vector ops, composites

- `tl.dot` of (m, k) by (k, n): m x k x n / rate. A vector op: elements / lanes, whatever the op; a reduction goes
  through its input once. The slowest type among inputs and result counts. GEMM and MATH of a PE do not overlap.
- A composite is cut into tiles of {tile} (or `tile_shape`), M first, then N, then K. A tile passes these stages,
  and tiles follow one another through them: read its operands (one request each), fetch (bytes / {read}), product,
  epilogues of scope `k_tile`; on the last tile of K also epilogues of scope `output_tile`, store (bytes / {write}),
  write. It takes the time of its busiest stage, plus the stages of the first tile before that and of the last tile
  after it. Operands in TCM (from `tl.load`) need no read, a result in TCM no write.
- Registers have {registers}: a fetch waits for room. Queues hold {queue} tiles.
- Results are added up in f32 in registers. Epilogues work on them in f32: elements / {f32_lanes}.
- `tl.cycles(n)` costs n cycles of the PE's CPU; other Python in a kernel costs nothing.
"""

MESSAGES = """\
## Messages

A send is cut into slots (4 of 4096 bytes in each ring, unless `install_ipcq` sets others) and is complete when its
last byte has left the PE, or, to another SIP, the sender's SIP; with all slots full it waits for a credit. At the
other end each slot is written (bytes /
{tcm} for rings in TCM), the receiver wakes ({wake} ns, if it waited), and reads it (bytes / {tcm}), one after the
other.
"""


def rates_page(graph: TopologyGraph) -> str:
    """The page for a machine, as markdown."""
    spec = graph.spec
    parts = [
        HEAD.format(name=spec.system.name),
        _rates(spec),
        _latencies(spec),
        _rounding(spec),
        _memories(spec),
        _access(spec),
        _compute(spec),
        _epilogues(),
        MESSAGES.format(**_ipcq(spec)),
        _policies(spec),
        "## Worked examples\n\nEach is the time of the kernel on the PE, without the latency of the launch.\n",
        *(_example(each) for each in examples_of(graph)),
        "Terms are in the [glossary](../glossary.md).",
    ]
    return "\n".join(parts).rstrip()


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _rates(spec: MachineSpec) -> str:
    parts, links = spec.cube.pe_template.components, spec.cube.pe_template.links
    engines = (
        ("MACs of `pe_gemm`", "macs_per_ns", peak_macs(parts.pe_gemm)),
        ("lanes of `pe_math`", "lanes_per_ns", parts.pe_math.number_attr("lanes_per_ns")),
    )
    scales = {kind.name: kind.compute_scale for kind in DTYPES}
    rows = [
        (f"{name} (`{key}`)", *(figure(rate * scale) for scale in (scales["f16"], scales["f32"], scales["f8e4m3"])))
        for name, key, rate in engines
    ]
    ports = [
        ("TCM to registers (`tcm_read_bw_gbs`)", links.tcm_read_bw_gbs),
        ("registers to TCM (`tcm_write_bw_gbs`)", links.tcm_write_bw_gbs),
        ("a PE's DMA port, each way", spec.cube.links.pe_dma_to_router_bw_gbs),
        ("an HBM slice, both ways together", spec.cube.hbm_link_bw_gbs),
        ("between routers, each way", spec.cube.links.router_bw_gbs),
        ("SRAM port, each way", spec.cube.links.sram_to_router_bw_gbs),
        ("one UCIe connection, each way", spec.cube.ucie.per_connection_bw_gbs),
        ("a SIP's link to the switch, each way", spec.system.links.io_ep_to_switch.bw_gbs),
    ]
    return "\n".join(
        [
            "## Rates\n",
            _table(("per ns", "f16, bf16, 2 bytes", "f32, 4 bytes", "1 byte"), rows),
            _table(("GB/s", ""), [(name, figure(gbs)) for name, gbs in ports]),
        ]
    )


def _latencies(spec: MachineSpec) -> str:
    rows = [(f"`{key}`", figure(part.number_attr("overhead_ns"))) for key, _, part in spec.components()]
    text = "The latency that each block adds to everything that passes it; a wire adds {mm} ns per mm.\n"
    return "\n".join(
        ["## Latencies\n", text.format(mm=figure(spec.system.ns_per_mm)), _table(("block", "overhead (ns)"), rows)]
    )


def _rounding(spec: MachineSpec) -> str:
    gemm = spec.cube.pe_template.components.pe_gemm
    clock = gemm.number_attr("clock_ghz") if "clock_ghz" in gemm.attrs else 1.0
    return ROUNDING.format(clock=figure(clock), cycle=figure(1 / clock), flit=spec.system.flit_bytes)


def _memories(spec: MachineSpec) -> str:
    cube = spec.cube
    rows = [
        ("TCM of a PE", format_bytes(cube.tcm_bytes)),
        ("of it the scheduler's, for tiles of composites", format_bytes(cube.tcm_reserved_bytes)),
        *([("of it for tensors", format_bytes(cube.tcm_home_bytes))] if cube.tcm_home_bytes else []),
        ("of it for kernels (less 512 KiB where a process group keeps room for collectives)",
         format_bytes(cube.tcm_allocatable_bytes)),
        ("register file of a PE", format_bytes(_registers(spec))),
        ("SRAM of a cube", format_bytes(cube.sram_bytes)),
        ("HBM slice of a PE", format_bytes(cube.hbm_slice_bytes)),
        ("page", format_bytes(cube.page_bytes)),
    ]  # fmt: skip
    return "\n".join(["## Memories\n", _table(("memory", "size"), rows)])


def _registers(spec: MachineSpec) -> int:
    return int(spec.cube.pe_template.components.pe_fetch_store.number_attr("register_file_bytes"))


def _access(spec: MachineSpec) -> str:
    cube, flit = spec.cube, spec.system.flit_bytes
    latency, gbs = access(spec)
    dma = cube.pe_template.components.pe_dma
    return ACCESS.format(
        latency=figure(latency),
        gbs=figure(gbs),
        router=figure(cube.components.router.number_attr("overhead_ns")),
        burst=figure(burst_ns(spec)),
        links="each link but the narrowest" if cube.has_channel_routers else "the wider of the two links",
        ucie=figure(cube.ucie.per_connection_bw_gbs),
        channels=cube.hbm_channels_per_pe,
        channel=figure(cube.hbm_channel_bw_gbs),
        shift=flit.bit_length() - 1,
        mask=cube.hbm_channels_per_pe - 1,
        stride=2 * flit,
        wide=cube.hbm_channels_per_pe * flit,
        places=int(dma.number_attr("engines_per_direction") * dma.number_attr("outstanding")),
        issue=figure(cube.pe_template.components.pe_scheduler.number_attr("overhead_ns")),
    )


def _compute(spec: MachineSpec) -> str:
    parts, links = spec.cube.pe_template.components, spec.cube.pe_template.links
    tile = " x ".join(figure(parts.pe_gemm.number_attr(f"tile_{side}")) for side in "mkn")
    return COMPUTE.format(
        tile=tile,
        read=figure(links.tcm_read_bw_gbs),
        write=figure(links.tcm_write_bw_gbs),
        registers=format_bytes(_registers(spec)),
        queue=figure(parts.pe_dma.number_attr("queue_depth")),
        f32_lanes=figure(parts.pe_math.number_attr("lanes_per_ns") / 2),
    )


def _epilogues() -> str:
    rows = [
        (f"`{name}`", ", ".join(f"`{field}`" for field in kind.fields) or "-", "yes" if kind.linear else "no")
        for name, kind in EPILOGUES.items()
    ]
    text = (
        "Each is one pass over the tile's results. `scope` is `output_tile` (once, the default), `k_tile` (on\n"
        "every partial sum, only where the table says so) or `kernel` (a second pass over the finished output).\n"
        "Every tile reads the operands that its fields name.\n"
    )
    return "\n".join(["## Epilogues\n", text, _table(("op", "fields", "scope k_tile"), rows)])


def _ipcq(spec: MachineSpec) -> dict[str, str]:
    ipcq = spec.cube.pe_template.components.pe_ipcq
    return {"tcm": figure(ipcq.number_attr("tcm_gbs")), "wake": figure(ipcq.number_attr("wake_ns"))}


def _policies(spec: MachineSpec) -> str:
    rows = [
        ("`cube`", ", ".join(f"`{split}`" for split in SPLITS), "`replicate`", "over the cubes of a SIP"),
        ("`pe`", ", ".join(f"`{split}`" for split in SPLITS), "`replicate`", "each cube's part over its PEs"),
        ("`num_cubes`", f"1 to {spec.sip.n_cubes}, or None", "None: all", "the first cubes, that many"),
        ("`num_pes`", f"1 to {spec.cube.n_pes}, or None", "None: all", "the first PEs of a cube, that many"),
        ("`cube` and `pe`", "`interleave`", "", "pages of whole rows, dealt to the PEs of all cubes in turn"),
        ("`starts`", "rows in ascending order", "None", "where each PE's part of a row-wise split begins"),
    ]
    text = (
        "`row_wise` splits the first axis, `column_wise` the last, `tiled_row_major` and `tiled_column_major` both\n"
        "(8 parts: 2 x 4 tiles, row by row or column by column); parts differ by at most one. A part lies in its\n"
        "PE's HBM slice, row-major. The tensor's address range holds the parts in order, cube by cube and PE by\n"
        "PE; replicas share one address, and each PE reads its own.\n"
    )
    return "\n".join(["## DPPolicy\n", text, _table(("field", "values", "default", "meaning"), rows)])


def _example(example: Example) -> str:
    steps = [(step.what, step.arithmetic, figure(step.ns)) for step in example.steps]
    steps.append(("**total**", "", f"**{figure(example.total_ns)}**"))
    source = f"```text\n{example.source}\n```\n"
    title = f"### {example.name[0].upper()}{example.name[1:]}\n"
    return "\n".join([title, source, f"{example.note}\n", _table(("step", "arithmetic", "ns"), steps)])
