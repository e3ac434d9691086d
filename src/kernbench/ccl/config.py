"""The configuration of collectives, `ccl.yaml`, and the choice of an algorithm for a call.

Layers override each other: first the file of the package; then the file that the caller names, or that KERNBENCH_CCL
names, or `ccl.yaml` in the current directory; then a mapping, if the caller passes one (`config_layers.py`). All faults
are reported together (`config_check.py`). Modules of algorithms are loaded when they are needed (`modules.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from kernbench.ccl.calls import CollectiveName, Per
from kernbench.ccl.config_check import checked
from kernbench.ccl.config_layers import FILE, layer_of, read_layer, shipped, with_table
from kernbench.ccl.config_spec import AUTO, PER_CUBE, AlgorithmConfig, CclConfig, two_rings_fit
from kernbench.common.errors import UsageError
from kernbench.topology.readers import closest, show
from kernbench.topology.yaml_marks import SourceMark, merge

VARIABLE: Final = "KERNBENCH_CCL"
CclSource = str | Path | Mapping[str, object] | CclConfig | None


def load_ccl_config(source: CclSource = None) -> CclConfig:
    """The configuration from all layers, in the order that the module describes. Raises CclConfigError with every
    fault.
    """
    if isinstance(source, CclConfig):
        return source
    layers = [shipped()]
    if isinstance(source, str | Path):
        layers.append(read_layer(Path(source), "ccl="))
    elif os.environ.get(VARIABLE):
        layers.append(read_layer(Path(os.environ[VARIABLE]), VARIABLE))
    elif Path(FILE).is_file():
        layers.append(read_layer(Path(FILE), FILE))
    if isinstance(source, Mapping):
        layers.append(layer_of(source, SourceMark("ccl=")))
    elif source is not None and not isinstance(source, str | Path):
        raise UsageError(f"ccl is {show(source)}", hint="give the path of a ccl.yaml, or a mapping with its keys")
    tree = layers[0]
    for layer in layers[1:]:
        tree = merge(tree, with_table(layer))
    return checked(tree)


def resolve_algorithm_config(cfg: CclConfig, name: str | None = None, *, is_auto: bool = False) -> AlgorithmConfig:
    """An algorithm by its name; without one, that of an all_reduce of no bytes. Raises UsageError for an unknown name,
    and if two of its rings do not fit; an algorithm chosen by `auto` then uses the rings of the defaults.
    """
    if name is None:
        return choose(cfg, "all_reduce", 0)
    if name not in cfg.algorithms:
        raise UsageError(
            f"there is no algorithm '{name}'{closest(name, cfg.algorithms)}",
            hint=f"use one of {', '.join(cfg.algorithms)}, or add an entry under algorithms: in {FILE}",
        )
    own = cfg.algorithms[name]
    merged = {**cfg.settings, **own}
    if not two_rings_fit(merged):
        if not is_auto:
            raise UsageError(
                f"two rings of '{name}', {merged['n_slots']} slots of {merged['slot_size']} bytes each, do not fit "
                f"ring_bytes {merged['ring_bytes']}",
                hint="raise defaults.ring_bytes, or set n_slots and slot_size of the algorithm",
            )
        merged |= {key: cfg.settings[key] for key in ("n_slots", "slot_size")}
    return AlgorithmConfig(algorithm=name, **merged)  # type: ignore[arg-type]  # checked when it was read


def choose(
    cfg: CclConfig,
    collective: CollectiveName,
    nbytes: int,
    *,
    per: Per = "rank",
    algorithm: str | None = None,
    ranks: int = 2,
    machine: str | None = None,
) -> AlgorithmConfig:
    """The algorithm for a call: the one requested, or the configured one, or by size and number of ranks from the table
    of `auto`: that measured on this `machine` (`machine_key`) as far as it goes, or else the one for all machines.
    """
    name = algorithm or cfg.collectives[collective]
    if name != AUTO:
        return resolve_algorithm_config(cfg, name)
    key = PER_CUBE if per == "cube" else collective
    rows = cfg.auto.get(key)
    if rows is None:
        raise UsageError(f"{collective} is 'auto', and there is no table auto.{key}", hint=f"add one to {FILE}")
    measured = cfg.measured.get(machine or "", {}).get(key, ())
    row = next(row for row in (*measured, *rows) if row.applies(nbytes, ranks))
    found = resolve_algorithm_config(cfg, row.algorithm, is_auto=True)
    return found if row.chunk_bytes is None else replace(found, chunk_bytes=row.chunk_bytes)


def has_shipped_table(cfg: CclConfig, collective: CollectiveName) -> bool:
    """Whether `auto` of a collective is the package's own for all machines, and not one of the user's."""
    return cfg.auto.get(collective) == _shipped_tables().get(collective)


@cache
def _shipped_tables() -> Mapping[str, object]:
    return checked(shipped()).auto


def with_algorithm(
    cfg: CclConfig, collective: CollectiveName, algorithm: str | None, settings: Mapping[str, object] | None = None
) -> CclConfig:
    """A copy with another algorithm for one collective, and some other defaults."""
    if algorithm is not None and algorithm != AUTO:
        resolve_algorithm_config(cfg, algorithm)  # raises if it is invalid
    chosen = {**cfg.collectives, collective: algorithm or cfg.collectives[collective]}
    return replace(cfg, collectives=chosen, settings={**cfg.settings, **(settings or {})})
