"""docs/validation.md, made from the verdicts of all sets."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.validation.contract import SetVerdict

HEAD = """# Validation

Made by `scripts/validation`; do not edit. What `kernbench validate` finds on the public measurements that ship with the
package: for each case (simulated - measured) / measured in percent, or a difference of shares in points. The mean, the
median and the worst are of absolute values, the bias is the mean with sign. `--data DIR` takes other measurements of
the same kind. How to describe such machines: [Model real hardware](guides/model-real-hardware.md).
"""


def page(verdicts: Sequence[SetVerdict]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(verdict) for verdict in verdicts)])


def _section(verdict: SetVerdict) -> str:
    chosen = verdict.set
    lines = [f"## `{chosen.name}`: {chosen.title}", "", f"Compared: {chosen.quantity}. Source: {chosen.source}.", ""]
    lines += ["| regime | cases | mean | bias | median | worst |", "|---|---|---|---|---|---|"]
    for regime in verdict.regimes:
        values = (regime.mean, regime.bias, regime.median, regime.worst)
        unit = "%" if regime.unit == "pct" else "points"
        mean, bias, middle, worst = ("-" if value is None else f"{value:.2f} {unit}" for value in values)
        lines.append(f"| {regime.name} | {regime.n} | {mean} | {bias} | {middle} | {worst} |")
    lines += ["", f"Fitted: {'; '.join(chosen.fitted) or 'nothing'}.", "", f"Why it differs: {chosen.differs}.", ""]
    lines += [f"Others report: {peer.name} {peer.error} ({peer.source})." for peer in chosen.peers]
    lines += ["", "| case | regime | measured | simulated | error |", "|---|---|---|---|---|"]
    for row in verdict.rows:
        measured = "-" if row.measured is None else f"{row.measured:.1f}"
        error = "-" if row.error is None else f"{row.error:+.2f}"
        lines.append(f"| {row.case} | {row.regime} | {measured} | {row.simulated:.1f} | {error} |")
    return "\n".join([*lines, ""])
