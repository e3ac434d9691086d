"""The arrays of the compiled loop (`compiled_loop.py`), columns of those that have several, and how it is compiled.

Python hands the loop one array that says where the others lie (`addresses_of`, `state_at`): numba looks at each array
that it is called with, and 28 of them took longer than most calls.

Imported only where numba is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

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


def addresses_of(state: LoopState) -> Array:
    """Where the arrays lie: of each the address, and how many rows it has. It holds as long as `state` is kept."""
    interfaces = [array.__array_interface__ for array in state]
    assert all(each["strides"] is None for each in interfaces), "an array has gaps"
    return np.array([number for each in interfaces for number in (each["data"][0], each["shape"][0])], np.int64)


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


def _to_pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer, as numba asks for an intrinsic."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


_pointer: Any = intrinsic(_to_pointer)


@compiled
def state_at(addresses: Array) -> LoopState:
    """The arrays that lie where `addresses_of` has found them."""
    return LoopState(
        node_ns=carray(_pointer(addresses[0]), addresses[1], np.float64),
        node_order=carray(_pointer(addresses[2]), addresses[3], np.int64),
        node_ints=carray(_pointer(addresses[4]), (addresses[5], 4), np.int32),
        queues=carray(_pointer(addresses[6]), (addresses[7], 3), np.int64),
        head_ns=carray(_pointer(addresses[8]), addresses[9], np.float64),
        near=carray(_pointer(addresses[10]), addresses[11], np.int32),
        far=carray(_pointer(addresses[12]), addresses[13], np.int32),
        touched=carray(_pointer(addresses[14]), addresses[15], np.int32),
        quick_ns=carray(_pointer(addresses[16]), addresses[17], np.float64),
        transfers=carray(_pointer(addresses[18]), (addresses[19], 4), np.int32),
        traversal_ints=carray(_pointer(addresses[20]), (addresses[21], 2), np.int32),
        traversal_ns=carray(_pointer(addresses[22]), (addresses[23], 4), np.float64),
        link_ns=carray(_pointer(addresses[24]), (addresses[25], 4), np.float64),
        link_ints=carray(_pointer(addresses[26]), (addresses[27], 4), np.int32),
        end_ns=carray(_pointer(addresses[28]), addresses[29], np.float64),
        end_ints=carray(_pointer(addresses[30]), (addresses[31], 2), np.int32),
        write_ns=carray(_pointer(addresses[32]), addresses[33], np.float64),
        write_ints=carray(_pointer(addresses[34]), (addresses[35], 3), np.int32),
        counts=carray(_pointer(addresses[36]), addresses[37], np.int64),
        clock=carray(_pointer(addresses[38]), addresses[39], np.float64),
        read_ints=carray(_pointer(addresses[40]), (addresses[41], 6), np.int64),
        read_ns=carray(_pointer(addresses[42]), (addresses[43], 2), np.float64),
        joined_ints=carray(_pointer(addresses[44]), (addresses[45], 3), np.int64),
        joined_ns=carray(_pointer(addresses[46]), addresses[47], np.float64),
        group_ints=carray(_pointer(addresses[48]), (addresses[49], 3), np.int64),
        burst_ns=carray(_pointer(addresses[50]), addresses[51], np.float64),
        channel_ns=carray(_pointer(addresses[52]), (addresses[53], addresses[55]), np.float64),
        granules=carray(_pointer(addresses[54]), addresses[55], np.int64),
    )
