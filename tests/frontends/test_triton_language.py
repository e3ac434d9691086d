"""A sample of Triton's own language tests, run on the machine by `scripts/triton_language_tests`: none may fail."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.frontends.test_triton_tutorials import FOLDER, ROOT

LANGUAGE = FOLDER.parent / "language"
pytestmark = pytest.mark.skipif(
    not LANGUAGE.is_dir(),
    reason=f"no tests in {LANGUAGE}: set KERNBENCH_THIRD_PARTY to the folder with triton/language",
)


def cells(row: str) -> list[int]:
    """The numbers of a row of the table, behind the file: tests, one of how many is run, and how those ended."""
    return [int(cell) for cell in row.strip("| ").split("|")[1:]]


def test_the_table_of_the_guide_has_a_row_that_adds_up_for_every_file_and_no_failure():
    page = (ROOT / "docs" / "guides" / "run-your-triton-kernels.md").read_text()
    table = page.partition("<!-- language tests -->\n")[2].partition("\n<!-- end -->")[0].splitlines()[2:]
    files = [row.split("|")[1].strip() for row in table]
    with_tests = [path.name for path in sorted(LANGUAGE.glob("test_*.py")) if path.name != "test_conversions.py"]
    assert files == with_tests  # conversions are tested on a GPU only
    for row in table:
        tests, every, *ended = cells(row)
        assert sum(ended) == -(-tests // every), row
        assert ended[-1] == 0, row
        assert ended[-2] == 0 or "test_core.py" in row, row  # which the page explains


@pytest.mark.parametrize(("file", "every"), [("test_core.py", 500), ("test_standard.py", 20)])
def test_a_sample_of_the_language_tests_passes(file, every):
    command = [sys.executable, str(ROOT / "scripts" / "triton_language_tests"), str(LANGUAGE), file, f"every={every}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {file} |")]
    assert rows, done.stdout + done.stderr
    passed, refused, without_gpu, not_there, failed = cells(rows[0])[2:]
    if not_there:
        pytest.skip("this release of Triton is older than its tests")
    assert passed + refused + without_gpu > 5
    assert failed == 0, done.stderr
