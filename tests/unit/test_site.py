"""The pages of the site that are made from the code have everything that the code has. `make docs` builds the site."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.unit.test_public_surface import IMPORTS, TORCH

from kernbench.triton_emu.tl_context import TLContext

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    """The modules that make the pages; the site's own, so not of the package."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        import api_pages
        import yaml_keys

        return SimpleNamespace(api=api_pages, keys=yaml_keys)
    finally:
        del sys.path[0]


def leaves(node: object, path: str = "") -> list[str]:
    """The keys of a YAML file that hold values; a list of mappings, and an empty mapping, is one."""
    if not isinstance(node, dict) or not node:
        return [path]
    return [leaf for name, child in node.items() for leaf in leaves(child, f"{path}.{name}" if path else name)]


def test_every_key_of_the_shipped_machine_has_a_row_with_default_and_range(made: SimpleNamespace) -> None:
    shipped = yaml.safe_load((files("kernbench.topology") / "default.yaml").read_text())
    rows = {row.path: row for row in made.keys.machine_keys()}
    by_name = ("energy.pj_per_mac.", "energy.pj_per_vector_op.")  # keys are element types, in one row
    missing = [
        key for key in leaves(shipped) if key not in rows and not key.endswith(".kind") and not key.startswith(by_name)
    ]
    assert missing == []
    assert [row.path for row in rows.values() if not row.default or not row.accepted] == []


@pytest.mark.parametrize(
    ("key", "unit", "default", "accepted"),
    [
        ("system.sips.count", "", "2", "whole number from 1 to 1024"),
        ("system.flit_bytes", "bytes", "256", "power of two from 16 to 65536"),
        ("sip.links.cube_to_cube.bw_gbs", "GB/s", "512", "number above 0 and up to 1000000"),
        ("cube.memory_map.hbm_pseudo_channels", "", "null", "whole number from 1 to 16384, or null"),
        ("cube.components.hbm_ctrl.attrs.efficiency", "", "1", "number from 0.001 to 1"),
        ("cube.pe_template.components.pe_dma.attrs.outstanding", "", "1", "whole number from 1 to 1024"),
        ("cube.pe_template.components.pe_mmu.attrs.tlb_overhead_ns", "ns", "0", "number from 0 to 1000000"),
    ],
)
def test_a_row_says_unit_default_and_range(
    made: SimpleNamespace, key: str, unit: str, default: str, accepted: str
) -> None:
    row = next(row for row in made.keys.machine_keys() if row.path == key)
    assert (row.unit, row.default, row.accepted) == (unit, default, accepted)


def test_every_key_of_ccl_yaml_has_a_row(made: SimpleNamespace) -> None:
    shipped = yaml.safe_load((files("kernbench.ccl") / "ccl.yaml").read_text())
    rows = {row.path: row for row in made.keys.ccl_keys()}
    own = ("auto", "algorithms")  # described by form: their names are the user's
    assert [key for key in leaves(shipped) if key not in rows and not key.startswith(own)] == []
    assert rows["defaults.ring_bytes"].accepted == "whole number from 256 to 2097152, a multiple of 256"


def test_the_page_of_tl_has_every_name_with_its_signature(made: SimpleNamespace) -> None:
    page = made.api.tl_page()
    names = [name for name in dir(TLContext) if not name.startswith("_") and callable(getattr(TLContext, name))]
    assert [name for name in names if f"### `tl.{name}`\n" not in page] == []
    assert "load(" in page
    assert " at 0x" not in page


def test_the_page_of_torch_has_its_functions_and_its_collectives(made: SimpleNamespace) -> None:
    page = made.api.torch_page()
    collectives = [name for name in TORCH["distributed"].split() if name.islower() and name != "group"]
    assert [name for name in collectives if f"`torch.distributed.{name}`" not in page] == []
    assert [name for name in ("zeros", "launch", "check", "wait") if f"`torch.{name}`" not in page] == []


def test_the_page_of_modules_has_every_import_path_that_is_pinned(made: SimpleNamespace) -> None:
    pinned = {path.partition(":")[0] for path in IMPORTS}
    families = tuple(made.api.FAMILIES)
    assert [path for path in sorted(pinned) if path not in made.api.MODULES and not path.startswith(families)] == []


def test_packages_of_the_site_are_an_extra_and_are_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    others = [each for each in extra if not each.startswith("kernbench[")]
    assert {re.match(r"[\w-]+", each)[0] for each in others} <= pinned
