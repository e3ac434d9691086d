"""PE_CPU: the start it is given, one launch after another, busy times, and what a kernel on it can ask for."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.messages import KernelLaunchMsg, KernelRef, PeResult, TensorArg, TensorShard
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.values.evaluate import evaluate

TINY = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
FLIT_READ = 13.0  # what a read or write costs besides its flits


class OnePe:
    """A machine with physical addresses, and PE 0 of it, without a host around them."""

    def __init__(self) -> None:
        self.engine = GraphEngine(load_topology(None, TINY | {"system.address_model": "pa"}))
        self._used = 0

    def tensor(self, array) -> TensorArg:
        value = self.engine.values.constant(array)
        slice_bytes = self.engine.graph.spec.cube.hbm_slice_bytes
        pa = PhysAddr.pe_hbm_addr(0, 0, 0, self._used, slice_bytes).raw
        self._used += -(-value.nbytes // 4096) * 4096
        self.engine.memory.write(pa, value)
        return TensorArg("x", value.shape, value.dtype.name, None, (TensorShard(0, 0, 0, pa, value.nbytes, 0),))

    def launch(self, kernel, *args, start_ns=None) -> list[PeResult]:
        """Send a launch from M_CPU; the list has the answer once time has passed."""
        engine, answers = self.engine, []
        engine.kernels[kernel.__name__] = kernel
        msg = KernelLaunchMsg(
            sip=0,
            target_cubes=(0,),
            target_pes=(0,),
            kernel_ref=KernelRef(kernel.__name__),
            args=args,
            target_start_ns=start_ns,
        )
        m_cpu = engine.component("sip0.cube0.m_cpu")
        path = engine.router.find_node_path("sip0.cube0.m_cpu", "sip0.cube0.pe0.pe_cpu")

        def ask():
            reply = yield m_cpu.command(msg, path, None, None)
            answers.append(reply.payload)

        engine.env.process(ask())
        return answers

    def run(self, kernel, *args, **options) -> PeResult:
        answers = self.launch(kernel, *args, **options)
        self.engine.env.run()
        return answers[0]


def test_a_kernel_starts_at_the_given_instant():
    def kernel(tl):
        tl.cycles(5)

    result = OnePe().run(kernel, start_ns=100.0)
    assert (result.start_ns, result.end_ns, result.pe_exec_ns) == (100.0, 105.0, 5.0)


def test_a_kernel_whose_instant_has_passed_starts_at_once():
    def kernel(tl): ...

    result = OnePe().run(kernel, start_ns=0.0)
    assert result.start_ns == result.end_ns > 0


def test_launches_on_one_pe_wait_for_each_other():
    def kernel(tl):
        tl.cycles(1000)

    pe = OnePe()
    first, second = pe.launch(kernel, start_ns=50.0), pe.launch(kernel, start_ns=60.0)
    pe.engine.env.run()
    assert (first[0].start_ns, second[0].start_ns) == (50.0, 1050.0)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_busy_times_are_those_of_the_dma_and_of_the_compute_slot():
    def kernel(a, tl):
        x = tl.load(a)
        tl.cycles(7)
        tl.dot(x, x)
        tl.exp(x)

    pe = OnePe()
    result = pe.run(kernel, pe.tensor(np.ones((64, 64), np.float16)))
    read, product, math = 32 + FLIT_READ, 64 * 64 * 64 / 4096, 64 * 64 / 256
    assert (result.dma_ns, result.compute_ns) == (read, product + math)
    assert result.pe_exec_ns == (1 + read) + 7 + (1 + product) + (1 + math)


def test_overlapping_transfers_count_once():
    def kernel(a, tl):
        h = tl.composite("math", tl.ref(a), out_ptr=a, math_op="exp")  # reads and writes at the same time
        tl.wait(h)

    pe = OnePe()
    result = pe.run(kernel, pe.tensor(np.ones((128, 128), np.float16)))
    assert result.dma_ns <= result.pe_exec_ns


def test_physical_addresses_need_no_translation_and_are_checked():
    def kernel(a, tl):
        tl.store(a, tl.load(a) * 2)
        tl.load(a + 2, (8,))

    pe = OnePe()
    arg = pe.tensor(np.arange(8, dtype=np.float16))
    result = pe.run(kernel, arg)
    assert result.error is not None
    assert "16 bytes at offset 2 run past 'a', which has 16 bytes (2 too many)" in result.error.message
    found = pe.engine.memory.read(arg.shards[0].pa, (8,), "f16")
    assert list(evaluate([found])[0]) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_an_unknown_kernel_is_a_failure():
    def kernel(tl): ...

    pe = OnePe()
    answers = pe.launch(kernel)
    pe.engine.kernels.clear()
    pe.engine.env.run()
    assert answers[0].error.message.startswith("no kernel 'kernel' on this device")


@pytest.mark.parametrize("raised", [ValueError("bad"), KeyError("k")])
def test_what_a_kernel_raises_is_in_the_answer_and_time_goes_on(raised):
    def kernel(tl):
        tl.cycles(3)
        raise raised

    pe = OnePe()
    result = pe.run(kernel)
    assert (result.error.kind, result.pe_exec_ns) == (type(raised).__name__, 3.0)
    assert result.error.source_line == "raise raised"

    def fine(tl): ...

    assert pe.run(fine).error is None
