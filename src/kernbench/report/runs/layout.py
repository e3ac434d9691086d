"""The layout of a run folder: names of its files, columns and values (docs/adr/0031).

Readers of runs depend on this module and on nothing of the engine. Renaming a column requires a new `SCHEMA`; a reader
rejects a newer one.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = 1
KIND: Final = "kernbench-run"

MANIFEST: Final = "manifest.json"
OPS: Final = "ops.parquet"
LANES: Final = "lanes.parquet"
LAUNCHES: Final = "launches.json"
PLACES: Final = "places.parquet"
ACTIVITY: Final = "activity.parquet"
SOURCES: Final = "sources.json"
MACHINE: Final = "machine.json"
FILES: Final = (OPS, LANES, LAUNCHES, PLACES, ACTIVITY, SOURCES, MACHINE)  # besides the manifest

# A table with more rows for its bytes is rejected before it is read, as a small file could fill the memory. An op has
# its own times and id, at least 20 bytes compressed; bins of a steady flow compress better. A list's values repeat.
ROWS_PER_BYTE: Final = {OPS: 1, LANES: 1, PLACES: 1, ACTIVITY: 16}
VALUES_PER_BYTE: Final = 16
LARGEST_BINS: Final = 1 << 21  # `--bins` takes up to half of that
FEWEST_ROWS: Final = 1 << 16  # always allowed
FEWEST_VALUES: Final = 1 << 20

# Kinds of ops and their names. A span (a composite as a whole) is not work of an engine.
KINDS: Final = {
    "G": "GEMM",
    "M": "MATH",
    "R": "DMA read",
    "W": "DMA write",
    "F": "fetch and store",
    "C": "communication",
    "H": "host",
    "S": "span",
}
RELEASES: Final = ("data", "message", "credit", "barrier", "slot", "lane", "program", "launch", "host")

# Columns of `ops.parquet`, sorted by lane, t_start, id. Ids are 0 to n - 1.
OP_COLUMNS: Final = {
    "id": "int64",
    "lane": "int32",  # row of `lanes.parquet`
    "launch": "int32",  # index into `launches.json`; -1: of the host
    "kind": "string",  # a letter of KINDS
    "name": "string",  # dma_read, TileToken/GEMM, exp, ...
    "t_asked": "float64",
    "t_ready": "float64",
    "t_start": "float64",
    "t_end": "float64",
    "line": "int32",  # index into "lines" of `sources.json`; -1: none
    "nbytes": "int64",  # moved; 0 for compute
    "flops": "int64",
    "release": "string",  # one of RELEASES
    "released_by": "int64",  # id of an op; -1: none
    "transfer_ns": "float64",  # transfer + latency + queue = t_end - t_start where the op moves bytes; else all 0
    "latency_ns": "float64",  # of a receive: waiting for the chunks of its message behind the first
    "queue_ns": "float64",  # of a send: queueing of its message in the network, which is after the op
    "wait_places": "list<int32>",  # where queue_ns was spent: rows of `places.parquet`,
    "wait_ns": "list<float64>",  # and how much of it at each
    "route": "list<int32>",  # links that its bytes passed, in order: rows of `places.parquet`
    "deps": "list<int64>",  # ids of ops
    "tensors": "list<string>",
    "params": "string",  # other fields of the op log, as JSON
}
# Columns of `lanes.parquet`, in the order of the machine. A lane's slices never overlap.
LANE_COLUMNS: Final = {
    "name": "string",  # sip0.cube0.pe3.pe_dma.read, and #1, #2 where hardware allows several at once
    "component": "string",  # sip0.cube0.pe3.pe_dma
    "port": "string",  # read, write, fetch, store, gemm, math, send, recv, span, write, map, ...
    "slot": "int32",
    "kind": "string",
    "sip": "int32",  # -1: outside any SIP
    "cube": "int32",
    "pe": "int32",
    "ops": "int64",
    "busy_ns": "float64",
}
# Columns of `places.parquet`: every directed link and memory channel that carried bytes.
PLACE_COLUMNS: Final = {
    "kind": "string",  # link or channel
    "src": "string",  # of a channel: its controller
    "dst": "string",  # of a channel: empty
    "channel": "int32",  # -1: a link
    "link_class": "string",  # hbm channel, router, pe port, hbm port, sram port, ucie, io, pcie, ...
    "gbs": "float64",
    "nbytes": "float64",
    "wait_ns": "float64",
    "contended_ns": "float64",
}
# Columns of `activity.parquet`: activity of a place in a bin; empty bins are left out. Sorted by place, bin.
ACTIVITY_COLUMNS: Final = {
    "place": "int32",
    "bin": "int32",
    "nbytes": "float64",
    "wait_ns": "float64",  # waiting time, summed over flits
    "contended_ns": "float64",  # the part spent waiting for flits of other ops
}
