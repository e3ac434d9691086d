"""PE_CPU: runs a kernel. All PEs of a launch start at the instant that the launch was stamped with.

The kernel's own Python costs nothing but what it declares with `tl.cycles`; every command goes to PE_SCHEDULER. The
reply says when the kernel ran, and how long the DMA engine and the compute slot were busy meanwhile. A kernel that
raises ends there, and the reply says where. Not modelled: instruction fetch, and the time of scalar code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial

import simpy

from kernbench.common.commands import EngineCommand
from kernbench.common.errors import ComponentError, KernBenchError, KernelError
from kernbench.common.messages import KernelFailure, KernelLaunchMsg, PeResult, TensorArg
from kernbench.common.units import on_grid
from kernbench.components.base import ActiveComponent, Context, Kernel, Packet, Process
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_scheduler import PeSchedulerComponent
from kernbench.policy.address.page_table import Piece
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.graph import Node
from kernbench.triton_emu.binding import bind, tensor_ranges
from kernbench.triton_emu.call_site import failure_of
from kernbench.triton_emu.handle import TensorPtr
from kernbench.triton_emu.kernel_runner import KernelRunner, Records
from kernbench.triton_emu.tl_context import TLContext
from kernbench.triton_emu.tl_core import KernelEnv


class PeCpuComponent(ActiveComponent):
    """Serves launches, one after the other."""

    stores_and_forwards = False

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        place = node.place
        self.key = (place.sip, place.cube, place.pe)
        self.cycle_ns = on_grid(1.0 / float(node.attrs["clock_ghz"]))
        self._dma_id = ctx.resolver.find_pe_part(*self.key, "pe_dma")
        self._scheduler_id = ctx.resolver.find_pe_part(*self.key, "pe_scheduler")
        self._is_running = False
        self._waiting: deque[Packet] = deque()  # launches behind the one that runs

    def accept(self, packet: Packet) -> Process | None:
        if isinstance(packet.request, KernelLaunchMsg):
            if self._is_running:
                self._waiting.append(packet)
            else:
                self._begin(packet)
            return None
        return super().accept(packet)

    def _begin(self, packet: Packet) -> None:
        """Start a launch at its time. At one instant PEs start in the order in which they were told."""
        launch = packet.request
        assert isinstance(launch, KernelLaunchMsg)
        self._is_running = True
        start = self.env.timeout(max((launch.target_start_ns or 0.0) - self.env.now, 0.0))
        start.callbacks.append(partial(self._go_on, self._launch(packet, launch)))

    def _go_on(self, steps: Process, event: simpy.Event) -> None:
        """Drive a launch as a SimPy process would be, without the two events that its start and its end would cost."""
        with suppress(StopIteration):
            following = steps.send(event.value)
            assert following.callbacks is not None
            following.callbacks.append(partial(self._go_on, steps))

    def _launch(self, packet: Packet, launch: KernelLaunchMsg) -> Process:
        start, (dma, compute) = self.env.now, self._busy_ns()
        error = yield from self._run(launch)
        end, (dma_now, compute_now) = self.env.now, self._busy_ns()
        busy = dma_now - dma, compute_now - compute
        self.reply(packet, payload=PeResult(*self.key, start, end, end - start, *busy, error))
        self._is_running = False
        if self._waiting:
            self._begin(self._waiting.popleft())

    def _run(self, launch: KernelLaunchMsg) -> Process:
        """Run the kernel to its end; returns the failure, if it failed."""
        name = launch.kernel_ref.name
        kernel = self.ctx.kernels.get(name)
        if kernel is None:
            known = ", ".join(self.ctx.kernels) or "none"
            error = KernelError(f"no kernel '{name}' on this device", mend=f"launch it by its function; known: {known}")
            return KernelFailure("KernelError", str(error), "", 0, "", *self.key)
        runner = KernelRunner(_Commands(self, launch))
        tl = TLContext(self._environment(launch, kernel, runner))
        try:
            call = bind(kernel, self._arguments(launch), tl)
        except KernBenchError as wrong:
            return failure_of(wrong, kernel, self.key)
        yield from runner.run(call)
        tl.close()
        if runner.error is None:
            return None
        failure = failure_of(runner.error, kernel, self.key)
        runner.error = None  # its traceback holds the kernel's tensors
        return failure

    # ---- what the kernel gets

    def _arguments(self, launch: KernelLaunchMsg) -> list[object]:
        return [self._pointer(arg) if isinstance(arg, TensorArg) else arg.value for arg in launch.args]

    def _pointer(self, arg: TensorArg) -> TensorPtr:
        key = self.key
        local_shape, local = arg.local_shape_for(key), arg.local_address_for(key)
        return TensorPtr(arg.address_for(key), arg.name, arg.shape, local_shape, arg.dtype, local)

    def _environment(self, launch: KernelLaunchMsg, kernel: Kernel, runner: KernelRunner) -> KernelEnv:
        spec = self.ctx.graph.spec
        sip, cube, pe = self.key
        pes, cubes = launch.pes(spec.cube.n_pes), launch.cubes(spec.sip.n_cubes)
        return KernelEnv(
            runner,
            self.ctx.values,
            self.ctx.memory,
            self._translate,
            tensor_ranges(kernel, launch.args),
            self._tcm_base,
            spec.cube.tcm_allocatable_bytes,
            (pes.index(pe), cubes.index(cube), sip),
            (len(pes), len(cubes), spec.n_sips),
        )

    def _tcm_base(self) -> int:
        return PhysAddr.pe_tcm_addr(*self.key, 0).raw

    def _translate(self, address: int, nbytes: int) -> list[Piece]:
        return self.dma.translate(address, nbytes)

    # ---- the blocks beside it: made when a kernel first needs them

    def _busy_ns(self) -> tuple[float, float]:
        """How long the DMA engine and the compute slot have been busy; what nobody has needed yet was not."""
        dma, scheduler = self.ctx.component_so_far(self._dma_id), self.ctx.component_so_far(self._scheduler_id)
        return (
            dma.busy_ns if isinstance(dma, PeDmaComponent) else 0.0,
            scheduler.compute_slot.busy_ns if isinstance(scheduler, PeSchedulerComponent) else 0.0,
        )

    @cached_property
    def scheduler(self) -> PeSchedulerComponent:
        found = self.ctx.component(self._scheduler_id)
        if not isinstance(found, PeSchedulerComponent):
            raise ComponentError(
                f"{found.node.id} takes no commands",
                where=f"impl {found.node.impl}",
                mend="derive its class from kernbench.components.builtin.pe_scheduler.PeSchedulerComponent",
            )
        return found

    @cached_property
    def dma(self) -> PeDmaComponent:
        found = self.ctx.component(self._dma_id)
        if not isinstance(found, PeDmaComponent):
            raise ComponentError(
                f"{found.node.id} moves no bytes",
                where=f"impl {found.node.impl}",
                mend="derive its class from kernbench.components.builtin.pe_dma.PeDmaComponent",
            )
        return found


class _Commands:
    """How a kernel of one launch reaches its PE."""

    def __init__(self, cpu: PeCpuComponent, launch: KernelLaunchMsg) -> None:
        self.env = cpu.env
        self.cycle_ns = cpu.cycle_ns
        self._cpu = cpu
        self._launch = launch

    def submit(self, cmd: EngineCommand, done: Callable[[Records], None]) -> None:
        self._cpu.scheduler.submit(cmd, self._launch, done)
