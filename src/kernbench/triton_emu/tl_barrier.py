"""`tl`: a barrier over the PEs of a launch."""

from __future__ import annotations

from kernbench.common.commands import BarrierCmd, DmaReadCmd, RecvCmd, WaitCmd
from kernbench.triton_emu.call_site import kernel_line
from kernbench.triton_emu.kernel_env import KernelEnv
from kernbench.triton_emu.tl_core import TlCore


class TlBarrier(TlCore):
    """Barriers, counted."""

    def __init__(self, env: KernelEnv) -> None:
        super().__init__(env)
        self._barriers = 0

    def barrier(self, *, wait_for_loads: bool = True) -> None:
        """Wait until all PEs of this launch, on all its cubes and SIPs, have reached their barrier of the same number;
        before that, for all commands of this kernel in flight except receives. What a PE did before a barrier is
        visible to every PE after it. With `wait_for_loads=False` asynchronous loads go on meanwhile: of what no PE
        writes, such as weights that are needed after the barrier.

        Engine: none; takes the time of control messages from PE_CPU to M_CPU, for several cubes on to IO_CPU, for
        several SIPs to that of the first, and back, from the arrival of the last PE. A PE that never arrives is a
        deadlock, and is named in its report.
        """
        going_on = (RecvCmd,) if wait_for_loads else (RecvCmd, DmaReadCmd)
        running = tuple(n for n, cmd in self._runner.under_way.items() if not isinstance(cmd, going_on))
        if running:
            self._call(WaitCmd(running))
            for number in running:
                self._raise_failure(number)
        self._barriers += 1
        self._call(BarrierCmd(self._barriers, kernel_line()))
