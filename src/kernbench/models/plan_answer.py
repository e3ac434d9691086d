"""The result of a comparison of plans: figures of the best plan, and the answer in words.

Figures are rows as those of a layer (`figures.py`), from which a sweep takes its columns. Where no plan can be taken,
they say why: `fits` is False, or `infeasible` has the limit that no plan meets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.models.parallel_plans import FigureRow, ParallelPlan, ReplicaBatch


def figure_rows(
    work: ReplicaBatch, plans: Sequence[ParallelPlan], memory_bytes: int, limit_ns: float | None
) -> list[FigureRow]:
    """Figures of the best plan, or why there is none; of plans that are sorted as by `plans_of`."""
    best, fitting = _best(plans), [plan for plan in plans if plan.fits]
    shown = best or min(fitting or plans, key=lambda plan: plan.latency_ns if fitting else plan.memory_bytes)
    found: list[tuple[str, object, str]] = []
    if best is not None:
        found = [
            ("best plan", best.name, "replicas of stages of SIPs"),
            ("tokens per second in total", best.tokens_per_s, "1/s"),
            (f"time of {work.model.layers} layers", best.latency_ns / 1e6, "ms"),
            ("latency of a batch", best.latency_ns / 1e6, "ms"),
            ("users", best.users, "sequences in service"),
        ]
    found += [
        ("memory needed per SIP", shown.memory_bytes / 1e9, "GB"),
        ("memory there per SIP", memory_bytes / 1e9, "GB"),
        ("fits", bool(fitting), "a plan in the memory of its SIPs"),
    ]
    if best is None and fitting:
        found.append(("infeasible", _too_slow(shown, limit_ns), ""))
    return [{"figure": name, "value": value, "unit": unit} for name, value, unit in found]


def answer_rows(
    work: ReplicaBatch, plans: Sequence[ParallelPlan], memory_bytes: int, limit_ns: float | None
) -> list[FigureRow]:
    """The answer in words, and what was compared."""
    return [{"answer": line} for line in (*_answer(plans, memory_bytes, limit_ns), _compared(work, plans))]


def _answer(plans: Sequence[ParallelPlan], memory_bytes: int, limit_ns: float | None) -> Iterator[str]:
    best, fitting = _best(plans), [plan for plan in plans if plan.fits]
    if best is not None:
        limit = "" if limit_ns is None else f" under {limit_ns / 1e6:g} ms"
        possible = sum(not plan.refusal for plan in plans)
        yield (
            f"{best.name} makes the most tokens per second{limit}: {best.tokens_per_s:,.0f}, "
            f"{best.latency_ns / 1e6:.4g} ms, {_users(best.users)}"
        )
        if possible < len(plans):
            yield f"{possible} of {len(plans)} plans can be taken: see verdict"
    elif fitting:
        yield _too_slow(min(fitting, key=lambda plan: plan.latency_ns), limit_ns)
    else:
        least = min(plans, key=lambda plan: plan.memory_bytes)
        yield (
            f"no plan fits: {least.name} needs the least, {least.memory_bytes / 1e9:.1f} GB per SIP, "
            f"which has {memory_bytes / 1e9:.1f} GB"
        )


def _too_slow(fastest: ParallelPlan, limit_ns: float | None) -> str:
    limit_ms, fastest_ms = (limit_ns or 0.0) / 1e6, fastest.latency_ns / 1e6
    return f"no plan is under max_latency_ms={limit_ms:g}: of those that fit, {fastest.name} takes {fastest_ms:.4g} ms"


def _compared(work: ReplicaBatch, plans: Sequence[ParallelPlan]) -> str:
    fewest, most = min(plan.users for plan in plans), max(plan.users for plan in plans)
    span = _users(most) if fewest == most else f"{fewest} to {_users(most)}"
    return f"compared: {len(plans)} plans with batch={work.batch} in each stage of each replica, which serve {span}"


def _users(count: int) -> str:
    return f"{count} user" if count == 1 else f"{count} users"


def _best(plans: Sequence[ParallelPlan]) -> ParallelPlan | None:
    return plans[0] if plans and not plans[0].refusal else None
