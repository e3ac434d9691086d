"""A row is found again only while all that it was made with is the same: the bench's text, what that imports, ccl.yaml,
the simulator itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernbench.ccl.config import load_ccl_config
from kernbench.common.errors import CclConfigError, UsageError
from kernbench.runtime_api.user_module import load_user_module
from kernbench.sweep import provenance, sweep
from kernbench.sweep.provenance import differing_modules, function_digest, modules_digest, simulator_digest

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
BENCH = """
import helper


def run(torch, *, n: int = 1):
    torch.zeros(4)
    return {"n": helper.twice(n)}
"""
HELPER = "def twice(n):\n    from pack.deep import FACTOR\n    return FACTOR * n\n"
CCL = "defaults:\n  n_slots: 2\n"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """A function of a file that imports `helper`, which imports `pack.deep` when it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in {
        "bench.py": BENCH,
        "helper.py": HELPER,
        "pack/__init__.py": "",
        "pack/deep.py": "FACTOR = 2\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    yield load_user_module("bench.py").run
    for name in ("helper", "pack", "pack.deep"):
        sys.modules.pop(name, None)


def made(bench, **options) -> list[float]:
    """The rows of the one folder that there is."""
    return [row.total_ns for row in sweep(bench, {"n": [1]}, overrides=SMALL, workers=0, out="out", **options)]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("helper.py", HELPER + "# edited\n", "modules helper"),
        ("pack/deep.py", "FACTOR = 3\n", "modules pack.deep"),
        ("pack/__init__.py", "SIDE = 1\n", "modules pack"),
        ("bench.py", BENCH + "# edited\n", "source "),
        ("ccl.yaml", CCL, "ccl "),
    ],
)
def test_rows_made_with_another_text_are_refused(bench, file: str, text: str, said: str) -> None:
    rows = made(bench)
    assert made(bench) == rows
    Path(file).write_text(text)
    with pytest.raises(UsageError, match=f"another sweep: {said}") as refused:
        made(bench)
    assert "--resume-anyway" in str(refused.value.hint)


def test_rows_made_by_another_simulator_are_refused(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made(bench)
    monkeypatch.setattr(provenance, "simulator_digest", lambda: "another")
    with pytest.raises(UsageError, match=f"simulator {simulator_digest()} there, another now"):
        made(bench)


def test_resuming_anyway_keeps_rows_and_each_says_what_it_was_made_with(bench) -> None:
    (before,) = sweep(bench, {"n": [1]}, overrides=SMALL, workers=0, out="out")
    Path("ccl.yaml").write_text(CCL)
    kept, new = sweep(bench, {"n": [1, 2]}, overrides=SMALL, workers=0, out="out", resume_anyway=True)
    assert (kept.made_with, kept.total_ns) == (before.made_with, before.total_ns)
    assert new.made_with != kept.made_with
    about, results = (json.loads(Path(f"out/{name}.json").read_text()) for name in ("sweep", "results"))
    assert about["made_with"] == results["made_with"]
    differs = [name for name in about["identity"] if len({each[name] for each in about["made_with"].values()}) > 1]
    assert differs == ["ccl"]
    assert [row["made_with"] for row in results["rows"]] == [kept.made_with, new.made_with]
    with pytest.raises(UsageError, match="another sweep: ccl"):  # both kinds of rows are there now
        sweep(bench, {"n": [1]}, overrides=SMALL, workers=0, out="out")


def test_rows_of_another_machine_are_never_mixed(bench) -> None:
    made(bench)
    with pytest.raises(UsageError, match="another sweep: machine") as refused:
        sweep(bench, {"n": [1]}, overrides={**SMALL, "cube.links.router_bw_gbs": 128}, workers=0, out="out",
              resume_anyway=True)  # fmt: skip
    assert "--resume-anyway" not in str(refused.value.hint)


def test_a_wrong_ccl_yaml_is_refused_before_the_first_point(bench) -> None:
    Path("ccl.yaml").write_text("defualts: {}\n")
    with pytest.raises(CclConfigError, match="defualts"):
        made(bench)
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------------------------- what counts


def test_what_is_installed_is_no_module_of_the_users(bench) -> None:
    Path("bench.py").write_text("import json, numpy, kernbench.sweep\n" + BENCH)
    found = modules_digest([bench], [], load_ccl_config())
    assert [part.split("=")[0] for part in found.split(", ")] == ["helper", "pack.deep", "pack"]


def test_files_and_classes_that_values_name_count(bench) -> None:
    Path("model.yaml").write_text("a: 1\n")
    Path("own.py").write_text("import other\n")
    Path("other.py").write_text("")
    values = ["model.yaml:big", {"impl": "own:Router"}, "ring", "sip:0", 5, "no/such.py"]
    found = modules_digest([], values, load_ccl_config())
    assert [part.split("=")[0] for part in found.split(", ")] == ["model.yaml", "other", "own"]


def test_algorithms_of_ones_own_count(bench) -> None:
    Path("mine.py").write_text("kernel = kernel_args = None\n")
    Path("ccl.yaml").write_text("algorithms:\n  mine: { module: mine.py }\n")
    assert modules_digest([], [], load_ccl_config()).startswith("mine.py=")


def test_relative_imports_are_followed(bench) -> None:
    Path("pack/deep.py").write_text("from . import near\nfrom .near import X\n")
    Path("pack/near.py").write_text("X = 1\n")
    found = modules_digest([bench], [], load_ccl_config())
    assert "pack.near=" in found


def test_modules_that_differ_are_named() -> None:
    assert differing_modules("a=1, b=2, c=3", "a=1, b=4, d=5") == ["b", "c", "d"]


def test_a_function_without_a_file_is_known_by_what_it_does() -> None:
    def typed(text: str) -> Callable[..., object]:
        scope: dict[str, Callable[..., object]] = {}
        exec(compile(text, "<typed>", "exec"), scope)
        return scope["f"]

    assert function_digest(typed("def f(): return 5")) == function_digest(typed("\ndef f(): return 5"))
    assert function_digest(typed("def f(): return 5")) != function_digest(typed("def f(): return 6"))


def test_every_source_file_that_makes_rows_counts_and_what_shows_them_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)

    def digest_with(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        simulator_digest.cache_clear()
        return simulator_digest()

    try:
        first = digest_with("sim/link.py", "a")
        assert digest_with("sim/link.py", "b") != first
        assert digest_with("sim/link.py", "a") == first
        assert digest_with("cli/sweep.py", "a") == first
        assert digest_with("sim/default.yaml", "a") != first
    finally:
        simulator_digest.cache_clear()
