"""The page's files: small, our own, without a build step or anything from another server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from kernbench.web.server import static_files

STATIC = Path(__file__).parents[3] / "src/kernbench/web/static"


def test_all_files_together_are_under_250_kb_and_each_is_one_view() -> None:
    files = static_files()
    assert sum(map(len, files.values())) < 250_000
    assert {name: text.count(b"\n") for name, text in files.items() if text.count(b"\n") >= 400} == {}


def test_nothing_comes_from_another_server() -> None:
    for name, text in static_files().items():
        found = [url for url in re.findall(r"https?://[^\s'\"`)]+", text.decode()) if "www.w3.org" not in url]
        assert found == [], name


def test_every_import_is_a_file_of_ours_and_names_what_it_exports() -> None:
    files = {name: text.decode() for name, text in static_files().items() if name.endswith(".js")}
    for name, text in files.items():
        for names, source in re.findall(r"import \{([^}]*)\} from '\./([\w.]+)'", text):
            assert source in files, f"{name} imports {source}"
            for one in (part.strip() for part in names.split(",") if part.strip()):
                name_of_it = rf"{re.escape(one)}(?!\w)"
                exported = re.search(rf"export (?:async )?(?:function|const|class|let) {name_of_it}", files[source])
                listed = re.search(rf"export \{{[^}}]*{name_of_it}", files[source])
                assert exported or listed, f"{name} imports {one} of {source}"


def test_colours_of_both_themes_are_those_of_the_design() -> None:
    light, dark = (STATIC / "frame.css").read_text().split(':root[data-theme="dark"]')[:2]
    for name, pale, deep in (("G", "#1F6FD0", "#6AA3F2"), ("Q", "#A63446", "#FF8F80"), ("u5", "#571845", "#FDE9A8")):
        assert f"--{name}: {pale}" in light
        assert f"--{name}: {deep}" in dark
