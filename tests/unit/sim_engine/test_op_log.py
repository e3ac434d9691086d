"""The op log: its fields, order of start, ids, dependencies and releases; the same through a file; sums of records."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.common.messages import RequestId
from kernbench.components.recording import NO_REF, Release, op_ref, stage_ref
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.op_stream import StreamingOpLog, read_op_stream
from kernbench.sim_engine.op_tally import EngineWork, OpTally

VECTOR, MACS = "vector_ops/f16", "macs/f16"
PE = "sip0.cube0.pe0"


def three_ops(log: OpLog, t: float = 0.0) -> None:
    """A product that starts first and ends last, so that it is recorded after what runs beside it; from `t` on."""
    read = log.record(t, t + 2.0, f"{PE}.pe_dma", "memory", "dma_read", {"src_addr": 64, "nbytes": 256})
    shapes = {"elements": 10, "input_shapes": ((2, 5),)}
    causes = (0, Release.DATA, t + 1.5, op_ref(read), 0, Release.DATA, t + 2.0, op_ref(read))  # asked for at 1.5
    other = log.record(t + 2.0, t + 3.0, f"{PE}.pe_math", "math", "exp", shapes, unit=VECTOR, amount=10, causes=causes)
    product = {"m": 2, "k": 3, "n": 4}
    log.record(t + 1.0, t + 5.0, f"{PE}.pe_gemm", "gemm", "gemm_f16", product, (read, other), unit=MACS, amount=24)


def test_records_come_in_order_of_start() -> None:
    log = OpLog()
    three_ops(log)
    issued = ("program", None)
    assert log.records == [
        OpRecord(
            0.0, 2.0, f"{PE}.pe_dma", "memory", "dma_read", {"src_addr": 64, "nbytes": 256}, (), 0.0, 0.0, *issued
        ),
        OpRecord(
            1.0, 5.0, f"{PE}.pe_gemm", "gemm", "gemm_f16", {"m": 2, "k": 3, "n": 4}, (0, 1), 1.0, 1.0, *issued
        ),
        OpRecord(
            2.0, 3.0, f"{PE}.pe_math", "math", "exp", {"elements": 10, "input_shapes": ((2, 5),)}, (), 1.5, 2.0,
            "data", 0,
        ),
    ]  # fmt: skip


def test_the_fields_of_a_record_are_a_contract() -> None:
    assert OpRecord._fields == (
        "t_start",
        "t_end",
        "component_id",
        "op_kind",
        "op_name",
        "params",
        "dependency_ids",
        "t_asked",
        "t_ready",
        "release",
        "released_by",
    )


class Tiles:
    """Describes tiles of two stages."""

    pe = PE
    stream = "compute"

    def entries(self, subject):
        heads = ((f"{PE}.pe_dma", "memory", "read", ("tile",)), (f"{PE}.pe_gemm", "gemm", "gemm", ("tile",)))
        return heads, (subject, subject)

    def kind(self, subject):
        return self

    def amounts(self, subjects):
        return ("bytes", 0), (VECTOR, len(subjects))


def two_tiles(log: OpLog, t: float = 0.0) -> None:
    """From `t` on: the second tile's read waits for the first one's channel, and the second is recorded first."""
    first, second = log.new_token(), log.new_token()
    launched = (0, Release.LAUNCH, t, NO_REF)
    behind = (0, Release.PROGRAM, t, NO_REF, 0, Release.LANE, t, stage_ref(first, 0))  # the later entry counts
    log.record_chain(Tiles(), 1, (t + 4.0, t + 8.0, t + 8.0, t + 9.0), (), second, behind)
    waited = (*launched, 1, Release.LANE, t + 4.0, stage_ref(second, 1))
    log.record_chain(Tiles(), 0, (t, t + 4.0, t + 9.0, t + 12.0), (), first, waited)


def test_a_tile_names_what_let_each_stage_start_even_where_that_is_recorded_later() -> None:
    log = OpLog()
    two_tiles(log)
    expected = {number: (r.params["tile"], r.t_asked, r.t_ready, r.release, r.released_by) for number, r in log.items()}
    assert expected == {
        0: (1, 0.0, 0.0, "lane", 2),  # the first tile's read, which is record 2
        1: (1, 8.0, 8.0, "data", 0),
        2: (0, 0.0, 0.0, "launch", None),
        3: (0, 4.0, 4.0, "lane", 1),
    }


@pytest.mark.parametrize("chunk_records", range(1, 6))
def test_a_file_names_them_too(tmp_path: Path, chunk_records: int) -> None:
    kept = OpLog()
    with StreamingOpLog(tmp_path / "ops", chunk_records=chunk_records) as log:
        for t in (0.0, 20.0, 40.0):
            for each in (log, kept):
                two_tiles(each, t)
                three_ops(each, t + 12.0)
    assert list(read_op_stream(tmp_path / "ops")) == list(kept.items())


def test_equal_starts_keep_the_order_of_recording() -> None:
    log = OpLog()
    for name in "cab":
        log.record(7.0, 8.0, "x", "math", name, {})
    assert [record.op_name for record in log.records] == ["c", "a", "b"]


def test_ids_ascend_and_find_their_record() -> None:
    log = OpLog()
    three_ops(log)
    assert [number for number, _ in log.items()] == [0, 2, 1]
    assert log[2].op_name == "gemm_f16"
    assert len(log) == 3
    with pytest.raises(IndexError):
        log[3]


def test_ids_are_in_order_of_ends_and_of_blocks_whatever_was_recorded_first() -> None:
    """Two PEs end an op at one instant; what waits for both names the same ids whichever was simulated first."""

    def recorded(*pes: str) -> list[tuple[int, OpRecord]]:
        log = OpLog()
        numbers = {pe: log.record(1.0, 2.0, f"sip0.cube0.{pe}.pe_math", "math", "exp", {}) for pe in pes}
        log.record(2.0, 3.0, "sip0.cube0.pe2.pe_math", "math", "add", {}, tuple(numbers.values()))
        return list(log.items())

    assert recorded("pe2", "pe10") == recorded("pe10", "pe2")
    assert [record.component_id for _, record in recorded("pe10", "pe2")[:2]] == [
        "sip0.cube0.pe2.pe_math", "sip0.cube0.pe10.pe_math",
    ]  # fmt: skip
    assert recorded("pe10", "pe2")[2][1].dependency_ids == (0, 1)


# ---- a file


def test_a_file_gives_back_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ops.parquet"
    kept = OpLog()
    three_ops(kept)
    with StreamingOpLog(path, chunk_records=2) as log:
        three_ops(log)
        assert len(log) == 3
        assert len(log.records) == 2  # what ended before the chunk was full has left
    assert list(read_op_stream(path)) == list(kept.items())


def test_two_files_of_the_same_ops_are_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        with StreamingOpLog(tmp_path / name, chunk_records=2) as log:
            three_ops(log)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    def grown(log: OpLog, records: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(records):
            log.record(float(at), at + 1.0, "x", "gemm", "y", {"m": 1000 + at, "k": 2000 + at}, (at,))
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        with StreamingOpLog(tmp_path / "ops", chunk_records=500) as log:
            grown(log, 1000)
            assert grown(log, 4000) < 60_000
        assert 250_000 < grown(OpLog(), 4000) < 4000 * 500  # under 500 MB a million
    finally:
        tracemalloc.stop()


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = StreamingOpLog(tmp_path / "ops")
    three_ops(log)
    log.close()
    log.close()
    assert len(list(read_op_stream(tmp_path / "ops"))) == 3


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        StreamingOpLog(tmp_path / "ops")
    assert "kernbench[log]" in str(caught.value.hint)


@pytest.mark.parametrize("bad", ["missing/ops", "."])
def test_a_file_that_cannot_be_is_a_clear_error(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError):
        StreamingOpLog(tmp_path / bad)
    with pytest.raises(UsageError):
        list(read_op_stream(tmp_path / bad / "ops"))


# ---- sums


LAUNCH, OTHER = ("c", "r0"), ("c", "r1")
THREE_OPS = {
    (f"{PE}.pe_dma", "bytes"): EngineWork(1, 2.0, 0),
    (f"{PE}.pe_math", VECTOR): EngineWork(1, 1.0, 10),
    (f"{PE}.pe_gemm", MACS): EngineWork(1, 4.0, 2 * 3 * 4),
}


def times(n: int) -> dict[tuple[str, str], EngineWork]:
    """The three ops, `n` times."""
    return {key: EngineWork(n * ops, n * busy_ns, n * amount) for key, (ops, busy_ns, amount) in THREE_OPS.items()}


def tally_of(log: OpLog, *launches: RequestId) -> OpTally:
    """One that watches launches, the first of which the PE works for."""
    tally = OpTally(log)
    for launch in launches:
        tally.watch(launch)
    tally.begin(PE, launches[0], "compute")
    return tally


def test_sums_are_kept_by_engine_and_unit_of_work() -> None:
    log = OpLog()
    tally = tally_of(log, LAUNCH)
    three_ops(log)
    assert tally.take(LAUNCH) == THREE_OPS


def test_sums_are_of_one_launch_and_not_of_those_before_and_after() -> None:
    log = OpLog()
    three_ops(log)
    tally = tally_of(log, LAUNCH, OTHER)
    three_ops(log)
    three_ops(log)
    tally.begin(PE, ("c", "not watched"), "compute")
    three_ops(log)
    tally.begin(PE, OTHER, "compute")
    three_ops(log)
    assert tally.take(LAUNCH) == times(2)
    three_ops(log)
    assert tally.take(OTHER) == times(2)


def test_a_launch_that_did_nothing_has_no_sums() -> None:
    log = OpLog()
    tally = tally_of(log, LAUNCH, OTHER)
    tally.begin(PE, OTHER, "compute")
    three_ops(log)
    assert tally.take(LAUNCH) == {}
    assert tally.take(OTHER) == THREE_OPS


def test_launches_of_two_streams_of_one_pe_have_sums_of_their_own() -> None:
    log = OpLog()
    tally = tally_of(log, LAUNCH, OTHER, later := ("c", "r2"))
    tally.begin(PE, OTHER, "communication")
    for busy_ns in (1.0, 2.0):
        three_ops(log)
        log.record(0.0, busy_ns, f"{PE}.pe_math", "math", "exp", {}, unit=VECTOR, amount=5, stream="communication")
    tally.begin(PE, later, "compute")  # the other stream's launch goes on
    log.record(0.0, 4.0, f"{PE}.pe_math", "math", "exp", {}, unit=VECTOR, amount=5, stream="communication")
    three_ops(log)
    assert tally.take(OTHER) == {(f"{PE}.pe_math", VECTOR): EngineWork(3, 7.0, 15)}
    assert tally.take(LAUNCH) == times(2)
    assert tally.take(later) == THREE_OPS


@pytest.mark.parametrize("chunk_records", range(1, 8))
def test_a_log_that_streams_has_the_same_sums(tmp_path: Path, chunk_records: int) -> None:
    with StreamingOpLog(tmp_path / "ops", chunk_records=chunk_records) as log:
        tally = tally_of(log, LAUNCH, OTHER)
        for _ in range(5):
            three_ops(log)
        tally.begin(PE, OTHER, "compute")
        for _ in range(2):
            three_ops(log)
        assert tally.take(LAUNCH) == times(5)
        assert tally.take(OTHER) == times(2)


def test_the_record_of_a_composite_is_not_counted_beside_its_tiles() -> None:
    log = OpLog()
    tally = tally_of(log, LAUNCH)
    log.record(0.0, 16.0, f"{PE}.pe_gemm", "gemm", "TileToken/GEMM", {"m": 1, "k": 1, "n": 1}, unit=MACS, amount=1)
    log.record(0.0, 99.0, f"{PE}.pe_scheduler", "gemm", "composite_gemm", {"op": "gemm"})
    assert tally.take(LAUNCH) == {(f"{PE}.pe_gemm", MACS): EngineWork(1, 16.0, 1)}
