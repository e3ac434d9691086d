"""Which mapping a layer has: one by name, a file or a class of the user's, or the choice of `auto` for its sizes.

How much TCM kernels have depends on it, since products by blocks take that of collectives where there are none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from kernbench.ccl.config import CclSource, load_ccl_config, resolve_algorithm_config
from kernbench.common.errors import CapacityError, UsageError
from kernbench.models.figures import memory_there
from kernbench.models.fused_plan import DecodeSize, NotFused, fused_plan
from kernbench.models.machine_model import machine_model
from kernbench.models.mapper import LayerChoice, LayerSize, choose_layer
from kernbench.models.mapping import COPIED_SHARE, MAPPINGS, InputOrder, Mapping, choose_mapping
from kernbench.models.pinned import PinnedWork, pinned_layer
from kernbench.models.pinned_file import CHOOSE, PinnedFile
from kernbench.models.plans import SipShape
from kernbench.models.product_size import ProductSize, attended_by
from kernbench.models.quantised import CacheName, WeightName
from kernbench.models.shapes import ModelShape
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.user_module import load_user_module, split_identifier

FUSED = "fused"  # the name of a decode step in one launch, wherever that can be
MOST_PES = 2048  # that share a layer which `auto` takes as one launch: with more it takes minutes to simulate
ALONE = {"ring_bytes": 33_024, "work_bytes": 4_096}  # of TCM, for a barrier: one SIP has no collectives
PASSING = {**ALONE, "ring_bytes": 9 * 16_384}  # and rings: for chunks of two operands 4 slots each


@dataclass(frozen=True)
class LayerRequest:
    """What a mapping is chosen for: `tp` SIPs share the layer, of `world`."""

    model: ModelShape
    phase: str
    batch: int
    tokens: int
    itemsize: int
    tp: int
    world: int
    is_alone: bool = True  # whether nothing but the layer runs
    context: int = 0
    weight_type: WeightName = "same"
    cache_type: CacheName = "same"
    sequence_parallel: bool = False

    @property
    def routed(self) -> int:
        """Rows of the products of experts."""
        return self.batch * self.tokens * self.model.experts_per_token

    @property
    def weights_bytes(self) -> int:
        """Of all layers, on one SIP."""
        return self.model.layers * self.model.layer_parameters * self.itemsize // self.tp

    @property
    def cache_itemsize(self) -> int:
        return self.itemsize if self.cache_type == "same" else 1

    @property
    def work(self) -> PinnedWork:
        """What a file that pins the choice is for."""
        m, sizes = self.model, (self.batch, self.tokens, self.context)
        return PinnedWork(m.name, self.phase, *sizes, self.tp, self.itemsize, self.weight_type, self.cache_type)

    @property
    def size(self) -> LayerSize:
        """The products of a SIP, and its causal attention at prefill."""
        m, rows, tp = self.model, self.batch * self.tokens, self.tp
        heads, kv_heads, ffn = m.heads // tp, max(1, m.kv_heads // tp), m.ffn // tp
        gates = 2 if m.is_gated else 1
        shapes: tuple[tuple[str, int, int, int, int, InputOrder, int], ...] = (
            ("qkv", rows, m.hidden, (heads + 2 * kv_heads) * m.head_dim, 1, "rows", 1),
            ("out_proj", rows, heads * m.head_dim, m.hidden, 1, attended_by(self.phase), 1),
            ("mlp_up", self.routed, m.hidden, ffn, gates, "rows", m.experts),
            ("mlp_down", self.routed, ffn, m.hidden, 1, "columns", m.experts),
        )
        attention = (self.batch, self.tokens, heads, kv_heads, m.head_dim) if self.phase == "prefill" else None
        stored = self.itemsize, self.weight_type
        return LayerSize(tuple(ProductSize(*shape, *stored) for shape in shapes), attention)

    @property
    def decode(self) -> DecodeSize | NotFused:
        """The sizes of a SIP's part of a decode step that can be one launch: without experts."""
        m = self.model
        if self.phase != "decode" or not self.context:
            return NotFused("it is for phase=decode, after a context")
        if self.tp > 1 and self.sequence_parallel:
            return NotFused("with sequence_parallel each SIP has rows of its own between products")
        if m.has_experts:
            return NotFused(f"{m.name} has experts, whose rows follow from a routing")
        tp, gates = self.tp, 2 if m.is_gated else 1
        sizes = m.hidden, m.heads // tp, max(1, m.kv_heads // tp), m.head_dim, m.ffn // tp
        return DecodeSize(self.batch, self.context, *sizes, gates, self.itemsize, tp, self.weight_type, self.cache_type)

    @property
    def is_one_sip(self) -> bool:
        """Whether nothing but one SIP's layer runs: there are no collectives between SIPs."""
        return self.is_alone and self.world == 1

    @property
    def has_no_collectives(self) -> bool:
        """Whether kernels may have the TCM of collectives: decode sends messages within a SIP."""
        return self.is_one_sip and self.phase == "prefill"


def check_mapping_name(name: str) -> None:
    """Raise UsageError for the name of a mapping that is neither known nor a place."""
    if name not in ("auto", FUSED) and name not in MAPPINGS and not any(mark in name for mark in ".:/\\"):
        raise UsageError(
            f"no mapping '{name}'",
            hint=f"use auto, {', '.join(MAPPINGS)}, {FUSED}, FILE.yaml that --mapping-report wrote, or FILE.py:NAME",
        )


def mapping_of(
    name: str, torch: RuntimeContext, request: LayerRequest, sip: SipShape, ring_bytes: int
) -> LayerChoice | Mapping:
    """A mapping by name, the choice of `auto`, or a user's FILE.py:NAME; raises UsageError when there is none."""
    spec = torch.spec
    memory = memory_there(spec)
    usual = choose_mapping(sip, request.routed, request.weights_bytes, memory)
    if name == "auto" and sip.tcm_bytes <= 0:
        return usual
    if name == "auto":
        copies = max(1, int(COPIED_SHARE * memory // max(1, request.weights_bytes)))
        return choose_layer(machine_model(torch.engine.graph, sip, ring_bytes), request.size, usual, copies)
    if name in MAPPINGS:
        return MAPPINGS[name]
    check_mapping_name(name)
    place, inside = split_identifier(name)
    found = getattr(load_user_module(place), inside or "mapping", None)
    mapping = found() if isinstance(found, type) else found
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{place} has no mapping '{inside or 'mapping'}'", hint="see docs/guides/time-a-layer.md")
    return mapping


def chosen_mapping(name: str, torch: RuntimeContext, request: LayerRequest) -> tuple[LayerChoice | Mapping, CclSource]:
    """The mapping, and the configuration of collectives: products by blocks get their TCM where there are none, less
    the rings of PEs that pass chunks on; so does any layer of one SIP whose TCM they would fill.
    """
    if name.endswith((".yaml", ".yml")):
        return _pinned(PinnedFile(name), torch, request)
    fused = None
    if name == FUSED or (name == "auto" and request.phase == "decode"):
        fused = _fused(torch, request, is_asked_for=name == FUSED)
    if isinstance(fused, tuple):
        return fused
    if name == FUSED and fused is not None:
        kind = CapacityError if fused.is_lack else UsageError
        raise kind(f"mapping={FUSED}, a decode step in one launch: {fused.reason}", hint="use mapping=auto")
    if request.has_no_collectives and name == "auto":
        without, given = (_alone(torch, request, kept) for kept in (ALONE, PASSING))
        is_passing = given is not None and given.mapping.has_messages
        if given is not None and is_passing and (without is None or given.products_ns < without.products_ns):
            return given, {"defaults": PASSING}
        if without is not None and without.mapping.has_blocks:
            return without, {"defaults": ALONE}
    kept, ccl = _kept_by_collectives(), None
    if request.is_one_sip and _sip(torch, sum(kept.values())).tcm_bytes <= 0:
        kept, ccl = PASSING, {"defaults": PASSING}
    found = mapping_of(name, torch, request, _sip(torch, sum(kept.values())), kept["ring_bytes"])
    if isinstance(found, LayerChoice) and fused is not None:
        found = replace(found, not_fused=fused.reason)
    return found, ccl


def _pinned(file: PinnedFile, torch: RuntimeContext, request: LayerRequest) -> tuple[Mapping, CclSource]:
    """What a file pins, and the configuration of collectives that leaves kernels the TCM that it was chosen for; raises
    UsageError where there is none.
    """
    file.check_work(asdict(request.work), request.size)
    ways: list[tuple[dict[str, int], CclSource]] = [(_kept_by_collectives(), None)]
    if file.is_fused:
        ways = [_kept_by_decode(request)]
    elif request.is_one_sip:
        ways += [(kept, {"defaults": kept}) for kept in (ALONE, PASSING)]
    given = file.entry.sip
    sips = [_sip(torch, sum(kept.values())) for kept, _ in ways]
    mesh, own = (given.mesh_w, given.mesh_h, given.pes), (sips[0].mesh_w, sips[0].mesh_h, sips[0].pes)
    if mesh != own:
        of_file, of_run = ("{} x {} cubes of {} PEs".format(*sizes) for sizes in (mesh, own))
        raise file.fault(("sip",), f"the file is for a SIP of {of_file}, this one has {of_run}", CHOOSE)
    for sip, (kept, ccl) in zip(sips, ways, strict=True):
        if 0 < sip.tcm_bytes == given.tcm_bytes:
            machine = machine_model(torch.engine.graph, sip, kept["ring_bytes"], request.tp)
            usual = choose_mapping(sip, request.routed, request.weights_bytes, memory_there(torch.spec))
            return pinned_layer(file, machine, request.size, request.decode, usual), ccl
    kept_by = f"collectives of {request.world} SIPs" if request.world > 1 else "messages"
    there = " or ".join(str(sip.tcm_bytes) for sip in sips)
    kept_bytes = " or ".join(str(sum(kept.values())) for kept, _ in ways)
    what = (
        f"the file is for kernels with {given.tcm_bytes} bytes of TCM, in this run they have {there}: rings and work "
    )
    what += f"of {kept_by} keep {kept_bytes}"
    raise file.fault(("sip", "tcm_bytes"), what, f"{CHOOSE}; or write {there}, if the plans fit it")


def _fused(
    torch: RuntimeContext, request: LayerRequest, *, is_asked_for: bool
) -> tuple[LayerChoice, CclSource] | NotFused:
    """A decode step in one launch, with the TCM of collectives where there are none, or why it is not one."""
    size = request.decode
    if isinstance(size, NotFused):
        return size
    kept, ccl = _kept_by_decode(request)
    sip = _sip(torch, sum(kept.values()))
    if request.tp > 1 and request.tp * sip.size > MOST_PES and not is_asked_for:
        long = f"{request.tp * sip.size} PEs share the layer, which takes minutes to simulate in one launch"
        return NotFused(f"{long}; mapping={FUSED} takes it all the same")
    found = mapping_of("auto", torch, request, sip, kept["ring_bytes"])
    if not isinstance(found, LayerChoice):
        return NotFused("kernels have no TCM", is_lack=True)
    machine = machine_model(torch.engine.graph, sip, kept["ring_bytes"], request.tp)
    plan = fused_plan(machine, found.mapping.base, size)
    if isinstance(plan, NotFused):
        return plan
    usual = found.usual  # of its products
    return replace(usual, mapping=replace(usual.mapping, fused=plan)), ccl


def _kept_by_decode(request: LayerRequest) -> tuple[dict[str, int], CclSource]:
    """The TCM that a decode step in one launch leaves for messages, and the configuration that says so."""
    if request.is_one_sip:
        return PASSING, {"defaults": PASSING}
    return _kept_by_collectives(), None


def _kept_by_collectives() -> dict[str, int]:
    """The TCM that collectives keep, as `ccl.yaml` says."""
    config = resolve_algorithm_config(load_ccl_config())
    return {"ring_bytes": config.ring_bytes, "work_bytes": config.work_bytes}


def _alone(torch: RuntimeContext, request: LayerRequest, kept: dict[str, int]) -> LayerChoice | None:
    """The choice of `auto` if so much TCM is kept for messages; None if nothing is left."""
    sip = _sip(torch, sum(kept.values()))
    if sip.tcm_bytes <= 0:
        return None
    found = mapping_of("auto", torch, request, sip, kept["ring_bytes"])
    return found if isinstance(found, LayerChoice) else None


def _sip(torch: RuntimeContext, kept_bytes: int) -> SipShape:
    """A SIP whose collectives keep some TCM; too little for kernels is refused when tensors are made."""
    spec = torch.spec
    tcm_bytes = spec.least_of_cubes(lambda cube: cube.tcm_allocatable_bytes)
    return SipShape(spec.sip.cube_mesh.w, spec.sip.cube_mesh.h, spec.cube.n_pes, tcm_bytes - kept_bytes)
