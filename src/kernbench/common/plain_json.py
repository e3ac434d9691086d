"""Data as JSON may hold it: no infinity, no NaN, no numbers of numpy."""

from __future__ import annotations

from math import isfinite
from typing import Any


def plain_json(data: Any) -> Any:
    """The same with null for what is not finite; keys are texts, tuples are lists."""
    if isinstance(data, dict):
        return {str(key): plain_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain_json(value) for value in data]
    if type(data).__module__ == "numpy":  # a number; not imported here, for commands that need no arrays
        data = data.item()
    return None if isinstance(data, float) and not isfinite(data) else data
