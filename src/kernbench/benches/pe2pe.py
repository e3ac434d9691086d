"""From one PE to another: messages through IPCQ against plain DMA, near and far.

One-sided, a transfer is over when the bytes have arrived and the sender may continue: a send that is received without
reading its slots, against a store. With consumption, the receiver has them in its TCM: a send that is received, against
a store and then a load in a separate launch, since a plain store does not notify the receiver.
IPCQ takes the receiver's rings, DMA its HBM. Times are from the start of both PEs to the end of the later one.

Evaluated (`--out`), each hop and size is a point on a machine of its own, with posted and with blocking credits and
rings in TCM, and with rings in SRAM and HBM for the largest size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np

from kernbench.benches._collectives import sizes_between
from kernbench.benches._numbers import Size
from kernbench.benches.registry import bench
from kernbench.common.errors import UsageError
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import BufferKind
from kernbench.common.units import format_bytes
from kernbench.evaluation.contract import Evaluation, Rows, Setting, curve, number, values_of, where
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.paths import narrowest_gbs
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

DTYPE, ITEM_BYTES = "i32", 4
SENDER: PeKey = (0, 0, 0)
CREDIT = "machine:cube.pe_template.components.pe_ipcq.attrs.credit"


class Hop(NamedTuple):
    """A path from SIP 0, cube 0, PE 0: its name, the directions there and back, and the receiver."""

    name: str
    there: str
    back: str
    receiver: PeKey


class PeSelection(NamedTuple):
    """The PEs of a launch."""

    sips: tuple[int, ...]
    cubes: tuple[int, ...]
    pes: tuple[int, ...]

    def launch(self, torch: RuntimeContext, name: str, kernel: object, *args: object) -> Launch:
        return torch.launch(name, kernel, *args, sips=self.sips, target_cubes=self.cubes, target_pes=self.pes)


def _is_sender(tl: TLContext) -> bool:
    return (tl.physical_id(2), tl.physical_id(1), tl.physical_id(0)) == SENDER


def _made(tl: TLContext, n: int) -> TensorHandle:
    """What is sent: it is in TCM at once."""
    return tl.arange(0, n, DTYPE)


def message_kernel(
    n: int,
    y: TensorPtr | None = None,
    row: int = 0,
    *,
    there: str,
    back: str,
    reads_slots: bool = True,
    tl: TLContext,
) -> None:
    """PE 0 sends n numbers; the other one takes them, and stores them in row `row` of y where there is a y."""
    if _is_sender(tl):
        tl.send(there, _made(tl, n))
        return
    x = tl.recv(back, (n,), DTYPE) if reads_slots else tl.recv_no_consume(back, (n,), DTYPE)
    if y is not None:
        tl.store(y + row * y.shape[1] * ITEM_BYTES, x)


def store_kernel(y: TensorPtr, n: int, row: int, tl: TLContext) -> None:
    """PE 0 writes n numbers to a row of y, which lies with the other PE."""
    tl.store(y + row * y.shape[1] * ITEM_BYTES, _made(tl, n))


def load_kernel(y: TensorPtr, n: int, row: int, tl: TLContext) -> None:
    """The other PE reads them."""
    tl.load(y + row * y.shape[1] * ITEM_BYTES, (n,))


def hops(spec: MachineSpec) -> Iterator[Hop]:
    """What there is of them on this machine."""
    mesh, cubes = spec.sip.cube_mesh, spec.sip.n_cubes
    half = spec.cube.n_pes // 2
    if spec.cube.n_pes > 1:
        yield Hop("same cube", "intra_1", "intra_0", (0, 0, 1))
    if half > 1:
        yield Hop("same cube, vertical", "intra_S", "intra_N", (0, 0, half))
    if cubes > 1:
        yield Hop("next cube", "cube_1", "cube_0", (0, 1, 0)) if mesh.w > 1 else Hop("next cube", "S", "N", (0, 1, 0))
    if mesh.w > 1 and mesh.h > 1:
        yield Hop("next cube, vertical", "S", "N", (0, mesh.w, 0))
    if cubes > 2:
        yield Hop("far cube", f"cube_{cubes - 1}", "cube_0", (0, cubes - 1, 0))
    if spec.n_sips > 1:
        yield Hop("other SIP", "rank_1", "rank_0", (1, 0, 0))


def _measured(torch: RuntimeContext, hop: Hop, n: int) -> dict[str, object]:
    sip, cube, pe = hop.receiver
    both = PeSelection(tuple(sorted({0, sip})), tuple(sorted({0, cube})), tuple(sorted({0, pe})))
    sender, receiver = PeSelection((0,), (0,), (0,)), PeSelection((sip,), (cube,), (pe,))
    holders = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cube + 1, num_pes=pe + 1)
    n_rows, row = (cube + 1) * (pe + 1), (cube + 1) * (pe + 1) - 1
    right = np.zeros((n_rows, n), np.int32)
    right[row] = np.arange(n)

    def zeros(what: str) -> Tensor:
        """A tensor whose last row lies with the receiver."""
        return torch.zeros(n_rows, n, dtype=DTYPE, dp=holders, name=f"{what}, {hop.name}, {n * ITEM_BYTES} bytes")

    messages = partial(message_kernel, there=hop.there, back=hop.back)
    one_sided = _took(both.launch(torch, "send", partial(messages, reads_slots=False), n))
    consumed = _took(both.launch(torch, "send_recv", messages, n))
    received = zeros("IPCQ")
    both.launch(torch, "send_recv_store", messages, n, received, row)
    torch.check(received, right)
    written = zeros("DMA")
    stored = _took(sender.launch(torch, "store", store_kernel, written, n, row))
    loaded = _took(receiver.launch(torch, "load", load_kernel, written, n, row))
    torch.check(written, right)
    return {
        "hop": hop.name,
        "size_bytes": n * ITEM_BYTES,
        "send_ns": one_sided,
        "store_ns": stored,
        "send_recv_ns": consumed,
        "store_load_ns": stored + loaded,
        "send_recv_gbs": n * ITEM_BYTES / consumed,
        "store_load_gbs": n * ITEM_BYTES / (stored + loaded),
    }


def _took(launch: Launch) -> float:
    return max(pe.end_ns for pe in launch.pes) - min(pe.start_ns for pe in launch.pes)


def _check_addresses(spec: MachineSpec) -> None:
    if not spec.system.has_tensor_ranges:
        raise UsageError(
            f"pe2pe needs virtual or logical addresses, the machine has '{spec.system.address_model}'",
            hint="--set system.address_model=va",
        )


# --------------------------------------------------------------------------------------------------------- evaluation


def points(
    machine: TopologyGraph,
    *,
    min_bytes: Annotated[Size, "first size"] = 128,
    max_bytes: Annotated[Size, "last size"] = 262144,
    factor: Annotated[Size, "from one size to the next"] = 2,
) -> list[Setting]:
    _check_addresses(machine.spec)
    sizes = sizes_between(min_bytes, max_bytes, factor)
    names = [hop.name for hop in hops(machine.spec)]
    found: list[Setting] = [
        {"hop": name, "size_bytes": n, "buffer_kind": "tcm", CREDIT: credit}
        for credit in ("posted", "blocking")
        for name in names
        for n in sizes
    ]
    return found + [
        {"hop": name, "size_bytes": sizes[-1], "buffer_kind": kind, CREDIT: "posted"}
        for kind in ("sram", "hbm")
        for name in names
    ]


def point(torch: RuntimeContext, *, hop: str, size_bytes: int, buffer_kind: BufferKind) -> Mapping[str, float]:
    torch.install_ipcq(buffer_kind=buffer_kind)
    found = next(each for each in hops(torch.spec) if each.name == hop)
    torch.ahbm.set_device(found.receiver[0])
    row = _measured(torch, found, max(size_bytes // ITEM_BYTES, 1))
    return {name: value for name, value in row.items() if isinstance(value, float)}


def hop_gbs(machine: TopologyGraph, hop: str) -> float:
    """The narrowest link between the sender and the memory of the receiver."""
    receiver = next(each for each in hops(machine.spec) if each.name == hop).receiver
    return narrowest_gbs(machine, SENDER, receiver)


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    plain = where(rows, buffer_kind="tcm")
    names = [str(name) for name in values_of(rows, "hop")]
    what = "one PE to another: nearby in the cube, in the next cube, in the farthest cube, on the other SIP"
    one_sided = _by_size(plain, names, machine, ("IPCQ send", "send_ns"), ("DMA store", "store_ns"))
    with_use = _by_size(
        plain, names, machine, ("IPCQ send and receive", "send_recv_ns"), ("DMA store, then load", "store_load_ns")
    )
    largest = max(number(row, "size_bytes") for row in rows)
    return [
        Chart(
            "one-sided",
            "Handing bytes over: a message waits for no acknowledgement, until too few slots hold up a long way",
            f"From {what}. A message is over when the receiver has it (posted credits) or when its credit has also "
            "travelled back (blocking credits, as in the published evaluation); a store when it is acknowledged. With "
            "posted credits a message of up to 16 KiB, four slots, is ahead between cubes because nothing that it "
            "waits for travels back; with blocking credits it costs at least as much as a store at every size. The "
            "dotted line is bytes over the narrowest link of the path.",
            one_sided,
            height_in=2.6,
        ),
        Chart(
            "with-consumption",
            "Handing bytes over and reading them: a message spares the second way that store and load take",
            f"From {what}. The receiver has the bytes in its TCM: by a receive, or by a load after a store that it was "
            "announced for free (a launch of its own), which flatters DMA.",
            with_use,
            height_in=2.6,
        ),
        _bandwidths(where(rows, size_bytes=int(largest), **{CREDIT: "posted"}), names, machine),
    ]


def _by_size(
    rows: Rows, names: list[str], machine: TopologyGraph, message: tuple[str, str], dma: tuple[str, str]
) -> tuple[LinePanel, ...]:
    panels = []
    for name in names:
        some = where(rows, hop=name, **{CREDIT: "posted"})
        blocking = where(rows, hop=name, **{CREDIT: "blocking"})
        lines = [
            Line(message[0], curve(some, "size_bytes", message[1])),
            Line(f"{message[0]}, blocking credit", curve(blocking, "size_bytes", message[1])),
            Line(dma[0], curve(some, "size_bytes", dma[1])),
        ]
        gbs = hop_gbs(machine, name)
        bound = tuple((number(row, "size_bytes"), number(row, "size_bytes") / gbs) for row in some)
        lines.append(Line("bytes over the narrowest link", bound, "limit"))
        panels.append(LinePanel("message (bytes)", "time (ns)", tuple(lines), name, log="xy", x_unit="bytes"))
    return tuple(panels)


def _bandwidths(rows: Rows, names: list[str], machine: TopologyGraph) -> Chart:
    def column(kind: str, figure: str) -> tuple[float, ...]:
        return tuple(number(where(rows, hop=name, buffer_kind=kind)[0], figure) for name in names)

    bars = [Bars(f"IPCQ, rings in {kind}", column(kind, "send_recv_gbs")) for kind in ("tcm", "sram", "hbm")]
    bars.append(Bars("DMA store, then load", column("tcm", "store_load_gbs")))
    peaks = Bars("narrowest link", tuple(hop_gbs(machine, name) for name in names))
    size = format_bytes(int(number(rows[0], "size_bytes")))
    return Chart(
        "bandwidth-by-hop",
        "Bandwidth of a large message by hop, and what the memory of the rings changes",
        f"{size} from PE to PE, received or loaded into TCM, over the time it takes.",
        (BarPanel("bandwidth (GB/s)", tuple(names), tuple(bars), marks=(peaks,)),),
        columns=1,
    )


def seconds(setting: Setting) -> float:
    size = setting["size_bytes"]
    return 0.4 + (float(size) / 2e6 if isinstance(size, int) else 0.0)


EVALUATION = Evaluation(
    points, point, figures, seconds, ("messages between PEs", "cut-through", "launches and mappings", "routing")
)


@bench(
    name="pe2pe",
    description="IPCQ against plain DMA from PE to PE: same cube, next cube in both directions, far cube, other SIP.",
    devices="whole",
    evaluation=EVALUATION,
)
def pe2pe(
    torch: RuntimeContext,
    *,
    min_bytes: Annotated[Size, "first size"] = 256,
    max_bytes: Annotated[Size, "last size"] = 65536,
    factor: Annotated[Size, "from one size to the next"] = 4,
    buffer_kind: Annotated[Literal["tcm", "sram", "hbm"], "where rings lie"] = "tcm",
    n_slots: Annotated[Size, "slots per ring"] = 4,
    slot_size: Annotated[Size, "bytes per slot"] = 4096,
) -> list[dict[str, object]]:
    _check_addresses(torch.spec)
    torch.install_ipcq(n_slots, slot_size, buffer_kind)
    counts = [max(nbytes // ITEM_BYTES, 1) for nbytes in sizes_between(min_bytes, max_bytes, factor)]
    rows: list[dict[str, object]] = []
    for hop in hops(torch.spec):
        torch.ahbm.set_device(hop.receiver[0])
        rows += [_measured(torch, hop, n) for n in counts]
    return rows
