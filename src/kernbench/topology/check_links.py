"""Checks the packets of links and the direct links between SIPs against the rest of the description."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.topology.attrs import TRANSIT_IMPLS
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.spec import MachineSpec, SipLinksSpec
from kernbench.topology.spec_base import LinkSpec

_LINKS = "system.sips.links"


def check_links(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Settings that would do nothing, or that exclude each other."""
    system, direct = spec.system, spec.system.sips.links
    links: list[tuple[str, LinkSpec]] = [
        ("system.links.host_to_switch", system.links.host_to_switch),
        ("system.links.io_ep_to_switch", system.links.io_ep_to_switch),
        ("sip.links.cube_to_cube", spec.sip.links.cube_to_cube),
    ]
    links += [(f"system.switch_levels.{name}", level) for name, level in system.switch_levels.items()]
    if direct is not None:
        links.append((_LINKS, direct))
        if system.sips.count == 1:
            yield UnplacedFault(
                _LINKS, "direct links of a tray with one SIP", "set it to null, or add SIPs", ("system.sips",)
            )
        yield from _check_port(direct)
        if spec.fabric.buffers is not None and direct.port.impl in TRANSIT_IMPLS:
            what = "finite buffers where ports of direct links pass flits on: rings of SIPs could wait for ever"
            hint = "give `impl: builtin.sip_port`, which takes messages whole, or set fabric.buffers to null"
            yield UnplacedFault(f"{_LINKS}.port.impl", what, hint, ("fabric.buffers",))
    for key, link in links:
        if link.payload_bytes is None and link.header_bytes:
            what = f"headers of {link.header_bytes} bytes, but no length of the packets that have them"
            yield UnplacedFault(
                f"{key}.header_bytes", what, "give payload_bytes, or leave it out", (f"{key}.payload_bytes",)
            )
        elif link.payload_bytes is not None and not link.header_bytes:
            what = "packets without a header change nothing"
            yield UnplacedFault(
                f"{key}.payload_bytes", what, "give header_bytes, or leave it out", (f"{key}.header_bytes",)
            )


def _check_port(direct: SipLinksSpec) -> Iterator[UnplacedFault]:
    """Slots belong to ports that store packets, credits to slots."""
    key, attrs = f"{_LINKS}.port.attrs", direct.port.attrs
    if attrs.get("slots") and direct.port.impl in TRANSIT_IMPLS:
        what = f"slots for packets in a port that passes flits on ({direct.port.impl})"
        yield UnplacedFault(
            f"{key}.slots", what, "give `impl: builtin.sip_port`, or leave it out", (f"{_LINKS}.port.impl",)
        )
    if attrs.get("credit_ns") and not attrs.get("slots"):
        yield UnplacedFault(
            f"{key}.credit_ns", "credits of a link without slots", "give slots, or leave it out", (key,)
        )
