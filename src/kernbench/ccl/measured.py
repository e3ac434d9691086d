"""The tables of `auto` that come with the package: measured with `kernbench tune-ccl`, each for one kind of machine.

A table is used for machines with the same description but for its name, its number of SIPs (the rows have limits of
ranks) and its address model, unless an MMU takes time. Other machines use the table `auto` of `ccl.yaml`, and so does
a collective whose table there is a user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final

from kernbench.topology.machine_hash import fingerprint, values_of
from kernbench.topology.spec import MachineSpec
from kernbench.topology.yaml_marks import Marked, parse_yaml

PACKAGE: Final = "kernbench.ccl.tables"


def machine_key(spec: MachineSpec) -> str:
    """What times of collectives depend on besides the number of ranks: 16 hex digits. As `machine_hash`, it does not
    change when a key is added to descriptions, as long as a machine leaves it as shipped.
    """
    values = values_of(spec)
    for name in ("energy", "area", "power", "cost", "limits"):
        values.pop(name, None)
    del values["system"]["name"]
    if not any(cube.pe_template.components.pe_mmu.number_attr("tlb_overhead_ns") for cube, _ in spec.cubes_of()):
        values["system"]["address_model"] = "va"  # without that overhead all models take the same time (ADR 93)
    for key in ("count", "w", "h"):
        del values["system"]["sips"][key]
    return fingerprint(values)


@cache
def measured_tables() -> tuple[tuple[str, Marked], ...]:
    """The machine and the section `auto` of every table of the package."""
    return tuple(_tables())


def _tables() -> Iterator[tuple[str, Marked]]:
    for file in sorted(files(PACKAGE).iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            tree = parse_yaml(file.read_text(encoding="utf-8"), f"kernbench/ccl/tables/{file.name}")
            assert isinstance(tree.value, dict)
            yield str(tree.value["machine"].plain()), tree.value["auto"]
