"""Types shared by the records of a machine description: limits, value types, links and components.

The limits are those of one count or size by itself. Whether all fields of an address fit together follows from the
widths of `system.address_map` (`check.py`).
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from kernbench.common.address_layout import LEAST_CHIPLET_BITS, LEAST_CUBE_BITS
from kernbench.common.framing import Framing
from kernbench.topology.readers import Scalar, choice, number, read_scalar, text, whole
from kernbench.topology.record import ReadBy, Record

MAX_SIPS = 1024
MAX_CUBES_PER_SIP = 1024
MAX_PES_PER_CUBE = 256
MAX_PES = 32768  # of a machine: some half a million nodes, which take 20 s and 2 GB to build
MAX_IO_CHIPLETS = 4
MAX_HBM_GB = 4096
MAX_SRAM_MB = 65536
MAX_TCM_MB = 1024
MAX_CONNECTIONS = 8

Side = Literal["N", "S", "E", "W"]
Corner = Literal["NW", "NE", "SW", "SE"]

SideKey = Annotated[Side, choice("N", "S", "E", "W")]
CornerKey = Annotated[Corner, choice("NW", "NE", "SW", "SE")]
Gbs = Annotated[float, number(0.0, 1e6, above=True)]
Mm = Annotated[float, number(0.0, 1e4)]
PositiveMm = Annotated[float, number(0.0, 1e3, above=True)]
Connections = Annotated[int, whole(1, MAX_CONNECTIONS)]
Name = Annotated[str, text(r"[\w .+-]{1,60}", "a name of up to 60 letters, digits, spaces, '-', '_', '.' or '+'")]
Impl = Annotated[
    str,
    text(
        r"builtin\.[a-z_][a-z0-9_]*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        "`builtin.name`, or `package.module:Class` for a class of your own",
    ),
]
Attr = Annotated[Scalar | None, ReadBy(lambda value: None if value is None else read_scalar(value))]


class SizeMm(Record):
    w: PositiveMm
    h: PositiveMm


class LinkSpec(Record):
    """A link. With `payload_bytes` its bytes travel in packets of that length, each behind `header_bytes`."""

    bw_gbs: Gbs
    distance_mm: Mm
    header_bytes: Annotated[int, whole(0, 65536)] = 0
    payload_bytes: Annotated[int, whole(1, 1 << 30)] | None = None

    @property
    def framing(self) -> Framing | None:
        return None if self.payload_bytes is None else Framing(self.header_bytes, self.payload_bytes)


class ComponentSpec(Record):
    """The kind of a component, the class that models it, and the parameters of that class."""

    kind: Annotated[str, text(r"\w{1,60}", "the kind's name, as in the shipped machine")]
    impl: Impl
    attrs: Mapping[str, Attr] = MappingProxyType({})

    def number_attr(self, name: str) -> float:
        """A numeric attr of a checked description; NaN if it is not a number."""
        value = self.attrs[name]
        return float(value) if isinstance(value, int | float) else math.nan


class AddressMapSpec(Record):
    """Bits of the fields of a physical address; null: as many as the machine needs, at least the record's."""

    sip_bits: Annotated[int, whole(1, 16)] | None = None
    cube_bits: Annotated[int, whole(LEAST_CUBE_BITS, 16)] | None = None
    pe_bits: Annotated[int, whole(1, 8)] | None = None
    hbm_bits: Annotated[int, whole(20, 48)] | None = None
    sram_bits: Annotated[int, whole(10, 40)] | None = None
    tcm_bits: Annotated[int, whole(10, 40)] | None = None
    chiplet_bits: Annotated[int, whole(LEAST_CHIPLET_BITS, 54)] | None = None
