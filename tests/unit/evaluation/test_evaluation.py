"""An evaluation from points to files: rows, results, figures, captions; once more, and when a point fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.common.version import __version__
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, values_of, where
from kernbench.evaluation.page import write_page
from kernbench.evaluation.results import figure_stems, read_results
from kernbench.evaluation.run import Estimate, EvaluationReport, EvaluationRequest, evaluate, redraw
from kernbench.report.charts import Chart, Line, LinePanel, reference_line
from kernbench.report.references import reference
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sweep import provenance
from kernbench.testing import tiny_machine
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash
from kernbench.triton_emu.tl_context import TLContext

FILES = {"results.json", "results.csv", "01-time.svg", "01-time.png", "01-time.md", "points"}


def wait_kernel(n: int, tl: TLContext) -> None:
    tl.cycles(n)


def made(point: Callable[..., dict[str, float]] | None = None) -> Evaluation:
    """One whose functions no other process can find: its points run in this one."""

    def points(machine: TopologyGraph, *, most: int = 3) -> list[Setting]:
        return [{"n": 10 * n, "machine:cube.links.router_bw_gbs": 128.0 * n} for n in range(1, most + 1)]

    def waits(torch: RuntimeContext, *, n: int) -> dict[str, float]:
        launch = torch.launch("wait", wait_kernel, n, target_cubes=0, target_pes=0)
        return {"exec_ns": launch.exec_ns, "router_gbs": torch.spec.cube.links.router_bw_gbs}

    def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
        line = Line("measured", curve(rows, "n", "exec_ns"))
        panel = LinePanel("cycles", "time (ns)", (line,), title=machine.spec.system.name)
        return [Chart("time", "More cycles take longer", "One PE waits.", (panel,))]

    return Evaluation(points, point or waits, figures, lambda setting: 7.0, ("HBM timing",))


def run(
    out: Path, evaluation: Evaluation | None = None, resume_anyway: bool = False, **parameters: int
) -> tuple[EvaluationReport, list[Estimate]]:
    estimates: list[Estimate] = []
    request = EvaluationRequest(
        evaluation=evaluation or made(),
        name="waiting",
        description="A PE waits.",
        machine=tiny_machine(),
        parameters=parameters,
        out=out,
        resume_anyway=resume_anyway,
    )
    return evaluate(request, estimates.append), estimates


def test_results_say_what_was_measured_on_which_machine_by_which_version(tmp_path: Path) -> None:
    report, _ = run(tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    data = json.loads((tmp_path / "out/results.json").read_text())
    spec = tiny_machine().spec
    assert {name: data[name] for name in ("schema", "command", "bench", "version", "topology", "topology_hash")} == {
        "schema": 1, "command": "evaluation", "bench": "waiting", "version": __version__,
        "topology": spec.system.name, "topology_hash": machine_hash(spec),
    }  # fmt: skip
    assert data["machine"]["system"]["sips"]["count"] == spec.n_sips
    assert [row["n"] for row in data["rows"]] == [10, 20, 30]
    assert [row["router_gbs"] for row in data["rows"]] == [128.0, 256.0, 384.0]
    assert data["rows"] == [dict(row) for row in report.results.rows]
    assert (tmp_path / "out/results.csv").read_text().splitlines()[0].startswith("point,n,machine:cube.links.router")


def test_a_caption_says_how_the_figure_was_made(tmp_path: Path) -> None:
    run(tmp_path, most=1)
    caption = (tmp_path / "01-time.md").read_text()
    assert caption.startswith("# More cycles take longer\n\nOne PE waits.\n")
    assert f"kernbench {__version__}, bench waiting with most=1, machine {tiny_machine().spec.system.name}" in caption


def test_a_caption_cites_the_references_that_a_figure_shows(tmp_path: Path) -> None:
    cited = reference("h100-matmul")

    def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
        measured = (Line("measured", curve(rows, "n", "exec_ns")),)
        panel = LinePanel("cycles", "share (%)", (*measured, reference_line(cited, measured)))
        return [Chart("time", "More cycles take longer", "One PE waits.", (panel,), references=(cited,))]

    run(tmp_path, replace(made(), figures=figures), most=2)
    assert f"Reference point, {cited.cited()}" in (tmp_path / "01-time.md").read_text()


def test_two_runs_give_the_same_files_byte_for_byte(tmp_path: Path) -> None:
    for name in ("first", "second"):
        run(tmp_path / name)
    for name in sorted(FILES - {"points"}):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_what_is_there_is_not_run_again_and_the_time_is_said_beforehand(tmp_path: Path) -> None:
    first, (before,) = run(tmp_path, most=2)
    second, (after,) = run(tmp_path, most=3)
    assert (first.ran, second.ran) == (2, 1)
    assert (before.points, before.missing, after.points, after.missing) == (2, 2, 3, 1)
    assert after.seconds == 7.0  # of one point; `seconds` says 7 for each


def test_an_evaluation_may_call_for_further_points_after_it_has_seen_rows(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def further(rows: Rows) -> list[Setting]:
        seen = [int(number(row, "n")) for row in rows]
        asked.append(seen)
        wanted = [20, 15] if max(seen) == 20 else [10, 5]  # of which one was run already, each time
        return [{"n": n, "machine:cube.links.router_bw_gbs": 128.0 * max(n // 10, 1)} for n in wanted]

    report, _ = run(tmp_path, replace(made(), further=further), most=1)
    assert asked == [[10], [10, 5]]
    assert [(row["point"], row["n"]) for row in report.results.rows] == [(0, 10), (1, 5)]
    again, _ = run(tmp_path, replace(made(), further=further), most=1)
    assert (report.ran, again.ran) == (2, 0)
    assert again.results.rows == report.results.rows


def test_fast_draws_the_same_figures_from_the_results_alone(tmp_path: Path) -> None:
    run(tmp_path)
    drawn = {stem.name: stem.with_suffix(".png").read_bytes() for stem in figure_stems(tmp_path)}
    for stem in figure_stems(tmp_path):
        stem.with_suffix(".png").unlink()
    (tmp_path / "02-older.svg").write_text("of an earlier version")
    redraw(made(), "waiting", tmp_path)
    assert {stem.name: stem.with_suffix(".png").read_bytes() for stem in figure_stems(tmp_path)} == drawn
    with pytest.raises(UsageError, match="results of 'waiting', not of 'other'"):
        redraw(made(), "other", tmp_path)
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(text.replace('"exec_ns"', '"older_ns"'))
    with pytest.raises(UsageError, match="have no 'exec_ns': another version"):
        redraw(made(), "waiting", tmp_path)


def test_rows_of_another_simulator_are_drawn_but_not_taken_up_unless_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = run(tmp_path, most=1)
    monkeypatch.setattr(provenance, "simulator_digest", lambda: "edited")
    assert len(redraw(made(), "waiting", tmp_path).figures) == 3  # png, svg and caption
    with pytest.raises(UsageError, match=r"rows of another sweep: simulator \w+ there, edited now") as refused:
        run(tmp_path, most=2)
    assert refused.value.where == str(tmp_path / "points")
    after, _ = run(tmp_path, most=2, resume_anyway=True)
    assert after.ran == 1
    assert after.results.rows[0] == before.results.rows[0]
    assert after.notes == ("1 rows kept that were made with another source (simulator)",)


def test_a_point_that_fails_is_a_row_with_its_error_and_no_figure_is_drawn(tmp_path: Path) -> None:
    def fails(torch: RuntimeContext, *, n: int) -> dict[str, float]:
        torch.launch("wait", wait_kernel, n, target_cubes=0, target_pes=0)
        if n == 20:
            raise UsageError("not this one")
        return {"exec_ns": 1.0}

    report, _ = run(tmp_path, made(fails))
    assert [row["n"] for row in report.results.failed] == [20]
    assert "not this one" in str(report.results.failed[0]["error"])
    assert report.figures == ()
    assert figure_stems(tmp_path) == []
    with pytest.raises(UsageError, match="1 points of these results failed"):
        redraw(made(), "waiting", tmp_path)


def test_a_figure_that_every_row_has_already_is_refused(tmp_path: Path) -> None:
    def names_it(torch: RuntimeContext, *, n: int) -> dict[str, float]:
        return {"total_ns": torch.launch("wait", wait_kernel, n, target_cubes=0, target_pes=0).exec_ns}

    with pytest.raises(UsageError, match="a point returned 'total_ns'"):
        run(tmp_path, made(names_it))


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty and holds no evaluation"):
        run(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UsageError, match="not the results of an evaluation"):
        read_results(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_machine_without_points_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no point on machine"):
        run(tmp_path / "out", most=0)
    assert not (tmp_path / "out").exists()


def test_the_page_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    run(tmp_path)
    html = write_page(tmp_path).read_text()
    assert html == write_page(tmp_path, tmp_path / "other.html").read_text()
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html
    assert html.count("data:image/svg+xml;base64,") == 1
    assert "<figcaption>One PE waits." in html
    assert '<th scope="col"><button type="button">exec_ns</button></th>' in html
    assert "HBM timing: approximated" in html  # what the evaluation names of `kernbench fidelity`
    assert "bank conflicts" not in html.split("<script>")[0].split("How far to trust it")[1]
    assert "hbm bytes per cube" in html  # the machine, summed up
    assert "<dt>energy: " in html  # rows have joules
    assert '<p class="origin">In all rows: ' in html  # what does not differ is shown once
    assert '<button type="button">cost</button>' not in html


def test_rows_are_chosen_by_value_and_drawn_in_order_of_x() -> None:
    rows: list[Row] = [{"a": 2, "b": 5.0, "c": "x"}, {"a": 1, "b": 3.0, "c": "y"}, {"a": 3, "c": "x"}]
    assert where(rows, c="x") == [rows[0], rows[2]]
    assert curve(rows[:2], "a", "b", 2.0) == ((1.0, 6.0), (2.0, 10.0))
    assert values_of(rows, "c") == ["x", "y"]
    with pytest.raises(KeyError):
        number(rows[2], "b")
