"""The key `hbm` of a description: presets, values of its own, and what is refused."""

from __future__ import annotations

import pytest

from kernbench.common.errors import TopologyError
from kernbench.topology import load_topology
from kernbench.topology.machine_hash import machine_hash
from kernbench.topology.spec_hbm import PRESETS, HbmSpec


def test_by_default_bursts_are_whole_and_nothing_is_lost() -> None:
    spec = load_topology(None).spec
    assert spec.hbm == HbmSpec()
    assert (spec.cube.hbm_granule_bytes, spec.cube.hbm_channel_bw_gbs) == (256, 32.0)
    attrs = load_topology(None).node("sip0.cube0.hbm_ctrl.pe0").attrs
    assert not {"granule_bytes", "open_ns", "drain_bytes"} & set(attrs)


def test_a_model_is_part_of_the_fingerprint_of_a_machine() -> None:
    assert machine_hash(load_topology(None, {"hbm.granule_bytes": 64}).spec) != machine_hash(load_topology(None).spec)


def test_a_preset_gives_granules_and_the_share_that_streams_sustain() -> None:
    spec = load_topology(None, {"hbm.preset": "hbm3"}).spec
    assert spec.cube.hbm_granule_bytes == 64
    assert spec.cube.hbm_channel_bw_gbs == 32.0 * PRESETS["hbm3"].sustained


def test_a_value_that_is_given_takes_the_place_of_the_presets() -> None:
    spec = load_topology(None, {"hbm.preset": "hbm3", "hbm.granule_bytes": 32, "hbm.efficiency": 0.5}).spec
    assert (spec.cube.hbm_granule_bytes, spec.cube.hbm_channel_bw_gbs) == (32, 16.0)


def test_the_closed_model_has_refresh_as_a_rate_and_a_quarter_of_the_activation_window() -> None:
    graph = load_topology(None, {"hbm.preset": "hbm2", "hbm.model": "closed"})
    assert graph.spec.cube.hbm_channel_bw_gbs == pytest.approx(32.0 * (1 - 260 / 3900))
    attrs = graph.node("sip0.cube0.hbm_ctrl.pe0").attrs
    assert (attrs["open_ns"], attrs["switch_penalty_ns"], attrs["drain_bytes"]) == (7.5, 24.0, 2048)


def test_a_description_that_was_read_can_be_written_and_read_again() -> None:
    spec = load_topology(None, {"hbm.preset": "hbm2", "hbm.model": "closed"}).spec
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"hbm.granule_bytes": 512}, "granules of 512 bytes in bursts of 256"),
        ({"hbm.faw_ns": 10.0}, "the model 'flat' has no use for it"),
        ({"hbm.model": "open"}, "hbm.model"),
        ({"hbm.preset": "ddr4"}, "hbm.preset"),
        ({"hbm.model": "closed", "hbm.faw_ns": 40.0}, "a full burst of 8 ns is shorter"),
        ({"hbm.model": "closed", "hbm.rfc_ns": 5000.0}, "a refresh of 5000 ns is due every 3900 ns"),
        ({"hbm.model": "closed", "cube.components.hbm_ctrl.attrs.switch_penalty_ns": 1.0}, "two costs of turning"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], expected: str) -> None:
    with pytest.raises(TopologyError, match=expected):
        load_topology(None, given)
