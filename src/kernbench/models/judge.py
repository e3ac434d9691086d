"""The expected output of a layer, computed by numpy, or by PyTorch on its device if values are kept there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernbench.models import reference
from kernbench.models.shapes import ModelShape
from kernbench.values.evaluate import evaluate, materialize
from kernbench.values.graph import Value, ValueGraph


def expected_rows(
    graph: ValueGraph, model: ModelShape, weights: Mapping[str, Value], x: Value, batch: int, context: int
) -> NDArray[np.float64]:
    """The layer's output, in f64, for the rows `x`: `batch` sequences, each after `context` cached tokens."""
    values = [*weights.values(), x]
    if graph.backend == "torch":
        from kernbench.models import torch_reference
        from kernbench.values.on_torch.backend import TorchBackend

        backend = TorchBackend()
        materialize(values, backend=backend, keep_inputs=True)
        held = {name: backend.tensor(value) for name, value in weights.items()}
        found: NDArray[np.float64] = torch_reference.layer(model, held, backend.tensor(x), batch, context).cpu().numpy()
        return found
    *arrays, rows = evaluate(values, keep_inputs=True)
    return reference.layer(model, dict(zip(weights, arrays, strict=True)), rows, batch, context)
