"""The arrays of the compiled loop (`compiled_loop.py`), columns of those that have several, and how it is compiled.

Imported only where numba is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernbench.common import compiled_code
from kernbench.sim_engine.gc_threshold import collect_after_compiling, only_new_objects

FREE_NODE, FREE_NODES, FREE_QUEUE, FREE_QUEUES, NEAR, FAR, QUICK, ENDS, WRITES, EVENTS = range(10)  # of `counts`
TRANSFER, FLIT, HOP, NEXT = range(4)  # of `node_ints`
HEAD, TAIL, ORDER = range(3)  # of `queues`
FIRST, HOPS, LAST, IS_WRITE = range(4)  # of `transfers`
OCCUPY, OCCUPY_LAST, TAIL_NS, LEAST_LAST = range(4)  # of `traversal_ns`
LINK, IS_IN_SERIES = range(2)  # of `traversal_ints`
FREE, WORST, WORST_AT = range(3)  # of `link_ns` and `channel_ns`
FIRST_HERE, LAST_HERE, USERS = range(3)  # of `link_ints`: flits of this window, the first and the one that came last
GROUP, BLOCK, QUEUE, TOGETHER, LAST_GRANULES, INJECTION = range(6)  # of `read_ints`
LAST_BURST, END = range(2)  # of `read_ns`
LEFT, LATEST, BY_LINK = range(3)  # of `joined_ints`: reads that have not ended, the one that ended last, by which link
CHANNEL, MASK, WHOLE = range(3)  # of `group_ints`: the first channel, channels - 1, granules of a whole burst
AT_MEMORY = -1  # the hop of a read that is not at its memory yet
EACH_ITS_OWN = -1  # the order of a queue whose nodes have one each
# Of `clock`: the next flit, the window, where far begins, its first flit, the first end to be reported.
NEXT_NS, WINDOW, NEAR_NS, FAR_NS, FIRST_END = range(5)

Array = Any  # numba knows the types by what it is called with


class LoopState(NamedTuple):
    """All that the loop knows. A flit has a node, in one queue at a time; nodes and queues that are free are lists."""

    node_ns: Array  # when the flit is ready for its hop
    node_order: Array  # its tie-break among simultaneous events, while a link has it for this window
    node_ints: Array
    queues: Array  # of every link, then those of flits whose times are known
    head_ns: Array  # of every queue: when its first flit is ready
    near: Array  # queues that have flits, which of them are near,
    far: Array  # and which are not
    touched: Array  # links and memories that have flits of this window
    quick_ns: Array  # a heap: when last flits that may be quicker than a window can be through
    transfers: Array
    traversal_ints: Array
    traversal_ns: Array
    link_ns: Array  # of every link, in rows: what one flit needs is together in memory
    link_ints: Array  # of every link, then of memories
    end_ns: Array  # of last flits that have arrived
    end_ints: Array
    write_ns: Array  # of flits that have arrived at a memory
    write_ints: Array
    counts: Array
    clock: Array
    read_ints: Array  # of reads that depart together, by transfer
    read_ns: Array
    joined_ints: Array  # of those that depart together, as one
    joined_ns: Array  # when the latest so far has ended
    group_ints: Array  # of memories
    burst_ns: Array
    channel_ns: Array
    granules: Array  # that channels were given


_SOURCES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("loop_state", "loop_queues", "compiled_loop"))


def compiled(function: Callable[..., Any]) -> Any:
    """A function that others call, compiled with them."""
    return compiled_code.compiled(function, sources=_SOURCES)


def in_line(function: Callable[..., Any]) -> Any:
    """The same for one that stands in its callers: arrays that are handed over for each flit double its cost."""
    return compiled_code.compiled(function, sources=_SOURCES, inline="always")


def called_from_python(function: Callable[..., Any]) -> Any:
    """The same for a function that Python calls: after its first call garbage is collected, and from then on its name
    stands for the compiled function itself.
    """
    dispatcher = compiled(function)

    def first_call(*arguments: Any) -> Any:
        with only_new_objects():  # such as the compiler leaves
            outcome = dispatcher(*arguments)
            collect_after_compiling(function.__name__)
        function.__globals__[function.__name__] = dispatcher
        return outcome

    return first_call
