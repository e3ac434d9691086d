"""What a mapper chose from, as rows to read: estimates by cause, simulated times, and what there was no choice of."""

from __future__ import annotations

from kernbench.models.mapper import Candidate, LayerChoice
from kernbench.models.pinned import kind_of, numbers_of

CAUSES = ("copies", "product", "results", "launches")
WHERE_SCORES = {"online": "scores in TCM", "stored": "scores in memory"}


def report_rows(choice: LayerChoice) -> list[dict[str, object]]:
    """A row for each candidate: its estimate, which is the sum of its causes, in us; whether it is taken; its simulated
    time if some were simulated. Then what has no estimate, with a note.
    """
    rows: list[dict[str, object]] = []
    for size, candidates in choice.products:
        rows += [_row(size.name, each, is_chosen=at == 0) for at, each in enumerate(candidates)]
        best_ns = min((each.total_ns for each in candidates), default=0.0)
        is_by_rule = choice.mapping.fused is None and candidates and candidates[0].simulated_ns is None
        if is_by_rule and best_ns < candidates[0].total_ns:
            rows[-len(candidates)]["note"] = "by rule: what is faster is so by less than the margin that auto asks for"
    rows += _attention_rows(choice)
    if all(row["simulated_us"] is None for row in rows):
        rows = [{name: value for name, value in row.items() if name != "simulated_us"} for row in rows]
    if any("note" in row for row in rows):  # one table
        rows = [row if "note" in row else {**row, "note": ""} for row in rows]
    return [*rows, *_layer_rows(choice)]


def _row(name: str, candidate: Candidate, *, is_chosen: bool) -> dict[str, object]:
    text = " ".join(f"{key}={value}" for key, value in numbers_of(candidate.plan).items())
    causes = {cause: candidate.times_ns.get(cause, 0.0) for cause in CAUSES}
    simulated = candidate.simulated_ns
    return _of(name, kind_of(candidate.plan), text, is_chosen, candidate.total_ns, simulated, causes)


def _attention_rows(choice: LayerChoice) -> list[dict[str, object]]:
    """Both kinds of attention, the faster first if they were simulated; a kind without an estimate does not fit TCM."""
    simulated = choice.attention_simulated_ns
    return [
        _of(
            "attention",
            kind,
            WHERE_SCORES[kind],
            (kind == "online") == choice.mapping.is_online,
            ns,
            simulated.get(kind),
        )
        for kind, ns in choice.attention_ns.items()
    ]


def _of(
    name: str,
    kind: str,
    text: str,
    is_chosen: bool,
    total_ns: float,
    simulated_ns: float | None,
    causes: dict[str, float] | None = None,
) -> dict[str, object]:
    """Without `causes` there is only the total."""
    known = causes or {}
    failed = simulated_ns == float("inf")
    return {
        "choice of": name,
        "kind": kind,
        "chosen": "yes" if is_chosen else "-",
        "estimate_us": total_ns / 1000,
        "simulated_us": None if simulated_ns is None else "failed" if failed else simulated_ns / 1000,
        **{f"{cause}_us": known[cause] / 1000 if cause in known else None for cause in CAUSES},
        "blocking": text,
    }


def _layer_rows(choice: LayerChoice) -> list[dict[str, object]]:
    """What is not chosen by estimates: a decode step in one launch or in parts, and parts with one way only."""
    fused, at = choice.mapping.fused, "choice of"
    if fused is not None:
        pieces = f"piece_bytes={fused.piece_bytes} room_bytes={fused.room_bytes} slot_bytes={fused.slot_bytes}"
        why = "by rule, without an estimate: it is taken wherever it can be; products as above are parts of it"
        instead = (
            f"mapping=decode; its products take {choice.products_ns / 1000:.4g} us by estimate, other parts have none"
        )
        return [
            {at: "layer", "kind": "fused", "chosen": "yes", "blocking": pieces, "note": why},
            {at: "layer", "kind": "parts", "chosen": "-", "blocking": "a launch for each part", "note": instead},
        ]
    others = ("norms",) if choice.attention_ns else ("norms", "attention")
    rows: list[dict[str, object]] = [{at: name, "kind": "one way", "chosen": "-"} for name in others]
    if choice.not_fused:
        rows.append({at: "layer", "kind": "fused", "chosen": "-", "note": f"not taken: {choice.not_fused}"})
    return rows
