"""docs/hardware.md: its pictures are those that are drawn today, and it names every kind of block."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.report.diagrams.svg import render_svg
from kernbench.report.diagrams.views import machine_views
from kernbench.topology import load_topology

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGE = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
DRAWN = ("rings", "pe_pipeline", "address_models", "channel_modes")


def test_drawn_pictures_are_what_the_script_draws(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "hardware"), str(tmp_path)], check=True)
    for name in DRAWN:
        assert (tmp_path / f"{name}.svg").read_text() == (IMAGES / f"{name}.svg").read_text(), (
            "scripts/hardware docs/images"
        )
        assert f"images/{name}.svg" in PAGE


@pytest.mark.needs("shipped", reason="a picture of the shipped machine")
def test_pictures_of_the_machine_are_those_of_the_shipped_one() -> None:
    spec = load_topology().spec
    for name in ("cube", "pe"):
        drawn = render_svg(machine_views(spec)[name], spec)
        assert (IMAGES / f"{name}_view.svg").read_text() == drawn, "kernbench topology --emit docs/images"


def test_the_page_names_every_kind_of_block() -> None:
    graph = load_topology(None, {"cube.memory_map.hbm_mapping_mode": "one_to_one"})
    missing = [kind for kind in dict.fromkeys(node.kind for node in graph.nodes.values()) if f"`{kind}`" not in PAGE]
    assert missing == []
