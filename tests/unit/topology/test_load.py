"""Sources, bases and overrides: what a description inherits and what it changes."""

import os
from pathlib import Path

import numpy as np
import pytest

from kernbench.common.errors import TopologyError
from kernbench.topology import load_spec, load_topology


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def refused(source: object, overrides: dict[str, object] | None = None) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        load_spec(source, overrides)  # type: ignore[arg-type]  # wrong sources are the subject
    return caught.value


def test_a_two_line_file_is_a_machine(tmp_path: Path) -> None:
    path = write(tmp_path / "m.yaml", "system:\n  sips: { count: 4 }\n")
    spec = load_spec(path)
    assert spec.n_sips == 4
    assert spec.cube == load_spec().cube
    assert load_spec(str(path)) == spec


def test_a_file_stands_on_the_base_it_names_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "small.yaml", "base: default\nsip: { cube_mesh: { w: 2, h: 2 } }\nsystem: { name: small }\n")
    top = write(tmp_path / "sub" / "m.yaml", "base: ../small.yaml\nsip:\n  cube_mesh: { h: 1 }\n")
    spec = load_spec(top)
    assert (spec.sip.cube_mesh.w, spec.sip.cube_mesh.h, spec.system.name) == (2, 1, "small")


def test_lists_replace_and_mappings_merge(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "sip: { io_chiplets: [{ id: io0, side: N }, { id: io1, side: S }] }\n")
    top = write(tmp_path / "b.yaml", "base: a.yaml\nsip: { io_chiplets: [{ id: io5, side: W }] }\n")
    assert [place.id for place in load_spec(top).sip.io_chiplets] == ["io5"]


def test_null_deletes_named_entries_of_a_base(tmp_path: Path) -> None:
    base = """
        system:
          sips: { count: 4, types: { fast: [3] } }
          switch_levels: { tray: { count: 2, bw_gbs: 64.0, distance_mm: 9.0 } }
        sip: { cube_types: { wide: [0] } }
        sip_types: { fast: { cube_types: { wide: [1] } }, slow: {} }
        cube_types: { wide: { links: { router_bw_gbs: 512.0 } } }
    """
    write(tmp_path / "base.yaml", base.replace("\n        ", "\n"))
    top = "base: base.yaml\nsystem: { sips: { count: 3, types: null }, switch_levels: null }\nsip_types: null\n"
    spec = load_spec(write(tmp_path / "m.yaml", top), {"sip.cube_types.wide": [2]})
    assert (spec.system.sips.types, spec.system.switch_levels, spec.sip_types) == ({}, {}, {})
    assert spec.sip.cube_types == {"wide": (2,)}
    one = load_spec(str(tmp_path / "base.yaml"), {"sip_types.slow": None, "system.switch_levels.tray": None})
    assert (list(one.sip_types), one.system.switch_levels) == (["fast"], {})


def test_a_circle_of_bases_and_a_missing_base_are_faults_with_their_line(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: b.yaml\n")
    write(tmp_path / "b.yaml", "\nbase: a.yaml\n")
    error = refused(tmp_path / "a.yaml")
    assert "leads back" in error.what
    assert error.faults[0].where.endswith("b.yaml:2")
    missing = refused(write(tmp_path / "c.yaml", "# none\nbase: gone.yaml\n"))
    assert missing.faults[0].where.endswith("c.yaml:2")
    assert "there is no file" in missing.what
    assert refused(write(tmp_path / "d.yaml", "base: [1]\n")).faults[0].key == "base"
    assert refused(write(tmp_path / "e.yaml", "base: e.yaml\n")).faults[0].key == "base"


def test_sources_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path / "none.yaml").what
    assert "is not a file" in refused(tmp_path).what
    assert refused("a\0b").hint
    assert refused("x" * 5000).hint
    assert "cannot load a machine from 3" in refused(3).what
    assert "nothing in it" in refused(write(tmp_path / "empty.yaml", "# only a comment\n")).what
    assert "expected keys and values" in refused(write(tmp_path / "list.yaml", "- 1\n")).what
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"system:\n  name: caf\xe9\n")
    error = refused(latin)
    assert "not UTF-8" in error.what
    assert error.faults[0].where.endswith("latin.yaml:2")


def test_a_mapping_and_a_spec_are_sources_too() -> None:
    spec = load_spec({"system": {"sips": {"count": 3}}})
    assert spec.n_sips == 3
    assert load_spec(spec) is spec
    assert load_spec(spec, {"sip.cube_mesh.w": 1}).n_cubes == 3 * 4
    assert "cannot stand in a machine" in refused({"system": object()}).what
    loop: dict[str, object] = {}
    loop["system"] = loop
    assert "nested too deep" in refused(loop).what


def test_overrides_take_values_and_yaml_text_and_list_entries() -> None:
    spec = load_spec(
        None,
        {
            "system.sips.count": "4",
            "sip.cube_mesh": "{ w: 2 }",
            "sip.io_chiplets.0.side": "S",
            "sip.io_chiplets[0].id": "io3",
            "cube.pe_layout.corners": "[NW, SE]",
            "system.ns_per_mm": 0.2,
        },
    )
    assert (spec.n_sips, spec.sip.cube_mesh.w, spec.sip.cube_mesh.h) == (4, 2, 4)
    assert (spec.sip.io_chiplets[0].id, spec.sip.io_chiplets[0].side) == ("io3", "S")
    assert spec.cube.n_pes == 4
    assert spec.system.ns_per_mm == 0.2


def test_faults_of_overrides_name_the_override() -> None:
    error = refused(None, {"system.sips.count": "many", "cube.colour": 1})
    assert [fault.where for fault in error.faults] == ["--set system.sips.count=many", "--set cube.colour=1"]
    bad = {"": 1, "system..name": 1, "system.name.x": 1, "sip.io_chiplets.3.side": "N", "system.name": "[", "a\0": 1}
    error = refused(None, bad)
    assert len(error.faults) >= 5
    assert all(fault.where.startswith("--set ") for fault in error.faults)


@pytest.mark.parametrize(
    ("overrides", "pes", "slices", "pseudo", "channels"),
    [
        ({"cube.pe_layout.pe_per_corner": 1}, 4, 4, 32, 8),
        ({"cube.pe_layout.pe_per_corner": 4}, 16, 16, 128, 8),
        ({"cube.memory_map.hbm_pseudo_channels": 128}, 8, 8, 128, 16),
        ({"cube.memory_map.hbm_channels_per_pe": 4}, 8, 8, 32, 4),
        ({"cube.pe_layout.pe_per_corner": 1, "cube.memory_map.hbm_pseudo_channels": 64}, 4, 4, 64, 16),
    ],
)
def test_what_follows_from_a_changed_value_follows(
    overrides: dict[str, object], pes: int, slices: int, pseudo: int, channels: int
) -> None:
    cube = load_spec(None, overrides).cube
    assert (cube.n_pes, cube.hbm_slices, cube.hbm_pseudo_channels, cube.hbm_channels_per_pe) == (
        pes,
        slices,
        pseudo,
        channels,
    )


def test_an_inherited_value_gives_way_even_when_the_base_wrote_it_out(tmp_path: Path) -> None:
    base = write(
        tmp_path / "base.yaml",
        "cube: { memory_map: { hbm_slices_per_cube: 8, hbm_pseudo_channels: 64, hbm_channels_per_pe: 8 } }\n"
        "system: { sips: { count: 4, topology: torus_2d, w: 4, h: 1 } }\n",
    )
    spec = load_spec(base, {"cube.pe_layout.pe_per_corner": 1, "system.sips.count": 9})
    assert (spec.cube.hbm_slices, spec.cube.hbm_pseudo_channels) == (4, 32)
    assert spec.system.sips.grid == (3, 3)


def test_nothing_is_written_next_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.yaml", "system: { name: mine }\n")
    load_topology(path)
    assert os.listdir(tmp_path) == ["m.yaml"]


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert load_spec({"system": {"sips": {"count": np.int64(3)}}}).n_sips == 3
    assert load_spec(overrides={"system.sips.count": np.uint8(5)}).n_sips == 5


@pytest.mark.parametrize("overrides", [{5: 1}, {None: 1}, [("system.sips.count", 4)], "system.sips.count=4"])
def test_overrides_that_are_no_key_paths_are_refused(overrides: object) -> None:
    error = refused(None, overrides)  # type: ignore[arg-type]  # wrong overrides are the subject
    assert error.where == "load_topology"
    assert error.hint == 'give {"system.sips.count": 4}'


def test_equal_machines_are_compiled_once_and_any_difference_makes_another() -> None:
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    graph = load_topology(None, small)
    assert load_topology(None, dict(reversed(small.items()))) is graph
    assert load_topology(graph.spec) is graph
    assert load_topology(None, {**small, "system.ns_per_mm": 0.2}) is not graph
    powers = {"pe_gemm": 0.1, "pe_math": 0.2}
    both = [load_topology(None, {**small, "energy.static_w": p}) for p in (powers, dict(reversed(powers.items())))]
    assert both[0] is not both[1]  # equal in Python, and not in the order of what is printed


def test_the_graphs_of_a_few_machines_are_kept() -> None:
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    first = load_topology(None, small)
    for ns_per_mm in (0.2, 0.3, 0.4, 0.5):
        load_topology(None, {**small, "system.ns_per_mm": ns_per_mm})
    assert load_topology(None, small) is not first


def test_a_machine_with_a_users_block_is_compiled_each_time() -> None:
    """The block's file may have changed since."""
    own = {"system.switch.impl": "mine.py:Switch"}
    assert load_topology(None, own) is not load_topology(None, own)
