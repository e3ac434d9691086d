"""Candidates of a mapper that are simulated: one part of a layer by itself, on an idle machine of the same description.

The closed model says which candidates are worth it; the simulation decides among them. A trial depends on the machine,
the layer and the candidate only, and is kept for the life of the process. A candidate that fails, because tensors of
several sizes leave gaps in TCM, is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from kernbench.common.errors import KernBenchError
from kernbench.models.layer_job import LayerJob
from kernbench.models.mapper import Candidate, LayerChoice, MappedLayer
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph

ATTENTION = ("online", "stored")


class TrialSettings(NamedTuple):
    """What a trial has besides its job: SIPs that share the layer, and the TCM that is kept for messages, by key."""

    tp: int
    kept: tuple[tuple[str, int], ...]


RunPart = Callable[[RuntimeContext, LayerJob, TrialSettings], float]  # how long the only part of a job takes, in ns


def simulated_choice(
    choice: LayerChoice, job: LayerJob, graph: TopologyGraph, settings: TrialSettings, run_part: RunPart, most: int
) -> LayerChoice:
    """For each product the fastest of the plan by rules and of the `most` others with the least estimates; for
    attention the faster of both kinds. Products of experts, whose rows follow from a routing, keep their plan.
    """

    def ns_of(mapping: MappedLayer, part: str) -> float:
        return _trial_ns(graph, replace(job, mapping=mapping, weights=None, only=part), settings, run_part)

    products = []
    for size, candidates in choice.products:
        others = sorted((each for each in candidates if not each.is_usual), key=lambda each: each.total_ns)
        tried = [*others[:most], *(each for each in candidates if each.is_usual)]
        if size.experts > 1 or len(tried) < 2:
            products.append((size, candidates))
            continue
        timed = [
            replace(each, simulated_ns=ns_of(choice.mapping.with_plan(size, each.plan), size.name)) for each in tried
        ]
        best = sorted(timed, key=_simulated_ns)
        products.append((size, (*best, *(each for each in candidates if each not in tried))))
    plans = tuple((size, candidates[0].plan) for size, candidates in products)
    mapping, times = replace(choice.mapping, plans=plans), dict[str, float]()
    if choice.attention_ns:
        kinds = {name: replace(mapping, is_online=name == "online") for name in ATTENTION}
        times = {name: ns_of(each, "attention") for name, each in kinds.items()}
        mapping = kinds[min(ATTENTION, key=lambda name: times[name])]
    return replace(choice, mapping=mapping, products=tuple(products), attention_simulated_ns=times)


def _simulated_ns(candidate: Candidate) -> float:
    assert candidate.simulated_ns is not None
    return candidate.simulated_ns


@lru_cache(maxsize=256)
def _trial_ns(graph: TopologyGraph, job: LayerJob, settings: TrialSettings, run_part: RunPart) -> float:
    """How long a part takes, without numbers; infinity if it fails."""
    try:
        found = run(lambda torch: run_part(torch, job, settings), graph, device="whole", data=False).returned[0]
    except KernBenchError:
        return float("inf")
    assert isinstance(found, float)
    return found
