"""Kernels on a memory with banks: right numbers, right counts, the same every time, and what cannot be is refused."""

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import TopologyError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

ONE = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
BANKS = {"hbm.model": "banks", "hbm.preset": "hbm2"}


def machine(**other):
    return load_topology(None, {**ONE, **BANKS, **{key.replace("__", "."): value for key, value in other.items()}})


def double(x, y, tl):
    tl.store(y, tl.load(x) * 2)


def product(x, y, tl):
    tl.wait(tl.composite("gemm", tl.ref(x), tl.ref(x), out_ptr=y, tile_shape=(32, 32, 32)))


@pytest.mark.needs("n_to_one", reason="the model of banks takes accesses whole")
def test_kernels_read_and_write_through_banks():
    x = np.arange(64 * 64, dtype=np.float16).reshape(64, 64) % 7
    (_, y), ns = run_kernel(double, x, np.zeros_like(x), topology=machine())
    assert (y == 2 * x).all()
    (_, y), again = run_kernel(product, x, np.zeros_like(x), topology=machine())
    assert (y == (x.astype(np.float32) @ x.astype(np.float32)).astype(np.float16)).all()
    assert (ns, again) == tuple(
        run_kernel(kernel, x, np.zeros_like(x), topology=machine()).time_ns for kernel in (double, product)
    )


@pytest.mark.needs("n_to_one", reason="the model of banks takes accesses whole")
def test_compiled_banks_are_compared_with_plain_ones():
    pytest.importorskip("numba")
    made = []

    def program(torch):
        x, y = torch.zeros(64, 256, preset=True), torch.empty(64, 256)
        torch.launch("double", double, x, y)
        channels = torch.engine.component("sip0.cube0.hbm_ctrl.pe0")._banked
        made.append({channel.scheduler.is_compiled for channel in channels})

    check = kernbench.run(program, overrides={**ONE, **BANKS}, check_fast=True).fast_check
    assert check is not None
    assert check.ok, check.as_text()
    assert made == [{True}, {False}]


@pytest.mark.needs("n_to_one", reason="the model of banks takes accesses whole")
def test_nothing_is_replayed():
    engine = GraphEngine(machine())
    assert engine.stats.composites.why_not == "the memory has banks"
    assert engine.composite_replayer is None


@pytest.mark.needs("n_to_one", reason="the model of banks takes accesses whole")
@pytest.mark.parametrize(("preset", "bank_ns"), [("hbm2", 14 + 2), ("hbm3", 26 * 0.625 + 4 * 0.625 + 1)])
def test_a_read_takes_the_latency_of_its_bank(preset, bank_ns):
    def read(x, tl):
        tl.load(x, (1, 32), "f16")  # one line of 64 bytes, or two of 32, which are tCCD_L apart

    x = np.zeros((1, 32), np.float16)
    flat = run_kernel(read, x, topology=load_topology(None, ONE)).time_ns
    banks = run_kernel(read, x, topology=machine(hbm__preset=preset)).time_ns
    # The host's write has left the row open: CL and the data, where a burst of 256 B at 32 GB/s takes 8.
    assert banks - flat == pytest.approx(bank_ns - 8, abs=1e-3)


@pytest.mark.needs("n_to_one", reason="the model of banks takes accesses whole")
def test_plain_simulation_is_the_same():
    def bench(torch):
        torch.launch("double", double, torch.full((64, 64), 2.0), out := torch.zeros(64, 64))
        np.testing.assert_array_equal(out.numpy(), np.full((64, 64), 4.0))

    assert kernbench.run(bench, machine(), check_fast=True).ok


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"hbm__preset": None}, "the banks of no preset are not known"),
        ({"hbm__efficiency": 0.9}, "the model 'banks' has no use for it"),
        ({"hbm__drain_bytes": 2048}, "the model 'banks' has no use for it"),
        ({"cube__memory_map__hbm_mapping_mode": "one_to_one"}, "takes accesses whole"),
    ],
)
def test_what_banks_cannot_do_is_refused(other, what):
    with pytest.raises(TopologyError, match=what):
        machine(**other)
