"""The guides that need more than KernBench itself are run here, as `tests/integration/test_docs.py` runs the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.frontends.triton_programs import triton
from tests.integration.test_docs import OF_FRONTENDS, ROOT, import_path, run_page


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", OF_FRONTENDS, ids=[page.name for page in OF_FRONTENDS])
def test_what_the_page_says_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.__version__
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with import_path(str(tmp_path)):
        assert run_page(page) > 0
