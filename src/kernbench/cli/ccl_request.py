"""What `kernbench ccl` is asked for: collectives, sizes, types, reductions and roots, in the spelling of nccl-tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from kernbench.benches._collective_calls import (
    COLLECTIVE_NAMES,
    OPS,
    REDUCES,
    ROOTED,
    MeasuredCollective,
    OpName,
    WantedCollective,
)
from kernbench.benches._collectives import sizes_between
from kernbench.common.dtypes import DTYPES as DEVICE_DTYPES
from kernbench.common.dtypes import WIDE_DTYPES, dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.units import GIB, KIB, MIB

MOST_BYTES = GIB
FIRST, LAST = "1K", "256K"  # without -b: a range that takes seconds, where nccl-tests takes 32M
_SIZE = re.compile(r"(\d{1,12})\s*([kmg])?i?b?", re.IGNORECASE | re.ASCII)
_ALL_DTYPES = (*DEVICE_DTYPES, *WIDE_DTYPES)
# Names of nccl-tests, then PyTorch's and ours.
DTYPES = {"half": "f16", "float": "f32", "double": "f64", "bfloat16": "bf16"}
DTYPES |= {name: each.name for each in _ALL_DTYPES for name in (each.numpy_name, each.name)}
NAMES = {
    name.replace("_", ""): name for name in COLLECTIVE_NAMES
}  # `alltoall`, `allreduce`: as nccl-tests calls its programs

# Options of nccl-tests that have no effect here.
IGNORED_OPTIONS = (
    ("-n", "--iters"), ("-w", "--warmup_iters"), ("-m", "--agg_iters"), ("-N", "--run_cycles"), ("-a", "--average"),
    ("-p", "--parallel_init"), ("-z", "--blocking"), ("-y", "--stream_null"), ("-T", "--timeout"),
    ("-G", "--cudagraph"), ("-C", "--report_cputime"), ("-R", "--local_register"), ("-S", "--report_timestamps"),
    ("-I", "--per_iter_timing"), ("-K", "--per_iter_skip"),
)  # fmt: skip
_GIVEN = "kernbench.ccl.needless"
F = TypeVar("F", bound=Callable[..., Any])
Known = TypeVar("Known", bound=str)


def ignored_options(command: F) -> F:
    for short, long in IGNORED_OPTIONS:
        option = click.option(short, long, type=int, expose_value=False, hidden=True, callback=_record_ignored)
        command = option(command)
    return command


def _record_ignored(context: click.Context, option: click.Parameter, value: int | None) -> None:
    if value is not None:
        context.meta.setdefault(_GIVEN, []).append(option.opts[0])


def note_ignored(context: click.Context) -> None:
    """Say on standard error which options had no effect."""
    given = context.meta.get(_GIVEN, [])
    if given:
        names = ", ".join(option for option, _ in IGNORED_OPTIONS if option in given)
        click.echo(f"note: {names} did nothing: a run is deterministic, and one iteration is exact", err=True)


def wanted_of(
    collective: str, sizes: list[int], datatype: str, ops: str, root: str, ranks: int, context: click.Context
) -> list[WantedCollective]:
    """Everything that is measured out of place, in order. Raises UsageError for what a collective does not have."""
    name = collective_named(collective)
    if name == "barrier":
        given = [option for option in ("minbytes", "maxbytes", "stepbytes", "datatype", "ops", "root")
                 if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE]  # fmt: skip
        if given:
            raise UsageError("a barrier has no elements", hint="leave sizes, -d, -o and -r out")
        sizes = [0]
    return [
        WantedCollective(name, nbytes, dtype, op, chosen)
        for dtype in _chosen(datatype, DTYPES, "-d")
        for op in _ops(name, ops, dtype)
        for chosen in _roots(name, root, ranks)
        for nbytes in sizes
    ]


def _roots(collective: MeasuredCollective, text: str, ranks: int) -> list[int]:
    """The roots of -r, a rank or `all`, if the collective has a root."""
    if collective not in ROOTED:
        return [0]
    if text == "all":
        return list(range(ranks))
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"-r takes a rank, not '{text[:40]}'", hint=f"give 0 to {ranks - 1}, or all")
    return [int(text)]


def sizes_of(minbytes: str | None, maxbytes: str | None, stepbytes: str | None, stepfactor: int) -> list[int]:
    """The sizes of -b, -e, -i and -f."""
    last = read_bytes(maxbytes or minbytes or LAST, "-b" if maxbytes is None else "-e")
    first = read_bytes(minbytes, "-b") if minbytes else min(read_bytes(FIRST, "-b"), last)
    return sizes_between(first, last, stepfactor, 0 if stepbytes is None else read_bytes(stepbytes, "-i"))


def collective_named(text: str) -> MeasuredCollective:
    """The collective of that name, in any of its spellings; raises UsageError if there is none."""
    name = NAMES.get(text.lower().replace("_", "").replace("-", "").removesuffix("perf"))
    if name is None:
        raise UsageError(f"no collective '{text[:40]}'", hint=f"use one of {', '.join(COLLECTIVE_NAMES)}")
    return name


def _ops(collective: MeasuredCollective, text: str, dtype: str) -> list[OpName]:
    """The reductions of -o, if the collective reduces. `all` leaves out the mean of integers, which does not exist."""
    if collective not in REDUCES:
        return ["sum"]
    found = _chosen(text, {op: op for op in OPS}, "-o")
    if dtype_of(dtype).is_float:
        return found
    if text == "avg":
        raise UsageError(f"-o avg of {dtype}: an average of whole numbers need not be one", hint="use a float type")
    return [op for op in found if op != "avg"]


def _chosen(text: str, known: Mapping[str, Known], option: str) -> list[Known]:
    if text == "all":
        return list(dict.fromkeys(known.values()))
    if text not in known:
        raise UsageError(f"{option} {text[:40]} is not known", hint=f"use one of {', '.join(known)}, or all")
    return [known[text]]


def read_bytes(text: str, option: str) -> int:
    """`8`, `64K`, `128M` in bytes; K, M and G are powers of two. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    number, unit = found.groups() if found else ("0", "")
    nbytes = int(number) * {"k": KIB, "m": MIB, "g": GIB}.get((unit or "").lower(), 1)
    if not 1 <= nbytes <= MOST_BYTES:
        raise UsageError(f"{option} takes a size, not '{text[:40]}'", hint="write for example 8, 64K, 128M; at most 1G")
    return nbytes
