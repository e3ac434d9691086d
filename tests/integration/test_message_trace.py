"""Rings, shown: a line for each slot with KERNBENCH_CCL_TRACE=1, and pointers in the report of a deadlock."""

from __future__ import annotations

from typing import Any

import pytest

import kernbench
from kernbench import repeatable
from kernbench.common.blocked import BlockedKernel
from kernbench.common.errors import DeadlockError
from kernbench.topology import load_topology

ONE_CUBE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.ns_per_mm": 0.0}


@repeatable
def two_slots(tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.send("intra_E", tl.full((8192,), 1, "i8"))
    elif tl.program_id(0) == 1:
        tl.recv("intra_W", (8192,), "i8")


def test_a_line_for_each_slot_that_is_sent_received_and_credited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNBENCH_CCL_TRACE", "1")

    def run(torch: Any) -> None:
        for _ in range(2):  # the second one would be replayed
            torch.launch(two_slots, target_pes=range(2))

    kernbench.run(run, load_topology(None, ONE_CUBE))
    lines = capsys.readouterr().err.splitlines()
    first, second = lines[:6], lines[6:]
    assert [line.split("ns  ")[1] for line in first] == [
        "send    sip0.cube0.pe0 intra_E -> sip0.cube0.pe1  slot 0 (chunk 0)  4096 bytes",
        "send    sip0.cube0.pe0 intra_E -> sip0.cube0.pe1  slot 1 (chunk 1)  4096 bytes",
        "receive sip0.cube0.pe1 intra_W <- sip0.cube0.pe0  slot 0 (chunk 0)  4096 bytes",
        "credit  sip0.cube0.pe0 intra_E <- sip0.cube0.pe1  slot 0 (chunk 0)",
        "receive sip0.cube0.pe1 intra_W <- sip0.cube0.pe0  slot 1 (chunk 1)  4096 bytes",
        "credit  sip0.cube0.pe0 intra_E <- sip0.cube0.pe1  slot 1 (chunk 1)",
    ]
    assert "slot 2 (chunk 2)" in second[0]
    at = [float(line.split()[1]) for line in first]
    assert [round(each - at[0], 3) for each in at] == [0, 0, 48.5, 52.5, 56.5, 60.5]  # by hand in test_pe_ipcq.py


def test_without_the_variable_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    kernbench.run(lambda torch: torch.launch(two_slots, target_pes=range(2)), load_topology(None, ONE_CUBE))
    assert capsys.readouterr().err == ""


def test_the_report_of_a_deadlock_has_the_pointers_of_the_rings() -> None:
    """PE 0 sends five slots to PE 1, whose rings have four, and PE 1 waits for PE 2, which sends to the other side."""

    def kernel(tl: Any) -> None:
        if tl.program_id(0) == 0:
            for _ in range(5):
                tl.send("intra_E", tl.full((4096,), 1, "i8"))
        elif tl.program_id(0) == 1:
            tl.recv("intra_E", (8,), "i8")

    with pytest.raises(DeadlockError) as caught:
        kernbench.run(lambda torch: torch.launch(kernel, target_pes=range(3)), load_topology(None, ONE_CUBE))
    text = str(caught.value)
    assert "rings of sip0.cube0.pe0: tx intra_E: head 4, tail 0, 0 credits" in text
    assert "rings of sip0.cube0.pe1: rx intra_W: head 4, tail 0, 4 unread; rx intra_E: head 0, tail 0, 0 unread" in text


def test_calls_without_a_partner_stand_before_the_kernels_that_wait() -> None:
    blocked = BlockedKernel(0, 0, 0, "waits", "k.py", 3, "tl.recv()", "recv from intra_E")
    error = DeadlockError("nothing can happen any more", [blocked], unmatched=("rank 1 never called all_reduce",))
    kinds = [line.split(":")[0].strip() for line in str(error).splitlines()[1:3]]
    assert kinds == ["unmatched", "blocked"]
