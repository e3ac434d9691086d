"""Classes of time on the critical path. Some are work, the others are waiting."""

from __future__ import annotations

from typing import Final

GEMM: Final = "gemm"
MATH: Final = "math"
TRANSFER: Final = "transfer"  # bytes over the narrowest link of their path
FETCH_STORE: Final = "fetch and store"
COMMUNICATION: Final = "communication"  # sending and receiving, within the PE
LATENCY: Final = "latency"  # wires, nodes and channels that an uncontended transfer passes
QUEUE: Final = "queue"  # waiting for other transfers at a link or a memory channel
ISSUE: Final = "issue"  # between the end of one op and the start of the next: scheduler, CPU
CREDIT: Final = "credit"  # a slot in the receiver's ring
LAUNCH: Final = "launch"  # from the host to the PEs, and back
HOST: Final = "host"  # writes, reads and mappings of the host, and its program

CLASSES: Final = (
    GEMM, MATH, TRANSFER, FETCH_STORE, COMMUNICATION, LATENCY, QUEUE, ISSUE, CREDIT, LAUNCH, HOST,
)  # fmt: skip
LABELS: Final = {  # as the page, the exported page and traces show them
    GEMM: "GEMM",
    MATH: "Math",
    TRANSFER: "Transfer",
    FETCH_STORE: "Fetch, store",
    COMMUNICATION: "Communication",
    LATENCY: "Latency",
    QUEUE: "Queue",
    ISSUE: "Issue",
    CREDIT: "Credit",
    LAUNCH: "Launch",
    HOST: "Host",
}
WORK: Final = frozenset({GEMM, MATH, TRANSFER, FETCH_STORE, COMMUNICATION})
OF_KIND: Final = {"G": GEMM, "M": MATH, "F": FETCH_STORE, "C": COMMUNICATION, "R": TRANSFER, "W": TRANSFER}

# What an op waited for, by kind of release.
WAITED_FOR: Final = {
    "data": "data",
    "message": "message",
    "credit": "credit",
    "barrier": "barrier",
    "slot": "room in registers or tile buffers",
    "lane": "engine or channel",
    "program": "program order",
    "launch": "launch",
    "host": "host",
}
