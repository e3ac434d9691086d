"""Perfetto's own trace processor opens a trace, and its SQL totals equal ours."""

from __future__ import annotations

import pytest
from tests.frontends.perfetto_processor import processor
from tests.integration.conftest import ONE_SIP, TWO_CUBES, save_run

from kernbench.report.traces.chrome import write_trace


@pytest.mark.parametrize("bench", [("qkv-gemm-multi-pe", *ONE_SIP), ("ccl-allreduce", *TWO_CUBES)], ids=lambda b: b[0])
@pytest.mark.filterwarnings("ignore")
def test_sql_totals_of_slices_flows_and_threads_equal_the_run(tmp_path, bench):
    run = save_run(tmp_path / "run", *bench)
    write_trace(run, tmp_path / "trace.json.gz")
    with processor(tmp_path / "trace.json.gz") as ask:
        threads = {
            (row["process"], row["thread"]): (row["n"], row["ns"])
            for row in ask(
                "select process.name as process, thread.name as thread, count(*) as n, sum(s.dur) as ns from slice s "
                "join thread_track t on s.track_id = t.id join thread using (utid) join process using (upid) "
                "group by process.name, thread.name"
            )
        }
        ops = run.ops
        for lane in run.lanes:
            process, _, thread = lane.name.partition(".pe")
            if lane.pe < 0:
                continue
            rows = range(lane.first, lane.stop)
            took = sum(round(ops.t_end[row]) - round(ops.t_start[row]) for row in rows)
            assert threads[process, f"pe{thread}"] == (lane.ops, took)
        received = sum(lane.ops for lane in run.lanes if lane.port == "recv")
        assert ask("select count(*) as n from flow")[0]["n"] == received + int(ops.kind.are("R", "W").sum())
        assert ask("select sum(value) as n from stats where severity = 'error'")[0]["n"] == 0
