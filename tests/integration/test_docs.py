"""What the README and the guides tell people to do works: their blocks are run, page by page, in an empty folder.

```LANG file=NAME       is saved under that name
```python              is executed; the blocks of a page share one namespace
```console, ```bash    lines `$ kernbench ...` and `$ python ...` are run and must end with exit code 0, or with N where
                       the line says `# exit code N`; output shown below a command must be what it prints (`...`
                       stands for anything); `NAME=value` in front of a command is put into its environment

Other blocks and commands are for reading. Paths of the repository, such as examples/..., may be used.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.package import SOURCE

from kernbench.cli import terminal
from kernbench.cli.main import main
from kernbench.components.table import component_class

pytestmark = pytest.mark.needs("shipped", reason="guides show the shipped machine")

ROOT = Path(__file__).parents[2]
GUIDES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))] if page.exists()]
OF_FRONTENDS = [page for page in GUIDES if "<!-- needs kernbench[" in page.read_text()]  # run in tests/frontends
PAGES = [page for page in GUIDES if page not in OF_FRONTENDS]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"#\s*exit code (\d+)\s*$")
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    language: str
    file: str | None
    text: str
    line: int


@dataclass
class Command:
    words: list[str]
    env: dict[str, str]
    exit_code: int
    shown: list[str] = field(default_factory=list)  # the output that the page shows


def blocks_of(page: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(page):
        named = re.search(r"file=(\S+)", match[2])
        line = page.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], named and named[1], match[3], line))
    return found


def commands_of(text: str) -> list[Command]:
    """The commands of a console block that can be run here, with the output shown below each."""
    commands: list[Command] = []
    current: Command | None = None
    for line in text.splitlines():
        if not line.startswith("$ "):
            if current is not None:
                current.shown.append(line)
            continue
        code = EXIT_CODE.search(line)
        words = shlex.split(line[2:], comments=True)
        env: dict[str, str] = {}
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        current = Command(words, env, int(code[1]) if code else 0)
        if words and words[0] in ("kernbench", "python"):
            commands.append(current)
    return commands


def in_process(args: list[str]) -> tuple[int, str]:
    """`kernbench ARGS`, without starting another interpreter: exit code and output. How fast this machine is decides
    nothing: progress is not printed.
    """
    out = io.StringIO()
    silent = unittest.mock.patch.object(terminal, "PIPE_S", float("inf"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), silent:
        try:
            main(args)
        except SystemExit as stopped:
            return int(stopped.code or 0), out.getvalue()
    return 0, out.getvalue()


def in_subprocess(words: list[str], env: dict[str, str]) -> tuple[int, str]:
    path = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), SOURCE) if part)
    done = subprocess.run(
        [sys.executable, *words[1:]],
        env={**os.environ, **env, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@contextlib.contextmanager
def import_path(folders: str) -> Iterator[None]:
    """`folders` in front of sys.path; what was imported from them is forgotten afterwards."""
    paths, modules = [str(Path(part).resolve()) for part in folders.split(os.pathsep) if part], set(sys.modules)
    sys.path[:0] = paths
    try:
        yield
    finally:
        del sys.path[: len(paths)]
        for name in [name for name in sys.modules if name not in modules]:
            where = getattr(sys.modules[name], "__file__", None) or ""
            if any(where.startswith(path + os.sep) for path in paths):
                del sys.modules[name]
        component_class.cache_clear()


def run_command(command: Command, where: str) -> None:
    if command.words[0] == "kernbench":
        with import_path(command.env.get("PYTHONPATH", "")):
            code, out = in_process(command.words[1:])
    else:
        code, out = in_subprocess(command.words, command.env)
    line = " ".join(command.words)
    assert "Traceback" not in out, f"{where}: {line}\n{out}"
    assert code == command.exit_code, f"{where}: {line} ended with exit code {code}\n{out}"
    shown = "\n".join(command.shown).strip("\n")
    if shown:
        same = doctest.OutputChecker().check_output(shown + "\n", out.strip("\n") + "\n", LENIENT)
        assert same, f"{where}: {line} printed\n{out}\nbut the page shows\n{shown}"


def run_page(page: Path) -> int:
    """Run every block of a page in the current folder; returns how many did something."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    done = 0
    for block in blocks_of(page.read_text()):
        where = f"{page.name}:{block.line}"
        if block.file is not None:
            Path(block.file).write_text(block.text)
            done += 1
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, where, "exec"), namespace)
            done += 1
        elif block.language in ("console", "bash"):
            for command in commands_of(block.text):
                run_command(command, where)
                done += 1
    return done


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points_in_this_process: None) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_what_the_page_says_works(page: Path, empty_folder: Path) -> None:
    """And the picture in the README is what its commands draw."""
    with import_path(str(empty_folder)):
        assert run_page(page) > 0
    if page.name == "README.md":
        committed = (ROOT / "docs" / "images" / "run.svg").read_text()
        assert Path("run.svg").read_text() == committed, "draw it again: the commands are in the README"


@pytest.mark.parametrize("page", GUIDES, ids=[page.name for page in GUIDES])
def test_every_file_that_a_page_saves_is_used_by_it(page: Path) -> None:
    blocks = blocks_of(page.read_text())
    run = [b.text for b in blocks if b.file is not None or b.language == "python" or commands_of(b.text)]
    for block in blocks:
        if block.file is not None:
            name = block.file.rpartition(".")[0]
            assert any(name in text for text in run if text != block.text), f"{page.name}:{block.line} is never run"


def test_the_table_in_the_guide_is_what_the_probe_prints() -> None:
    page = (ROOT / "docs" / "guides" / "read-a-probe.md").read_text()
    title, heads, units, *rows = page[page.index("PE DMA: ") :].partition("```")[0].splitlines()
    assert len(rows) == 5
    for row in rows:
        _, out = in_process(["probe", "--case", row.split()[0], "--no-sweep", "--no-detail"])
        printed = [line.split() for line in out.splitlines()]
        for line in (title, heads, units, row):
            assert line.split() in printed


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")), ids=lambda page: page.name)
def test_a_decision_is_one_page_of_four_parts_and_its_guards_exist(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {int(page.name[:4])}. ")
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences", "Guard"]
    assert len(text.splitlines()) <= 40
    guard = text[text.index("**Guard.**") :]
    for path in re.findall(r"`((?:tests|benchmarks)/[^`]+)`", guard):
        assert (ROOT / path.partition("::")[0]).exists(), path


# ---- the runner itself notices what is wrong


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 + 1 == 3\n```\n",
        "```console\n$ kernbench no-such-command\n```\n",
        "```console\n$ kernbench --version    # exit code 2\n```\n",
        "```console\n$ kernbench --version\nkernbench, version nonsense\n```\n",
        "```bash\n$ python -c 'raise SystemExit(3)'\n```\n",
    ],
)
def test_page_that_does_not_work_is_found(text: str, empty_folder: Path) -> None:
    page = empty_folder / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        run_page(page)


def test_blocks_that_are_for_reading_are_left_alone(empty_folder: Path) -> None:
    page = empty_folder / "page.md"
    page.write_text("```console\n$ make demo\n$ rm -rf /nowhere\n```\n\n```yaml\na: [\n```\n\n```\nplain\n```\n")
    assert run_page(page) == 0


def test_commands_see_files_environment_and_shown_output(empty_folder: Path) -> None:
    page = empty_folder / "page.md"
    page.write_text(
        "```python file=mine.py\nprint('hello')\n```\n"
        "```console\n$ python mine.py\nhello\n"
        "$ GREETING=hi python -c 'import os; print(os.environ[\"GREETING\"], 1)'\nhi ...\n"
        "$ kernbench no-such-command    # exit code 2\n```\n"
    )
    assert run_page(page) == 4
