"""Tensors in a cube's SRAM and in PEs' TCM, reached by kernels in both address models."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

X = np.arange(64, dtype=np.float32).reshape(8, 8)


def context(model: str, **settings: object) -> RuntimeContext:
    changes = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "system.address_model": model}
    return RuntimeContext(GraphEngine(load_topology(None, {**changes, **settings})))


def copy(source, target, tl):
    tl.store(target, tl.load(source, source.shape))


@pytest.mark.parametrize("model", ["va", "pa"])
class TestSpaces:
    def test_a_kernel_reads_and_writes_sram(self, model):
        with context(model) as torch:
            x, out = torch.from_numpy(X, space="sram"), torch.zeros(8, 8, dtype="f32", space="sram")
            torch.launch("copy", copy, x, out, target_pes=3)
            assert (out.numpy() == X).all()
            assert (x.space, out.space) == ("sram", "sram")
            assert (out.cpu() == X).all()  # the host reaches it too

    def test_sram_costs_its_link_and_its_latency(self, model):
        """256 bytes: 1 ns to issue; a request over the routers; 2 ns in the SRAM; 128 GB/s on its link."""
        times = {}
        for space in ("hbm", "sram"):
            with context(model) as torch:
                x = torch.from_numpy(X, space=space)
                times[space] = torch.launch("k", lambda x, tl: tl.load(x), x, target_pes=0).pe_exec_ns_max
                path = torch.engine.router.find_path("sip0.cube0.pe0", "sip0.cube0.sram")
                there = torch.engine.latency_ns(tuple(path))
                back = torch.engine.latency_ns(tuple(path)[::-1])
        links = len(path) - 1
        # flits: one of 256 bytes, 2 ns on the SRAM's link and 1 ns on each of the others
        assert times["sram"] == pytest.approx(1 + there + back + 2.0 + (links - 1) * 1.0, abs=1e-6)
        assert times["sram"] != times["hbm"]

    def test_each_cube_has_its_own_part_and_its_pes_share_it(self, model):
        def double(x, out, tl):
            assert x.space == "sram"
            assert x.local_shape == (4, 8)
            if tl.program_id(0) == 5:
                tl.store(out.local, tl.load(x.local) * 2)

        with context(model) as torch:
            dp = DPPolicy(cube="row_wise")
            x, out = (torch.from_numpy(a, dp=dp, space="sram") for a in (X, np.zeros_like(X)))
            launch = torch.launch("double", double, x, out)
            assert len(launch.pes) == 16  # a tensor in SRAM does not choose PEs
            assert (out.numpy() == 2 * X).all()

    def test_a_kernel_reaches_another_pes_tcm(self, model):
        def fill(mailbox, x, tl):
            me = tl.program_id(0)
            if me == 0:
                tl.store(mailbox.local, tl.load(x, (8, 8)))

        def collect(mailbox, out, tl):
            if tl.program_id(0) == 1:
                tl.store(out, tl.load(mailbox, (8, 8)))

        with context(model) as torch:
            mailbox = torch.empty(8, 8, dtype="f32", space="tcm")  # on PE 0
            x, out = torch.from_numpy(X), torch.zeros(8, 8, dtype="f32")
            torch.launch("fill", fill, mailbox, x, target_pes=(0, 1))
            torch.launch("collect", collect, mailbox, out, target_pes=(0, 1))
            assert (out.numpy() == X).all()
            assert (mailbox.numpy() == X).all()

    def test_a_kernel_has_less_tcm_while_a_tensor_is_there(self, model):
        def most(x, tl):
            tl.zeros((1 << 20,), "i8")  # all of the default machine's 1 MiB

        with context(model) as torch:
            x = torch.zeros(8, dtype="f32")
            torch.launch("k", most, x)
            held = torch.empty(64, dtype="f32", space="tcm")
            with pytest.raises(KernBenchError, match="TCM overflow"):
                torch.launch("k", most, x)
            del held
            torch.launch("k", most, x)

    def test_composites_stream_from_and_to_sram(self, model):
        def product(a, b, c, tl):
            tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c))

        rng = np.random.default_rng(0)
        a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
        with context(model) as torch:
            left, right = torch.from_numpy(a, space="sram"), torch.from_numpy(b)
            out = torch.empty(64, 64, space="sram")
            torch.launch("product", product, left, right, out, target_pes=0)
            assert (out.numpy() == a.astype(np.float32) @ b).all()


def test_sram_is_given_back():
    with context("va") as torch:
        for _ in range(3):
            x = torch.empty(30 << 20, dtype="i8", space="sram")  # of 32 MiB
            del x


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda torch: torch.empty(8, space="cache"), "space is 'cache'"),
        (lambda torch: torch.zeros(8, space="tcm"), "the host cannot write a PE's TCM"),
        (lambda torch: torch.empty(8, 8, space="sram", dp=DPPolicy(pe="row_wise")), "all PEs of a cube share its SRAM"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with context("va") as torch, pytest.raises(UsageError) as caught:
        make(torch)
    assert says in str(caught.value)
