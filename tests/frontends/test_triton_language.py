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


@pytest.mark.parametrize(("file", "every"), [("test_core.py", 500), ("test_standard.py", 20)])
def test_a_sample_of_the_language_tests_passes(file, every):
    command = [sys.executable, str(ROOT / "scripts" / "triton_language_tests"), str(LANGUAGE), file, f"every={every}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| `{file}`")]
    assert rows, done.stdout + done.stderr
    passed, refused, without_gpu, not_there, failed = (int(cell) for cell in rows[0].strip("| ").split("|")[1:])
    if not_there:
        pytest.skip("this release of Triton is older than its tests")
    assert passed + refused + without_gpu > 5
    assert failed == 0, done.stderr
