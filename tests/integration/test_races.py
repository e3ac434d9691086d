"""Races of real kernels: a set that races, each at the lines it must, and a set that does not; no miss, no false alarm.

Arrays lie in the memory of one PE, which all PEs of a launch share.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kernbench
from kernbench.cli.main import main
from kernbench.common.errors import LaunchError, RaceError
from kernbench.common.messages import MemoryWriteMsg
from kernbench.common.race import Race
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel, tiny_machine

Lines = set[tuple[str, str, str]]
I32 = np.zeros(64, np.int32)
F16 = np.ones((64, 64), np.float16)
ADDED = "tl.store(count, tl.load(count, (1,)) + 1)"  # two accesses on one line


def lines_of(races: tuple[Race, ...] | list[Race]) -> Lines:
    """kind, and the source of both lines in alphabetical order."""
    found: Lines = set()
    for race in races:
        first, second = sorted((race.first.source_line, race.second.source_line))
        found.add((race.kind, first, second))
    return found


def raced(kernel: Callable[..., object], *args: object, pes: int = 2) -> Lines:
    with pytest.raises(RaceError) as raised:
        run_kernel(kernel, *args, grid=(pes,), check_races=True)
    return lines_of(raised.value.races)  # type: ignore[arg-type]  # errors know them as objects: they stand below races


# ---- kernels that race


def shared_counter(count, tl):
    tl.store(count, tl.load(count, (1,)) + 1)


def tile_read_while_written(x, out, tl):
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64, 64), 2, "f16"))
    else:
        tl.store(out, tl.load(x, (64, 64)))


def one_row_written_twice(x, tl):
    tl.store(x + 128 * (tl.program_id(0) // 2), tl.full((64,), 1, "f16"))


def plain_read_beside_an_atomic(count, out, tl):
    if tl.program_id(0) == 0:
        tl.atomic_add(count, 1)
    else:
        tl.store(out, tl.load(count, (1,)))


def composite_output_read_elsewhere(a, b, out, seen, tl):
    if tl.program_id(0) == 0:
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=out))
    else:
        tl.store(seen, tl.load(out, (64, 64)))


def composite_input_written_elsewhere(a, b, out, tl):
    if tl.program_id(0) == 0:
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=out))
    else:
        tl.store(b, tl.full((64, 64), 2, "f16"))


def last_column_shared(x, tl):
    tl.store(x + 4 * tl.program_id(0), tl.full((4, 2), 1, "i32"), strides=(16, 1))


def flag_before_the_data_is_there(flag, x, out, tl):
    if tl.program_id(0) == 0:
        tl.store_async(x, tl.full((64, 64), 2, "f16"))
        tl.atomic_xchg(flag, 1)
    else:
        while int(tl.atomic_add(flag, 0)) == 0:
            tl.cycles(10)
        tl.store(out, tl.load(x, (64, 64)))


def flag_by_a_plain_store(flag, x, out, tl):
    if tl.program_id(0) == 0:
        tl.store(x, tl.full((64, 64), 2, "f16"))
        tl.store(flag, tl.full((1,), 1, "i32"))
    else:
        tl.cycles(2000)
        tl.load(flag, (1,))
        tl.load(x, (64, 64))


def test_a_counter_that_pes_share_races_with_itself() -> None:
    assert raced(shared_counter, I32, pes=3) == {("read-write", ADDED, ADDED), ("write-write", ADDED, ADDED)}


def test_a_tile_that_is_read_while_another_pe_writes_it_races() -> None:
    write, read = 'tl.store(x, tl.full((64, 64), 2, "f16"))', "tl.store(out, tl.load(x, (64, 64)))"
    assert raced(tile_read_while_written, F16, F16) == {("read-write", read, write)}


def test_two_pes_that_write_one_row_race_and_both_rows_are_one_race() -> None:
    with pytest.raises(RaceError) as raised:
        run_kernel(one_row_written_twice, F16, grid=(4,), check_races=True)
    (race,) = raised.value.races
    assert isinstance(race, Race)
    assert (race.kind, race.tensor, race.nbytes, race.count) == ("write-write", "x", 128, 2)  # rows 0 and 1
    assert {race.first.pe, race.second.pe} == {0, 1}


def test_a_plain_read_of_what_another_pe_counts_atomically_races() -> None:
    read, atomic = "tl.store(out, tl.load(count, (1,)))", "tl.atomic_add(count, 1)"
    assert raced(plain_read_beside_an_atomic, I32, I32) == {("atomic-read", atomic, read)}


def test_a_composite_races_with_who_reads_its_output_and_who_writes_its_input() -> None:
    composite = 'tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=out))'
    read = "tl.store(seen, tl.load(out, (64, 64)))"
    assert raced(composite_output_read_elsewhere, F16, F16, F16, F16) == {("read-write", read, composite)}
    write = 'tl.store(b, tl.full((64, 64), 2, "f16"))'
    assert raced(composite_input_written_elsewhere, F16, F16, F16) == {("read-write", write, composite)}


def test_strided_blocks_race_in_the_column_that_they_share() -> None:
    line = 'tl.store(x + 4 * tl.program_id(0), tl.full((4, 2), 1, "i32"), strides=(16, 1))'
    assert raced(last_column_shared, I32) == {("write-write", line, line)}


def test_a_flag_that_is_raised_before_a_store_was_waited_for_hands_nothing_over() -> None:
    store, read = 'tl.store_async(x, tl.full((64, 64), 2, "f16"))', "tl.store(out, tl.load(x, (64, 64)))"
    assert raced(flag_before_the_data_is_there, I32, F16, F16) == {("read-write", read, store)}


def test_a_flag_that_is_no_atomic_races_however_late_it_is_read() -> None:
    found = raced(flag_by_a_plain_store, I32, F16, F16)
    assert found == {
        ("read-write", "tl.load(flag, (1,))", 'tl.store(flag, tl.full((1,), 1, "i32"))'),
        ("read-write", "tl.load(x, (64, 64))", 'tl.store(x, tl.full((64, 64), 2, "f16"))'),
    }


# ---- kernels that do not


def disjoint_rows(x, tl):
    at = x + 128 * tl.program_id(0)
    tl.store(at, tl.load(at, (1, 64)) * 2)


def atomic_counter(count, tl):
    tl.atomic_add(count, 1)


def flag_then_data(flag, x, out, tl):
    if tl.program_id(0) == 0:
        tl.wait(tl.store_async(x, tl.full((64, 64), 2, "f16")))
        tl.atomic_xchg(flag, 1)
    elif tl.program_id(0) == 1:
        while int(tl.atomic_add(flag, 0)) == 0:
            tl.cycles(10)
        tl.store(out, tl.load(x, (64, 64)))


def replicated_reads(x, out, tl):
    tl.store(out + 128 * tl.program_id(0), tl.load(x, (1, 64)))


def store_then_load(x, tl):
    at = x + 128 * tl.program_id(0)
    tl.store_async(at, tl.full((64,), 2, "f16"))
    tl.store(at, tl.load(at, (64,)) + 1)


def strided_neighbours(x, tl):
    tl.store(x + 4 * tl.program_id(0), tl.full((16,), 1, "i32"), strides=(4,))


def masked_neighbours(x, tl):
    mine = tl.program_id(0)
    lanes = tl.arange(0, 64)
    tl.store(x, lanes, mask=(lanes >= 16 * mine) & (lanes < 16 * mine + 16))


def scattered_rows(x, tl):
    mine = tl.program_id(0)
    tl.store(x, tl.full((2, 64), 1, "f16"), rows=[mine, 63 - mine])


def composites_in_turn(a, b, out, tl):
    if tl.program_id(0):
        return
    tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=out)
    tl.wait(tl.composite("math", tl.ref(out), math_op="relu", out_ptr=out))


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (disjoint_rows, (F16,)),
        (atomic_counter, (I32,)),
        (flag_then_data, (I32, F16, F16)),
        (replicated_reads, (F16, F16)),
        (store_then_load, (F16,)),
        (strided_neighbours, (I32,)),
        (masked_neighbours, (I32,)),
        (scattered_rows, (F16,)),
        (composites_in_turn, (F16, F16, F16)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_kernels_that_keep_apart_do_not_race(kernel: Callable[..., object], args: tuple[object, ...]) -> None:
    run_kernel(kernel, *args, grid=(4,), check_races=True)


# ---- launches and the host


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(tiny_machine(4), check_races=True)


ROWS = DPPolicy(pe="row_wise", num_pes=4, num_cubes=1)


def fill(x, tl):
    tl.store(x.local, tl.full(x.local_shape, 1, "f16"))


def take_neighbours(x, out, tl):
    other = (tl.program_id(0) + 1) % tl.num_programs(0)
    tl.store(out.local, tl.load(x + other * 512, out.local_shape))


def take_own(x, out, tl):
    tl.store(out.local, tl.load(x.local))


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
@pytest.mark.parametrize(
    ("second", "wait", "kinds"),
    [
        (take_neighbours, True, set()),  # the host waited for the first launch
        (take_own, False, set()),  # a PE serves launches in turn
        (take_neighbours, False, {"read-write"}),
    ],
)
def test_launches_follow_each_other_on_a_pe_and_elsewhere_once_the_host_has_waited(
    engine: GraphEngine, second: Callable[..., object], wait: bool, kinds: set[str]
) -> None:
    with RuntimeContext(engine) as torch:
        x, out = torch.empty(16, 64, dp=ROWS), torch.empty(16, 64, dp=ROWS)
        torch.launch("fill", fill, x, wait=wait)
        torch.launch("take", second, x, out)
        assert np.all(out.numpy() == 1)
    assert {race.kind for race in engine.found_races()} == kinds


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_waiting_for_everything_counts_even_after_many_requests(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        x, out = torch.empty(16, 64, dp=ROWS), torch.empty(16, 64, dp=ROWS)
        torch.launch("fill", fill, x, wait=False)
        kept = [torch.zeros(1) for _ in range(64)]  # the queue forgets what is done, now and then
        torch.wait_all()
        torch.launch("take", take_neighbours, x, out)
    assert len(kept) == 64
    assert engine.found_races() == []


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
def test_a_host_write_races_with_a_launch_under_way_and_not_with_a_later_one(engine: GraphEngine) -> None:
    def write(pa: int) -> MemoryWriteMsg:
        return MemoryWriteMsg(dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=pa, nbytes=128, debug_label="by the host")

    with RuntimeContext(engine) as torch:
        x = torch.zeros(64)
        torch.wait(engine.submit(write(x.shards[0].pa)))
        launch = torch.launch("fill", fill, x, wait=False)
        assert engine.found_races() == []
        engine.wait(engine.submit(write(x.shards[0].pa)))
        torch.wait(launch)
    (race,) = engine.found_races()
    host = race.first if race.first.sip is None else race.second
    assert (race.kind, host.tensor, host.issuer) == ("write-write", "by the host", "the host")
    assert host.source_line == "engine.wait(engine.submit(write(x.shards[0].pa)))"


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_ranks_know_what_was_done_before_they_began_and_their_starter_what_they_did(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        x, out = torch.empty(16, 64, dp=ROWS), torch.empty(16, 64, dp=ROWS)
        torch.launch("fill", fill, x)
        torch.ranks.run([lambda: torch.launch("take", take_neighbours, x, out)])
        assert np.all(out.numpy() == 1)
    assert engine.found_races() == []


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_ranks_that_do_not_wait_for_each_other_race(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        x, out = torch.zeros(16, 64, dp=ROWS), torch.empty(16, 64, dp=ROWS)
        fills, takes = (lambda: torch.launch("fill", fill, x)), (lambda: torch.launch("take", take_neighbours, x, out))
        torch.ranks.run([fills, takes])
    assert {(race.kind, race.tensor) for race in engine.found_races()} == {("read-write", "x")}


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_a_rank_that_waits_for_another_ones_event_knows_what_that_did(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        x, out = torch.zeros(16, 64, dp=ROWS), torch.empty(16, 64, dp=ROWS)
        filled = torch.ranks.event()

        def fills() -> None:
            torch.launch("fill", fill, x)
            filled.succeed()

        def takes() -> None:
            torch.ranks.wait([filled])
            torch.launch("take", take_neighbours, x, out)

        torch.ranks.run([fills, takes])
    assert engine.found_races() == []


def test_memory_that_is_given_back_begins_anew(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        for _ in range(3):
            x = torch.empty(16, 64, dp=ROWS)
            torch.launch("fill", fill, x, wait=False)
            del x
            torch.empty(1)
    assert engine.found_races() == []


def failing(x, tl):
    if tl.program_id(0) == 1:
        raise ValueError("on purpose")
    tl.store(x, tl.full((64, 64), 1, "f16"))


def test_a_kernel_that_fails_is_reported_as_it_is_without_the_check() -> None:
    with pytest.raises(LaunchError, match="on purpose"):
        run_kernel(failing, F16, grid=(4,), check_races=True)


# ---- reports


def both_write(torch: RuntimeContext) -> None:
    x = torch.zeros(64, name="shared")
    torch.launch("writes", one_row_written_twice, x, target_pes=range(2))


@pytest.mark.parametrize("data", [True, False])
def test_a_run_lists_its_races_and_is_not_ok(data: bool) -> None:
    result = kernbench.run(both_write, tiny_machine(2), check_races=True, data=data)
    assert not result.ok
    (race,) = result.races
    first, second = race.first, race.second
    line = 'tl.store(x + 128 * (tl.program_id(0) // 2), tl.full((64,), 1, "f16"))'
    assert (first.kernel, first.op, first.file, first.source_line) == ("writes", "store", __file__, line)
    (launch,) = result.launches
    for side in (first, second):
        (pe,) = [pe for pe in launch.pes if pe.pe == side.pe]
        assert pe.start_ns <= side.start_ns < (side.end_ns or 0.0) <= pe.end_ns
    assert result.as_json()["races"] == [race.as_json()]
    assert json.loads(json.dumps(race.as_json()))["second"]["line"] == second.line


def test_without_the_option_nothing_is_looked_for_and_times_are_the_same() -> None:
    plain = kernbench.run(both_write, tiny_machine(2))
    watched = kernbench.run(both_write, tiny_machine(2), check_races=True)
    assert plain.ok
    assert (plain.races, plain.engine.races) == ([], None)
    assert "races" not in plain.as_json()
    assert plain.total_ns == watched.total_ns
    assert plain.op_log is not None
    assert watched.op_log is not None
    assert list(plain.op_log) == list(watched.op_log)


def test_the_command_lists_races_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def add(count, tl):\n"
        "    tl.store(count, tl.load(count, (1,)) + 1)\n"
        "def run(torch):\n"
        "    torch.launch('add', add, torch.zeros(1, dtype='i32'), target_pes=range(2))\n"
    )
    args = ["run", "--bench", str(file), "--device", "sip:0", "--check-races"]
    with pytest.raises(SystemExit) as stopped:
        main(args)
    out = capsys.readouterr().out
    assert stopped.value.code == 1
    assert "[x] FAIL 2 races among 5 accesses to memory" in out  # the host's write, 2 loads, 2 stores
    assert "read-write race on 'count', 4 bytes" in out
    assert f"{file}:2  tl.store(count, tl.load(count, (1,)) + 1)" in out
    with pytest.raises(SystemExit) as stopped:
        main([*args, "--json"])
    assert stopped.value.code == 1
    assert [race["kind"] for race in json.loads(capsys.readouterr().out)["races"]] == ["read-write", "write-write"]
