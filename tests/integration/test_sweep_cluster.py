"""A sweep on a real scheduler with workers in processes of their own, one of which is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.package import SOURCE

from kernbench.common.errors import UsageError
from kernbench.runtime_api.user_module import load_user_module
from kernbench.sweep import sweep
from kernbench.sweep.cluster_pool import _outcome
from kernbench.sweep.driver import SweepProgress
from kernbench.sweep.points import Point
from kernbench.sweep.work import PointTask

ROOT = Path(__file__).parents[2]
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}

BENCH = """
import os, signal, time

def spin(n, tl):
    tl.cycles(n)

def run(torch, *, folder: str, n: int = 1, wait_s: float = 0.0, kills: int = 0):
    with open(f"{folder}/pids", "a") as file:
        file.write(f"{os.getpid()} {n}\\n")
    if n == kills:
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 4:
        raise ValueError("four is bad")
    time.sleep(wait_s)
    torch.launch("spin", spin, n, target_cubes=0, target_pes=0)
"""


class Cluster:
    """`dask scheduler` and `dask worker` as their users start them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        end = time.monotonic() + 60
        while not file.exists() or not file.read_text().endswith("}"):
            assert time.monotonic() < end, "the scheduler does not start"
            time.sleep(0.05)
        self.address: str = json.loads(file.read_text())["address"]

    def start(self, what: str, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", what, "--no-dashboard", *args]
        env = {**os.environ, "PYTHONPATH": SOURCE, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
        log = self._stack.enter_context((self._folder / f"{what}.log").open("ab"))
        process = subprocess.Popen(command, cwd=self._folder, env=env, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def add_worker(self) -> None:
        options = ("--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
        self._workers.append(self.start("worker", self.address, *options))

    def have_workers(self, count: int) -> None:
        """So many that are alive and known to the scheduler: of those of the test before, and new ones."""
        alive = sum(worker.poll() is None for worker in self._workers)
        for _ in range(count - alive):
            self.add_worker()
        from distributed import Client  # half a second, which collecting tests need not pay

        with Client(self.address) as client:
            client.wait_for_workers(count, timeout=60)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    for each in made:
        each.close()


@pytest.fixture
def cluster(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """That of the test before, as long as its scheduler is alive: to start one takes seconds."""
    if not clusters or clusters[-1].scheduler.poll() is not None:
        clusters.append(Cluster(tmp_path_factory.mktemp("cluster")))
    return clusters[-1]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bench") / "swept.py"
    file.write_text(BENCH)
    return file


@pytest.fixture
def run(bench: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # a bench's folder is put on it
    return load_user_module(str(bench)).run


def test_rows_of_a_cluster_are_those_of_one_process_though_a_worker_is_killed(cluster, run, tmp_path: Path) -> None:
    over = {"n": list(range(1, 6)), "machine:cube.links.router_bw_gbs": [128, 256]}
    params = {"folder": str(tmp_path), "wait_s": 0.1}
    expected = sweep(run, over, params=params, overrides=SMALL, workers=0)
    (tmp_path / "pids").unlink()
    cluster.have_workers(2)
    killed: list[int] = []

    def kill_one(progress: SweepProgress) -> None:
        if progress.done >= 4 and not killed:
            pid = int((tmp_path / "pids").read_text().splitlines()[-1].split()[0])
            os.kill(pid, signal.SIGKILL)  # while it runs a point
            killed.append(pid)
            cluster.add_worker()

    settings = {"params": params, "overrides": SMALL, "cluster": cluster.address, "out": tmp_path / "out"}
    rows = sweep(run, over, progress=kill_one, **settings)
    assert killed
    assert rows == expected
    assert [row.params["n"] for row in rows if not row.ok] == [4, 4]
    pids = {line.split()[0] for line in (tmp_path / "pids").read_text().splitlines()}
    assert len(pids) >= 2
    (tmp_path / "pids").unlink()
    assert sweep(run, over, **settings) == expected  # from the folder
    assert not (tmp_path / "pids").exists()


def test_a_point_that_kills_worker_after_worker_is_a_row_with_its_error(cluster, run, tmp_path: Path) -> None:
    cluster.have_workers(4)
    params = {"folder": str(tmp_path), "kills": 2}
    rows = sweep(run, {"n": [1, 2, 3]}, params=params, overrides=SMALL, cluster=cluster.address)
    assert [row.ok for row in rows] == [True, False, True]
    assert "workers that ran this point ended" in str(rows[1].error)


def test_a_scheduler_that_ends_leaves_a_sweep_that_can_go_on(cluster, run, tmp_path: Path) -> None:
    cluster.have_workers(1)

    def end_it(progress: SweepProgress) -> None:
        if progress.done == 2:
            cluster.scheduler.kill()

    over, params = {"n": list(range(5, 11))}, {"folder": str(tmp_path), "wait_s": 0.1}
    settings = {"params": params, "overrides": SMALL, "out": tmp_path / "out"}
    with pytest.raises(UsageError, match="connection to the cluster is lost") as lost:
        sweep(run, over, cluster=cluster.address, progress=end_it, **settings)
    assert "run the same sweep again" in str(lost.value.hint)
    seen: list[SweepProgress] = []
    rows = sweep(run, over, workers=0, progress=seen.append, **settings)
    assert all(row.ok for row in rows)
    assert 0 < len(seen) <= 4


@pytest.mark.parametrize("status", ["cancelled", "lost", "finished"])
def test_a_result_that_is_lost_with_its_worker_is_asked_for_again(status: str) -> None:
    """Up to the moment at which it is fetched."""

    class Gone:
        def __init__(self) -> None:
            self.status = status

        def result(self) -> None:
            raise CancelledError("its worker ended")

    assert _outcome(Gone(), PointTask(0, Point({}, {}))) is None
