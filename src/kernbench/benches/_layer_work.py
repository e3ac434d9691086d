"""What the parameters of a layer ask for, as far as no machine is needed: the model, how many tokens, what is offered.

A scenario is checked with it when it is read, before anything runs.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.models.layer_choice import check_mapping_name
from kernbench.models.mapping import FEW_ROWS
from kernbench.models.shapes import ModelShape, load_model
from kernbench.runtime_api.bench_params import faults_of_param

TOKENS, TOKENS_TO_VALIDATE = 2048, 32


class LayerWork(NamedTuple):
    """A model, how many tokens of a sequence are worked on, and how many came before."""

    model: ModelShape
    tokens: int
    context: int


def layer_work(
    *, model: str, phase: str, batch: int, tokens: int, context: int, mapping: str, weight_type: str, cache_type: str,
    dtype: str, **_others: object,
) -> LayerWork:  # fmt: skip
    """The work of a layer's parameters; raises UsageError for a model that is not there, and for what no machine can
    do.
    """
    with faults_of_param("model"):
        shape = load_model(model)
    with faults_of_param("mapping"):
        check_mapping_name(mapping)
    now, before = _sequence_lengths(shape, phase, tokens, context)
    if (weight_type, cache_type) != ("same", "same"):
        _check_stored(before, dtype)
    rows = batch * shape.experts_per_token
    if weight_type != "same" and (rows > FEW_ROWS or mapping in ("columns", "tokens")):
        what = f"{rows} rows" if rows > FEW_ROWS else f"mapping={mapping}"
        if rows != batch:
            what += f" ({shape.experts_per_token} experts for each of {batch} sequences)"
        raise UsageError(
            f"weights in {weight_type} with {what}: they are for products of few rows",
            where="parameter 'weight_type'",
            hint=f"use at most {FEW_ROWS // shape.experts_per_token} sequences and mapping=auto, or weight_type=same",
        )
    return LayerWork(shape, now, before)


def _sequence_lengths(model: ModelShape, phase: str, tokens: int, context: int) -> tuple[int, int]:
    """Raises UsageError where the phase does not take what is given."""
    usual = TOKENS_TO_VALIDATE if model.validation else TOKENS
    if phase == "prefill":
        if context:
            raise UsageError(
                "context at prefill",
                where="parameter 'context'",
                hint="context is for phase=decode; tokens is a sequence's length",
            )
        return tokens or usual, 0
    if tokens > 1:
        raise UsageError(
            f"tokens={tokens} at decode",
            where="parameter 'tokens'",
            hint="decode takes one token of each sequence: set batch",
        )
    return 1, context or usual


def _check_stored(context: int, dtype: str) -> None:
    """Raise UsageError where weights or caches are not offered in fewer bits."""
    where = "parameters 'weight_type' and 'cache_type'"
    if not context:
        raise UsageError("quantised weights or caches at prefill", where=where, hint="use phase=decode")
    if dtype_of(dtype).itemsize != 2:
        raise UsageError(f"quantised weights or caches with rows in {dtype}", where=where, hint="use dtype=f16 or bf16")
