"""`kernbench topology`: exit codes, JSON keys, files."""

import json
from pathlib import Path

import pytest
import yaml

from kernbench.cli.main import main

FILES = ["cube_mesh.yaml", "cube_view.svg", "pe_view.svg", "sip_view.svg", "system_view.svg"]
SMALL = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1"]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["topology", *args])
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


def test_a_summary_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("machine default\n")
    assert "2 x 1 per SIP" in run(capsys, *SMALL)[1]


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SMALL, "--json")
    report = json.loads(out)
    assert code == 0
    assert list(report) == ["schema", "command", "name", "counts", "memory", "bandwidth_gbs", "worst_paths", "warnings"]
    assert (report["schema"], report["command"], report["name"]) == (1, "topology", "default")
    assert report["counts"]["cubes"] == 2
    for way in report["worst_paths"]:
        assert set(way) == {"name", "src", "dst", "distance_mm", "latency_ns", "hops", "path"}
        assert (way["src"], way["dst"]) == (way["path"][0], way["path"][-1])
        assert len(way["path"]) == way["hops"] + 1
    assert out == run(capsys, *SMALL, "--json")[1]


def test_nodes_and_edges_are_listed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, *SMALL, "--json", "--nodes")[1])
    assert len(report["nodes"]) == report["counts"]["nodes"]
    assert len(report["edges"]) == 2 * report["counts"]["links"]
    assert set(report["nodes"][0]) == {"id", "kind", "impl", "x_mm", "y_mm", "attrs"}
    assert set(report["edges"][0]) == {"src", "dst", "kind", "bw_gbs", "distance_mm"}
    text = run(capsys, *SMALL, "--nodes")[1]
    assert all(node["id"] in text for node in report["nodes"])


def test_pictures_are_written_the_same_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, *SMALL, "--emit", str(tmp_path / "new" / "folder"))
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == FILES
    assert all(f"wrote {tmp_path / 'new' / 'folder' / name}\n" in out for name in FILES)
    report = json.loads(run(capsys, *SMALL, "--emit", str(tmp_path), "--json")[1])
    assert sorted(report["files"]) == [str(tmp_path / name) for name in FILES]
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (tmp_path / "new" / "folder" / name).read_bytes()
    mesh = yaml.safe_load((tmp_path / "cube_mesh.yaml").read_text())
    assert (mesh["rows"], mesh["columns"]) == (6, 6)


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    code, out, err = run(capsys, *SMALL, "--emit", str(tmp_path / "taken"))
    assert (code, out) == (2, "")
    assert "is a file" in err
    assert "hint:" in err
    assert (tmp_path / "taken").read_text() == "mine"
    code, _, err = run(capsys, *SMALL, "--emit", str(tmp_path / "taken" / "below"))
    assert code == 2
    assert "cannot be written" in err


def test_nothing_half_written_stays_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pe_view.svg").mkdir()  # a file cannot take its place
    code, _, err = run(capsys, *SMALL, "--emit", str(tmp_path))
    assert code == 2
    assert "cannot be written" in err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("folder", ["", "a\0b", "x" * 5000])
def test_a_name_that_is_no_path_is_refused(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    code, _, err = run(capsys, *SMALL, "--emit", folder)
    assert code == 2
    assert err.startswith("error: ")


def test_a_wrong_machine_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--set", "system.sips.count=0"], ["--set", "nonsense"], ["--topology", "not-there.yaml"]):
        code, out, err = run(capsys, *args)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((), []),
        # 8 channels of 64 GB/s, behind a port and routers of 256
        (
            ("cube.memory_map.hbm_channel_bw_gbs=64",),
            ["a PE's DMA port carries 256 GB/s each way", "a link between routers carries 256 GB/s each way"],
        ),
        (
            ("cube.memory_map.hbm_channel_bw_gbs=64", "cube.links.pe_dma_to_router_bw_gbs=512"),
            ["from other PEs a link between routers carries 256 GB/s"],
        ),
        (("sip.links.cube_to_cube.bw_gbs=1024",), ["the 4 connections at its ends bring 512 GB/s"]),
    ],
)
def test_bandwidth_that_nothing_can_use_is_warned_of(
    capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], words: list[str]
) -> None:
    args = [word for setting in settings for word in ("--set", setting)]
    code, out, err = run(capsys, *args, "--json")
    assert code == 0
    assert json.loads(out)["warnings"] == [line.removeprefix("warning: ") for line in err.splitlines()]
    assert len(err.splitlines()) == len(words)
    assert all(word in line for word, line in zip(words, err.splitlines(), strict=True))
