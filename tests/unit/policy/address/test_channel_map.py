"""How an access is divided over the channels of a slice: 8 channels, interleaved in bursts of 256 bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.policy.address.channel_map import ChannelRequest, channel_path, channel_requests

BURST, ROUND = 256, 8 * 256


def split(address: int, nbytes: int, channels: int = 8) -> list[tuple[int, int, int]]:
    return [tuple(part) for part in channel_requests(address, nbytes, channels, BURST)]  # type: ignore[misc]  # three ints


def test_4_kib_over_8_channels_are_8_requests_of_512_bytes() -> None:
    assert split(0, 4096) == [(channel, channel * BURST, 512) for channel in range(8)]


def test_32_pseudo_channels_for_8_pes_are_4_requests_and_64_for_4_pes_are_16() -> None:
    assert [part[2] for part in split(0, 4096, 32 // 8)] == [1024] * 4
    assert [part[2] for part in split(0, 4096, 64 // 4)] == [256] * 16


def test_one_burst_is_one_request_on_the_channel_of_its_address() -> None:
    assert split(3 * BURST, BURST) == [(3, 3 * BURST, BURST)]


def test_an_access_that_begins_at_channel_5_wraps_to_channel_0() -> None:
    assert split(5 * BURST, 4 * BURST) == [
        (channel, at * BURST, BURST) for channel, at in ((5, 5), (6, 6), (7, 7), (0, 8))
    ]


def test_a_partial_last_burst_is_on_the_channel_of_the_last_burst() -> None:
    """2,148 bytes are 9 bursts: 8 whole ones, and 100 bytes that follow on channel 0."""
    assert split(0, ROUND + 100) == [
        (0, 0, BURST + 100),
        *((channel, channel * BURST, BURST) for channel in range(1, 8)),
    ]


def test_less_than_a_burst_is_one_request() -> None:
    assert split(0, 1) == [(0, 0, 1)]
    assert split(2 * BURST + 128, 64) == [(2, 2 * BURST + 128, 64)]


def test_a_stride_of_a_whole_round_stays_on_one_channel_and_one_burst_more_visits_all() -> None:
    hot = [split(i * ROUND, BURST)[0][0] for i in range(8)]
    spread = [split(i * (ROUND + BURST), BURST)[0][0] for i in range(8)]
    assert hot == [0] * 8
    assert spread == list(range(8))


@given(st.integers(0, 1 << 20), st.integers(1, 40_000), st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_requests_cover_an_access_exactly(address: int, nbytes: int, channels: int) -> None:
    parts: list[ChannelRequest] = channel_requests(address, nbytes, channels, BURST)
    assert sum(part.nbytes for part in parts) == nbytes
    assert len({part.channel for part in parts}) == len(parts) == min(channels, -(-nbytes // BURST))
    assert all(part.address // BURST % channels == part.channel for part in parts)
    assert max(part.nbytes for part in parts) - min(part.nbytes for part in parts) < 2 * BURST


def test_the_path_of_a_request_leads_through_the_router_of_its_channel() -> None:
    path = ("sip0.cube0.pe0.pe_dma", "sip0.cube0.noc.r0c0", "sip0.cube0.pe2.ch_r0", "sip0.cube0.hbm_ctrl.pe2")
    assert channel_path(path, 7) == (*path[:2], "sip0.cube0.pe2.ch_r7", path[3])
