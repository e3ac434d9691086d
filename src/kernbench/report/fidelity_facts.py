"""The fidelity facts: hardware, model, kind, direction of error, workloads for which it matters.

A commit that changes how time is modelled changes the fact here. The fabric, the memories and the host are here, the PE
and its kernels in `fidelity_kernel_facts`.
"""

from __future__ import annotations

from kernbench.report import fidelity_kernel_facts as kernels
from kernbench.report.fidelity_fact import Fact

_EXACT = (
    Fact(
        "link bandwidth",
        "each direction of a link carries one flit at a time",
        "a serial FIFO for each direction; a flit holds it for its bytes / bandwidth",
        "exact",
        "none",
        "everywhere: this is where flows contend",
    ),
    Fact(
        "propagation",
        "a flit on the wire does not keep the next from starting",
        "distance x ns/mm after the flit has left, without holding the link",
        "exact",
        "none",
        "long paths, small messages",
    ),
    Fact(
        "node latency",
        "routers, switches and UCIe ports are pipelines: latency is not throughput",
        "every flit is delayed by the node's overhead, and blocks no other flit",
        "exact",
        "none",
        "small messages, which keep their bandwidth",
    ),
    Fact(
        "cut-through",
        "flits follow one another through many hops at once",
        "each flit moves on by itself; an uncontended transfer takes node latencies + propagation + bytes over the "
        "narrowest link + one flit on each other link, bit for bit (`kernbench probe` checks it)",
        "exact",
        "none",
        "every multi-hop transfer",
    ),
    Fact(
        "reads and writes",
        "a read's data come back, a write's data go out and are acknowledged",
        "the same, for the host and for PEs: bytes load the direction in which they travel",
        "exact",
        "none",
        "traffic that mixes reads and writes",
    ),
    Fact(
        "HBM pseudo channels",
        "channels work in parallel; address bits choose one; reads and writes share it",
        "each burst is booked on the channel its address names, behind what is booked there",
        "exact",
        "none",
        "strided access that misses some channels",
    ),
    Fact(
        "time and ties",
        "clocked; simultaneous requests are resolved by fixed logic",
        "float ns, each duration rounded once to 2^-20 ns, so that sums are exact; ties at a link go to the lower "
        "input link, injections last; same input, same result, bit for bit",
        "exact",
        "none",
        "reproducibility",
    ),
)

_APPROXIMATED = (
    Fact(
        "channel links",
        "a channel's bytes leave over its wires while the burst is read",
        "with hbm_mapping_mode one_to_one a flit takes the channel's link after its burst (8 ns by default), "
        "as on any link; bandwidth is that of the channels",
        "approximated",
        "pessimistic",
        "small accesses with one_to_one",
    ),
    Fact(
        "segment tables",
        "a table of few segments, looked up in some cycles",
        "with address_model la any number of segments, found in no time beyond the overhead of pe_dma",
        "approximated",
        "optimistic",
        "many small tensors with logical addresses",
    ),
    Fact(
        "single completions",
        "when one transfer among many ends depends on every arbiter on its path",
        "totals follow from bandwidth and are far more certain than single completions: rules like these came within "
        "about 4 % of a shipping accelerator's totals, while its single completions were off by 11 to 15 % (median)",
        "approximated",
        "either",
        "tail latency, finishing order of flows under load",
    ),
    Fact(
        "arbitration",
        "round robin or weighted, with virtual channels and priorities",
        "first ready, first served, flit by flit",
        "approximated",
        "either",
        "fairness between flows on a saturated link; totals hardly change",
    ),
    Fact(
        "flit size",
        "32 B flits on the NoC, 256 B bursts at the HBM",
        "one size for both (256 B): every hop but the narrowest adds the time of 256 B instead of 32 B, and flows "
        "interleave in steps of 256 B",
        "approximated",
        "pessimistic",
        "small messages over many hops",
    ),
    Fact(
        "unaligned transfers",
        "a piece that straddles two bursts costs both",
        "runs of a kernel's loads, stores and atomics pay every burst that they touch; in tiles of composites and in "
        "host transfers a flit is one burst on the channel of its first byte, wherever it starts; a partial flit costs "
        "a whole burst, or with hbm.granule_bytes the granules that it touches (in composites and host transfers: that "
        "its bytes fill)",
        "approximated",
        "optimistic",
        "composites and host copies with addresses that are not aligned to bursts",
    ),
    Fact(
        "requests and acknowledgements",
        "small packets that share links with data",
        "control messages pay every node and wire, and neither take bandwidth nor wait. `fabric: {control_bytes: 32}` "
        "makes them packets, credits of messages included: off by default",
        "approximated",
        "optimistic",
        "many small transfers under load. As packets of 32 B, 64 loads of 64 B from a PE's own HBM take 2.0 % longer, "
        "of 4 KiB 0.9 %; 8 PEs of a cube that load and store 1 KiB in each other's HBM 1.8 %, an all-reduce of 1 MiB "
        "between two SIPs 0.3 %",
    ),
    Fact(
        "store and forward",
        "a PCIe endpoint forwards packet by packet",
        "pcie_ep, io_cpu and m_cpu take the whole message, then send it on: its bytes are paid again on each segment",
        "approximated",
        "pessimistic",
        "large transfers between SIPs",
    ),
    Fact(
        "PCIe latency",
        "about 100 ns through a switch (105 ns between two x16 ports of a PEX88000, Linley Newsletter, 24 September "
        "2019), and hundreds of ns to a far end and back (about 850 ns between an FPGA and a CPU, "
        "hackingnasdaq.blogspot.com, 11 May 2014)",
        "the shipped machine has 5 ns for the switch and 5 ns for each endpoint; set "
        "system.switch.attrs.overhead_ns and io_chiplet.components.pcie_ep.attrs.overhead_ns for a product",
        "approximated",
        "optimistic",
        "small messages and collectives between SIPs: with 100 ns for the switch every message takes 95 ns longer",
    ),
    Fact(
        "host side",
        "a request crosses the host's link and the switch, as TLPs with credits",
        "host requests enter at the pcie_ep of the SIP they are for; host link and switch are charged to traffic "
        "between SIPs only; no TLP headers",
        "approximated",
        "optimistic",
        "host copies, above all to several SIPs at once",
    ),
    Fact(
        "atomics",
        "a unit at the memory takes time per update and may merge those to one line",
        "the operand travels as a write does and the old value as a read does; each burst is charged for both; the "
        "update itself is free, and all elements of a run change at one instant, in order of arrival",
        "approximated",
        "either",
        "many PEs on a few counters: optimistic where the unit is slow, pessimistic where it merges",
    ),
    Fact(
        "HBM scheduling",
        "first-ready scheduling, write buffers drained in batches",
        "in order of arrival on each channel, no reordering; a bus turnaround costs switch_penalty_ns, 0 by "
        "default, as if an ideal scheduler hid it all; with `hbm: {model: closed}` once for a batch of "
        "writes; `banks` reorders and drains",
        "approximated",
        "either",
        "dense mixes of reads and writes: optimistic at 0, pessimistic with a penalty for every turnaround",
    ),
    Fact(
        "HBM timing",
        "activation, precharge and four-activate windows, tens of ns to the first byte",
        "folded into a steady burst / channel bandwidth, an efficiency (1.0 by default) and the controller's overhead "
        "(0 ns by default); with `hbm: {model: closed}` a short access takes at least tFAW / 4: on an "
        "H200 within 4.4 points of its peak from 128 B on, 2.8 in the mean (`kernbench validate memory`)",
        "approximated",
        "optimistic",
        "latency of small accesses; set efficiency and overhead_ns where they are known",
    ),
    Fact(
        "large reads at a channel",
        "bursts of several reads are interleaved",
        "a read books all its bursts when its request arrives, so a small one behind it waits for all of it",
        "approximated",
        "pessimistic",
        "small reads next to large ones on one slice; their sum is not affected",
    ),
    Fact(
        "routing",
        "tables or adaptive, may avoid load",
        "the shortest path in mm, ties along x first, whatever the load",
        "approximated",
        "either",
        "hotspots that adaptive routing would spread",
    ),
    Fact(
        "geometry",
        "placed and routed wires with repeaters",
        "wires run along x and y between block positions at one speed; a PE has no extent",
        "approximated",
        "either",
        "latency within a cube",
    ),
    Fact(
        "UCIe",
        "adapters with their own flit format, CRC and replay",
        "a latency for each port, bandwidth for each connection and for the die-to-die link; `header_bytes` and "
        "`payload_bytes` of the link charge its flit format exactly (docs/adr/0082): off by default",
        "approximated",
        "optimistic",
        "traffic between cubes near the peak: flits of 256 B that carry 236 take 8.5 % more time on that link",
    ),
    Fact(
        "multicast",
        "routers copy a packet to several outputs as it passes, and hold it until all of them have credits",
        "a flit crosses every link of the tree of paths once, and waits at each output by itself; `tl.multicast` and "
        "`Fabric.multicast` ask for it (docs/adr/0087); with finite buffers it is copied to one branch after another "
        "and keeps its slot (docs/adr/0100)",
        "approximated",
        "optimistic",
        "operands that many PEs share. Of matrix products on the cores of two tile-based chips (`kernbench validate "
        "matmul_tensix`) the mean error is 6.9 % on a Wormhole and 4.1 % on a Blackhole",
    ),
    Fact(
        "links between chips",
        "packets with headers, slots and credits in routers that store and forward",
        "SIPs hang on one switch by default, or on levels of switches (docs/adr/0101); `system.sips.links` joins them "
        "as ring, line, mesh or torus: packets, hop latency, slots and credits at the ports (docs/adr/0082); what "
        "waits in front of a link has no limit",
        "approximated",
        "optimistic",
        "collectives over many chips. Of four collectives over 2 and 8 chips of a shipping machine "
        "(`kernbench validate collectives`) the mean error is 12.1 % up to 1 MiB and 3.3 % above",
    ),
    Fact(
        "SRAM and TCM",
        "banked, conflicts cost time",
        "a latency and the bandwidth of a port in each direction, for the PE, other PEs and the host alike; no "
        "bursts, so a short run costs its bytes only",
        "approximated",
        "optimistic",
        "several PEs on one SRAM with unlucky strides; gathers of short rows from SRAM or another PE's TCM",
    ),
    Fact(
        "area",
        "blocks, wires and pads share a die",
        "MACs, vector lanes with control, memories with periphery and ports, PHYs and NoC by coefficients with "
        "ranges; the geometry decides distances only",
        "approximated",
        "either",
        "absolute mm2: the ends of the range are a factor of four apart. A die like GA100 comes to 515 mm2 (208 to "
        "969); it has 826",
    ),
)

_IGNORED = (
    Fact(
        "finite buffers",
        "credits stop a sender when the buffers ahead are full, and a blocked head holds up what is behind it",
        "queues grow without limit; no sender within a SIP is stopped: it is done when its last flit has left its "
        "first link, however narrow the next one is. `fabric: {buffers: ...}` models them (docs/adr/0068): off by "
        "default",
        "ignored",
        "optimistic",
        "senders and saturated traffic. A send of 256 KiB between cubes of the default machine returns after 1,024 ns, "
        "while the link of 128 GB/s on its path needs 2,048; with a first link of 1,024 GB/s it "
        "returns after 256. Random traffic at saturation on the default machine would take 4 % longer with queues of "
        "256 flits per output, 101 % longer with wormhole routers of 2 x 16 flits. On 36 recorded NoC traces of a "
        "shipping chip (`kernbench validate noc_traces`) the mean error of the end time is 3.8 % with recorded issue "
        "times and 6.3 % with recorded gaps; with buffers of 2 x 16 flits it is 1.8 and 2.3 %",
    ),
    Fact(
        "bank conflicts",
        "two rows of one bank cost a precharge and an activation",
        "no banks inside a channel: every access is a best case. Of 11 patterns of a DRAM simulator the model `closed` "
        "meets 8 within 5 points; random mixes of reads and writes are 8 to 10 points too fast, streams on one bank "
        "71. `hbm: {model: banks}` has banks, rows and the queues of a controller, and meets all of them within 5.0 "
        "points, 1.8 in the mean (`kernbench validate memory`); for studies, since every line is simulated",
        "ignored",
        "optimistic",
        "random gather and scatter",
    ),
    Fact(
        "refresh, ECC, throttling",
        "refresh takes some percent of the time; heat and power limits slow clocks",
        "none; include known losses in the efficiency, or give `hbm: {model: closed}`, which has refresh as a rate",
        "ignored",
        "optimistic",
        "long runs near the peak",
    ),
    Fact(
        "clock domains",
        "clock domain crossings cost cycles; PLLs take time to lock",
        "none; add a crossing to a node's overhead",
        "ignored",
        "optimistic",
        "latency of paths through many dies",
    ),
    Fact(
        "link errors",
        "CRC faults are replayed",
        "links do not fail",
        "ignored",
        "optimistic",
        "worst cases, not averages",
    ),
    Fact(
        "energy",
        "every toggle costs: data paths, control, clocks, leakage, conversion losses",
        "MACs, vector ops and bytes counted for time x the machine's coefficients; TCM bytes of messages and of simple "
        "commands' operands, registers, control, clocks and what has no coefficient are left out, and static power "
        "unless given",
        "ignored",
        "optimistic",
        "absolute joules; ratios between designs less so",
    ),
    Fact(
        "arbitration within a flit",
        "decided every cycle",
        "a flit is the smallest step",
        "ignored",
        "either",
        "timing noise of messages below one flit",
    ),
)

FACTS: tuple[Fact, ...] = (*_EXACT, *_APPROXIMATED, *kernels.APPROXIMATED, *_IGNORED, *kernels.IGNORED)
