"""From one PE to another: messages through IPCQ against plain DMA, near and far.

One-sided, it is over when the bytes are with the receiver and the sender knows that it may go on: a send that is
received without reading its slots, against a store. With consumption, the receiver has them in its TCM: a send that is
received, against a store and then a load, which is a launch of its own: a plain store says nothing to the receiver.
IPCQ takes the receiver's rings, DMA its HBM. Times are from the start of both PEs to the end of the later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np

from kernbench.benches._collectives import sizes_between
from kernbench.benches._numbers import Size
from kernbench.benches.registry import bench
from kernbench.common.errors import UsageError
from kernbench.common.ids import PeKey
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

DTYPE, ITEM_BYTES = "i32", 4
SENDER: PeKey = (0, 0, 0)


class Hop(NamedTuple):
    """A way from SIP 0, cube 0, PE 0: what it is called, the direction there and back, and who is there."""

    name: str
    there: str
    back: str
    receiver: PeKey


class Where(NamedTuple):
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


@bench(
    name="pe2pe",
    description="IPCQ against plain DMA from PE to PE: same cube, next cube, far cube, other SIP; by size.",
    devices="whole",
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
    if torch.spec.system.address_model != "va":
        raise UsageError(
            f"pe2pe needs virtual addresses, the machine has '{torch.spec.system.address_model}'",
            hint="--set system.address_model=va",
        )
    torch.install_ipcq(n_slots, slot_size, buffer_kind)
    counts = [max(nbytes // ITEM_BYTES, 1) for nbytes in sizes_between(min_bytes, max_bytes, factor)]
    rows: list[dict[str, object]] = []
    for hop in hops(torch):
        torch.ahbm.set_device(hop.receiver[0])
        rows += [_measured(torch, hop, n) for n in counts]
    return rows


def hops(torch: RuntimeContext) -> Iterator[Hop]:
    """What there is of them on this machine."""
    spec = torch.spec
    mesh, cubes = spec.sip.cube_mesh, spec.sip.n_cubes
    if spec.cube.n_pes > 1:
        yield Hop("same cube", "intra_1", "intra_0", (0, 0, 1))
    if cubes > 1:
        yield Hop("next cube", "cube_1", "cube_0", (0, 1, 0)) if mesh.w > 1 else Hop("next cube", "S", "N", (0, 1, 0))
    if cubes > 2:
        yield Hop("far cube", f"cube_{cubes - 1}", "cube_0", (0, cubes - 1, 0))
    if spec.n_sips > 1:
        yield Hop("other SIP", "rank_1", "rank_0", (1, 0, 0))


def _measured(torch: RuntimeContext, hop: Hop, n: int) -> dict[str, object]:
    sip, cube, pe = hop.receiver
    both = Where(tuple(sorted({0, sip})), tuple(sorted({0, cube})), tuple(sorted({0, pe})))
    sender, receiver = Where((0,), (0,), (0,)), Where((sip,), (cube,), (pe,))
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
