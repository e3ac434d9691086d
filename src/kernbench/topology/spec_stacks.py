"""HBM stacks as nodes of their own: attached to sides of cubes, shared by PEs through address interleaving.

With `sip.hbm_stacks` no PE has a slice of its own. The HBM of a cube is a range of addresses over a group of stacks,
`interleave_bytes` on one, then on the next: the stacks of the SIP, or those attached to the cube.
"""

from typing import Annotated, Literal, NamedTuple

from kernbench.common.units import GIB
from kernbench.topology.readers import choice, number, power_of_two, text, whole
from kernbench.topology.record import Record
from kernbench.topology.spec_base import MAX_CUBES_PER_SIP, MAX_HBM_GB, Gbs, Mm, SideKey

MAX_STACK_LINKS = 16
CubeNumber = Annotated[int, whole(0, MAX_CUBES_PER_SIP - 1)]


class StackPlace(Record):
    """A stack, and the side of the cube that it is attached to; `at` is where along that side, from 0 to 1."""

    id: Annotated[str, text(r"s[0-9]{1,3}", "s and a number of up to three digits, such as s0")]
    cube: CubeNumber = 0
    side: SideKey
    at: Annotated[float, number(0.0, 1.0)] = 0.5


class HbmStacksSpec(Record):
    """All stacks are alike. A stack has `links` to the routers nearest to it along its side, each of that bandwidth."""

    places: tuple[StackPlace, ...]
    gb: Annotated[int, whole(1, MAX_HBM_GB)]
    channels: Annotated[int, power_of_two(1, 1024)]
    channel_bw_gbs: Gbs
    interleave_bytes: Annotated[int, power_of_two(64, 1 << 21)] = 4096
    links: Annotated[int, whole(1, MAX_STACK_LINKS)] = 1
    link_bw_gbs: Gbs
    distance_mm: Mm = 1.0
    shared_by: Annotated[Literal["sip", "cube"], choice("sip", "cube")] = "sip"

    def group_of(self, cube: int) -> tuple[str, ...]:
        """The stacks that the HBM of a cube is interleaved over, by name."""
        return tuple(place.id for place in self.places if self.shared_by == "sip" or place.cube == cube)


class StackShare(NamedTuple):
    """The part of a group of stacks that one cube has."""

    nbytes: int
    channels: int  # of a stack
    channel_bw_gbs: float
    stacks: float  # of the group, divided by the cubes that share it


def share_of(stacks: HbmStacksSpec, n_cubes: int) -> StackShare:
    """What each of the `n_cubes` of a SIP has: all have equally much (`check_stacks.py`)."""
    nbytes = len(stacks.places) * stacks.gb * GIB // n_cubes
    return StackShare(nbytes, stacks.channels, stacks.channel_bw_gbs, len(stacks.places) / n_cubes)
