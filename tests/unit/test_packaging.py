"""What pyproject.toml says of packages: each has a least version, and `make test-oldest` installs just those."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def bounds() -> dict[str, str]:
    """What `scripts/lower_bounds` prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "lower_bounds"], capture_output=True, text=True, check=True, timeout=60
    )
    return dict(line.split("==") for line in done.stdout.splitlines())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_the_oldest_versions_are_those_of_every_group_that_tests_need() -> None:
    found = bounds()
    groups = PROJECT["optional-dependencies"]
    needed = [each for name in ("plot", "fast", "log", "cluster", "dse", "web") for each in groups[name]]
    for requirement in [*PROJECT["dependencies"], *needed, "pytest>=", "hypothesis>="]:
        name, _, least = requirement.partition(">=")
        if not name.startswith("kernbench["):
            assert found[name].startswith(re.match(r"[\d.]*", least)[0]), requirement
    assert "playwright" not in found


def test_constraints_are_not_older_than_the_least_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}
    for name, least in bounds().items():
        assert numbers(pinned[name.lower().replace("_", "-")]) >= numbers(least), name


def test_versions_that_were_found_not_to_work_are_not_allowed() -> None:
    """click 8.1 has no NoArgsIsHelpError; anyio before 4.2 makes no CapacityLimiter outside of an event loop."""
    found = bounds()
    assert numbers(found["click"]) >= (8, 2)
    assert numbers(found["anyio"]) >= (4, 2)


def test_files_that_the_quick_tier_leaves_out_are_there() -> None:
    listed = re.findall(
        r'^        "([\w/]+(?:\.py|/))",', (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed
    assert [name for name in listed if not (ROOT / "tests" / "unit" / name).exists()] == []
