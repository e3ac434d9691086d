"""A line on stderr for each slot of a ring that is sent, received or credited, with KERNBENCH_CCL_TRACE=1.

    ccl 1234.500 ns  send    sip0.cube0.pe0 intra_E -> sip0.cube0.pe1  slot 3 (chunk 7)  4096 bytes
    ccl 1256.000 ns  receive sip0.cube0.pe1 intra_W <- sip0.cube0.pe0  slot 3 (chunk 7)  4096 bytes
    ccl 1260.000 ns  credit  sip0.cube0.pe0 intra_E <- sip0.cube0.pe1  slot 3 (chunk 7)

Launches are then simulated, not replayed: a replay sends nothing.
"""

from __future__ import annotations

import os
import sys

from kernbench.components.builtin.ipcq_rings import RxRing, TxRing

VARIABLE = "KERNBENCH_CCL_TRACE"


def traces_messages() -> bool:
    """Whether the environment asks for the trace."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def print_slot(now_ns: float, what: str, pe: object, ring: TxRing | RxRing, chunk: int, nbytes: int = 0) -> None:
    """One line: `chunk` is the number of the chunk in the ring."""
    arrow = "->" if what == "send" else "<-"
    slot = f"slot {chunk % ring.communicator.config.n_slots} (chunk {chunk})"
    size = f"  {nbytes} bytes" if nbytes else ""
    print(
        f"ccl {now_ns:.3f} ns  {what:<7} {pe} {ring.direction} {arrow} {ring.peer_name}  {slot}{size}", file=sys.stderr
    )
