"""The fidelity facts about kernels: the PE, its commands, launches and mappings."""

from __future__ import annotations

from kernbench.report.fidelity_fact import Fact

APPROXIMATED = (
    Fact(
        "rows of a tile",
        "a tile's rows lie apart in memory, and each begins bursts of its own, on the channels of its addresses",
        "all rows of a tile that lie in one memory move as one contiguous run from the tile's first address, as if the "
        "tensor had been laid out for that tile; with `layout='row_major'` of a tensor each row pays its own bursts, "
        "as `tl.load` and `tl.store` with strides, rows or a mask do",
        "approximated",
        "optimistic",
        "composites with tiles narrower than their matrix, above all with rows shorter than a burst: a product of "
        "128 x 512 x 128 with native tiles takes 3.5 times as long with row-major tensors",
    ),
    Fact(
        "DMA descriptors",
        "descriptors are fetched and decoded, and have a fixed number of dimensions",
        "runs of one length at one distance are one request, any others a request each; a request costs the engine's "
        "overhead, however many runs it has, and holds its place in the channel until its last byte",
        "approximated",
        "optimistic",
        "gathers and scatters of many short runs; set pe_dma's overhead_ns where it is known",
    ),
    Fact(
        "messages between PEs",
        "rings are set up by software, and messages share the TCM's ports and the DMA's one port with other work",
        "making a ring takes no time, nor does giving an idle one up for another where the TCM for rings is full; "
        "slots are read and written at the rate of their memory and wait for no engine; on the DMA's link to the "
        "network a message queues behind the flits of requests that were there before",
        "approximated",
        "optimistic",
        "many small messages next to large stores; programs whose kernels and groups need more rings of a PE than fit "
        "(15 as shipped; no shipped collective by itself needs more on up to 16 SIPs): raise ring_bytes there",
    ),
    Fact(
        "process groups",
        "ranks exchange addresses when a group is made, agree on both ends of a message by a short one, and free rings "
        "when the group is destroyed, all of it through the host",
        "init_process_group, new_group and destroy_process_group take no time of their own: destroying waits for what "
        "is under way, then frees all rings at once; send and recv are paired by the host for free",
        "ignored",
        "optimistic",
        "programs that make groups in their loop; many small point-to-point messages",
    ),
    Fact(
        "address translation",
        "a TLB that misses, and page walks that read memory",
        "a lookup never misses; every DMA request pays tlb_overhead_ns once (0 ns by default), however many pages it "
        "touches",
        "approximated",
        "optimistic",
        "access spread over many pages; small requests",
    ),
    Fact(
        "simple commands",
        "operands are fetched from TCM to registers before they are computed with, and results stored back",
        "`tl.dot` and math on tensors in TCM pay the compute only; in composites the tiles pay fetch and store too",
        "approximated",
        "optimistic",
        "kernels of many small `tl` ops; compare such a kernel with its composite with care",
    ),
    Fact(
        "MAC array",
        "a systolic array fills and drains, and a side that its geometry does not divide leaves MACs idle",
        "m * k * n / rate in whole cycles, for the tile actually computed; adding to an accumulator "
        "(`tl.dot(a, b, acc)`) is free. `pe_gemm: {impl: builtin.systolic}` fills and drains by folds of its rows and "
        "columns, exactly as SCALE-Sim counts cycles (`kernbench validate arrays`); `builtin.unit_group` deals tiles "
        "to units in whole rounds, as a GPU does: operators on two GPUs have a mean error of 8.2 % "
        "(`kernbench validate gpu_operators`), where launching does not dominate; "
        "`builtin.core_group` has cores with arrays and local buffers, fed by one memory",
        "approximated",
        "optimistic",
        "small and narrow products, tiles much smaller than the native one",
    ),
    Fact(
        "vector functions",
        "exp, erf or a division take several passes; a reduction ends in a tree; a sort takes log2(n) passes or more",
        "one pass over the elements in whole cycles for every function, softmax, gelu, sort, topk and cumsum included, "
        "unless the attrs of pe_math give passes for exp, div and erf, trees for reductions and n log n for sorts",
        "approximated",
        "optimistic",
        "softmax, normalisation, activations and sorting that are not hidden behind memory",
    ),
    Fact(
        "register file",
        "banks; operands take room as they come",
        "no banks; a fetch waits until all it brings has room",
        "approximated",
        "either",
        "tiles near the size of the register file",
    ),
    Fact(
        "queues inside a PE",
        "every queue is finite",
        "the feeder stops at the full queue of a tile's first engine and at full tile buffers, a fetch at a full "
        "register file; other queues between stages, and commands that wait in the scheduler, have no limit",
        "approximated",
        "optimistic",
        "kernels that issue many composites ahead",
    ),
    Fact(
        "two kernels on a PE",
        "a compute and a communication kernel share the CPU that issues their commands, and every queue behind it",
        "each stream has its own CPU (`tl.cycles` of one never delays the other) and its own TCM; engines, DMA "
        "channels and links are shared in order of request, and tiles of composites wait for those of composites "
        "issued before, of either stream. Where both ran at one time, a launch's HBM bytes and the busy times of its "
        "DMA and TCM ports count what the PE did for both; ops, flops and compute times are the launch's own",
        "approximated",
        "optimistic",
        "collectives that overlap with compute and declare much scalar work",
    ),
    Fact(
        "launches and mappings",
        "arguments, code and page-table entries are bytes on the same links",
        "control messages: they pay every node and wire on their path, whatever they carry, and take no bandwidth",
        "approximated",
        "optimistic",
        "many short launches; tensors of many shards",
    ),
    Fact(
        "when memory is read and written",
        "byte by byte while a transfer lasts, so that a race gives a mixture",
        "at one instant: a load takes what memory holds when its last byte arrives, a composite what it holds when it "
        "is called, and a store or a composite leaves its result when it is done; times are not affected",
        "approximated",
        "either",
        "kernels that race for the same bytes without waiting for each other: find them with --check-races",
    ),
    Fact(
        "automatic tiles",
        "a compiler or a tuner measures candidates",
        "`tile_shape='auto'` asks a closed model of the pipeline, mostly within 15 % of the simulation, up to 25 % off "
        "where transfers overlap or TCM is slow or small; it knows no other PEs, and charges math ops to PE_MATH also "
        "where another engine serves them; the time reported is simulated, not the model's",
        "approximated",
        "pessimistic",
        "composites of many PEs on the same memory, whose best tile may be another",
    ),
)

IGNORED = (
    Fact(
        "TCM ports and the DMA",
        "the DMA takes the TCM's ports while it fills and empties it",
        "fetches and stores contend for the ports with each other only; the DMA, which is slower, takes none",
        "ignored",
        "optimistic",
        "composites near the TCM's bandwidth: by at most the DMA's share of a port",
    ),
    Fact(
        "scalar code and instruction fetch",
        "address arithmetic, loops and branches take cycles of the PE's CPU; code is fetched",
        "Python between two `tl` calls takes no time but what `tl.cycles` declares; each command pays PE_SCHEDULER's "
        "overhead",
        "ignored",
        "optimistic",
        "kernels of many small ops; declare what is known with `tl.cycles`",
    ),
    Fact(
        "constants and views in TCM",
        "filling, broadcasting, transposing and slicing move data or cost address logic",
        "arange, full, zeros, trans, reshape, broadcast_to and slices take no engine and no time",
        "ignored",
        "optimistic",
        "kernels that rearrange much between their ops",
    ),
    Fact(
        "numbers a kernel looks at",
        "a value that a branch depends on has to reach the CPU",
        "`int`, `float`, `bool` and `numpy()` of a tensor in a kernel take no time once it is in TCM; nor do masks and "
        "row numbers on their way to the DMA, nor filling masked lanes with `other`",
        "ignored",
        "optimistic",
        "control flow that depends on data; gathers by computed rows",
    ),
)
