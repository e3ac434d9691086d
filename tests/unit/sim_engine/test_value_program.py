"""Value programs: what kernels do with contents is recorded without any, and carried out wherever the tensors are."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernbench.common.dtypes import F16, I8, I32
from kernbench.common.launch import KernelRef, TensorArg, TensorShard
from kernbench.common.messages import KernelLaunchMsg
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, PartOffsets, Shift
from kernbench.sim_engine.memo.recorded_contents import RecordedContents, RecordingMemory
from kernbench.sim_engine.memo.regions import Region
from kernbench.sim_engine.memo.value_program import MakeStep, ReadStep, ValueProgram, WriteStep, merged
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value, ValueGraph

X, Y, FAR = 0x1000, 0x9000, 0x40000  # where parts begin, and how much further those of another region
NBYTES = 4096
KEYS = [(0, 0, 0), (0, 0, 1)]
PE0, PE1 = "sip0.cube0.pe0", "sip0.cube0.pe1"
HERE, THERE = Region(0, 0), Region(0, 1)
Record = Callable[[ValueGraph, RecordingMemory, RecordingMemory], object]


def places(region: Region, by: int = 0) -> LaunchPlaces:
    def arg(name: str, pa: int) -> TensorArg:
        return TensorArg(name, (NBYTES // 2,), "f16", None, (TensorShard(0, region.cube or 0, 0, pa + by, NBYTES, 0),))

    launch = KernelLaunchMsg(sip=0, kernel_ref=KernelRef("k"), args=(arg("x", X), arg("y", Y)))
    return LaunchPlaces([launch], region, 256)


def shift(by: int = 0, offsets: tuple[PartOffsets, PartOffsets] = ({}, {})) -> Shift:
    there = THERE if by else HERE
    return Shift((HERE, there), (places(HERE), places(there, by)), KEYS, offsets)


def recorded(record: Record) -> ValueProgram:
    graph = ValueGraph()
    contents = RecordedContents(graph, places(HERE))
    record(graph, contents.memory_of(PE0), contents.memory_of(PE1))
    return contents.take_program()


def filled(*starts: int) -> tuple[ValueGraph, MemoryStore]:
    graph = ValueGraph()
    memory = MemoryStore(graph)
    for start in starts:
        memory.write(start, graph.constant(np.arange(NBYTES // 2) % 97, "f16"))
    return graph, memory


def held(memory: MemoryStore, at: int, count: int = 8) -> list[float]:
    return evaluate([memory.read(at, (count,), F16)])[0].astype(float).tolist()


def double(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
    memory.write(Y, graph.apply("mul", (memory.read(X, (8,), F16), 2.0)))


def test_a_program_has_what_kernels_did_in_order() -> None:
    program = recorded(double)
    assert [type(step) for step in program.steps] == [ReadStep, MakeStep, WriteStep]
    assert program.anchors == [(PE0, (0, 0)), (PE0, (1, 0))]
    assert [(constant.op, constant.params[1]) for constant in program.constants] == [("full", 2.0)]
    assert [tuple(each) for each in program.needed] == [(0, 0, 16)]


@pytest.mark.parametrize("by", [0, FAR])
def test_it_is_carried_out_where_tensors_are(by: int) -> None:
    graph, memory = filled(X + by)
    program = recorded(double)
    assert program.finds_its_bytes(memory, shift(by))
    program.carry_out(graph, memory, shift(by))
    assert held(memory, Y + by) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_reads_find_what_was_written_before_them() -> None:
    """By the same program: the first PE writes what the second one changes in place, part by part."""

    def record(graph: ValueGraph, first: RecordingMemory, second: RecordingMemory) -> None:
        first.write(Y, first.read(X, (8,), F16))
        second.write(Y + 4, graph.apply("add", (second.read(Y, (4,), F16), 10.0)))
        second.write(X, second.read_strided(Y, (4,), (4,), F16))
        first.write(Y + 16, first.read(Y, (16,), I8))

    program = recorded(record)
    assert [tuple(each) for each in program.needed] == [(0, 0, 16)]
    for by in (0, FAR):
        graph, memory = filled(X + by)
        program.carry_out(graph, memory, shift(by))
        assert held(memory, Y + by, 16) == 2 * [0, 1, 10, 11, 12, 13, 6, 7]
        assert held(memory, X + by) == [0, 10, 12, 6, 4, 5, 6, 7]


def test_kernels_are_elsewhere_in_their_parts_each_by_itself() -> None:
    def record(graph: ValueGraph, first: RecordingMemory, second: RecordingMemory) -> None:
        first.write(Y, first.read(X, (4,), F16))
        second.write(Y + 512, second.read(X + 512, (4,), F16))

    graph, memory = filled(X)
    recorded(record).carry_out(graph, memory, shift(0, ({(0, 0): 8, (1, 0): 256}, {})))
    assert held(memory, Y + 256, 4) == [4, 5, 6, 7]
    assert held(memory, Y + 512, 4) == [256 - 194, 63, 64, 65]


def test_what_is_never_written_is_left_out() -> None:
    """But bytes that it would have read have to be there."""

    def record(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
        graph.apply("exp", (memory.read(X + 64, (8,), F16),))
        double(graph, memory, memory)

    program = recorded(record)
    assert len(program.steps) == 3
    assert [tuple(each) for each in program.needed] == [(0, 0, 16), (0, 64, 16)]
    graph, memory = filled()
    memory.write(X, graph.full((8,), 1.0, "f16"))
    assert not program.finds_its_bytes(memory, shift())
    memory.write(X + 64, graph.full((8,), 1.0, "f16"))
    assert program.finds_its_bytes(memory, shift())


def test_strided_reads_need_their_rows_only() -> None:
    def record(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
        memory.write(Y, memory.read_strided(X, (3, 4), (64, 2), F16))

    program = recorded(record)
    assert [tuple(each) for each in program.needed] == [(0, 0, 8), (0, 64, 8), (0, 128, 8)]
    graph, memory = filled(X)
    program.carry_out(graph, memory, shift())
    assert held(memory, Y, 12) == [0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67]


def test_reads_of_no_bytes() -> None:
    def record(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
        memory.write(Y, memory.read(X, (0, 4), F16))
        assert not memory.is_unknown(memory.read_strided(X, (0,), (2,), F16))

    program = recorded(record)
    assert not program.steps
    assert not program.needed


def test_which_values_are_unknown() -> None:
    graph = ValueGraph()
    memory = RecordedContents(graph, places(HERE)).memory_of(PE0)
    lanes = graph.apply("lt", (graph.apply("arange", (), start=0, stop=8, dtype=I32), 5))
    assert not memory.is_unknown(lanes)
    evaluate([lanes])
    found = graph.apply("where", (lanes, memory.read(X, (8,), F16), 0.0))
    assert memory.is_unknown(found)
    assert memory.is_unknown(graph.apply("reshape", (found,), shape=(2, 4)))


def test_what_was_looked_at_is_a_constant() -> None:
    def record(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
        lanes = graph.apply("lt", (graph.apply("arange", (), start=0, stop=8, dtype=I32), 3))
        evaluate([lanes])
        memory.write(Y, graph.apply("where", (lanes, memory.read(X, (8,), F16), 50.0)))

    program = pickle.loads(pickle.dumps(recorded(record)))
    for _ in range(2):
        graph, memory = filled(X)
        program.carry_out(graph, memory, shift())
        assert held(memory, Y) == [0, 1, 2, 50, 50, 50, 50, 50]


def test_views_of_views_are_views_of_what_they_are_cut_from() -> None:
    """As they are where kernels run, so that as much is computed at once."""

    def record(graph: ValueGraph, memory: RecordingMemory, _: RecordingMemory) -> None:
        part = memory.read(X + 16, (16,), F16)
        memory.write(Y, graph.view(part, graph.type_of((8,), F16), 8, 16, 1))

    graph, memory = filled(X)
    recorded(record).carry_out(graph, memory, shift())
    left = memory.read(Y, (8,), F16)
    assert (left.op, left.params, left.inputs[0].op) == ("view", (24, 16, 1), "constant")


def test_numbers_are_shared_by_all_programs_of_a_graph() -> None:
    graph, memory = filled(X)
    inputs: list[Any] = []
    for _ in range(2):
        recorded(double).carry_out(graph, memory, shift())
        inputs.append(memory.read(Y, (8,), F16).inputs[1])
    assert inputs[0] is inputs[1]
    assert inputs[0] is graph.apply("mul", (memory.read(X, (8,), F16), 2.0)).inputs[1]


def test_a_program_keeps_nothing_of_where_it_was_carried_out() -> None:
    program = recorded(double)
    graph, memory = filled(X)
    gc.collect()
    before = _values()
    for _ in range(3):
        program.carry_out(graph, memory, shift())
    memory.free(Y, NBYTES)
    assert _values() - before == 1  # the number 2


def _values() -> int:
    return sum(1 for item in gc.get_objects() if type(item) is Value)


def test_a_program_is_plain_data() -> None:
    program = recorded(double)
    graph, memory = filled(X)
    program.carry_out(graph, memory, shift())
    twin = pickle.loads(pickle.dumps(program))
    assert (twin.anchors, twin.types, twin.steps, twin.needed) == (
        program.anchors,
        program.types,
        program.steps,
        program.needed,
    )
    assert all(mine[1] is other[1] for mine, other in zip(twin.types, program.types, strict=True))
    other_graph, other_memory = filled(X + FAR)
    twin.carry_out(other_graph, other_memory, shift(FAR))
    assert held(other_memory, Y + FAR) == held(memory, Y)


def test_ranges_are_merged() -> None:
    assert merged([(0, 4), (2, 1), (4, 4), (9, 1), (9, 3)]) == [(0, 8), (9, 3)]
    assert merged([]) == []


def test_memory_says_before_it_is_used() -> None:
    _, memory = filled(X)
    asked: list[int] = []
    memory.access_observers.add(asked.append)
    value = memory.read(X, (4,), F16)
    memory.read_strided(X + 2, (2,), (4,), F16)
    memory.write(X + 4, value)
    memory.write_strided(X + 6, value, (2,))
    memory.gaps(X + 8, 2)
    memory.free(X + 10, 2)
    assert asked == [X, X + 2, X + 4, X + 6, X + 8, X + 10]
