"""Launches of a finished run: the content of `launches.json`, and an index of their ops and tensors."""

from __future__ import annotations

from dataclasses import asdict

from kernbench.common.messages import KernelLaunchMsg, TensorArg
from kernbench.report.runs.op_table import LaunchIndex, LaunchPart, LoggedTensorRange
from kernbench.report.runs.parts import PeRun
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.launches import Launch


def launch_row(launch: Launch) -> dict[str, object]:
    """A launch as it is saved."""
    request = launch.handles[0].request
    pes = [PeRun(r.sip, r.cube, r.pe, r.start_ns, r.end_ns, r.dma_ns, r.compute_ns) for r in launch.pes if r.pe_exec_ns]
    return {
        "name": launch.name,
        "kernel": launch.kernel_ref,
        "stream": request.stream if isinstance(request, KernelLaunchMsg) else "compute",
        "sips": list(launch.sips),
        "start_ns": launch.start_ns,
        "end_ns": launch.end_ns,
        "flops": launch.flops,
        "bytes_hbm": launch.bytes_hbm,
        "called_at": launch.called_at,
        "pes": [asdict(pe) for pe in pes],
        "idle_pes": len(launch.pes) - len(pes),
    }


def launches_of(result: BenchResult) -> LaunchIndex:
    """An index that finds the launch of an op, and its tensors."""
    found = LaunchIndex()
    for index, launch in enumerate(result.launches):
        if launch.is_tensor_op and launch.called_at:
            found.called_at[index] = launch.called_at.partition("  ")[0]
        for handle in launch.handles:
            request = handle.request
            if not isinstance(request, KernelLaunchMsg):
                continue
            for pe in handle.results:
                key = (f"sip{pe.sip}.cube{pe.cube}.pe{pe.pe}", request.stream)
                found.parts.setdefault(key, []).append(LaunchPart(pe.start_ns, index))
            tensors = found.tensors.setdefault(index, [])
            for arg in (*request.args, *request.named_args.values()):
                if isinstance(arg, TensorArg):
                    tensors += _ranges(arg)
    for parts in found.parts.values():
        parts.sort(key=lambda part: part.start_ns)
    return found


def _ranges(arg: TensorArg) -> list[LoggedTensorRange]:
    if arg.va_base is not None:
        return [LoggedTensorRange(arg.name, arg.va_base, arg.va_base + arg.span_bytes)]
    return [LoggedTensorRange(arg.name, shard.pa, shard.pa + shard.nbytes) for shard in arg.shards]
