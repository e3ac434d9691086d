"""Mutated machines and command lines: each must end in success or in one clear message, never in a traceback.

    python -m tests.fuzz --rounds 10000 --seed 1

A third of the rounds spoil a file or an option at random, and most of those are refused; the others put together a
machine of plausible values, so that commands run to their end on odd shapes. Whatever the round, nothing may be
written beside the machine's file. The suite runs a short round of the same (tests/integration/test_fuzz.py). A failing
round prints its seed; the same seed makes the same round again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from tests.fuzz_values import BENCHES, KEYS, NASTY, PARAMS, PLAUSIBLE, SMALL, VALUES

from kernbench.cli.main import main as kernbench_main

OUT = "out"  # where pictures may go


@dataclass(frozen=True)
class Outcome:
    args: list[str]
    code: object
    out: str
    err: str
    crash: str | None

    @property
    def fault(self) -> str | None:
        """What is wrong with how it ended; None when all is well."""
        if self.crash:
            return f"crash: {self.crash}"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code!r}"
        if "Traceback" in self.out or "Traceback" in self.err:
            return "a traceback"
        if self.code == 2 and not self.err.strip():
            return "exit code 2 without a message"
        if self.code == 2 and self.out.strip():
            return "exit code 2 with something on standard output"
        if (
            self.code == 2
            and [line[:7] for line in self.err.splitlines()].count("error: ") + ("Usage:" in self.err) != 1
        ):
            return "exit code 2 without one message"
        if self.code == 1:
            return "a check fails on a machine that is sound"
        if self.code != 2 and not all(line.startswith(("warning: ", "  ")) for line in self.err.splitlines()):
            return "something other than warnings on standard error beside success"
        if self.code == 0 and "--json" in self.args and not {"-h", "--version"} & {*self.args}:
            try:
                json.loads(self.out)
            except ValueError:
                return "success, but no JSON"
        return None


def call(args: list[str]) -> Outcome:
    """One command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    crash = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            kernbench_main(args)
        except SystemExit as exit_:
            code = exit_.code
        except BaseException:
            crash = traceback.format_exc(limit=-6)
    return Outcome(args, code, out.getvalue(), err.getvalue(), crash)


def mutate(text: str, rng: random.Random) -> bytes:
    """A few edits of the kinds that people, and discs, make."""
    lines = text.splitlines()
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        if not lines:
            break
        i = rng.randrange(len(lines))
        kind = rng.randrange(9)
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[i])
        elif kind == 2:
            j = rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3 and ":" in lines[i]:
            lines[i] = lines[i].split(":", 1)[0] + ": " + rng.choice(NASTY)
        elif kind == 4:
            lines[i] = " " * rng.randrange(5) + lines[i]
        elif kind == 5 and len(lines[i]) > 1:
            at = rng.randrange(len(lines[i]))
            lines[i] = lines[i][:at] + rng.choice("{}[]:,#&*!|>'\"%@`\t- 0az") + lines[i][at + 1 :]
        elif kind == 6:
            lines = lines[:i]
        elif kind == 7 and ":" in lines[i]:
            key = lines[i].split(":", 1)[0]
            lines[i] = lines[i].replace(key.strip() or key, key.strip()[::-1] or "x", 1)
        else:
            digits = [k for k, c in enumerate(lines[i]) if c.isdigit()]
            if digits:
                at = rng.choice(digits)
                lines[i] = lines[i][:at] + rng.choice(["0", "9", "-", "e", ".", "00"]) + lines[i][at + 1 :]
    data = "\n".join(lines).encode()
    if rng.random() < 0.05 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 6))) + data[at + 1 :]
    return data


def _put(tree: dict[str, object], path: list[str], value: object) -> None:
    for part in path[:-1]:
        inner = tree.setdefault(part, {})
        assert isinstance(inner, dict)
        tree = inner
    tree[path[-1]] = value


def plausible(rng: random.Random, folder: Path) -> list[str]:
    """A command that may well succeed, on a small machine of odd shape, some of it from a file and a base."""
    chosen = {key: rng.choice(PLAUSIBLE[key]) for key in rng.sample(list(PLAUSIBLE), rng.randrange(1, 9))}
    settings: list[str] = []
    tree: dict[str, object] = {"base": "small.yaml"}
    for key, value in chosen.items():
        if rng.random() < 0.5:
            settings += ["--set", f"{key}={json.dumps(value)}"]
        else:
            _put(tree, key.split("."), value)
    (folder / "small.yaml").write_text(SMALL)
    (folder / "machine.yaml").write_text(json.dumps(tree, indent=rng.choice([None, 2])))  # JSON is YAML
    args = ["--topology", str(folder / "machine.yaml"), *settings]
    kind = rng.random()
    if kind < 0.4:
        more = rng.choice(
            [["--nodes"], ["--json"], ["--json", "--nodes"], ["--emit", OUT], ["--emit", OUT, "--json"], []]
        )
        return ["topology", *args, *more]
    if kind < 0.8:
        case = rng.choice(
            ["pe-local-hbm", "h2d-1hop", "d2h-2hop", "pe-sram", "pe-cross-sip-hbm-write", "contention-2-to-slice"]
        )
        size = rng.choice(["1", "255", "256", "257", "4KiB", "10000"])
        return ["probe", *args, "--case", case, "--nbytes", size, *rng.sample(["--json", "--strict", "--no-sweep"], 2)]
    if kind < 0.9:
        return ["list", *rng.choice([[], [rng.choice(BENCHES)]]), *rng.choice([[], ["--json"]])]
    params = [f"{rng.choice(PARAMS)}={rng.choice(VALUES)}" for _ in range(rng.randrange(3))]
    more = rng.sample(["--json", "--verify-data", "--device=sip:0", "--device=sip:9", "--debug-ops"], rng.randrange(3))
    return ["run", "--bench", rng.choice(BENCHES), *args, *(f"--param={param}" for param in params), *more]


def command_line(rng: random.Random, folder: Path, default: str) -> list[str]:
    """A command on a spoilt or on an odd machine, or a spoilt command."""
    if rng.random() < 0.65:
        return plausible(rng, folder)
    command = rng.choice(["topology", "topology", "topology", "probe", "fidelity", "prob", "--version", "run"])
    args = [command]
    if rng.random() < 0.75:
        path = folder / "machine.yaml"
        path.write_bytes(mutate(rng.choice([default, SMALL, SMALL]), rng))
        args += ["--topology", str(path)]
    elif rng.random() < 0.2:
        args += ["--topology", rng.choice([str(folder), str(folder / "none.yaml"), "", "\0", "default"])]
    for _ in range(rng.choice([0, 0, 1, 2])):
        args += ["--set", f"{rng.choice(KEYS)}{rng.choice(['=', '=', '=', '', '=='])}{rng.choice(NASTY)}"]
    if command == "probe":
        args += ["--case", rng.choice(["pe-local-hbm", "h2d-1hop", "nothing", "", "pe-sram"])]
        if rng.random() < 0.3:
            args += ["--nbytes", rng.choice([*NASTY, "4KiB", "1k", "4096"])]
    if rng.random() < 0.7:
        args.append("--json")
    if rng.random() < 0.1:
        args.append(rng.choice(["--strict", "--emit", "--plot", "--nonsense", "-h", "extra"]))
    return args


def run_rounds(rounds: int, seed: int, *, stop_at: int = 10) -> tuple[Counter[object], list[tuple[int, Outcome]]]:
    """Exit codes counted, and the rounds that ended badly (with their seeds)."""
    default = resources.files("kernbench.topology").joinpath("default.yaml").read_text()
    codes: Counter[object] = Counter()
    bad: list[tuple[int, Outcome]] = []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        for n in range(seed, seed + rounds):
            outcome = call(command_line(random.Random(n), folder, default))
            codes[outcome.code] += 1
            if not {path.name for path in folder.iterdir()} <= {"machine.yaml", "small.yaml", OUT}:
                outcome = replace(outcome, crash="something was written beside the machine's file")
            if outcome.fault:
                bad.append((n, outcome))
                if len(bad) >= stop_at:
                    break
    return codes, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    options = parser.parse_args()
    codes, bad = run_rounds(options.rounds, options.seed)
    print(f"{sum(codes.values())} rounds; exit codes {dict(sorted(codes.items(), key=str))}; ended badly: {len(bad)}")
    for seed, outcome in bad:
        print(f"\nround {seed}: {outcome.fault}\n  args: {outcome.args}\n  err: {outcome.err[:500]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
