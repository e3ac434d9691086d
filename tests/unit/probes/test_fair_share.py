"""Max-min fair shares, by hand and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.probes.fair_share import aggregate_peak_gbs, fair_shares_gbs


def test_a_lone_flow_has_its_narrowest_link():
    assert fair_shares_gbs([["a", "b"]], {"a": 256.0, "b": 128.0}) == [128.0]


def test_two_flows_halve_the_link_they_share():
    assert fair_shares_gbs([["a", "s"], ["b", "s"]], {"a": 256.0, "b": 256.0, "s": 100.0}) == [50.0, 50.0]


def test_what_a_slow_flow_leaves_goes_to_the_other():
    # The first is held to 20 by its own link; the second takes the remaining 80 of the shared one.
    assert fair_shares_gbs([["slow", "s"], ["s"]], {"slow": 20.0, "s": 100.0}) == [20.0, 80.0]


def test_three_flows_over_two_links_meet_in_the_middle():
    # x carries flows 0 and 1, y carries 1 and 2. x fills first: 10 each. Flow 2 then has the other 90 of y.
    shares = fair_shares_gbs([["x"], ["x", "y"], ["y"]], {"x": 20.0, "y": 100.0})
    assert shares == [10.0, 10.0, 90.0]
    assert aggregate_peak_gbs([["x"], ["x", "y"], ["y"]], {"x": 20.0, "y": 100.0}) == 110.0


def test_a_link_passed_twice_counts_twice():
    assert fair_shares_gbs([["a", "a"]], {"a": 100.0}) == [50.0]


@given(st.data())
def test_no_link_is_overloaded_and_every_flow_is_held_by_a_full_link(data):
    capacity = dict(enumerate(data.draw(st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=6))))
    links = st.lists(st.sampled_from(list(capacity)), min_size=1, max_size=4, unique=True)
    flows = data.draw(st.lists(links, min_size=1, max_size=8))
    shares = fair_shares_gbs(flows, capacity)
    load = {link: sum(s for s, flow in zip(shares, flows, strict=True) if link in flow) for link in capacity}
    for link, limit in capacity.items():
        assert load[link] <= limit * (1 + 1e-9)
    for share, flow in zip(shares, flows, strict=True):
        # Max-min: on some full link of its path no flow has a higher rate.
        assert any(
            load[link] == pytest.approx(capacity[link])
            and share >= max(s for s, other in zip(shares, flows, strict=True) if link in other) * (1 - 1e-9)
            for link in flow
        )
