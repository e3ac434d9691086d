"""Collectives over real chips: issued again as transfers, they take what the machine says."""

import csv
import io

import pytest

from kernbench.common.errors import UsageError
from kernbench.validation.collectives import SET, TABLE, Calls, Chips, chunks
from kernbench.validation.contract import judge, machine
from kernbench.validation.data import DataFolder

WORKERS_GBS, FINISH_GBS, START_NS = 12.6, 8.9, 4200.0
LINK_GBS = 12.5 * 6144 / (6144 + 298)


def chips(topology, n):
    overrides = {"system.sips.count": n, **({"system.sips.w": n} if topology == "line" else {})}
    return Chips(machine(f"wormhole-{topology}.yaml", overrides))


@pytest.fixture(scope="module")
def pair():
    return chips("line", 2)


def says_nothing(_):
    pass


def shipped(**wanted):
    """Rows of the shipped table, as text."""
    rows = list(DataFolder(SET.folder).rows(TABLE))
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(row for row in rows if all(row[key] in values for key, values in wanted.items()))
    return text.getvalue()


def folder(path, text):
    (path / SET.folder).mkdir(parents=True)
    (path / SET.folder / TABLE).write_text(text)
    return DataFolder(SET.folder, path)


def test_two_chips_copy_and_send_at_the_rate_of_their_workers(pair):
    """Half of the tensor goes to the other chip, half is copied, both by the workers of the one direction there is."""
    nbytes = 256 << 20
    expected = START_NS + nbytes / WORKERS_GBS
    assert Calls(pair).time_ns("all_gather", nbytes, 1) == pytest.approx(expected, rel=0.01)
    assert Calls(pair).time_ns("all_to_all", nbytes, 1) == pytest.approx(expected, rel=0.01)


def test_two_chips_reduce_at_the_rate_at_which_workers_finish_sums(pair):
    assert Calls(pair).time_ns("reduce_scatter", 256 << 20, 1) == pytest.approx((128 << 20) / FINISH_GBS, rel=0.05)


def test_the_last_link_of_a_line_carries_the_parts_of_all_other_chips():
    assert Calls(chips("line", 8)).time_ns("all_gather", 64 << 20, 1) == pytest.approx((56 << 20) / LINK_GBS, rel=0.03)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(pair):
    parts = [Calls(pair).time_ns(name, 65536, 1) for name in ("reduce_scatter", "all_gather")]
    assert Calls(pair).time_ns("all_reduce", 65536, 1) == sum(parts)


def test_a_call_of_several_takes_what_one_takes(pair):
    assert Calls(pair).time_ns("all_gather", 8192, 8) == Calls(pair).time_ns("all_gather", 8192, 1)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("nbytes", [16384, 1 << 20])
def test_a_ring_is_faster_than_a_line(collective, nbytes):
    assert Calls(chips("ring", 4)).time_ns(collective, nbytes, 1) < Calls(chips("line", 4)).time_ns(
        collective, nbytes, 1
    )


@pytest.mark.parametrize(("nbytes", "packets", "least"), [(2048, 1, 1), (30720, 1, 1), (1 << 20, 640, 4), (1, 1, 1),
                                                         (8 << 20, 2, 2), (10000, 1, 1)])  # fmt: skip
def test_chunks_make_up_the_whole_and_are_few(nbytes, packets, least):
    sizes = chunks(nbytes, packets, least)
    assert sum(sizes) == nbytes
    assert len(sizes) <= 34
    assert len({*sizes[:-1]}) <= 1


def test_what_was_measured_changes_no_simulated_value(tmp_path):
    text = shipped(n=["2"], size_bytes=["4096", "65536"])
    rows = list(csv.DictReader(io.StringIO(text)))
    names = ("topology", "memory", "calls_back_to_back", "collective", "n", "size_bytes")
    bare = "\n".join([",".join(names), *(",".join(row[name] for name in names) for row in rows)])
    altered = text
    for row in rows:
        altered = altered.replace(f",{row['time_us']},", ",1.5,")
    as_shipped, other, none = (
        judge(SET, folder(tmp_path / str(at), each), says_nothing) for at, each in enumerate((text, altered, bare))
    )
    assert [row.simulated for row in as_shipped.rows] == [row.simulated for row in other.rows]
    assert [row.simulated for row in as_shipped.rows] == [row.simulated for row in none.rows]
    assert len(as_shipped.rows) == len(rows)
    assert {row.error for row in none.rows} == {None}
    assert as_shipped.regimes[0].mean != other.regimes[0].mean


@pytest.mark.needs("n_to_one", reason="real chips were compared with it")
def test_some_rows_are_within_the_bars(tmp_path):
    """The errors of all rows are in docs/validation.md."""
    small = judge(SET, folder(tmp_path / "a", shipped(size_bytes=["65536"], memory=["DRAM"])), says_nothing)
    large = judge(SET, folder(tmp_path / "b", shipped(size_bytes=["8388608"], n=["2"])), says_nothing)
    assert [(regime.name, regime.n) for regime in small.regimes] == [("up to 1 MiB", 12)]
    assert small.regimes[0].mean < 15
    assert [(regime.name, regime.n) for regime in large.regimes] == [("above 1 MiB", 4)]
    assert large.regimes[0].mean < 5


@pytest.mark.parametrize(
    "wrong", ["star,DRAM,1,all_gather,8,4096", "ring,DRAM,1,barrier,8,4096", "ring,DRAM,1,all_gather,8,4k"]
)
def test_a_row_that_cannot_be_simulated_is_refused(tmp_path, wrong):
    data = folder(tmp_path, f"topology,memory,calls_back_to_back,collective,n,size_bytes\n{wrong}\n")
    with pytest.raises(UsageError, match="cannot be simulated"):
        judge(SET, data, says_nothing)


def test_at_most_five_constants_are_fitted_and_all_are_named():
    assert 0 < len(SET.fitted) <= 5
    assert all(constant.split(" (")[1] for constant in SET.fitted)
