"""Perfetto's own trace processor opens a trace, and its SQL totals equal ours.

Needs `pip install perfetto`, which fetches its trace processor from the network when it is first used.
"""

from __future__ import annotations

import pytest
from tests.integration.conftest import ONE_SIP, TWO_CUBES, save_run

from kernbench.report.traces.chrome import write_trace

trace_processor = pytest.importorskip("perfetto.trace_processor")


@pytest.mark.parametrize("bench", [("qkv-gemm-multi-pe", *ONE_SIP), ("ccl-allreduce", *TWO_CUBES)], ids=lambda b: b[0])
@pytest.mark.filterwarnings("ignore")
def test_sql_totals_of_slices_flows_and_threads_equal_the_run(tmp_path, bench):
    run = save_run(tmp_path / "run", *bench)
    write_trace(run, tmp_path / "trace.json.gz")
    try:
        processor = trace_processor.TraceProcessor(trace=str(tmp_path / "trace.json.gz"))
    except Exception as error:
        pytest.skip(f"the trace processor cannot be had here: {error}")
    with processor as tp:

        def ask(query: str) -> list:
            return list(tp.query(query))

        ops = run.ops
        for lane in run.lanes:
            rows = range(lane.first, lane.stop)
            process, _, thread = lane.name.partition(".pe")
            if lane.pe < 0:
                continue
            (found,) = ask(
                "select count(*) as n, sum(s.dur) as ns from slice s join thread_track t on s.track_id = t.id "
                f"join thread using (utid) join process using (upid) where process.name = '{process}' "
                f"and thread.name = 'pe{thread}'"
            )
            assert found.n == lane.ops
            assert found.ns == sum(round(ops.t_end[row]) - round(ops.t_start[row]) for row in rows)
        (flows,) = ask("select count(*) as n from flow")
        received = sum(lane.ops for lane in run.lanes if lane.port == "recv")
        assert flows.n == received + int(ops.kind.are("R", "W").sum())
        (errors,) = ask("select sum(value) as n from stats where severity = 'error'")
        assert errors.n == 0
