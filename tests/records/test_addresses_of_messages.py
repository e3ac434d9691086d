"""`tl.send` and `tl.recv` with addresses instead of tensors, as record 0046 (D3.10) has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import LaunchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology import load_topology

ONE_CUBE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
Kernel = Callable[..., None]


def handed_over(sends: Callable[[Any, Any], None], receives: Callable[[Any, Any], Any]) -> np.ndarray:
    """PE 0 sends from x, PE 1 receives into y; y as it is then."""

    def kernel(x: Any, y: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            sends(x, tl)
        else:
            receives(y, tl)

    found: list[np.ndarray] = []

    def run(torch: Any) -> None:
        x = torch.from_numpy(np.arange(64, dtype=np.float16).reshape(8, 8))
        y = torch.zeros((8, 8), dp=DPPolicy(num_pes=1))
        torch.launch(kernel, x, y, target_pes=range(2))
        found.append(y.numpy())

    kernbench.run(run, load_topology(None, ONE_CUBE))
    return found[0]


NUMBERS = np.arange(64, dtype=np.float16).reshape(8, 8)


def store_received(y: Any, tl: Any) -> None:
    tl.store(y, tl.recv("intra_W", (8, 8), "f16"))


def test_a_tensor_in_tcm_is_sent_by_its_address() -> None:
    def sends(x: Any, tl: Any) -> None:
        held = tl.load(x, (8, 8))
        tl.send("intra_E", src_addr=held.addr, nbytes=held.nbytes, space="tcm")

    assert np.array_equal(handed_over(sends, store_received), NUMBERS)


def test_a_tensor_in_hbm_is_loaded_and_sent() -> None:
    def sends(x: Any, tl: Any) -> None:
        tl.send("intra_E", src_addr=x, shape=(8, 8), dtype="f16", space="hbm")

    def sends_bytes(x: Any, tl: Any) -> None:
        tl.send("intra_E", src_addr=x + 2 * 8, nbytes=2 * 8, space="hbm")

    assert np.array_equal(handed_over(sends, store_received), NUMBERS)
    second = handed_over(sends_bytes, lambda y, tl: tl.store(y, tl.recv("intra_W", (8,), "f16")))
    assert np.array_equal(second[0], NUMBERS[1])


def test_a_message_is_received_to_an_address() -> None:
    def receives(y: Any, tl: Any) -> None:
        there = tl.recv("intra_W", (8, 8), "f16", "tcm", dst_addr=y, dst_space="hbm")
        assert there.space == "hbm"

    assert np.array_equal(handed_over(lambda x, tl: tl.send("intra_E", tl.load(x, (8, 8))), receives), NUMBERS)


@pytest.mark.parametrize(
    ("call", "what", "hint"),
    [
        (lambda x, tl: tl.send("intra_E", src_addr=x, nbytes=16), "src_addr is in hbm, not in tcm", 'space="hbm"'),
        (lambda x, tl: tl.send("intra_E", src_addr=x, nbytes=3, space="hbm"), "3 bytes of f16", "whole elements"),
        (lambda x, tl: tl.send("intra_E", tl.load(x), src_addr=x), "src and src_addr", "one of them"),
        (lambda x, tl: tl.send("intra_E", src_addr=tl.load(x).addr, nbytes=4), "128 bytes in tcm", "x\\[:64\\]"),
        (lambda x, tl: tl.recv("intra_E", (8,), space="hbm"), "into hbm", "dst="),
        (lambda x, tl: tl.recv("intra_E", (8,), dst_space="hbm"), "dst_space without dst_addr", "both"),
        (lambda x, tl: tl.recv("intra_E", (8,), dst_addr=x, dst_space="sram"), "is in hbm, not in sram", "dst_space"),
        (lambda x, tl: tl.recv("intra_E", (8,), dst_addr=tl.load(x).addr), "never change", "leave dst_addr out"),
    ],
)
def test_addresses_that_mean_nothing_are_refused(call: Kernel, what: str, hint: str) -> None:
    with pytest.raises(LaunchError, match=what) as caught:
        handed_over(call, store_received)
    assert caught.match(hint)
