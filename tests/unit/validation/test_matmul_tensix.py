"""Products on real tile-based chips: blocks that are read, multicast and multiplied take what the machine says."""

import csv
import io

import pytest

from kernbench.common.errors import TopologyError, UsageError
from kernbench.sim_engine.plain_network import plain_network
from kernbench.validation.contract import judge, machine
from kernbench.validation.data import DataFolder
from kernbench.validation.matmul_tensix import SET, Boards, Multiply, ProductCase, read_products

TILE_CYCLES, OVERHEAD, PACK = {"LoFi": 16, "HiFi2": 32, "HiFi3": 48, "HiFi4": 64}, 1.8, 4.2
START, ISSUE = 1350.0, 45.0
OPERANDS = 44.0  # bytes per cycle
SMALL = ProductCase("n150", 4, 4, 4, 2, 2, 2048, "HiFi4", "shards", "DRAM", False, 2, 2, 2, 1, 1, False)


def says_nothing(_):
    pass


def shipped(**wanted):
    """Rows of the shipped n150 table, as text."""
    rows = list(DataFolder(SET.folder).rows("n150_matmul.csv"))
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(row for row in rows if all(row[key] in values for key, values in wanted.items()))
    return text.getvalue()


def folder(path, text):
    (path / SET.folder).mkdir(parents=True)
    (path / SET.folder / "n150_matmul.csv").write_text(text)
    (path / SET.folder / "p150_matmul.csv").write_text(text.splitlines()[0] + "\n")
    return DataFolder(SET.folder, path)


@pytest.fixture(scope="module")
def boards():
    return Boards()


@pytest.mark.parametrize("fidelity", ["LoFi", "HiFi2", "HiFi3", "HiFi4"])
def test_a_product_that_is_bound_by_the_engine_takes_its_tiles(boards, fidelity):
    """16 x 16 tiles on each core and long k: blocks arrive while the engine works, but for the first."""
    product = SMALL._replace(m=32, n=32, k=64, core_m=16, core_n=16, k_block=4, tile_bytes=576, fidelity=fidelity)
    expected = 16 * 16 * (64 * (TILE_CYCLES[fidelity] + OVERHEAD) + 64 / 4 * PACK)  # partial sums of 16 blocks
    assert expected < boards.cycles(product) < 1.05 * expected + START


def test_operands_that_the_unpackers_cannot_take_in_time_are_the_limit(boards):
    product = SMALL._replace(m=32, n=32, k=64, core_m=16, core_n=16, k_block=4, fidelity="LoFi")
    expected = 16 * 16 * 64 * 2048 / OPERANDS
    assert expected < boards.cycles(product) < 1.05 * expected + 2 * START


def test_a_lone_core_reads_its_operands_in_the_closed_form():
    """One tile each from L1, one product: start, issue, request, one tile at 28.3 B per cycle, software, product."""
    topology, network = plain_network(machine("wormhole-tensix.yaml"))
    product = SMALL._replace(m=1, n=1, k=1, core_m=1, core_n=1, k_block=1, columns=1, rows=1, first_in="L1",
                             second_in="L1")  # fmt: skip
    reading = START + ISSUE + 130.0 + 2048 / 28.3 + 4.0 + 256 / 32.0 + 4.0 + 20.0
    expected = reading + max(64 + OVERHEAD + PACK, 2048 / OPERANDS)
    assert Multiply(topology, network, product).time_ns() == pytest.approx(expected, abs=1.0)


def test_blocks_of_a_row_go_over_each_link_once():
    topology, network = plain_network(machine("wormhole-tensix.yaml"))
    work = Multiply(topology, network, SMALL._replace(k=2))
    work.time_ns()
    carried = {link: counters.nbytes for link, counters in work._env.fabric.all_link_counters().items()}
    # One block of 2 x 2 tiles, from the first core of a row to the second: the way in, the links, the way out.
    assert carried["NOC_1.in.1.1", "NOC_1.router.1.1"] == carried["NOC_1.router.2.1", "NOC_1.out.2.1"] == 4 * 2048
    # The second operand's block is read by the first core of a column, and sent down to the other.
    assert carried["NOC_0.in.1.1", "NOC_0.router.1.1"] == carried["NOC_0.router.1.1", "NOC_0.out.1.1"] == 4 * 2048


def test_operands_in_l1_are_sooner_there_than_operands_in_dram(boards):
    product = SMALL._replace(m=16, n=16, k=16, columns=8, rows=8)
    in_l1, in_dram = boards.cycles(product), boards.cycles(product._replace(first_in="DRAM", second_in="DRAM"))
    assert in_l1 <= in_dram


def test_results_of_several_passes_are_written_between_them(boards):
    product = SMALL._replace(m=8, n=8, k=4, core_m=4, core_n=4, out_h=2, out_w=2)
    assert boards.cycles(product._replace(is_written=True)) > boards.cycles(product)


def test_further_passes_over_the_result_take_as_long_as_if_they_were_simulated(boards, monkeypatch):
    product = SMALL._replace(m=8, n=12, k=12, core_m=4, core_n=6, out_h=2, out_w=3, is_written=True)
    repeated = boards.cycles(product)
    monkeypatch.setattr("kernbench.validation.matmul_tensix.SIMULATED_PASSES", 6)
    assert repeated == pytest.approx(boards.cycles(product), rel=0.02)


def test_some_rows_are_within_the_bar_and_in_the_right_order(tmp_path):
    """The errors of all rows are in docs/validation.md."""
    text = shipped(m=["512"], dtype=["BFLOAT16"], host_trace=["True"], config=["tuned"])
    verdict = judge(SET, folder(tmp_path, text), says_nothing)
    assert len(verdict.rows) == 4
    assert max(regime.mean for regime in verdict.regimes) < 12.0
    by_case = {row.case: row.simulated for row in verdict.rows}
    for case, simulated in by_case.items():
        if "HiFi2" in case:
            assert simulated < by_case[case.replace("HiFi2", "HiFi4")]


def test_what_was_measured_changes_no_simulated_value(tmp_path):
    text = shipped(m=["512"], k=["512"], host_trace=["True"], dtype=["BFLOAT4_B"])
    rows = list(csv.DictReader(io.StringIO(text)))
    out = [name for name in rows[0] if not name.startswith(("host_t", "host_u", "device_", "ideal_"))]
    bare = "\n".join([",".join(out), *(",".join(row[name] for name in out) for row in rows)])
    altered = text
    for row in rows:
        altered = altered.replace(f",{row['device_cycles_derived']},", ",77,")
    as_shipped, other, none = (
        judge(SET, folder(tmp_path / str(at), each), says_nothing) for at, each in enumerate((text, altered, bare))
    )
    assert [row.simulated for row in as_shipped.rows] == [row.simulated for row in other.rows]
    assert sorted(row.simulated for row in as_shipped.rows) == sorted(row.simulated for row in none.rows)
    assert {row.error for row in none.rows} == {None}
    assert as_shipped.regimes[0].mean != other.regimes[0].mean


def test_every_row_of_the_shipped_tables_is_read_and_has_a_name_of_its_own():
    found = list(read_products(DataFolder(SET.folder)))
    assert len(found) == len({case for _, case, _ in found}) == 118 + 236
    assert len(SET.fitted) <= 5


@pytest.mark.parametrize(
    ("column", "value"),
    [("m", "0"), ("grid", "8"), ("dtype", "FLOAT32"), ("board", "n300"), ("in0_in", "HBM"), ("out_blocks_h", "0")],
)
def test_a_row_that_is_no_product_is_refused(tmp_path, column, value):
    rows = list(csv.DictReader(io.StringIO(shipped(m=["1024"], config=["tuned"], dtype=["BFLOAT4_B"]))))
    rows[0][column] = value
    text = "\n".join([",".join(rows[0]), ",".join(rows[0].values())])
    with pytest.raises(UsageError, match="cannot be simulated"):
        list(read_products(folder(tmp_path, text)))


@pytest.mark.parametrize(("column", "value"), [("grid", "9x8"), ("math_fidelity", "HiFi9")])
def test_a_product_that_the_machine_cannot_do_is_refused(tmp_path, column, value):
    rows = list(csv.DictReader(io.StringIO(shipped(m=["1024"], config=["tuned"], dtype=["BFLOAT4_B"]))))
    rows[0][column] = value
    text = "\n".join([",".join(rows[0]), ",".join(rows[0].values())])
    with pytest.raises(UsageError):
        SET.simulate(folder(tmp_path, text), says_nothing)


@pytest.mark.parametrize("columns", [[], [1, 1], [10]])
def test_cores_that_are_not_on_the_grid_are_refused(columns):
    with pytest.raises(TopologyError, match="columns"):
        machine("wormhole-tensix.yaml", {"network.cores.columns": columns})
