"""Random machines and programs for the exactness fuzzer (`tests.fuzz_exact`). A program is source text, so that a
failing one can be read, kept and run by `kernbench run --bench FILE`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

PES, COLS, ROWS = 4, 256, 32  # PEs of a cube, and the part of a tensor on each of them: 16 KiB of f16
PART_BYTES = 2 * ROWS * COLS
PE = "cube.pe_template.components"

# Values that each change how simultaneous and contended things are ordered.
MACHINES: dict[str, list[object]] = {
    "system.sips.count": [1, 2, 2, 3],
    "sip.cube_mesh.w": [1, 2, 2],
    "system.ns_per_mm": [0, 0.1, 0.1, 3],
    "system.flit_bytes": [16, 64, 256, 256, 1024, 1024],
    "system.switch.attrs.overhead_ns": [0, 5],
    "sip.links.cube_to_cube.bw_gbs": [0.5, 100, 512, 100000],
    "cube.components.router.attrs.overhead_ns": [0, 0, 0.3, 2],
    "cube.components.ucie.attrs.overhead_ns": [0, 8],
    "cube.components.hbm_ctrl.attrs.switch_penalty_ns": [0, 0, 12.5],
    "cube.components.hbm_ctrl.attrs.efficiency": [0.37, 1, 1],
    "cube.memory_map.hbm_channels_per_pe": [1, 8, 8, 32],
    "cube.memory_map.hbm_mapping_mode": ["n_to_one", "one_to_one", "one_to_one"],
    "system.address_model": ["va", "la"],
    "cube.links.router_bw_gbs": [3, 77.7, 256, 256, 100000],
    "cube.links.pe_dma_to_router_bw_gbs": [16, 256, 256, 100000],
    "cube.ucie.n_connections": [1, 4],
    f"{PE}.pe_cpu.attrs.overhead_ns": [0, 1],
    f"{PE}.pe_scheduler.attrs.overhead_ns": [0, 1],
    f"{PE}.pe_dma.attrs.engines_per_direction": [1, 1, 2, 3],
    f"{PE}.pe_dma.attrs.outstanding": [1, 1, 2, 8],
    f"{PE}.pe_dma.attrs.queue_depth": [1, 4],
    f"{PE}.pe_ipcq.attrs.wake_ns": [0, 10],
}

HEAD = """\
import numpy as np

from kernbench import repeatable
from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy

SPLIT = DPPolicy(cube="row_wise", pe="row_wise")
"""


@dataclass(frozen=True)
class Program:
    """`kernels` are bodies of kernels and `host` that of the host program, statement by statement."""

    seed: int
    machine: dict[str, object]
    kernels: tuple[tuple[str, ...], ...]
    plain: tuple[int, ...]  # kernels that are not repeatable
    host: tuple[str, ...]
    layouts: tuple[str, str] = ("tiled", "tiled")  # of x and y

    @property
    def sips(self) -> int:
        return int(str(self.machine.get("system.sips.count", 2)))

    @property
    def cubes(self) -> int:
        width, height = (int(str(self.machine[f"sip.cube_mesh.{side}"])) for side in "wh")
        return width * height

    def source(self) -> str:
        """The program as a bench file."""
        parts = [f'"""Random program {self.seed}."""\n\n' + HEAD]
        for number, body in enumerate(self.kernels):
            mark = "" if number in self.plain else "@repeatable\n"
            lines = ["me = tl.program_id(0)", *body]
            parts.append(f"{mark}def kernel{number}(x, y, z, n, tl):\n{_indented(lines)}")
        begin = [
            "device, notes = torch.ahbm.current_device(), []",
            f"cubes, pes = range({self.cubes}), range({PES})",
            f"rows = {self.cubes * PES * ROWS}",
            f"x = torch.from_numpy(np.arange(rows * {COLS}).reshape(rows, {COLS}) % 61, dtype='f16', dp=SPLIT,"
            f" layout='{self.layouts[0]}')",
            f"y = torch.zeros(rows, {COLS}, dp=SPLIT, layout='{self.layouts[1]}')",
            f"z = torch.zeros(rows, {COLS}, dtype='i32', dp=SPLIT)",
        ]
        body = _indented([*begin, *self.host, "torch.wait_all()", "return notes"])
        parts.append(f'@bench(name="random-program", description="A random program.")\ndef program(torch):\n{body}')
        return "\n\n".join(parts) + "\n"

    def smaller(self) -> list[Program]:
        """The same with one statement less, or with a value of the machine as shipped."""
        found = [replace(self, host=_without(self.host, at)) for at in range(len(self.host))]
        if self.layouts != Program.layouts:
            found.append(replace(self, layouts=Program.layouts))
        for number, body in enumerate(self.kernels):
            for at in range(len(body)):
                kernels = [*self.kernels]
                kernels[number] = _without(body, at)
                found.append(replace(self, kernels=tuple(kernels)))
        needed = ("sip.cube_mesh.w", "sip.cube_mesh.h", "cube.pe_layout.pe_per_corner", "system.sips.count")
        for key in self.machine:
            if key not in needed and key != "cube.components.hbm_ctrl.attrs.burst_bytes":
                gone = (key, "cube.components.hbm_ctrl.attrs.burst_bytes") if key == "system.flit_bytes" else (key,)
                found.append(replace(self, machine={k: v for k, v in self.machine.items() if k not in gone}))
        return found


def _without(lines: tuple[str, ...], at: int) -> tuple[str, ...]:
    return lines[:at] + lines[at + 1 :]


def _indented(statements: list[str]) -> str:
    return "\n".join(f"    {line}" for statement in statements for line in statement.splitlines())


def program(seed: int) -> Program:
    """The program of a seed: always the same one."""
    rng = random.Random(f"exact/{seed}")
    machine = {key: rng.choice(MACHINES[key]) for key in rng.sample(list(MACHINES), rng.randrange(1, 9))}
    machine |= {"sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    machine.setdefault("sip.cube_mesh.w", rng.choice([1, 2]))
    more = random.Random(f"more/{seed}")  # apart, so that what is added here leaves the other draws of a seed alone
    if machine["sip.cube_mesh.w"] == 1 and more.random() < 0.5:
        machine["sip.cube_mesh.h"] = 2
    if "system.flit_bytes" in machine:
        machine["cube.components.hbm_ctrl.attrs.burst_bytes"] = machine["system.flit_bytes"]
    machine |= _memory(random.Random(f"memory/{seed}"), machine)
    bodies = [_with_argument(rng, _kernel(rng)) for _ in range(rng.randint(1, 3))]
    if more.random() < 0.4:
        _add_many_runs(more, bodies)
    kernels = tuple(map(tuple, bodies))
    plain = tuple(number for number in range(len(kernels)) if rng.random() < 0.2)
    rows = random.Random(f"layout/{seed}")
    layouts = rows.choice(["tiled", "row_major"]), rows.choice(["tiled", "row_major"])
    made = Program(seed, machine, kernels, plain, (), layouts)
    return replace(made, host=tuple(_host(rng, made)))


def _memory(rng: random.Random, machine: dict[str, object]) -> dict[str, object]:
    """How HBM is modelled, for every third program: granules, or the model `closed` as well."""
    burst = int(str(machine.get("system.flit_bytes", 256)))
    if rng.random() < 2 / 3 or burst < 64:
        return {}
    found: dict[str, object] = {"hbm.granule_bytes": rng.choice([16, 32, burst // 2])}
    if rng.random() < 0.6 and "cube.components.hbm_ctrl.attrs.switch_penalty_ns" not in machine:
        # Full bursts take 2 ns and more: 64 B at 32 GB/s.
        found |= {"hbm.model": "closed", "hbm.preset": "hbm2", "hbm.faw_ns": rng.choice([0.0, 7.0])}
        found["hbm.drain_bytes"] = rng.choice([64, 1000, 2048])
    return found


# ---- kernels


def _kernel(rng: random.Random) -> list[str]:
    body = [_step(rng) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.25:
        times = rng.choice(["2", "3"] if _sends(body) else ["2", "1 + me % 2"])  # messages need as many receives
        body = [f"for _ in range({times}):\n{_indented(body)}"]
    if rng.random() < 0.3:
        body.append("tl.wait()")
    return body


def _with_argument(rng: random.Random, body: list[str]) -> list[str]:
    """Half of the kernels depend on their argument `n`, which launches choose: by it they move, wait or hold more."""
    steps = {
        "own": "tl.store(y.local + 2048 * n, tl.load(x.local + 2048 * n, (2, 64)))",
        "other": f"tl.store(y.local + 512, tl.load(x + {PART_BYTES} + 2048 * n, (1, {rng.choice([16, 256])})))",
        "over two parts": f"tl.store(y.local, tl.load(x + {PART_BYTES - 1024}, (4, {COLS})))",
        "times": "for _ in range(n):\n    tl.load(x.local, (2, 64))",
        "waits": "tl.cycles(30 * n)",
        "holds": "held = [tl.zeros((8, 64)) for _ in range(n)]",
    }
    for _ in range(rng.choice([0, 0, 1, 3])):
        body.insert(rng.randrange(len(body) + 1), steps[rng.choice(list(steps))])
    return body


def _add_many_runs(rng: random.Random, bodies: list[list[str]]) -> None:
    """A kernel also stores more runs of bytes than are noted one by one, and one of them, maybe the same, loads some of
    these bytes.
    """
    rows, apart, at = rng.choice([17, 20, 31]), rng.choice([128, 250]), rng.choice([0, 64, 512])
    source = rng.choice([f"tl.load(x.local, ({rows}, 64))", f"tl.full(({rows}, 64), 1.5)"])
    lanes = f"lanes = tl.arange(0, 256) % {rng.choice([2, 3])} == 0"
    stores = [
        f"tl.store(y.local + {at}, {source}, strides=({apart}, 1))",
        f"tl.store_async(y.local + {at}, {source}, strides=({apart}, 1))",
        f"{lanes}\ntl.store(y.local + {at}, tl.full((1, 256), 2.5), mask=lanes)",
    ]
    loads = [
        "tl.load(y.local, (1, 64))",
        f"tl.load(y.local + {at}, ({rows}, 64), strides=({apart}, 1))",
        f"tl.load(y.local + {at}, (8, 100))",
    ]
    for step in (rng.choice(stores), rng.choice(loads)):
        body = rng.choice(bodies)
        body.insert(rng.randrange(len(body) + 1), step)


def _sends(body: Iterable[str]) -> bool:
    return any("tl.recv" in step for step in body)


def _step(rng: random.Random) -> str:
    m, n = rng.choice([1, 2, 4, 8]), rng.choice([16, 64, 100])
    at = rng.choice([0, 0, 64, 512, 514, 1024])
    part = rng.choice(["x", "x.local", "x.local", "y.local"])  # `x` alone is the first PE's part: all of them meet
    rows, inner = rng.choice([(8, 64), (64, 64), (70, 64), (64, 128)])  # of products: with tiles of 32 x 64 x 32
    steps = {
        "load": f"tl.load({part} + {at}, ({m}, {n}))",
        "store": f"tl.store(y.local + {at}, tl.full(({m}, {n}), {rng.choice([1.5, -2.0])}))",
        "change": f"tl.store(y.local + {at}, tl.exp(tl.load({part}, ({m}, {n})) * 0.125))",
        "async": f"held = tl.load_async({part}, ({m}, {n}))\ntl.cycles({rng.randint(1, 300)})\n"
        f"tl.store_async(y.local + {at}, tl.wait(held) * 0.5)",
        "several": f"held = [tl.load_async({part} + 64 * i, ({m}, {n})) for i in range({rng.randint(2, 5)})]\n"
        "for one in held:\n    tl.wait(one)",
        "strided": f"tl.store(y.local, tl.load({part}, (4, 32), strides=(200, {rng.choice([1, 2])})))",
        "masked": f"lanes = tl.arange(0, 64) < {rng.randint(1, 63)}\n"
        f"tl.store(y.local + {at}, tl.load(x.local, ({m}, 64), mask=lanes, other=3.0), mask=lanes)",
        "gemm": f"{rng.choice(['tl.wait', ''])}(tl.composite('gemm', tl.ref(x.local, ({rows}, {inner})), "
        f"tl.ref({rng.choice(['x', 'x.local'])}, ({inner}, {rng.choice([16, 60, 64])})), y.local))",
        "math": f"tl.composite('math', tl.ref(x.local, ({m}, {n})), math_op='exp', out_ptr=y.local + {at})",
        "dot": f"tl.dot(tl.load({part}, ({4 * m}, 16)), tl.load(x.local, (16, 32)))",
        "sum": f"tl.store(y.local + {at}, tl.sum(tl.load({part}, ({m}, {n})), axis=0))",
        "atomic": f"tl.atomic_add({rng.choice(['z', 'z.local'])} + {4 * rng.randrange(8)}, tl.full(({n},), 1, 'i32'))",
        "cycles": f"tl.cycles({rng.choice(['1', '40', '2000', '100 * me'])})",
        "swap": f"sent = tl.send_async(f'intra_{{me ^ 1}}', tl.load(x.local, ({m}, {n})))\n"
        f"tl.store(y.local, tl.recv(f'intra_{{me ^ 1}}', ({m}, {n})))\ntl.wait(sent)",
        "round": f"tl.send(f'intra_{{(me + 1) % {PES}}}', tl.full(({m}, {n}), 1.0))\n"
        f"tl.store(y.local + {at}, tl.recv(f'intra_{{(me - 1) % {PES}}}', ({m}, {n})))",
        "late": f"if me == {rng.randrange(PES)}:\n    tl.cycles({rng.randint(1, 900)})",
    }
    return steps[rng.choice([*steps, "gemm", "gemm", "async", "several"])]


# ---- host programs


def _host(rng: random.Random, made: Program) -> list[str]:
    body: list[str] = []
    if made.sips > 1 and rng.random() < 0.6:
        body.append("torch.distributed.init_process_group('ahbm')")
        kinds = ["launch"] * 4 + ["collective"] * 4 + ["overlap"] * 2
    else:
        kinds = ["launch"] * 5 + ["loop", "other"]
    kinds += ["loop", "loop", "loop", "free", "read", "write", "wait", "skew", "look", "tcm"]
    body += [_host_step(rng, made, rng.choice(kinds)) for _ in range(rng.randint(2, 7))]
    return body


def _host_step(rng: random.Random, made: Program, what: str) -> str:
    launch = _launch(rng, made)
    if what == "loop":
        return f"for _ in range({rng.randint(2, 4)}):\n    {launch}"
    if what == "free":
        made_here = f"t = torch.zeros(rows, {COLS}, dp=SPLIT)"
        return f"{made_here}\n{launch.replace('x, y', rng.choice(['x, t', 't, y']))}\ndel t"
    if what == "read":
        return "notes.append(float(np.asarray(y.numpy(), np.float64).sum()))"
    if what == "write":
        return f"x[{rng.randrange(ROWS)}] = {rng.choice([2.0, -1.0])}"
    if what == "look":  # at counters, with whatever is under way
        return "notes.append([(used.nbytes, used.busy_ns) for used in torch.engine.link_counters().values()])"
    if what == "tcm":  # less of it for kernels
        dp = "DPPolicy(pe='row_wise', num_cubes=1)"
        held = f"held = torch.empty({PES}, {rng.choice([256, 4096])}, dp={dp}, space='tcm')"
        return rng.choice([held, f"{held}\n{launch}\ndel held"])
    if what == "wait":
        return rng.choice(["torch.wait_all()", "torch.ahbm.synchronize()"])
    if what == "skew":
        return f"if device == {rng.randrange(made.sips)}:\n    {launch}"
    if what == "other":  # work on a SIP of another rank
        there = rng.randrange(made.sips)
        tensors = f"t, u = torch.zeros(rows, {COLS}, dp=SPLIT), torch.zeros(rows, {COLS}, dtype='i32', dp=SPLIT)"
        using = launch.replace("x, y, z", "t, t, u")
        return f"torch.ahbm.set_device({there})\n{tensors}\n{using}\ntorch.ahbm.set_device(device)"
    if what in ("collective", "overlap"):
        tensor = rng.choice(["y", "y", "x", "z"])
        calls = [
            f"torch.distributed.all_reduce({tensor}{{more}})",
            f"torch.distributed.broadcast({tensor}, {rng.randrange(made.sips)}{{more}})",
            f"torch.distributed.reduce({tensor}, {rng.randrange(made.sips)}{{more}})",
        ]
        call = rng.choice([*calls, calls[0], "torch.distributed.barrier()"])
        if what == "collective" or "barrier" in call:
            return call.format(more="")
        other = {"x": "y"}.get(tensor, "x")
        between = launch.replace("x, y, z", f"{other}, {other}, z") if tensor != "z" else "pass"
        if rng.random() < 0.5:  # two collectives at a time
            between = f"torch.distributed.all_reduce({other}, async_op=True).wait()"
        return f"work = {call.format(more=', async_op=True')}\n{between}\nwork.wait()"
    return launch


def _launch(rng: random.Random, made: Program) -> str:
    number = rng.randrange(len(made.kernels))
    wait = rng.choice(["True", "True", "True", "False"])
    where = "target_cubes=cubes, target_pes=pes"
    if not _sends(made.kernels[number]):  # messages need all PEs of a cube
        places = [where, where, "target_cubes=cubes, target_pes=(3, 0, 2, 1)", "target_cubes=(0,), target_pes=(1, 2)"]
        where = rng.choice(places)
    argument = rng.choice([0, 0, 0, 1, 2, 3])
    return f"torch.launch('k{number}', kernel{number}, x, y, z, {argument}, {where}, wait={wait})"
