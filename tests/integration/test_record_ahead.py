"""Worker processes that record launches ahead: the same results, whatever becomes of them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are made by fork, on Linux only")

PROGRAM = """
import hashlib, json, os, sys, threading, time
from kernbench.benches import llm_layer
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.memo import record_ahead, launch_recorder
from kernbench.topology import load_topology

record_ahead.LONG, launch_recorder.STEPS = 1, 16
begin, taken, began = record_ahead.RecordAhead.begin, [], []
def begun(self):
    had = self._workers
    begin(self)
    if self._workers is not had and not self.is_worker:
        began.append(len(self._workers.pids))
        time.sleep(0.2)  # workers come first
record_ahead.RecordAhead.begin = begun
take = record_ahead.RecordAhead.take
def noted(self, key, kind):
    found = take(self, key, kind)
    taken.append(found is not None)
    return found
record_ahead.RecordAhead.take = noted
{change}
machine = {{"system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1,
           "cube.pe_layout": {{"corners": ["NW", "SE"], "pe_per_corner": 1}}}}
engine = GraphEngine(load_topology(None, machine), op_log=OpLog(), data=False)
with RuntimeContext(engine) as torch:
    rows = llm_layer.llm_layer(torch, model="tiny-llama", tokens=4)
    log = hashlib.sha256()
    for record in engine.log.records:
        log.update(repr(record).encode())
    launches = [launch.as_json() for launch in torch.launches]
print(json.dumps([launches, log.hexdigest(), engine.now_ns, rows]))
print(json.dumps({{"taken": sum(taken), "workers": sum(began)}}), file=sys.stderr)
"""


def carried_out(program: str, tmp_path: Path, workers: str) -> subprocess.CompletedProcess[str]:
    """What comes of a program in a process of its own."""
    environment = {**os.environ, "KERNBENCH_WORKERS": workers, "TMPDIR": str(tmp_path)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


def run(tmp_path: Path, workers: str, change: str = "") -> subprocess.CompletedProcess[str]:
    return carried_out(PROGRAM.format(change=change), tmp_path, workers)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What comes of the program where no process runs ahead."""
    done = run(tmp_path_factory.mktemp("alone"), "0")
    assert json.loads(done.stderr) == {"taken": 0, "workers": 0}
    return done.stdout


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_results_are_the_same_with_workers_and_folders_of_killed_processes_are_removed(
    alone: str, tmp_path: Path
) -> None:
    for name in ("left", "alive"):
        (tmp_path / f"kernbench-{name}").mkdir()
        (tmp_path / f"kernbench-{name}" / "lock").touch()
    with (tmp_path / "kernbench-alive" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a process that lives does
        done = run(tmp_path, "3")
    assert done.stdout == alone
    assert json.loads(done.stderr)["taken"] > 0
    assert json.loads(done.stderr)["workers"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["kernbench-alive"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_runs_with_contents_have_workers_too(tmp_path: Path) -> None:
    """As `kernbench run` has it: the bench is a program that waits for the ranks that it started."""
    program = (
        PROGRAM[: PROGRAM.index("engine = ")].format(change="")
        + """
import kernbench
layer = {"model": "tiny-llama", "tokens": 4}
log = OpLog()
result = kernbench.run(
    llm_layer.llm_layer, None, machine, params=layer, device="whole", verify_data=True, op_log=log
)
assert result.ok
print(json.dumps([result.as_json(), [repr(record) for record in log.records]]))
print(json.dumps({"taken": sum(taken)}), file=sys.stderr)
"""
    )
    alone, ahead = (carried_out(program, tmp_path, workers) for workers in ("0", "2"))
    assert alone.stdout == ahead.stdout
    assert json.loads(alone.stderr)["taken"] == 0
    assert json.loads(ahead.stderr)["taken"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("when", "change"),
    [
        ("at once", "record_ahead.RecordAhead._become_worker = lambda self: os._exit(1)"),
        ("with what it has claimed", "record_ahead.RecordAhead.give = lambda self, key, found: os._exit(1)"),
        ("by an error", "record_ahead.RecordAhead.give = lambda self, key, found: 1 / 0"),
    ],
)
def test_a_worker_that_ends_is_not_missed(when: str, change: str, alone: str, tmp_path: Path) -> None:
    done = run(tmp_path, "2", change)
    assert done.stdout == alone
    assert json.loads(done.stderr) == {"taken": 0, "workers": 2}
    assert not list(tmp_path.iterdir())


UNEVEN = """
import kernbench
from kernbench.policy.placement.dp import DPPolicy

@kernbench.repeatable
def first(x, tl):
    for _ in range(10 + tl.program_id(1)):  # cubes differ
        tl.store(x.local, tl.load(x.local))

@kernbench.repeatable
def looks(x, more, tl):
    a = tl.full((4,), 1, "bf16").numpy()
    try:
        a[0] += 1
    except ValueError:
        a = a + 1
    for _ in range(int(a[0]) + more):
        tl.store(x.local, tl.load(x.local))

def work(rank, torch, lines):
    torch.ahbm.set_device(rank)
    x = torch.zeros(16, 64, dtype="f16", dp=DPPolicy(cube="row_wise", pe="row_wise"))
    with torch.record_ahead(), torch.explore_ahead():
        for number, line in enumerate(lines[rank]):
            torch.launch(first if number == 0 else looks, x, *([] if number == 0 else [int(line)]))
            if rank and not number:
                torch.launch(looks, x, 8)  # this rank is late for the first collective
            torch.distributed.all_reduce(x)

machine["sip.cube_mesh.w"] = 2
engine = GraphEngine(load_topology(None, machine), op_log=OpLog(), data=False)
names = [os.path.join(os.environ["TMPDIR"], f"lines{rank}") for rank in range(2)]
for name in names:
    with open(name, "w") as file:
        file.write("".join(f"{number}\\n" for number in (16, 15, 14, 13)))
with RuntimeContext(engine) as torch:
    torch.distributed.init_process_group(backend="ahbm")
    lines = [open(name, buffering=1) for name in names]
    torch.multiprocessing.spawn(work, (torch, lines), nprocs=2)
    launches = [launch.as_json() for launch in torch.launches]
for name in names:
    os.unlink(name)
print(json.dumps([launches, [repr(record) for record in engine.log.records]]))
print(json.dumps({"taken": sum(taken), "workers": sum(began)}), file=sys.stderr)
"""


def test_ranks_out_of_step_cubes_that_differ_and_files_that_are_read(tmp_path: Path) -> None:
    program = PROGRAM[: PROGRAM.index("engine = ")].format(change="") + UNEVEN
    alone, ahead = (carried_out(program, tmp_path, workers) for workers in ("0", "2"))
    assert alone.stdout == ahead.stdout
    assert [json.loads(each.stderr)["workers"] for each in (alone, ahead)] == [0, 2]
    assert not list(tmp_path.iterdir())


VARIANTS = """
import kernbench
from kernbench.policy.placement.dp import DPPolicy

@kernbench.repeatable
def again(x, times, tl):
    for _ in range(times):
        tl.store(x.local, tl.load(x.local))

engine = GraphEngine(load_topology(None, machine), op_log=OpLog(), data=False)
with RuntimeContext(engine) as torch:
    x = torch.zeros(16, 64, dtype="f16", dp=DPPolicy(cube="row_wise", pe="row_wise"))
    with torch.record_ahead():
        for times in (20, 21, 22, 23, 24):
            torch.launch(again, x, times)
    launches = [launch.as_json() for launch in torch.launches]
print(json.dumps([launches, [repr(record) for record in engine.log.records]]))
print(json.dumps({"taken": sum(taken)}), file=sys.stderr)
"""


def test_one_kernel_with_several_arguments(tmp_path: Path) -> None:
    program = PROGRAM[: PROGRAM.index("engine = ")].format(change="") + VARIANTS
    alone, ahead = (carried_out(program, tmp_path, workers) for workers in ("0", "1"))
    assert alone.stdout == ahead.stdout
    assert json.loads(ahead.stderr)["taken"] >= 2  # the first was recorded before there was a worker


PIPES = """
import kernbench, socket
from kernbench.policy.placement.dp import DPPolicy

@kernbench.repeatable
def again(x, times, tl):
    for _ in range(40 + times):
        tl.store(x.local, tl.load(x.local))

asked, answers = os.pipe()
os.write(answers, b"012345")
ours, theirs = socket.socketpair()
engine = GraphEngine(load_topology(None, machine), op_log=OpLog(), data=False)
seen = []
with RuntimeContext(engine) as torch:
    x = torch.zeros(16, 64, dtype="f16", dp=DPPolicy(cube="row_wise", pe="row_wise"))
    with torch.record_ahead():
        torch.launch(again, x, 9)
        for _ in range(6):
            seen.append(os.read(asked, 1).decode())
            ours.send(b"!")
            torch.launch(again, x, int(seen[-1] or 0))
print(json.dumps([seen, theirs.recv(99).decode()]))
print(json.dumps({"taken": sum(taken), "workers": sum(began)}), file=sys.stderr)
"""


def test_workers_read_and_write_no_pipes_or_sockets_of_their_process(tmp_path: Path) -> None:
    """Six bytes are read from a pipe, and six are sent through a socket, each by the program itself."""
    program = PROGRAM[: PROGRAM.index("engine = ")].format(change="") + PIPES
    done = carried_out(program, tmp_path, "2")
    assert json.loads(done.stdout) == [["0", "1", "2", "3", "4", "5"], "!!!!!!"]
    assert json.loads(done.stderr) == {"taken": 0, "workers": 2}  # they have ended at the first read


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_other_threads_are_not_copied(alone: str, tmp_path: Path) -> None:
    """A copy of a process has one thread: where there are several there are no workers."""
    change = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    done = run(tmp_path, "2", change)
    assert done.stdout == alone
    assert json.loads(done.stderr) == {"taken": 0, "workers": 0}


def test_an_error_of_the_program_is_reported_once(tmp_path: Path) -> None:
    change = """
def failing(self):
    forward(self)
    raise ValueError("a mistake in the block")
forward = llm_layer.DecoderLayer.forward
llm_layer.DecoderLayer.forward = failing
"""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run(tmp_path, "2", change)
    assert raised.value.stderr.count("SpawnException: all 2 ranks failed") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_workers_end_when_their_process_is_killed(tmp_path: Path) -> None:
    change = """
reserve_recording = record_ahead.RecordAhead.reserve_recording
def noted(self, key):
    if self.is_worker:
        open(os.path.join(os.environ["TMPDIR"], f"{os.getpid()}.worker"), "w").close()
        time.sleep(0.1)
    elif self._workers is not None:
        time.sleep(60)
    return reserve_recording(self, key)
record_ahead.RecordAhead.reserve_recording = noted
"""
    environment = {**os.environ, "KERNBENCH_WORKERS": "2", "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(change=change)], env=environment) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*.worker")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    pids = [int(path.stem) for path in tmp_path.glob("*.worker")]
    assert pids
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)
    assert not list(tmp_path.glob("kernbench-*"))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_number_of_workers_that_is_none_is_refused() -> None:
    environment = {**os.environ, "KERNBENCH_WORKERS": "many"}
    command = [sys.executable, "-m", "kernbench", "run", "--bench", "gemm-single-pe"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "KERNBENCH_WORKERS is 'many'" in done.stderr
