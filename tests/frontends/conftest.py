"""Markers that Triton's tutorials use in their own tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "enable_warmup: of Triton's tutorials; means nothing here")
