"""The time of causal attention at prefill in closed form, for scores in memory and for scores in TCM (`mapper.py`)."""

from __future__ import annotations

from kernbench.common.errors import UsageError
from kernbench.models.bounds import SOFTMAX_PASSES
from kernbench.models.machine_model import EVEN_SHARE, LAUNCH_NS, MachineModel
from kernbench.models.product_size import type_of
from kernbench.models.query_blocks import online_attention, teams_of

STORED_WAITS, ONLINE_WAITS = 80, 20  # for a read each: of copies and composites, or of blocks of keys


def attention_ns(
    machine: MachineModel, batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int, itemsize: int = 2
) -> dict[str, float]:
    """Scores in memory, `stored`, take a write and three reads of f32, and every PE has copies of its team's keys and
    values; in TCM, `online`, each block of queries reads them, where a team has several cubes all PEs from one cube at
    a time, and its results are rescaled for every block of keys: if such blocks fit TCM.
    """
    sip = machine.sip
    scores = batch * heads * tokens * (tokens + 1) / 2 / sip.size
    score_ns = 2 * head_dim / machine.macs_of(type_of(itemsize)) + SOFTMAX_PASSES / machine.lanes
    teams = teams_of(sip, batch * kv_heads)
    copied = batch * kv_heads // teams * tokens * 2 * itemsize * head_dim  # bytes of keys and values
    waits = LAUNCH_NS * (2 if teams < sip.cubes else 1) + STORED_WAITS * machine.latency_ns
    stored = score_ns * scores + (18 * scores + 2 * copied) / machine.hbm + waits
    try:
        plan = online_attention(sip, batch, tokens, heads, kv_heads, head_dim, itemsize)
    except UsageError:
        return {"stored": stored}
    shared, costs, cubes = heads // kv_heads, plan.costs, plan.cubes_per_team
    keys = scores / (plan.most_queries * shared) * 2 * itemsize * head_dim  # bytes that a PE reads
    link = sip.pes * (cubes - 1) * keys / machine.source_link(cubes)
    online = max(score_ns * shared * max(costs), keys / machine.hbm / EVEN_SHARE, link)
    return {"online": online + ONLINE_WAITS * machine.latency_ns, "stored": stored}
