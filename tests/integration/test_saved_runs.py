"""A run on disk: what is saved is what happened, and a folder that is not whole says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.integration.conftest import ONE_SIP, RUNS, save_run

from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.report import open_run
from kernbench.report.runs.digests import sealed
from kernbench.report.runs.layout import FILES, KINDS, LAUNCHES, MACHINE, MANIFEST, OPS, PLACES, RELEASES, SOURCES
from kernbench.report.runs.save import run_folder
from kernbench.report.runs.saved_run import find_runs


@pytest.mark.parametrize("name", RUNS)
def test_slices_of_a_lane_never_overlap_and_its_totals_are_theirs(saved_runs, name):
    run = saved_runs[name]
    ops = run.ops
    assert sum(lane.ops for lane in run.lanes) == len(ops) == run.manifest.ops
    for lane in run.lanes:
        rows = slice(lane.first, lane.stop)
        assert (ops.t_start[rows][1:] >= ops.t_end[rows][:-1]).all()
        assert lane.busy_ns == (ops.t_end[rows] - ops.t_start[rows]).sum()
        assert lane.kind in KINDS


@pytest.mark.parametrize("name", RUNS)
def test_columns_hold_what_they_say(saved_runs, name):
    run = saved_runs[name]
    ops = run.ops
    assert sorted(ops.id) == list(range(len(ops)))
    assert (ops.id[ops.row_of] == np.arange(len(ops))).all()
    assert ((ops.t_asked <= ops.t_ready) & (ops.t_ready <= ops.t_start) & (ops.t_start <= ops.t_end)).all()
    assert set(ops.release.words) <= set(RELEASES)
    of_kernels = ~ops.kind.are("H")
    assert (ops.line[of_kernels] >= 0).all()
    assert (ops.launch[of_kernels] >= 0).all()
    moved = ops.kind.are("R", "W")
    parts = ops.transfer_ns + ops.latency_ns + ops.queue_ns
    assert (parts == ops.t_end - ops.t_start)[moved].all()
    for row in range(len(ops)):
        assert ops.wait_ns.of(row).sum() == ops.queue_ns[row]
        assert all(run.places[place].contended_ns > 0 for place in ops.wait_places.of(row))


@pytest.mark.parametrize("name", RUNS)
def test_bins_sum_to_the_bytes_of_their_link_and_none_is_over_full(saved_runs, name):
    run = saved_runs[name]
    assert run.places
    for place in run.places:
        nbytes = run.activity.of(place.index)
        assert nbytes.sum() == place.nbytes > 0
        assert run.activity.of(place.index, "wait_ns").sum() == place.wait_ns >= place.contended_ns
        assert nbytes.max() <= place.gbs * run.activity.bin_ns * (1 + 1e-9)


def test_lines_lead_to_the_text_that_issued_the_op(saved_runs):
    run = saved_runs["flash"]
    ops = run.ops
    loads = [run.lines[ops.line[row]].text for row in np.flatnonzero(ops.kind.are("R"))]
    assert loads
    assert all("tl.load(" in text for text in loads)
    assert {name for row in np.flatnonzero(ops.kind.are("R")) for name in ops.tensors.of(row)} == {"q", "k", "v"}


def test_a_saved_run_takes_the_time_of_any_other_run(saved_runs):
    done = CliRunner().invoke(kernbench, ["run", "--bench", *RUNS["qkv"], "--json"], catch_exceptions=False)
    run = saved_runs["qkv"]
    assert json.loads(done.output)["total_ns"] == run.total_ns
    assert run.graph.spec.n_sips == 1
    assert [launch.name for launch in run.launches] == ["qkv"]


def test_the_hash_is_of_the_content_and_saving_again_replaces_the_folder(saved_runs, tmp_path):
    again = save_run(tmp_path / "elsewhere", *RUNS["qkv"])
    assert again.manifest.hash == saved_runs["qkv"].manifest.hash
    other = save_run(tmp_path / "elsewhere", *RUNS["qkv"], "--param", "seed=1")
    assert other.manifest.hash != again.manifest.hash
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_run_has_the_command_that_made_it_and_not_that_of_the_program_around_it(tmp_path):
    words = ["run", "--bench", *RUNS["qkv"], "--save", str(tmp_path / "run")]
    done = CliRunner().invoke(kernbench, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert open_run(tmp_path / "run").manifest.command == ("kernbench", *words)


def test_a_folder_with_other_things_is_not_touched(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    done = CliRunner().invoke(kernbench, ["run", "--bench", *RUNS["qkv"], "--save", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "holds other things" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


# ---- folders that are not whole


@pytest.fixture
def copy(saved_runs, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(saved_runs["ccl"].path, tmp_path / "copy"))


def seal(folder: Path, **changes: object) -> None:
    """Write the manifest as if the files of the folder had been saved as they are now."""
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(sealed({**manifest, **changes}, folder, pa)))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_cut_file_is_named(copy, name):
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1])
    with pytest.raises(UsageError, match=name):
        open_run(copy)
    (copy / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing"):
        open_run(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_right_size_with_wrong_content_is_an_error_when_it_is_read(copy, name):
    (copy / name).write_bytes(b"x" * (copy / name).stat().st_size)
    run = open_run(copy)
    with pytest.raises(UsageError, match=r"damaged|cannot be"):
        _ = run.ops, run.lanes, run.launches, run.places, run.activity, run.lines, run.graph


def test_a_changed_byte_is_noticed_when_its_column_is_read(copy):
    file = copy / OPS
    data = bytearray(file.read_bytes())
    data[100] ^= 0xFF  # in the first column; the footer stays whole
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"ops.parquet: column id is not what was saved"):
        _ = open_run(copy).ops.id


def test_a_column_of_another_type_or_with_gaps_is_said(copy):
    table = pq.read_table(copy / OPS)
    for column, message in (
        (pa.array(["x"] * len(table)), "column t_end is string, not float64"),
        (pa.nulls(len(table), pa.float64()), "column t_end has gaps"),
    ):
        pq.write_table(table.set_column(table.column_names.index("t_end"), "t_end", column), copy / OPS)
        seal(copy)
        with pytest.raises(UsageError, match=message):
            _ = open_run(copy).ops.t_end


def test_a_changed_digit_of_a_json_file_is_noticed(copy):
    parts = {LAUNCHES: "launches", SOURCES: "lines", MACHINE: "graph"}
    for name, part in parts.items():
        whole = (copy / name).read_text()
        digit = next(c for c in whole if c in "012345678")
        (copy / name).write_text(whole.replace(digit, "9", 1))
        run = open_run(copy)
        with pytest.raises(UsageError, match=f"{name} is not what was saved: its digest differs"):
            getattr(run, part)
        (copy / name).write_text(whole)
    total = json.loads((copy / MANIFEST).read_text())["total_ns"]
    (copy / MANIFEST).write_text((copy / MANIFEST).read_text().replace(str(total), str(total + 1), 1))
    with pytest.raises(UsageError, match=r"manifest.json is not what was saved"):
        open_run(copy)


def test_a_column_is_checked_by_row_group_and_only_where_it_is_read(copy):
    """Another row group, and other columns, may be damaged: what is read is still right."""
    table = pq.read_table(copy / OPS)
    half = len(table) // 2
    pq.write_table(table, copy / OPS, row_group_size=half, write_page_checksum=True)
    seal(copy)
    group = pq.read_metadata(copy / OPS).row_group(1)
    params = next(group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "params")
    data = bytearray((copy / OPS).read_bytes())
    data[params.data_page_offset + 1] ^= 0xFF
    (copy / OPS).write_bytes(data)
    ops = open_run(copy).ops
    assert ops.t_end.tolist() == table.column("t_end").to_pylist()
    assert ops.params(half - 1) == json.loads(table.column("params")[half - 1].as_py())
    with pytest.raises(UsageError, match=r"ops.parquet: column params is not what was saved"):
        ops.params(half)


def test_a_run_that_an_earlier_version_saved_has_no_digests_and_is_read(copy):
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({k: v for k, v in manifest.items() if k not in ("digest", "digests")}))
    run = open_run(copy)
    assert len(run.ops.id) == manifest["ops"]
    assert run.launches


def test_a_small_file_with_millions_of_rows_is_refused_before_they_are_read(copy):
    rows = 2_000_000
    one = pq.read_table(copy / PLACES).slice(0, 1)
    many = {name: pa.repeat(one.column(name)[0], rows) for name in one.column_names}
    pq.write_table(pa.table(many), copy / PLACES, compression="zstd")
    assert (copy / PLACES).stat().st_size < 100_000
    seal(copy)
    with pytest.raises(UsageError, match=r"places.parquet has 2,000,000 rows in [\d,]+ bytes; .* may have [\d,]+\n"):
        _ = open_run(copy).places


def test_a_small_file_with_millions_of_values_in_a_list_is_refused_before_they_are_read(copy):
    table = pq.read_table(copy / OPS)
    long = pa.ListArray.from_arrays(
        pa.array([0] * len(table) + [2_000_000], pa.int32()), pa.repeat(pa.scalar(0, pa.int64()), 2_000_000)
    )
    pq.write_table(table.set_column(table.column_names.index("deps"), "deps", long), copy / OPS, compression="zstd")
    seal(copy)
    with pytest.raises(UsageError, match=r"ops.parquet: deps.list.element has 2,000,\d+ values in [\d,]+ bytes"):
        _ = open_run(copy).ops


def test_a_run_cut_short_while_it_is_open_is_an_error_and_no_crash(copy):
    """Nothing of it is mapped into memory, where a missing page would end the process."""
    run = open_run(copy)
    assert len(run.ops.t_start)
    os.truncate(copy / OPS, 100)
    with pytest.raises(UsageError, match=OPS):
        _ = run.ops.t_end


@pytest.mark.parametrize("name", [MANIFEST, OPS, LAUNCHES])
def test_a_run_is_made_of_regular_files_of_its_folder(copy, name):
    secret = copy.parent / "secret"
    (copy / name).rename(secret)
    (copy / name).symlink_to(secret)
    with pytest.raises(UsageError, match=f"{name} is a symlink: only regular files"):
        open_run(copy)
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(UsageError, match=f"{name} is a FIFO: only regular files"):
        open_run(copy)


@pytest.mark.parametrize("name", [None, 5, b"out", ["out"], {"a": 1}])
def test_a_run_is_named_by_a_path(name):
    with pytest.raises(UsageError, match="a saved run is named by its path"):
        open_run(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": 1 << 40}, "wrong bins"),
        ({"ops": 1.5}, "wrong ops"),
        ({"schema": 99}, "newer format"),
        ({"kind": "something"}, "not that of a saved run"),
        ({"files": {}}, "does not name all files"),
        ({"total_ns": None}, "wrong total_ns"),
        ({"hash": 5}, "wrong hash"),
        ({"bins": 0}, "wrong bins"),
        ({"params": "m=3"}, "wrong params"),
    ],
)
def test_a_manifest_that_is_wrong_says_how(copy, change, message):
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(UsageError, match=message):
        open_run(copy)
    for text in ("{", "[" * 100_000, '{"kind":' * 100_000, '{"total_ns": NaN}'):
        (copy / MANIFEST).write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            open_run(copy)


@pytest.mark.parametrize("name", RUNS)
def test_everything_that_moves_bytes_over_the_fabric_has_its_route_and_split(saved_runs, name):
    """Messages between SIPs too, which stop at the PCIe endpoints on their way."""
    run = saved_runs[name]
    ops = run.ops
    moved = [
        row
        for lane in run.lanes
        if lane.port in ("read", "write", "send") and lane.pe >= 0
        for row in range(lane.first, lane.stop)
    ]
    assert moved
    far = 0
    for row in moved:
        links = [run.places[int(place)] for place in ops.route.of(row)]
        assert links
        assert ops.transfer_ns[row] > 0
        far += any(link.link_class == "pcie" for link in links)
    assert (far > 0) == (name == "ccl")


def test_folders_above_a_run_are_made_and_go_again_when_there_is_none(tmp_path):
    bench = ["run", "--bench", "gemm-single-pe", "--param", "m=32", *ONE_SIP]
    deep = tmp_path / "a" / "b"
    done = CliRunner().invoke(kernbench, [*bench, "--save", str(deep / "run")], catch_exceptions=False)
    assert done.exit_code == 0
    assert open_run(deep / "run").manifest.bench == "gemm-single-pe"
    assert list(deep.iterdir()) == [deep / "run"]
    with pytest.raises(ZeroDivisionError), run_folder(tmp_path / "x" / "y" / "run"):
        raise ZeroDivisionError
    assert not (tmp_path / "x").exists()
    done = CliRunner().invoke(kernbench, [*bench, "--save", str(deep / "run" / "manifest.json" / "more")])
    assert isinstance(done.exception, UsageError)
    assert "manifest.json is a file" in done.exception.what


def test_what_is_no_run_folder_says_so(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no saved run"):
        open_run(tmp_path)


def test_runs_are_found_below_a_folder(saved_runs):
    root = saved_runs["qkv"].path.parent
    assert [path.name for path in find_runs(root)] == sorted(RUNS)


def test_a_link_that_leads_back_up_is_not_followed(saved_runs, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    (tmp_path / "run").symlink_to(saved_runs["va"].path)
    assert list(find_runs(tmp_path)) == [tmp_path / "run"]
    assert list(find_runs(saved_runs["qkv"].path)) == [saved_runs["qkv"].path]
