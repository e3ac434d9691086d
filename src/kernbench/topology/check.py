"""Consistency checks between the values of a machine: counts against the address map, memories, IO ports, components.

Every check is a generator of findings over a spec whose values are each valid on their own. All checks are run,
whatever the others find. `fit.py` checks what must fit on the die.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, prod

from kernbench.common.address_layout import layout_of
from kernbench.common.dtypes import DTYPES
from kernbench.common.errors import AddressError
from kernbench.common.units import GIB, is_power_of_two
from kernbench.topology.attrs import ARRAY_FACTORS, impl_fault, read_attrs
from kernbench.topology.check_links import check_links
from kernbench.topology.check_network import check_buffers
from kernbench.topology.check_stacks import check_stacks
from kernbench.topology.cube_types import check_types, of_type, variants
from kernbench.topology.declarations import check_ops, check_part, is_part_name
from kernbench.topology.far_memory import check_far_memory
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.fit import check_fit
from kernbench.topology.mesh import SIDES
from kernbench.topology.ports import resolve_chiplets, shoreline, wrap_links
from kernbench.topology.readers import closest
from kernbench.topology.record import InvalidValue
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_base import MAX_CUBES_PER_SIP, MAX_IO_CHIPLETS, MAX_PES, MAX_PES_PER_CUBE
from kernbench.topology.spec_cube import PE_PARTS_KEY
from kernbench.topology.spec_hbm import BANKS
from kernbench.topology.spec_sip import IoChipletPlace, SipSpec
from kernbench.topology.switches import check_switches

_MEMORY = "cube.memory_map"
_HBM_GB = f"{_MEMORY}.hbm_total_gb_per_cube"
_LAYOUT = "cube.pe_layout"


def check_machine(spec: MachineSpec) -> list[UnplacedFault]:
    """All findings of a machine whose values are each of the right type and range."""
    found = _check_all(spec)
    for name, variant in variants(spec):
        found += [of_type(name, finding) for finding in _check_all(variant) if finding not in found]
    return [*found, *check_types(spec)]


def _check_all(spec: MachineSpec) -> list[UnplacedFault]:
    """The findings of a machine whose cubes are all as `cube` says."""
    return [
        *_check_sips(spec),
        *check_links(spec),
        *check_switches(spec),
        *check_stacks(spec),
        *check_far_memory(spec),
        *_check_cube_mesh(spec),
        *_check_io_chiplets(spec),
        *_check_pe_layout(spec),
        *_check_address_map(spec),
        *_check_hbm(spec),
        *_check_tcm(spec),
        *_check_components(spec),
        *check_ops(spec.cube.pe_template.components),
        *_check_flit(spec),
        *_check_memory_model(spec),
        *_check_arrays(spec),
        *check_fit(spec.cube),
        *_check_coefficients(spec),
        *_check_buffers(spec),
        *_check_size(spec),
    ]


def _check_buffers(spec: MachineSpec) -> Iterator[UnplacedFault]:
    if spec.fabric.buffers is not None:
        yield from check_buffers(spec.fabric.buffers, spec.system.flit_bytes, "system.flit_bytes")


def _check_coefficients(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Coefficients must name existing element types and kinds of block."""
    energy, dtypes, kinds = spec.energy, [t.name for t in DTYPES], [kind for _, kind, _ in spec.components()]
    powered = [*kinds, *(["far_memory"] if spec.system.far_memory is not None else [])]
    named = (
        ("energy.pj_per_mac", energy.pj_per_mac, "element type", dtypes),
        ("energy.pj_per_vector_op", energy.pj_per_vector_op, "element type", dtypes),
        ("energy.static_w", energy.static_w, "kind of block", powered),
        ("area.mm2", spec.area.mm2, "kind of block", kinds),
    )
    for path, given, meaning, known in named:
        for name in given:
            if name not in known:
                what = f"no {meaning} '{name}'{closest(name, known)}"
                yield UnplacedFault(f"{path}.{name}", what, f"use one of {', '.join(known)}", (path,))


def _check_sips(spec: MachineSpec) -> Iterator[UnplacedFault]:
    sips = spec.system.sips
    w, h = sips.grid
    if w * h == sips.count:
        return
    uses = ("system.sips",)
    if sips.w is None and sips.h is None:
        what = f"a {sips.topology} of {sips.count} SIPs is not a square, so it needs w and h"
        yield UnplacedFault("system.sips.count", what, f"set w and h so that w x h = {sips.count}", uses)
        return
    key = "system.sips.w" if sips.w is not None else "system.sips.h"
    what = f"a grid of {w} x {h} does not hold {sips.count} SIPs"
    yield UnplacedFault(key, what, f"set w and h so that w x h = {sips.count}, or count to {w * h}", uses)


def _check_size(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """A machine is built node by node, so all counts together have a limit."""
    if spec.n_pes > MAX_PES:
        what = f"{spec.n_sips} SIPs of {spec.sip.n_cubes} cubes of {spec.cube.n_pes} PEs are {spec.n_pes:,} PEs"
        hint = f"keep the product at {MAX_PES:,} or less"
        yield UnplacedFault("system.sips.count", what, hint, ("system.sips", "sip.cube_mesh", _LAYOUT))


def _check_cube_mesh(spec: MachineSpec) -> Iterator[UnplacedFault]:
    mesh = spec.sip.cube_mesh
    if spec.sip.n_cubes > MAX_CUBES_PER_SIP:
        what = f"{mesh.w} x {mesh.h} = {spec.sip.n_cubes} cubes are too many for one SIP"
        yield UnplacedFault("sip.cube_mesh", what, f"keep w x h at {MAX_CUBES_PER_SIP} or less")
    if mesh.wrap == "none":
        if spec.sip.links.wrap is not None:
            what = "a link that closes rows or columns, and none is closed"
            yield UnplacedFault("sip.links.wrap", what, "set sip.cube_mesh.wrap to x, y or xy", ("sip.cube_mesh",))
        return
    key, uses = "sip.cube_mesh.wrap", ("sip.cube_mesh", "sip.io_chiplets", "fabric.buffers")
    if not wrap_links(spec.sip, resolve_chiplets(spec.sip, 0.0)):
        what = f"no row or column can be closed by wrap: {mesh.wrap}"
        hint = "IO chiplets take the ports of their side, and a ring has two cubes or more: place them on other sides"
        yield UnplacedFault(key, what, hint, uses)
    if spec.fabric.buffers is not None:
        what = "rings of cubes with finite buffers can block each other for ever"
        yield UnplacedFault(key, what, "set wrap to none, or fabric.buffers to null", uses)


def _check_io_chiplets(spec: MachineSpec) -> Iterator[UnplacedFault]:
    sip, key = spec.sip, "sip.io_chiplets"
    uses = ("sip.cube_mesh", key)
    n = len(sip.io_chiplets)
    if not 1 <= n <= MAX_IO_CHIPLETS:
        what = f"{n} IO chiplets are too many" if n else "without an IO chiplet nothing reaches the cubes"
        yield UnplacedFault(key, what, f"place 1 to {MAX_IO_CHIPLETS}, say [{{ id: io0, side: N }}]")
    ids: dict[str, int] = {}
    taken: dict[tuple[int, int, str], str] = {}
    for index, place in enumerate(sip.io_chiplets[:16]):
        at = f"{key}[{index}]"
        if place.id in ids:
            what = f"the id '{place.id}' is taken by {key}[{ids[place.id]}]"
            hint = f"give another, say io{len(sip.io_chiplets)}"
            yield UnplacedFault(f"{at}.id", what, hint, (f"{key}[{ids[place.id]}].id",))
        ids.setdefault(place.id, index)
        yield from _check_cube_ports(sip, place, at, taken)
    for index, chiplet in enumerate(resolve_chiplets(sip, 0.0)):
        if not chiplet.ports:
            place = sip.io_chiplets[index]
            what = f"IO chiplet '{chiplet.id}' is connected to no cube"
            if place.cube_ports is not None:
                hint = "name a port, or delete this key for every cube of its side"
                yield UnplacedFault(f"{key}[{index}].cube_ports", what, hint)
            else:
                hint = f"side {place.side} has no port left for it: use another side, or fewer chiplets"
                yield UnplacedFault(f"{key}[{index}]", what, hint, uses)


def _check_cube_ports(
    sip: SipSpec, place: IoChipletPlace, at: str, taken: dict[tuple[int, int, str], str]
) -> Iterator[UnplacedFault]:
    w, h = sip.cube_mesh.w, sip.cube_mesh.h
    uses = ("sip.cube_mesh", f"{at}.side")
    phys: list[str] = []
    for n, port in enumerate((place.cube_ports or ())[:64]):
        here = f"{at}.cube_ports[{n}]"
        (x, y), side = port.cube.xy, port.cube_side or place.side
        if x >= w or y >= h:
            hint = f"x is 0 to {w - 1}, y is 0 to {h - 1}"
            yield UnplacedFault(f"{here}.cube.xy", f"there is no cube at ({x}, {y})", hint, ("sip.cube_mesh",))
            continue
        if (x, y) not in shoreline(sip, side):
            open_sides = [s for s in SIDES if (x, y) in shoreline(sip, s)]
            hint = f"use side {' or '.join(open_sides)}" if open_sides else "use a cube on the edge of the package"
            what = f"side {side} of the cube at ({x}, {y}) faces another cube"
            yield UnplacedFault(f"{here}.cube_side" if port.cube_side else here, what, hint, uses)
        if (x, y, side) in taken:
            what = f"side {side} of the cube at ({x}, {y}) is taken by {taken[x, y, side]}"
            other = taken[x, y, side].rpartition(".")[0]
            yield UnplacedFault(here, what, "a cube port holds one link", (*uses, f"{other}.side", taken[x, y, side]))
        taken.setdefault((x, y, side), here)
        phy = port.phy or f"P{n}"
        if phy in phys:
            yield UnplacedFault(
                f"{here}.phy", f"the PHY '{phy}' appears twice on this chiplet", "give each a name of its own"
            )
        phys.append(phy)


def _check_pe_layout(spec: MachineSpec) -> Iterator[UnplacedFault]:
    layout = spec.cube.pe_layout
    if not layout.corners:
        yield UnplacedFault(f"{_LAYOUT}.corners", "a cube without a corner has no PE", "list some of NW, NE, SW, SE")
    for corner in ("NW", "NE", "SW", "SE"):
        if layout.corners.count(corner) > 1:
            yield UnplacedFault(f"{_LAYOUT}.corners", f"the corner {corner} appears twice", "list each corner once")
    if layout.rows_per_corner > layout.pe_per_corner:
        what = f"{layout.pe_per_corner} PEs do not fill {layout.rows_per_corner} rows of a corner"
        hint = f"set it to {layout.pe_per_corner} or less"
        yield UnplacedFault(f"{_LAYOUT}.rows_per_corner", what, hint, (_LAYOUT,))
    if layout.n_pes > MAX_PES_PER_CUBE:
        what = f"{layout.n_pes} PEs are too many for one cube"
        yield UnplacedFault(
            f"{_LAYOUT}.pe_per_corner", what, f"keep corners x pe_per_corner at {MAX_PES_PER_CUBE} or less", (_LAYOUT,)
        )


_NUMBERED = {  # key of system.address_map -> what has to fit its field, and the keys that decide it
    "sip_bits": ("{n_sips} SIPs", ("system.sips.count",)),
    "cube_bits": ("{n_cubes} cubes per SIP", ("sip.cube_mesh",)),
    "pe_bits": ("{n_pes} PEs per cube", (_LAYOUT,)),
    "hbm_bits": ("{hbm_gb} GB of HBM per cube", (f"{_MEMORY}.hbm_total_gb_per_cube",)),
    "sram_bits": ("{sram_mb:g} MB of SRAM per cube", (f"{_MEMORY}.sram_mb_per_cube",)),
    "tcm_bits": ("{tcm_mb:g} MB of TCM per PE", (f"{_MEMORY}.tcm_mb_per_pe",)),
    "chiplet_bits": ("{far_gb:g} GB of far memory per SIP", ("system.far_memory",)),
}


def _check_address_map(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Every count and size fits the field that is given for it, and all fields together fit an address."""
    key, memory = "system.address_map", spec.cube.memory_map
    sizes = {"n_sips": spec.n_sips, "n_cubes": spec.sip.n_cubes, "n_pes": spec.cube.n_pes}
    sizes |= {"hbm_gb": memory.hbm_total_gb_per_cube, "far_gb": spec.system.far_bytes_per_sip // GIB}
    per_unit = {"sram_mb": memory.sram_mb_per_cube, "tcm_mb": memory.tcm_mb_per_pe}
    for name, needed in spec.needed_bits.items():
        given = getattr(spec.system.address_map, name)
        if given is not None and given < needed:
            what, uses = _NUMBERED[name]
            has = what.format(**sizes, **per_unit)
            hint = f"set it to {needed} or more, or to null to follow the machine"
            yield UnplacedFault(f"{key}.{name}", f"{has} need {needed} bits, the field has {given}", hint, (key, *uses))
    try:
        layout_of(spec.address_widths)
    except AddressError as error:
        decide = tuple(use for _, keys in _NUMBERED.values() for use in keys)
        yield UnplacedFault(key, error.what, error.hint or "", (key, *decide))


def _check_hbm(spec: MachineSpec) -> Iterator[UnplacedFault]:
    cube, memory = spec.cube, spec.cube.memory_map
    slices_key, pseudo_key = f"{_MEMORY}.hbm_slices_per_cube", f"{_MEMORY}.hbm_pseudo_channels"
    channels_key = f"{_MEMORY}.hbm_channels_per_pe"
    uses = (_LAYOUT, slices_key, pseudo_key, channels_key)
    if cube.n_pes == 0 or not cube.has_slices:
        return
    if cube.hbm_slices != cube.n_pes:
        what = f"{cube.hbm_slices} HBM slices for {cube.n_pes} PEs: each PE has one"
        yield UnplacedFault(slices_key, what, f"set it to {cube.n_pes}, or to null to follow the PEs", uses)
        return
    pseudo, channels = memory.hbm_pseudo_channels, memory.hbm_channels_per_pe
    if pseudo is None and channels is None:
        what = "the number of HBM channels is not given"
        yield UnplacedFault(channels_key, what, f"set {channels_key} or {pseudo_key}", uses)
    elif channels is None and pseudo is not None:
        if pseudo % cube.hbm_slices or not is_power_of_two(pseudo // cube.hbm_slices):
            what = f"{pseudo} pseudo channels over {cube.hbm_slices} slices is not a power of two for each"
            yield UnplacedFault(pseudo_key, what, f"give {cube.hbm_slices} times a power of two", uses)
    elif channels is not None and pseudo is not None and pseudo != cube.hbm_slices * channels:
        right = cube.hbm_slices * channels
        what = f"{pseudo} pseudo channels are not {cube.hbm_slices} slices x {channels} channels"
        yield UnplacedFault(pseudo_key, what, f"set it to {right}, or one of the two to null", uses)


def _check_tcm(spec: MachineSpec) -> Iterator[UnplacedFault]:
    key = f"{_MEMORY}.tcm_scheduler_reserved_mb"
    memory, home_key = spec.cube.memory_map, f"{_MEMORY}.tcm_home_mb_per_pe"
    home = memory.tcm_home_mb_per_pe
    if spec.cube.tcm_allocatable_bytes <= 0:
        kept, size = memory.tcm_scheduler_reserved_mb, memory.tcm_mb_per_pe
        of_tensors = f" and {home:g} MB for tensors" if home else ""
        what = f"{kept:g} MB kept{of_tensors} of a TCM of {size:g} MB leaves nothing"
        uses = key, home_key, f"{_MEMORY}.tcm_mb_per_pe"
        at = home_key if kept < size else key
        yield UnplacedFault(at, what, "keep less, or make the TCM larger", uses, is_lack=True)
    if home and spec.cube.has_hbm:
        what = f"{home:g} MB of each TCM are to be the home of tensors, and they lie in HBM"
        hint = f"set {_HBM_GB} to 0 for a machine without HBM, or leave {home_key} out"
        yield UnplacedFault(_HBM_GB, what, hint, (_HBM_GB, home_key))


def _check_components(spec: MachineSpec) -> Iterator[UnplacedFault]:
    parts = spec.cube.pe_template.components
    for key, kind, component in spec.components():
        is_part = key == f"{PE_PARTS_KEY}.{kind}"
        if is_part and not is_part_name(kind):
            what = f"'{kind[:60]}' cannot be a part of a PE"
            yield UnplacedFault(key, what, "name it pe_..., in small letters, digits and _")
            continue
        if component.kind != kind:
            what = f"this place is for a {kind}, not for a '{component.kind}'"
            yield UnplacedFault(f"{key}.kind", what, f"write `kind: {kind}`; change `impl` to model it otherwise")
        if misfit := impl_fault(kind, component.impl):
            yield UnplacedFault(f"{key}.impl", misfit.what, misfit.hint)
        elif is_part:
            yield from check_part(kind, component, parts)
        wrong: list[tuple[str, InvalidValue]] = []
        read_attrs(kind, component.impl, component.attrs, wrong)
        for name, fault in wrong:
            yield UnplacedFault(f"{key}.attrs.{name}", fault.what, fault.hint, (f"{key}.impl", f"{key}.attrs"))


def _check_flit(spec: MachineSpec) -> Iterator[UnplacedFault]:
    key = "cube.components.hbm_ctrl.attrs.burst_bytes"
    burst = spec.cube.components.hbm_ctrl.attrs.get("burst_bytes")
    if isinstance(burst, int) and burst != spec.system.flit_bytes:
        what = f"a burst of {burst} bytes is not a flit of {spec.system.flit_bytes}: a channel commits flit by flit"
        yield UnplacedFault(key, what, "set burst_bytes and system.flit_bytes to the same", (key, "system.flit_bytes"))


UNUSED_BY = {
    "flat": ("faw_ns", "turnaround_ns", "drain_bytes", "rfc_ns", "refi_ns"),
    "banks": ("granule_bytes", "efficiency", "turnaround_ns", "drain_bytes"),
}


def _check_banks(spec: MachineSpec) -> Iterator[UnplacedFault]:
    controller, mapping = spec.cube.components.hbm_ctrl, spec.cube.memory_map.hbm_mapping_mode
    if spec.hbm.preset not in BANKS:
        what = f"the banks of {spec.hbm.preset or 'no preset'} are not known"
        yield UnplacedFault("hbm.preset", what, f"give one of {', '.join(BANKS)}", ("hbm.model",))
    if controller.impl != "builtin.hbm_ctrl":
        what = f"the model 'banks' is a controller of its own, not {controller.impl[:60]}"
        yield UnplacedFault("cube.components.hbm_ctrl.impl", what, "use builtin.hbm_ctrl", ("hbm.model",))
    if mapping != "n_to_one":
        what = "the model 'banks' takes accesses whole"
        yield UnplacedFault("cube.memory_map.hbm_mapping_mode", what, "use n_to_one", ("hbm.model",))


def _check_memory_model(spec: MachineSpec) -> Iterator[UnplacedFault]:
    cube, hbm = spec.cube, spec.hbm
    attrs = cube.components.hbm_ctrl.attrs
    granule, burst = hbm.timing.granule_bytes, attrs.get("burst_bytes")
    if isinstance(burst, int) and granule > burst:
        what = f"granules of {granule} bytes in bursts of {burst}"
        yield UnplacedFault(
            "hbm.granule_bytes", what, "give at most the bytes of a burst", ("hbm.preset", "hbm.granule_bytes")
        )
    for name in UNUSED_BY.get(hbm.model, ()):
        if getattr(hbm, name) is not None:
            what = f"the model '{hbm.model}' has no use for it"
            yield UnplacedFault(f"hbm.{name}", what, "give `model: closed`", ("hbm.model",))
    if hbm.model == "flat":
        return
    if hbm.model == "banks":
        yield from _check_banks(spec)
    if attrs.get("switch_penalty_ns"):
        key = "cube.components.hbm_ctrl.attrs.switch_penalty_ns"
        yield UnplacedFault(
            key, "two costs of turning the bus", "give hbm.turnaround_ns, or `model: flat`", ("hbm.model",)
        )
    timing, keys = hbm.timing, ("hbm.rfc_ns", "hbm.refi_ns", "hbm.preset")
    if timing.rfc_ns >= timing.refi_ns:
        what = f"a refresh of {timing.rfc_ns:g} ns is due every {timing.refi_ns:g} ns"
        yield UnplacedFault("hbm.rfc_ns", what, "give refi_ns more", keys)
    elif isinstance(burst, int) and cube.memory_map.hbm_channel_bw_gbs and "efficiency" in attrs:
        burst_ns = burst / cube.hbm_channel_bw_gbs
        if timing.faw_ns / 4 > burst_ns:
            what = f"a full burst of {burst_ns:g} ns is shorter than a row takes to open, {timing.faw_ns / 4:g} ns"
            yield UnplacedFault("hbm.faw_ns", what, "give longer bursts, or a shorter window",
                          ("hbm.preset", "cube.components.hbm_ctrl", "cube.memory_map"))  # fmt: skip


def _check_arrays(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """The peak of systolic arrays is given by their geometry: what a description says must agree."""
    gemm = spec.cube.pe_template.components.pe_gemm
    names = (*ARRAY_FACTORS.get(gemm.impl, ()), "macs_per_ns")
    numbers = [float(number) for number in map(gemm.attrs.get, names) if isinstance(number, int | float)]
    if len(names) > 1 and len(numbers) == len(names) and not isclose(peak := prod(numbers[:-1]), numbers[-1]):
        key = f"{PE_PARTS_KEY}.pe_gemm.attrs"
        macs = " x ".join(f"{number:g}" for number in numbers[:-2])
        what = f"{macs} MACs at {numbers[-2]:g} GHz are not {numbers[-1]:g} MACs per ns"
        uses = tuple(f"{key}.{name}" for name in names)
        yield UnplacedFault(f"{key}.macs_per_ns", what, f"give macs_per_ns: {peak:.12g}", uses)
