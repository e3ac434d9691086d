"""Every test draws PyTorch's random numbers from the same seed; markers that Triton's tutorials use in their tests."""

from __future__ import annotations

import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "enable_warmup: of Triton's tutorials; means nothing here")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Which tests a worker ran before decides nothing. Where PyTorch is not loaded yet, its own seed is a constant."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
