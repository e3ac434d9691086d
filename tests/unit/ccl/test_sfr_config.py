"""Neighbour tables of a whole machine."""

from __future__ import annotations

import pytest

from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip, neighbor_table
from kernbench.common.errors import UsageError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology


def test_every_pe_has_its_neighbours_in_the_mesh_and_on_other_sips() -> None:
    table = neighbor_table(load_topology().spec)
    assert len(table) == 2 * 16 * 8
    middle = table[0, 5, 3]
    assert {side: middle[side] for side in "NSEW"} == {"N": (0, 1, 3), "S": (0, 9, 3), "E": (0, 6, 3), "W": (0, 4, 3)}
    assert middle["global_E"] == middle["global_W"] == middle["rank_1"] == (1, 5, 3)
    assert "N" not in table[0, 0, 0]
    assert "W" not in table[0, 0, 0]


def test_the_world_is_installed_with_the_rings_of_a_configuration() -> None:
    engine = GraphEngine(load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}))
    made = configure_sfr_intercube_multisip(engine, engine.graph.spec, {"defaults": {"n_slots": 2}})
    assert engine.communicators == {"world": made}
    assert made.config.n_slots == 2
    assert made.config.slot_size == 4096


def test_another_machine_is_refused() -> None:
    engine = GraphEngine(load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}))
    with pytest.raises(UsageError, match="not the one that the engine runs"):
        configure_sfr_intercube_multisip(engine, load_topology().spec)
