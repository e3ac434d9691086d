"""A configuration of collectives as checked, frozen data: settings, algorithms, and the tables of `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from kernbench.ccl.calls import CollectiveName
from kernbench.common.ipcq import Backpressure, BufferKind, RingConfig
from kernbench.topology.yaml_marks import Marked

Root = Literal["center", "corner"]
ParamValue = float | int | str | bool

AUTO: Final = "auto"
COLLECTIVE_NAMES: Final = cast("tuple[CollectiveName, ...]", get_args(CollectiveName))
PER_CUBE: Final = "all_reduce_per_cube"


@dataclass(frozen=True, slots=True)
class AutoRow:
    """The algorithm for messages of up to `up_to_bytes` in groups of up to `up_to_ranks`; None: for all larger ones."""

    algorithm: str
    up_to_bytes: int | None = None
    chunk_bytes: int | None = None
    up_to_ranks: int | None = None

    def applies(self, nbytes: int, ranks: int) -> bool:
        return (self.up_to_ranks is None or ranks <= self.up_to_ranks) and (
            self.up_to_bytes is None or nbytes <= self.up_to_bytes
        )


@dataclass(frozen=True, slots=True)
class AlgorithmConfig:
    """An algorithm with all its settings. `cfg["module"]` reads as `cfg.module`."""

    algorithm: str
    module: str
    buffer_kind: BufferKind
    backpressure: Backpressure
    n_slots: int
    slot_size: int
    ipcq_credit_size_bytes: int
    ring_bytes: int
    work_bytes: int
    chunk_bytes: int
    root: Root
    params: Mapping[str, ParamValue] = field(default_factory=dict, hash=False)
    where: str = field(default="", compare=False)  # file and line of its entry

    def __getitem__(self, key: str) -> object:
        if key not in self.__slots__:
            raise KeyError(key)
        return getattr(self, key)

    @property
    def rings(self) -> RingConfig:
        """The rings of its communicator."""
        return RingConfig(
            self.n_slots, self.slot_size, self.buffer_kind, self.backpressure, self.ipcq_credit_size_bytes
        )


def two_rings_fit(settings: Mapping[str, object]) -> bool:
    """Whether two rings, one per direction, and their credits fit the TCM reserved for rings."""
    n_slots, slot_size, ring_bytes, credit = (
        cast(int, settings[key]) for key in ("n_slots", "slot_size", "ring_bytes", "ipcq_credit_size_bytes")
    )
    return settings["buffer_kind"] != "tcm" or 2 * (n_slots * slot_size + credit) <= ring_bytes


@dataclass(frozen=True, slots=True)
class CclConfig:
    """A whole configuration. `collectives` has every collective, including all_reduce; `measured` has the package's
    tables of the machines that were measured, for the collectives whose table in `auto` is the package's too.
    """

    settings: Mapping[str, object]
    collectives: Mapping[str, str]
    auto: Mapping[str, tuple[AutoRow, ...]]
    algorithms: Mapping[str, Mapping[str, object]]
    tree: Marked = field(repr=False, compare=False)
    measured: Mapping[str, Mapping[str, tuple[AutoRow, ...]]] = field(default_factory=dict)  # by machine and collective
