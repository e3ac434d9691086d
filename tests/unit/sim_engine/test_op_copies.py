"""What one op log recorded, another copies: as if other PEs had done it there, at another time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from kernbench.components.builtin.command_log import TileDescriber
from kernbench.components.builtin.stages import DmaStage, GemmStage, StageType
from kernbench.components.builtin.tile_plan import PipelinePlan, TilePlan
from kernbench.components.recording import NO_REF, Release, op_ref, stage_ref
from kernbench.sim_engine.memo.composite_recording import (
    CompositeRecording,
    RecordedTiles,
    ShiftedRepeat,
    ShiftedSegment,
)
from kernbench.sim_engine.op_copies import PLACEHOLDER, RecordedRows, RowsCopy, copied_rows
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog, read_op_stream
from kernbench.sim_engine.op_tally import EngineWork, OpTally

LAUNCH, OTHER = ("c", "r0"), ("c", "r1")


class Place(NamedTuple):
    """Where and when two PEs work, where the bytes of each lie, and for which ops of others they wait."""

    pes: tuple[str, str]
    t: float
    bases: tuple[int, int]
    known: tuple[tuple[int, ...], tuple[int, ...]]


RECORDED = Place(("sip0.cube0.pe0", "sip0.cube0.pe1"), 0.0, (0, 4096), ((PLACEHOLDER,), (PLACEHOLDER + 1,)))


def tile(number: int) -> TilePlan:
    read = DmaStage(StageType.DMA_READ, "pe_dma", 1, 64 * number, 64, 1, 64, 64)
    return TilePlan(number, (read, GemmStage(StageType.GEMM, "pe_gemm", 2, 3, 4, "f16")))


def composite() -> CompositeRecording:
    """Four tiles, 2 ns apart; the last three are recorded as one. Each waits for the read of the one before it."""
    made = CompositeRecording(PipelinePlan(4, 4, lambda first: map(tile, range(first, 4))))
    begun = (0, [0.0, 2.0, 2.0, 3.0], [0.0, NO_REF, 0.0, NO_REF])
    # Tokens count from the first tile on.
    follows = (1, [2.0, 4.0, 4.0, 5.0], [0, Release.PROGRAM, 0.0, NO_REF, 0, Release.LANE, 2.0, stage_ref(0, 0)])
    made.segments = [ShiftedSegment([begun], 0, 0.0), ShiftedRepeat([ShiftedSegment([follows], 0, 0.0)], 3, 1, 2.0)]
    made.records = 8
    made.work = {("pe_dma", "bytes"): (4, 8.0, 256), ("pe_gemm", "macs/f16"): (4, 4.0, 96)}
    return made


RECORDING = composite()
RECORDS = (
    2 + 2 * 2 + 4 * 2 + 1 + 2
)  # of `work`: single ops, tiles, the tiles of the recording, its composite, a message
TOKENS = 2 + 4


def work(log: OpLog, place: Place = RECORDED) -> None:
    """Single ops, two tiles that wait for each other's engines, a message, and a composite that is replayed."""
    (a, b), t, (in_a, in_b), (loaded, stored) = place
    nbytes = {"src_addr": in_a + 64, "nbytes": 256}
    read = log.record(t, t + 2.0, f"{a}.pe_dma", "memory", "dma_read", nbytes, loaded, amount=256)
    exp = {"input_addrs": (in_a + 64, in_a + 128), "input_shapes": ((2, 5),), "dst_addr": in_a + 192, "axis": None}
    after = (0, Release.DATA, t + 1.5, op_ref(read), 0, Release.DATA, t + 2.0, op_ref(read))
    waited = tuple(dict.fromkeys((read, *stored, *loaded)))  # each once, though they may have ops in common
    log.record(t + 2.0, t + 3.0, f"{a}.pe_math", "math", "exp", exp, waited, amount=10, causes=after)

    first, second = log.new_token(), log.new_token()
    tiles = TileDescriber(a, (in_a, in_a + 512), "compute", "kernel.py:7")
    behind = (0, Release.PROGRAM, t, NO_REF, 0, Release.LANE, t, stage_ref(first, 0))
    log.record_chain(tiles, tile(1), (t + 4.0, t + 8.0, t + 8.0, t + 9.0), (read,), second, behind)
    crossed = (0, Release.LAUNCH, t, NO_REF, 1, Release.LANE, t + 4.0, stage_ref(second, 1))
    log.record_chain(tiles, tile(0), (t, t + 4.0, t + 9.0, t + 12.0), (read,), first, crossed)

    rows = RecordedTiles(RECORDING, t + 3.0, log.new_tokens(4), (int(Release.DATA), op_ref(read)))
    last = log.record_composite(TileDescriber(b, (in_b, in_b + 512), "compute"), (read, *stored), rows)
    log.record(t + 3.0, t + 12.0, f"{b}.pe_scheduler", "gemm", "composite_gemm", {"out_addr": in_b}, (last,))

    to_b, to_a = {"peer": b, "src_addr": in_a}, {"peer": a, "nbytes": 8}
    sent = log.record(t + 9.0, t + 10.0, f"{a}.pe_ipcq", "communication", "send", to_b, stream="communication")
    came = (0, Release.MESSAGE, t + 10.0, op_ref(sent))
    log.record(
        t + 9.0, t + 11.0, f"{b}.pe_ipcq", "communication", "recv", to_a, (sent,), causes=came, stream="communication"
    )


def recorded() -> RecordedRows:
    log = OpLog()
    work(log)
    return log.take_rows()


def copy_of(rows: RecordedRows, place: Place, *, since: float = 0.0) -> RowsCopy:
    """What was recorded `since` then, as done at a place."""
    pes = dict(zip(RECORDED.pes, place.pes, strict=True))
    moved = {pe: there - here for pe, here, there in zip(RECORDED.pes, RECORDED.bases, place.bases, strict=True)}
    return RowsCopy(rows, place.t - since, pes, lambda pe, address: address + moved[pe], place.known)


def own_op(log: OpLog, t: float) -> int:
    return log.record(t, t + 8.0, "sip0.cube0.pe7.pe_math", "math", "add", {"dst_addr": 8}, unit="ops", amount=3)


def places(own: int, first: int) -> tuple[Place, Place]:
    """The second waits for ops of the first, whose first record is `first`."""
    return (
        Place(("sip0.cube1.pe0", "sip0.cube1.pe1"), 100.0, (1 << 20, 1 << 21), ((own,), ())),
        Place(("sip1.cube9.pe0", "sip1.cube9.pe1"), 105.5, (1 << 22, 1 << 23), ((first, own), (first + 1, own))),
    )


def written_to(log: OpLog, rows: RecordedRows | None = None) -> OpLog:
    """Two groups of PEs do the work: copied where rows are given. Others' ops are before, between and after."""
    own = own_op(log, 0.0)
    for at in range(2):
        place = places(own, 1)[at]
        if rows is None:
            work(log, place)
        else:
            assert log.record_copy(copy_of(rows, place)) == 1 + at * (rows.records + 1)
        own_op(log, 100.0 + at)
    return log


def test_a_copy_reads_as_if_its_ops_had_been_recorded_there() -> None:
    copied, direct = written_to(OpLog(), recorded()), written_to(OpLog())
    assert len(copied) == len(direct)
    assert list(copied.items()) == list(direct.items())
    assert list(copied.entries()) == list(direct.entries())


def test_a_copy_costs_nothing_until_it_is_read() -> None:
    rows, log = recorded(), OpLog()
    asked: list[int] = []
    copy = copy_of(rows, places(0, 0)[0])._replace(address_of=lambda _, address: asked.append(address) or address)
    log.record_copy(copy)
    assert len(log) == rows.records == RECORDS
    assert log.rows_since(0)[:2] == ([], [])
    assert asked == []
    assert len(log.records) == rows.records
    assert asked


def test_what_is_recorded_while_a_copy_is_not_read_yet_has_tokens_of_its_own() -> None:
    """Two tiles that let each other start, whose tokens are handed out before and after a copy's."""
    log, tiles = OpLog(), TileDescriber("sip0.cube0.pe7", (0, 0), "compute")
    before = log.new_token()
    log.record_copy(copy_of(recorded(), places(0, 0)[0]))
    after = log.new_token()
    crossed = (0, Release.LAUNCH, 0.0, NO_REF, 1, Release.LANE, 1.0, stage_ref(after, 0))
    log.record_chain(tiles, tile(0), (0.0, 1.0, 1.0, 2.0), (), before, crossed)
    log.record_chain(tiles, tile(1), (0.0, 1.0, 2.0, 3.0), (), after, (0, Release.LANE, 0.0, stage_ref(before, 1)))
    assert [(number, record.released_by) for number, record in log.items()][:4] == [(0, None), (2, 1), (1, 2), (3, 2)]


def test_a_log_goes_on_after_its_rows_are_taken() -> None:
    log = OpLog()
    work(log)
    first = log.take_rows()
    work(log, RECORDED._replace(t=500.0))
    second = log.take_rows()
    assert (first.first, first.records, first.first_token, first.tokens) == (0, RECORDS, 0, TOKENS)
    assert (second.first, second.records, second.first_token, second.tokens) == (RECORDS, RECORDS, TOKENS, TOKENS)
    place = places(0, 0)[0]
    logs = OpLog(), OpLog()
    for each, rows, since in ((logs[0], first, 0.0), (logs[1], second, 500.0)):
        own_op(each, 0.0)
        each.record_copy(copy_of(rows, place, since=since))
    assert list(logs[0].items()) == list(logs[1].items())
    assert log.records == []
    own_op(log, 600.0)
    assert [number for number, _ in log.items()] == [2 * RECORDS]


def test_equal_describers_are_kept_once() -> None:
    """Ops of one kind share theirs, even if each was recorded with one of its own."""
    log = OpLog()
    for at in range(3):
        log.record(float(at), at + 1.0, "sip0.cube0.pe0.pe_dma", "memory", "dma_read", {"src_addr": at})
        tiles = TileDescriber("sip0.cube0.pe0", (64, 128), "compute")
        log.record_chain(tiles, tile(0), (at, at + 0.5, at + 0.5, at + 1.0), (), NO_REF, (0, Release.LAUNCH, 0, NO_REF))
    rows = list(copied_rows(copy_of(log.take_rows(), places(0, 0)[0]), 0, 0))
    assert [len({id(row[0]) for row in rows[at::2]}) for at in range(2)] == [1, 1]


def test_who_let_an_op_start_may_be_known_to_the_copy_alone() -> None:
    log, private = OpLog(), OpLog()
    own = [own_op(log, 0.0), own_op(log, 1.0)]
    for at in range(2):
        causes = (0, Release.DATA, 1.0, op_ref(PLACEHOLDER + at))
        private.record(1.0, 2.0, f"{RECORDED.pes[at]}.pe_math", "math", "exp", {}, causes=causes)
    log.record_copy(copy_of(private.take_rows(), places(0, 0)[0]._replace(known=(tuple(own), ()))))
    assert [record.released_by for record in log.records if record.op_name == "exp"] == [own[1], None]


def test_sums_do_not_have_copies() -> None:
    log = OpLog()
    tally = OpTally(log)
    tally.watch(LAUNCH)
    for pe in ("sip0.cube0.pe7", *places(0, 0)[0].pes, *places(0, 0)[1].pes):
        tally.begin(pe, LAUNCH, "compute")
    written_to(log, recorded())
    assert len(log.records) == 3 + 2 * RECORDS  # all rows are made
    own_op(log, 300.0)
    assert tally.take(LAUNCH) == {("sip0.cube0.pe7.pe_math", "ops"): EngineWork(4, 32.0, 12)}


def test_sums_of_a_log_whose_rows_are_taken_are_those_of_all_its_rows() -> None:
    log, kept = OpLog(), OpLog()
    tallies = OpTally(log), OpTally(kept)
    for tally in tallies:
        tally.watch(LAUNCH)
        tally.watch(OTHER)
    for launch in (LAUNCH, OTHER):
        for tally, own in zip(tallies, (log, kept), strict=True):
            tally.begin(RECORDED.pes[0], launch, "compute")
            tally.begin(RECORDED.pes[1], launch, "compute")
            work(own)
        log.take_rows()
    assert tallies[0].take(LAUNCH) == tallies[1].take(LAUNCH) != {}
    assert tallies[0].take(OTHER) == tallies[1].take(OTHER) != {}


@pytest.mark.parametrize("chunk_records", [1, 5, 100])
def test_a_file_has_copies_too(tmp_path: Path, chunk_records: int) -> None:
    with StreamingOpLog(tmp_path / "ops", chunk_records=chunk_records) as log:
        log.not_before.append(lambda: 100.0)  # the earliest time at which a copied op may start
        written_to(log, recorded())
    assert list(read_op_stream(tmp_path / "ops")) == list(written_to(OpLog()).items())
