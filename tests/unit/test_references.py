"""What comments, docstrings and documents point to is in the repository: decision records, files, modules and names.

A name is a reference when it stands in backticks and has the form of one: `path/file.py`, `file.py`, `module.name`, or
in our own source a single `name`. What a guide asks its reader to write (` ```python file=NAME `) is there, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kernbench"
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
INDEX = ROOT / "docs" / "adr" / "README.md"
PAGES = [p for p in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))) if "_build" not in p.parts]
DOCUMENTS = [path for path in PAGES if path.name != "CHANGELOG.md" and "results" not in path.parts]
SOURCE = sorted(PACKAGE.rglob("*.py"))
OTHERS = [
    path for name in ("tests", "examples", "benchmarks", "scripts") for path in sorted((ROOT / name).rglob("*.py"))
]
TEXTS = [path for path in (*DOCUMENTS, *SOURCE, *OTHERS) if path != Path(__file__)]

FILE = re.compile(r"`([\w./-]+\.(?:py|md|yaml|toml))`")
FOLDER = re.compile(r"`((?:\w[\w.-]*/)+)`")
DOTTED = re.compile(r"`([a-z_]\w*(?:\.[a-z_]\w*)+)(?:\(\))?`")
SINGLE = re.compile(r"`([A-Za-z_]\w*)(?:\(\))?`")
DECISION = re.compile(r"\b(?:ADR|decision)[ -]?(\d{1,4})\b")
WRITTEN = re.compile(r"file=([\w./-]+)")
NOT_CODE = (".json", ".csv", ".jsonl", ".parquet", ".png", ".svg", ".db", ".js", ".txt", ".html", ".sweep")
# Names of others, and names that stand for any: neither is defined here.
FOREIGN = {"weakref_slot", "InitVar", "alltoall", "part_1", "cube_3"}
FIX = "name what is there now, or take the backticks off what is no reference"


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def place(path: Path, found: str) -> str:
    line = read(path)[: read(path).index(found)].count("\n") + 1
    return f"{path.relative_to(ROOT)}:{line}: {found}"


# ---------------------------------------------------------------------------------------------------------- decisions


def test_every_decision_that_is_named_is_in_docs_adr_and_by_the_number_it_has_there() -> None:
    """`ADR-0032` is how another project numbers its records: the same number is another page here."""
    numbers = {int(path.name[:4]) for path in DECISIONS}
    wrong = [
        place(path, match[0])
        for path in TEXTS
        for match in DECISION.finditer(read(path))
        if int(match[1]) not in numbers or match[0].startswith("ADR-")
    ]
    assert wrong == [], "write ADR n, with the number of a page of docs/adr, or say what it decides"


@pytest.mark.parametrize("part", ["Context", "Decision", "Consequences", "Guard"])
def test_every_decision_has_its_four_parts(part: str) -> None:
    assert [path.name for path in DECISIONS if f"**{part}.**" not in read(path)] == []


def test_no_two_decisions_have_one_number() -> None:
    assert len({path.name[:4] for path in DECISIONS}) == len(DECISIONS)


def test_the_index_has_one_line_for_each_decision_and_names_the_numbers_without_a_page() -> None:
    listed = re.findall(r"^\| \[(\d+)\]\((\d{4}-[\w-]+\.md)\) \|", read(INDEX), re.MULTILINE)
    assert sorted(name for _, name in listed) == [path.name for path in DECISIONS]
    assert all(int(number) == int(name[:4]) for number, name in listed)
    numbers = [int(path.name[:4]) for path in DECISIONS]
    gaps = {number for number in range(1, max(numbers)) if number not in numbers}
    explained = read(INDEX).partition("## Numbers without a page")[2]
    assert {int(number) for number in re.findall(r"\*\*(\d+)\*\*", explained)} == gaps


# -------------------------------------------------------------------------------------------------------------- links

LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """Markdown without its code, in which a bracket is no link."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors_of(path: Path) -> set[str]:
    """The anchors that headings have: in lower case, without punctuation, with dashes for spaces."""
    heads = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", read(path), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken_links(path: Path, text: str) -> list[str]:
    """Links of a page that lead to no file, or to no heading of one."""
    found = []
    for link in LINK.findall(without_code(text)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            found.append(f"{path.relative_to(ROOT)}: {link}")
    return found


def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_of_it() -> None:
    assert [link for path in PAGES for link in broken_links(path, read(path))] == []


def test_a_link_to_nowhere_is_found() -> None:
    text = "[a](glossary.md) [b](nowhere.md) [c](glossary.md#the-machine) [d](glossary.md#nowhere) `[e](f.md)`"
    assert broken_links(INDEX.parents[1] / "fidelity.md", text) == [
        "docs/fidelity.md: nowhere.md",
        "docs/fidelity.md: glossary.md#nowhere",
    ]


def test_every_guide_leads_to_the_glossary_and_is_in_the_site() -> None:
    guides = sorted((ROOT / "docs" / "guides").glob("*.md"))
    assert [path.name for path in guides if "](../glossary.md)" not in read(path)] == []
    contents = read(ROOT / "docs" / "index.md").splitlines()
    assert [path.name for path in guides if f"guides/{path.stem}" not in contents] == []


# -------------------------------------------------------------------------------------------------------------- files


@cache
def file_names() -> frozenset[str]:
    folders = [ROOT / name for name in ("src", "tests", "examples", "benchmarks", "scripts", "docs")]
    inside = [path.name for folder in folders for path in folder.rglob("*") if path.suffix]
    return frozenset([*inside, *(path.name for path in ROOT.iterdir())])


def is_there(name: str, path: Path) -> bool:
    """A file by its path from here or from a usual place, or by its name alone."""
    if "/" not in name:
        return name in file_names() or name in WRITTEN.findall(read(path))
    inside = [PACKAGE / part for part in path.relative_to(PACKAGE).parts[:1]] if path.is_relative_to(PACKAGE) else []
    return any((at / name).exists() for at in (ROOT, ROOT / "src", PACKAGE, ROOT / "docs", path.parent, *inside))


def test_every_file_that_is_named_exists() -> None:
    wrong = [
        place(path, f"`{name}`")
        for path in TEXTS
        if not path.is_relative_to(ROOT / "tests")  # their texts are machines and programs that they make up
        for name in (*FILE.findall(read(path)), *(FOLDER.findall(read(path)) if path in DECISIONS else ()))
        if not is_there(name, path)
    ]
    assert wrong == [], FIX


NODE = re.compile(r"`([\w./-]+\.py)::([\w.]+)`")


def test_every_name_in_a_file_that_a_page_names_is_there() -> None:
    """`file.py::name`, `file.py::Class.method`: defined there, the method in its class or one of its bases."""
    wrong = [
        place(path, f"`{file}::{name}`")
        for path in DOCUMENTS
        for file, name in NODE.findall(read(path))
        for at in [next((base / file for base in (ROOT, PACKAGE) if (base / file).is_file()), None)]
        if at is None or not (set(name.split(".")) <= names_of(at) and is_member(at, name))
    ]
    assert wrong == [], FIX


def test_the_tests_and_folders_that_a_page_names_are_there() -> None:
    named = [(path, name) for path in DOCUMENTS for name in re.findall(r"`(tests/[\w/-]+)`", read(path))]
    assert [f"{path.name}: {name}" for path, name in named if not (ROOT / name).exists()] == []


def test_the_picture_of_the_layers_is_the_one_that_the_script_draws() -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "scripts" / "architecture"], capture_output=True, text=True, check=True
    )
    assert drawn.stdout == read(ROOT / "docs" / "images" / "architecture.svg"), "scripts/architecture > docs/images/..."


# -------------------------------------------------------------------------------------------------------------- names


@cache
def modules() -> dict[str, list[Path]]:
    """The modules of the package by their last name; a package is its `__init__.py`."""
    found: dict[str, list[Path]] = {}
    for path in SOURCE:
        found.setdefault(path.parent.name if path.name == "__init__.py" else path.stem, []).append(path)
    return found


@cache
def names_of(path: Path) -> frozenset[str]:
    """What a module defines or imports, its classes' methods and fields too, and what lies beside a package's file."""
    found: list[str] = [other.stem for other in path.parent.iterdir()] if path.name == "__init__.py" else []
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [(alias.asname or alias.name).rpartition(".")[2] for alias in node.names]
    return frozenset(found)


def is_member(path: Path, name: str) -> bool:
    """Whether `Class.member` stands in that class; True for a plain name, and where a class has bases elsewhere."""
    cls, _, member = name.partition(".")
    classes = {node.name: node for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.ClassDef)}
    if not member or cls not in classes:
        return not member
    inside = ast.walk(classes[cls])
    if any(
        member in (getattr(node, "name", ""), getattr(node, "attr", ""), getattr(node, "id", "")) for node in inside
    ):
        return True
    bases = [getattr(base, "id", "") for base in classes[cls].bases]
    return any(base not in classes or is_member(path, f"{base}.{member}") for base in bases)


@cache
def words() -> frozenset[str]:
    """Every word of the code and its data, without what stands in backticks."""
    files = [*SOURCE, *OTHERS, *(path for kind in ("yaml", "js", "html") for path in PACKAGE.rglob(f"*.{kind}"))]
    return frozenset(word for path in files for word in re.findall(r"\w+", re.sub(r"`[^`\n]+`", " ", read(path))))


def is_known(dotted: str) -> bool:
    """`module.name` names something of that module. A name of one word may be that of an object, as `engine.now_ns`:
    what follows it must be a word of the code. So must the parts of any other dotted name.
    """
    first, second, *_ = dotted.split(".")
    if first in modules() and "_" in first:
        return any(second in names_of(path) for path in modules()[first])
    return all(part in words() for part in dotted.split("."))


def test_every_module_and_name_that_the_source_names_exists() -> None:
    wrong = [
        place(path, f"`{name}")
        for path in SOURCE
        for name in (*DOTTED.findall(read(path)), *SINGLE.findall(read(path)))
        if not name.endswith(NOT_CODE)
        and FILE.fullmatch(f"`{name}`") is None
        and name not in FOREIGN
        and not (is_known(name) if "." in name else name in words())
    ]
    assert wrong == [], FIX


def test_every_module_that_a_document_names_has_what_it_says() -> None:
    wrong = [
        place(path, f"`{name}")
        for path in DOCUMENTS
        for name in DOTTED.findall(read(path))
        if name.split(".")[0] in modules() and "_" in name.split(".")[0] and not is_known(name)
    ]
    assert wrong == [], FIX
