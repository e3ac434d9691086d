"""The command as a whole: what is misspelt, what breaks around it, and whose failure it was."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.package import SOURCE

from kernbench.cli.failures import failed_outside
from kernbench.cli.main import main

ROOT = Path(__file__).parents[3]
SMALL = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh={w: 1, h: 1}"]
BROKEN = """
from kernbench.components.base import MemoryComponent, TransitComponent

class Broken(TransitComponent):
    def flit_delay_ns(self, flit):
        return {}["delay"]

class SlowWhenNear(MemoryComponent):
    def accept(self, packet):
        yield from self.pause(1000.0 if self.node.place.cube == 0 else 0.0)
        self.reply(packet, nbytes=packet.wanted_bytes)
"""


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


def command(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": SOURCE}
    env.pop("PYTHONUNBUFFERED", None)  # with a buffer, as most have it
    return subprocess.run([sys.executable, "-m", "kernbench", *args], env=env, check=False, text=False, **options)


@pytest.fixture
def my_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "blocks_of_mine.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "blocks_of_mine.py"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("topolgy",), "no such command 'topolgy'; did you mean 'topology'?"),
        (("PROBE",), "did you mean 'probe'?"),
        (("x" * 500,), "no such command"),
        (("topology", "--emitt", "x"), "--emit"),
        (("topology", "--emit"), "requires an argument"),
        (("topology", "extra"), "unexpected extra argument (extra)"),
        (("topology", "--topology", ""), "--topology takes a file, not an empty name"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_what_is_misspelt_is_reported_like_every_other_error(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert max(map(len, err.splitlines())) < 300


def test_no_command_shows_the_help_and_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: kernbench")


def test_the_last_of_equal_settings_rules_also_over_one_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = "sip.cube_mesh"
    _, out, _ = run(capsys, "topology", "--set", "system.sips.count=4", "--set", "system.sips.count=1")
    assert "  SIPs                    1  logical ring_1d" in out
    settings = [f"{mesh}={{w: 2, h: 2}}", f"{mesh}.w=3", f"{mesh}={{w: 1, h: 2}}"]
    _, out, _ = run(capsys, "topology", *(part for setting in settings for part in ("--set", setting)))
    assert "1 x 2 per SIP" in out


def test_the_package_runs_as_a_module() -> None:
    assert command("--version", capture_output=True).stdout.startswith(b"kernbench, version ")


def test_a_reader_that_goes_away_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("topology", "--nodes", *SMALL, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disc_is_one_message() -> None:
    with open("/dev/full", "wb") as full:
        done = command("topology", *SMALL, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"error: cannot read or write: No space left on device\n"


NOISY = """
def run(torch):
    print("much to say")
    torch.launch("k", lambda tl: tl.cycles(1))
    {then}
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("then", "message"), [("raise ValueError('no good')", b"no good"), ("return", b"No space left on device")]
)
def test_what_a_bench_prints_to_a_full_disc(then: str, message: bytes, tmp_path: Path) -> None:
    """It is in a buffer until the end."""
    (tmp_path / "noisy.py").write_text(NOISY.format(then=then))
    args = ("run", "--bench", str(tmp_path / "noisy.py"), "--device", "0")
    with open("/dev/full", "wb") as full:
        done = command(*args, stdout=full, stderr=subprocess.PIPE)
        silent = command(*args, stdout=full, stderr=full)
    assert (done.returncode, silent.returncode) == (2, 2)
    assert message in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_class_of_the_users_own_that_fails_is_named_at_its_own_line(
    capsys: pytest.CaptureFixture[str], my_blocks: Path
) -> None:
    router = "cube.components.router.impl=blocks_of_mine:Broken"
    code, out, err = run(capsys, "probe", "--case", "pe-local-hbm", "--no-sweep", *SMALL, "--set", router)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: user component raised KeyError: 'delay'",
        f"""  where: {my_blocks}:6  return {{}}["delay"]""",
        "  hint:  fix that line",
    ]


def test_a_failure_of_our_own_is_not_explained_away() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        eval(compile("1 // 0", "ours.py", "eval"), {"__name__": "kernbench.nowhere"})
    assert failed_outside(caught.value) is None


def test_strict_probe_fails_on_a_machine_that_breaks_an_invariant(
    capsys: pytest.CaptureFixture[str], my_blocks: Path
) -> None:
    # The memory of the cube next to the host takes 1000 ns, the one behind it nothing: two hops are quicker than one.
    machine = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh={w: 1, h: 2}"]
    machine += ["--set", "cube.components.hbm_ctrl.impl=blocks_of_mine:SlowWhenNear"]
    args = ["probe", "--no-sweep", "--nbytes", "256", *machine]
    code, out, _ = run(capsys, *args, "--strict")
    assert "[x] FAIL h2d latency grows with hops" in out
    assert code == 1
    assert run(capsys, *args)[0] == 0


def _without(number: int) -> Any:
    """What closes a stream in the new process, as `>&-` of a shell does."""
    return lambda: os.close(number)


@pytest.mark.parametrize("args", [["run", "--bench", "gemm-single-pe"], ["--help"]])
def test_a_closed_stdout_is_one_message(args: list[str]) -> None:
    done = command(*args, stderr=subprocess.PIPE, preexec_fn=_without(1))
    assert done.returncode == 2
    assert done.stderr == b"error: stdout is closed\n  hint:  let it lead to a file, or to /dev/null\n"


def test_a_closed_stderr_is_done_without() -> None:
    args = ["run", "--bench", "gemm-single-pe", "--param", "m=32", *SMALL]
    done = command(*args, stdout=subprocess.PIPE, preexec_fn=_without(2))
    assert (done.returncode, b"gemm-single-pe" in done.stdout) == (0, True)


def test_names_that_are_not_utf_8_are_read_written_and_shown(tmp_path: Path) -> None:
    run = os.fsdecode(bytes(tmp_path) + b"/run\xff")
    env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8:strict"}

    def call(*args: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run([sys.executable, "-m", "kernbench", *args], env=env, check=False, capture_output=True)
        return done.returncode, done.stdout, done.stderr

    code, out, err = call("run", "--bench", "gemm-single-pe", "--param", "m=32", *SMALL, "--save", run)
    assert (code, err) == (0, b"")
    assert b"wrote " + bytes(tmp_path) + b"/run\\udcff: " in out
    code, out, err = call("runs", str(tmp_path))
    assert (code, err) == (0, b"")
    assert out.rstrip().endswith(b"/run\\udcff")
    code, out, err = call("report", run)
    assert (code, out) == (2, b"")
    assert err.startswith(b"error: no results.json in this folder\n")
