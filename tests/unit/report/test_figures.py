"""Charts: both formats, the same bytes every time, values beside them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from kernbench.common.errors import UsageError
from kernbench.probes.charts import charts_of, write_charts
from kernbench.probes.probe import run_probe
from kernbench.report.figures import Bar, StackChart, draw_stack_chart
from kernbench.topology import load_topology

PARTS = ("PE setup", "NoC", "UCIe", "IO/PCIe", "Wire transfer", "HBM/SRAM", "Contention")


def chart():
    bars = [Bar(f"{n} PEs\nread", dict.fromkeys(PARTS, 10.0 * n), 100.0, 128.0, 256.0) for n in (1, 2)]
    return StackChart("a title", "a machine", tuple(bars))


def test_png_and_svg_are_the_same_bytes_every_time(tmp_path):
    first = draw_stack_chart(chart(), tmp_path / "one")
    second = draw_stack_chart(chart(), tmp_path / "two")
    assert [path.suffix for path in first] == [".png", ".svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in first[1].read_text(encoding="utf-8")


def test_values_are_those_that_are_drawn():
    data = chart().as_json()
    assert data["bars"][1]["parts"]["NoC"] == 20.0
    assert data["bars"][1]["label"] == "2 PEs, read"


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="charts need matplotlib") as caught:
        draw_stack_chart(chart(), tmp_path / "one")
    assert "kernbench[plot]" in str(caught.value.hint)


@pytest.fixture(scope="module")
def report():
    graph = load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    return run_probe(graph, nbytes=1024, sweep=False)


def test_every_family_of_contention_has_a_chart_and_its_values(report, tmp_path):
    channels = ["hot-channel", "spread-channels"]
    families = [*channels, "to-slice", "cube-to-next", "sip-own-slice", "sip-to-slice", "host-to-cube", "host-to-row"]
    assert list(charts_of(report)) == families
    two = replace(report, cases=tuple(case for case in report.cases if case.case.family in families[1:3]))
    written = write_charts(two, tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        f"contention-{family}.{suffix}" for family in families[1:3] for suffix in ("png", "svg", "json")
    ]
    values = json.loads((tmp_path / "new" / "folder" / "contention-to-slice.json").read_text(encoding="utf-8"))
    assert [bar["label"] for bar in values["bars"]][:4] == ["1 PE, read", "2 PEs, read", "3 PEs, read", "8 PEs, read"]


def test_bars_are_as_high_as_the_makespan(report):
    bars = charts_of(report)["to-slice"].bars
    makespans = [result.total_ns for result in report.cases if result.case.family == "to-slice"]
    assert [sum(bar.parts.values()) for bar in bars] == makespans


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(report, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_charts(report, tmp_path / "file")
