"""A run in one file: self-contained, escaped, the same bytes for the same run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.common.units import format_ns
from kernbench.report import open_run
from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.measured import is_alike
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.runs.saved_run import launch_of_row
from kernbench.topology import load_topology
from kernbench.web.shelf import Shelf

EVIL = "<script>alert(1)</script>"
SMALL = [
    "--device",
    "sip:0",
    "--set",
    "system.sips.count=1",
    "--set",
    "sip.cube_mesh.w=2",
    "--set",
    "sip.cube_mesh.h=2",
]


def called(*words: str):
    return CliRunner().invoke(kernbench, [str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads of another cube, by a kernel whose text and tensor names would be markup."""
    folder = tmp_path_factory.mktemp("page")
    text = (Path(__file__).parent / "slow_kernels.py").read_text()
    text = text.replace('name="x"', f'name="{EVIL}"').replace(
        "total = tl.zeros", f'note = "</pre>{EVIL}"; total = tl.zeros'
    )
    (folder / "evil.py").write_text(text)
    done = called("run", "--bench", f"{folder / 'evil.py'}:distance", *SMALL, "--save", folder / "run")
    assert done.exit_code == 0, done.output
    return folder / "run"


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    target = run.parent / "run.html"
    done = called("explain", run, "--html", target)
    assert done.output.endswith(f"wrote {target}\n")
    return target.read_text()


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_the_page_loads_nothing_and_runs_no_text_of_the_run(page: str) -> None:
    assert "default-src 'none'" in page
    links = set(re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"//\s.*", "", page)))
    assert links <= {"http://www.w3.org"}  # the name of SVG
    assert not re.search(r"<(link|iframe|img|object|embed)\b|@import|\bfetch\(|XMLHttpRequest|WebSocket", page)
    assert page.count("<script") == 2  # the timeline's data, and the code that draws it
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)" in page
    assert len(page) < 5_000_000


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_the_page_has_the_verdict_the_command_and_every_op_on_the_path(page: str, run: Path) -> None:
    explanation = main_scope(open_run(run))
    verdict = verdict_of(explanation)
    assert verdict.cause == "distance"
    assert "6 reads of sip0.cube0 on the critical path cross UCIe to sip0.cube3" in page
    data = json.loads(re.search(r'id="timeline-data">(.*?)</script>', page)[1])
    drawn = sum(op[3] for lane in data["lanes"] for op in lane["ops"])
    assert drawn == len({segment.op for segment in explanation.path if segment.op >= 0})
    assert (data["begin"], data["end"]) == (explanation.scope.begin_ns, explanation.scope.end_ns)


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_the_same_run_gives_the_same_bytes_from_both_commands(page: str, run: Path, tmp_path: Path) -> None:
    done = called("web", run, "--export", tmp_path / "again.html")
    assert done.exit_code == 0
    assert (tmp_path / "again.html").read_text() == page


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_what_was_measured_beside_a_run_is_in_its_page(page: str, run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    done = called("explain", copied, "--what-if", "ucie", "--save", tmp_path / "copied-free", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.output)["what_if"]
    assert called("explain", copied, "--html", tmp_path / "copied.html").exit_code == 0
    rows = re.findall(r"<tr><td>ucie</td>(.*?)</tr>", (tmp_path / "copied.html").read_text())
    estimated, gain, measured, gained = re.findall("<td>(.*?)</td>", rows[0])
    assert (estimated, measured) == (format_ns(row["foreseen_ns"]), format_ns(row["measured_ns"]))
    assert gained == f"{row['measured_ns'] / row['total_ns'] - 1:+.2%}"
    assert f"<td>ucie</td><td>{estimated}</td><td>{gain}</td><td>-</td><td></td>" in page  # nothing is beside that one


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_a_run_of_another_kernel_text_measures_nothing_of_this_one(run: Path, tmp_path: Path) -> None:
    """The bench has the same name and parameters, as after an edit of the kernel."""
    edited = (run.parent / "evil.py").read_text().replace("range(6)", "range(5)")
    (tmp_path / "evil.py").write_text(edited)
    done = called("run", "--bench", f"{tmp_path / 'evil.py'}:distance", *SMALL, "--save", tmp_path / "edited")
    assert done.exit_code == 0, done.output
    first, second = open_run(run), open_run(tmp_path / "edited")
    assert (first.manifest.bench, first.manifest.params) == (second.manifest.bench, second.manifest.params)
    assert is_alike(first, open_run(run))
    assert not is_alike(first, second)


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_busiest_links_are_those_of_the_kernels(page: str, run: Path) -> None:
    """The host's writes are before the launch, and the page is about the launch."""
    rows = re.findall(r"<tr><td>([^<]* -&gt; [^<]*)</td><td>([^<]*)</td>", page)
    assert rows
    assert {family for _, family in rows} <= {"router", "hbm port", "pe port", "ucie"}


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_a_tensor_is_where_its_bytes_were_read(run: Path) -> None:
    """Six blocks of 8 KiB lie in slices of cube 3; the result goes to PE 0's own slice."""
    uses = {use.name: use for use in tensor_uses(open_run(run))}
    x, out = uses[EVIL], uses["out"]
    assert x.readers == {"sip0.cube0.pe0": 6 * 8192}
    assert x.cubes == ["sip0.cube3"]
    assert len(x.memories) == 6
    assert (x.home_bytes, x.remote_bytes, x.writers) == (0, 6 * 8192, {})
    assert (out.home_bytes, out.remote_bytes, out.cubes) == (16 * 256 * 4, 0, ["sip0.cube0"])
    links = (
        3 if load_topology().spec.cube.has_channel_routers else 2
    )  # PE to router, to the router of a channel, to memory
    assert out.byte_hops == links * 16 * 256 * 4


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_names_of_folders_and_what_was_measured_beside_a_run_are_text(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "<img src=x onerror=alert(1)>")
    assert called("explain", folder, "--html", tmp_path / "run.html").exit_code == 0
    page = (tmp_path / "run.html").read_text()
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
@pytest.mark.parametrize("name", ["run.txt", "missing/run.html"])
def test_a_page_that_cannot_be_written_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    done = called("explain", run, "--html", tmp_path / name)
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint == "name a .html file in a folder that exists"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_a_program_that_was_edited_since_is_not_measured(run: Path) -> None:
    program = run.parent / "evil.py"
    text = program.read_text()
    program.write_text(f"{text}\n# edited\n")
    refused = called("explain", run, "--what-if", "ucie")
    program.write_text(text)
    assert isinstance(refused.exception, UsageError)
    assert refused.exception.what == "evil.py was edited since the run was saved"


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_what_a_later_release_adds_to_a_launch_is_not_read(run: Path) -> None:
    (row,) = json.loads((run / "launches.json").read_text())
    later = {**row, "mood": 1, "pes": [{**pe, "mood": 1} for pe in row["pes"]]}
    assert launch_of_row(0, later) == launch_of_row(0, row) == open_run(run).launches[0]


@pytest.mark.needs("addresses", reason="its run reads the parts of other PEs")
def test_a_run_is_opened_by_the_dot_of_its_own_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    done = called("explain", ".", "--html", "../dot.html")
    assert done.exit_code == 0, done.exception
    shelf = Shelf([Path()], load_topology(None))
    assert [view.run.path.resolve() for view in shelf.runs()] == [run.resolve()]
