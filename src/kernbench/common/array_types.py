"""Names of types of shapes and of numpy arrays, for annotations."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]  # first index, and how many
Array: TypeAlias = NDArray[np.generic]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
