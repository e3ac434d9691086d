"""A plain network as checked data: a grid of tiles, and one or more networks on chip that join them.

A description with the key `network` is of this kind. It has no SIPs and no PEs: transfers are issued by hand, or by a
driver of recorded traffic. Nothing is inherited from the shipped machine.
"""

from typing import Annotated, Literal

from kernbench.topology.readers import choice, number, power_of_two, text, whole
from kernbench.topology.record import Record
from kernbench.topology.spec_base import Gbs, Name
from kernbench.topology.spec_fabric import FabricSpec

RingDirection = Literal["forward", "backward", "both"]
Ns = Annotated[float, number(0.0, 1e6)]
DirectionKey = Annotated[RingDirection, choice("forward", "backward", "both")]
NocName = Annotated[str, text(r"[A-Za-z]\w{0,30}", "a name of letters, digits and '_'")]
Coordinate = Annotated[int, whole(0, 255)]


class GridSize(Record):
    w: Annotated[int, whole(1, 256)]
    h: Annotated[int, whole(1, 256)]


class NocSpec(Record):
    """One network on chip. Routes go along `first`, then along the other dimension, in the directions that there are;
    with `wrap`, rows and columns are rings.
    """

    name: NocName
    first: Annotated[Literal["x", "y"], choice("x", "y")] = "x"
    x: DirectionKey = "both"
    y: DirectionKey = "both"
    wrap: Annotated[Literal["torus", "mesh"], choice("torus", "mesh")] = "mesh"


class WireSpec(Record):
    bw_gbs: Gbs
    propagation_ns: Ns = 0.0


class NetworkLinks(Record):
    router: WireSpec
    injection: WireSpec
    ejection: WireSpec


class RequestSpec(Record):
    """How a read reaches the tile that has the data: it passes routers uncontended, and is served there.

    With `nbytes` it is a packet on the network itself, which takes bandwidth and waits, instead of paying `hop_ns`.
    """

    hop_ns: Ns
    service_ns: Ns
    nbytes: Annotated[int, whole(0, 65536)] = 0


class BarrierSpec(Record):
    """Software at the end of a wait for reads: after the last data, and at least."""

    after_data_ns: Ns
    least_ns: Ns


class TileKind(Record):
    """Tiles that differ from the others."""

    name: NocName
    at: tuple[tuple[Coordinate, Coordinate], ...]
    injection_gbs: Gbs
    service_ns: Ns
    ejection_gbs: Gbs | None = None  # as links.ejection


class FidelitySpec(Record):
    """How exactly an engine multiplies, and how fast."""

    name: NocName
    macs_per_ns: Annotated[float, number(1e-3, 1e9)]


class CoreSpec(Record):
    """Tiles that compute: those in one of the columns and one of the rows. An engine multiplies tiles of `side` x
    `side` elements that come from the L1 beside it; for each network on chip a processor issues requests, one by one.
    """

    columns: tuple[Coordinate, ...]
    rows: tuple[Coordinate, ...]
    clock_ghz: Annotated[float, number(0.001, 1000.0)]
    fidelities: tuple[FidelitySpec, ...]
    side: Annotated[int, whole(1, 1024)]
    tile_overhead_ns: Ns  # for each product of two tiles
    pack_ns: Ns  # for each tile of the result of a block
    operand_gbs: Gbs  # one tile per product
    issue_ns: Ns  # of a request
    start_ns: Ns  # of a kernel


class NetworkSpec(Record):
    name: Name
    flit_bytes: Annotated[int, power_of_two(1, 65536)]
    header_bytes: Annotated[int, whole(0, 65536)] = 0  # in front of every transfer
    grid: GridSize
    nocs: tuple[NocSpec, ...]
    links: NetworkLinks
    requests: RequestSpec
    barriers: BarrierSpec
    tiles: tuple[TileKind, ...] = ()
    cores: CoreSpec | None = None


class NetworkDescription(Record):
    """The whole file."""

    network: NetworkSpec
    fabric: FabricSpec = FabricSpec()
