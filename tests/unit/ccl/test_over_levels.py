"""Collectives of ranks below several switches: the model's bytes by hand, and what `auto` takes."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.ccl import over_levels
from kernbench.ccl.calls import CollectiveName
from kernbench.ccl.config import choose, has_shipped_table, load_ccl_config
from kernbench.ccl.over_levels import LevelCollective, better_over_levels
from kernbench.topology.load import load_spec

KIB = 1024
TRAY = frozenset({0, 1, 2, 3})  # of eight ranks
ALL_REDUCE, GATHER = LevelCollective(8, 800, 0, 2), LevelCollective(8, 800, 0, 1)


def machine(trays: int = 2, gbs: float = 16.0, **more: object) -> dict[str, Any]:
    return {
        "system.sips.count": 8,
        "sip.cube_mesh": {"w": 2, "h": 2},
        "system.switch_levels": {"tray": {"count": trays, "bw_gbs": gbs, "distance_mm": 2000.0, **more}},
    }


def taken(
    collective: CollectiveName, nbytes: int, changes: dict[str, Any], sips: tuple[int, ...] = tuple(range(8))
) -> str:
    config = choose(load_ccl_config({}), collective, nbytes, ranks=len(sips))
    return better_over_levels(collective, nbytes, config, load_spec(None, changes), sips, 0) or config.algorithm


def test_bytes_that_leave_a_tray() -> None:
    """All with all, 4 ranks send an eighth to each of 4 others, in two rounds; a ring passes 7 eighths twice over the
    one edge that leads out; a binomial tree and a chain from rank 0 have one such edge; a root sends to 4 others.
    """
    assert over_levels._all_with_all(ALL_REDUCE, TRAY) == 2 * 4 * 4 * 100
    assert over_levels._all_with_all(GATHER, TRAY) == 4 * 4 * 100
    assert over_levels._ring(ALL_REDUCE, TRAY) == 2 * 7 * 100
    assert over_levels._tree(GATHER, TRAY) == over_levels._chain(GATHER, TRAY) == 800
    assert over_levels._from_root(GATHER, TRAY) == 4 * 800
    assert over_levels._two_rounds(GATHER, TRAY) == 4 * 100 + 4 * 4 * 100
    mixed = frozenset({0, 2, 4, 6})  # ranks of a group in another order than their SIPs
    assert over_levels._ring(GATHER, mixed) == 4 * 7 * 100
    assert over_levels._chain(GATHER, mixed) == 4 * 800


@pytest.mark.parametrize(
    ("collective", "nbytes", "gbs", "expected"),
    [
        ("all_reduce", 4 * KIB, 16.0, "hierarchical_all_pes"),
        ("all_reduce", 64 * KIB, 16.0, "ring_allreduce"),
        ("all_reduce", 64 * KIB, 128.0, "hierarchical_all_pes"),
        ("all_gather", 4 * KIB, 16.0, "direct"),
        ("all_gather", 64 * KIB, 16.0, "ring_all_gather"),
        ("reduce_scatter", 64 * KIB, 16.0, "ring_reduce_scatter"),
        ("broadcast", 64 * KIB, 16.0, "tree"),
        ("reduce", 64 * KIB, 16.0, "tree"),
        ("all_to_all", 64 * KIB, 16.0, "long_messages_direct"),
    ],
)
def test_a_slow_level_decides_where_its_bytes_take_longer_than_steps(
    collective: CollectiveName, nbytes: int, gbs: float, expected: str
) -> None:
    assert taken(collective, nbytes, machine(gbs=gbs)) == expected


def test_the_table_holds_on_one_switch_and_within_a_tray() -> None:
    one = {"system.sips.count": 8, "sip.cube_mesh": {"w": 2, "h": 2}}
    assert taken("all_gather", 64 * KIB, one) == "long_messages_direct"
    assert taken("all_gather", 64 * KIB, machine(), (4, 5, 6, 7)) == "long_messages_direct"
    assert taken("all_gather", 64 * KIB, machine(), (2, 3, 4, 5)) == "ring_all_gather"


def test_packets_of_a_level_take_bandwidth() -> None:
    """At 128 GB/s the table holds; of packets that are half header, 64 GB/s are left."""
    assert taken("all_gather", 64 * KIB, machine(gbs=128.0)) == "long_messages_direct"
    assert taken("all_gather", 64 * KIB, machine(gbs=128.0, header_bytes=64, payload_bytes=64)) == "ring_all_gather"


def test_a_table_of_the_users_is_followed() -> None:
    own = {"auto": {"all_gather": [{"algorithm": "direct"}]}}
    assert has_shipped_table(load_ccl_config({}), "all_gather")
    assert not has_shipped_table(load_ccl_config(own), "all_gather")
    assert has_shipped_table(load_ccl_config(own), "all_reduce")
