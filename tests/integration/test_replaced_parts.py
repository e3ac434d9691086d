"""Parts of a PE replaced by classes that have the same members and nothing else in common with the builtins.

Times are those of test_pe_pipeline.py: a tile of 32 x 64 x 32 is read in 29 + 29 ns, fetched in 16, multiplied in 16,
stored in 4 and written in 21.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from kernbench.common.errors import ComponentError, LaunchError
from kernbench.common.messages import MmuMapMsg
from kernbench.components.base import ActiveComponent
from kernbench.components.builtin.interfaces import (
    COMMAND_TAKER,
    COMPUTE_SLOTS,
    DATA_MOVER,
    REGISTER_FILE,
    STAGE_SERVER,
    TCM_PORTS,
    TRANSLATOR,
)
from kernbench.components.builtin.pipeline import PeEngine
from kernbench.components.table import component_class
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

ONE_PE = {
    "system.sips.count": 1,
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
}
PE = "cube.pe_template.components"
READS, FETCH, GEMM, STORE, WRITE = 58.0, 16.0, 16.0, 4.0, 21.0


class FlatTcm(ActiveComponent):
    """Every access takes 3 ns, any number at a time."""

    def fetch(self, token, nbytes):
        token.start_ns = self.env.now
        return self.env.now + 3.0

    store = fetch


class EndlessRegisters(PeEngine):
    """Fetches and stores in 5 ns, without a TCM and without a limit."""

    def take(self, token):
        token.start_ns = self.env.now
        self.ctx.at(self.env.now + 5.0, self.done, token)

    def done(self, token):
        if token.stage.type.name == "FETCH":
            token.context.on_fetched(token)
        self.finish(token)

    def give_back(self, registers, left):
        pass


class ListMmu(ActiveComponent):
    """A list of entries that is searched for 7 ns."""

    translation_ns = 7.0

    def __init__(self, node, ctx):
        super().__init__(node, ctx)
        self.entries = []

    def accept(self, packet):
        if isinstance(packet.request, MmuMapMsg):
            self.entries += packet.request.entries
        self.reply(packet)

    def translate(self, va, nbytes):
        entry = next(entry for entry in self.entries if entry.va <= va < entry.va + entry.nbytes)
        return [(entry.pa + va - entry.va, nbytes)]


class IdealDma(PeEngine):
    """Every request takes 10 ns, any number at a time."""

    def take(self, token):
        token.start_ns = self.env.now
        self.ctx.at(self.env.now + 10.0, self.finish, token)

    def translate(self, address, nbytes):
        return self.ctx.component(self.pe.part("pe_mmu")).translate(address, nbytes)

    def access(self, operand):
        return None


class IdealScheduler(ActiveComponent):
    """Every command is done after 2 ns."""

    def submit(self, cmd, request, done, after=None):
        self.ctx.at(self.env.now + 2.0, done, ())


class HalfTcm(ActiveComponent):
    def fetch(self, token, nbytes):
        return self.env.now


class Idle(ActiveComponent):
    """Answers messages and does nothing for its PE."""

    def accept(self, packet):
        self.reply(packet)


CLASSES = (FlatTcm, EndlessRegisters, ListMmu, IdealDma, IdealScheduler, HalfTcm, Idle)


@pytest.fixture(autouse=True)
def _blocks(monkeypatch):
    module = ModuleType("other_parts")
    for cls in CLASSES:
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "other_parts", module)


def machine(**parts):
    return load_topology(
        None, ONE_PE | {f"{PE}.{name}.impl": f"other_parts:{cls.__name__}" for name, cls in parts.items()}
    )


def product(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c))


A, B = (np.random.default_rng(n).standard_normal(s).astype(np.float16) for n, s in enumerate([(32, 64), (64, 32)]))


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
@pytest.mark.needs("va", reason="there are no MMUs, and segments reach the DMA engine, in other models")
@pytest.mark.parametrize(
    ("parts", "ns"),
    [
        ({}, 1 + READS + FETCH + GEMM + STORE + WRITE),
        ({"pe_tcm": FlatTcm}, 1 + READS + 3 + GEMM + 3 + WRITE),
        ({"pe_fetch_store": EndlessRegisters}, 1 + READS + 5 + GEMM + 5 + WRITE),
        ({"pe_mmu": ListMmu}, 1 + (7 + 29) + (7 + 29) + FETCH + GEMM + STORE + (7 + WRITE)),
        ({"pe_dma": IdealDma}, 1 + 10 + 10 + FETCH + GEMM + STORE + 10),
        ({"pe_scheduler": IdealScheduler}, 2),
        ({"pe_tcm": FlatTcm, "pe_mmu": ListMmu, "pe_dma": IdealDma}, 1 + 10 + 10 + 3 + GEMM + 3 + 10),
    ],
    ids=lambda value: "-".join(value) or "shipped" if isinstance(value, dict) else "",
)
def test_a_kernel_runs_on_parts_that_only_have_the_members(parts, ns):
    run = run_kernel(product, A, B, np.zeros((32, 32), np.float16), topology=machine(**parts))
    assert run.time_ns == ns
    expected = A.astype(np.float32) @ B.astype(np.float32)
    np.testing.assert_allclose(run.arrays[2].astype(np.float32), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.needs("va", reason="there are no MMUs, and segments reach the DMA engine, in other models")
@pytest.mark.parametrize(
    ("part", "cls", "what", "hint"),
    [
        ("pe_tcm", HalfTcm, "has no ports to fetch from", "give its class store, as "),
        ("pe_tcm", Idle, "has no ports to fetch from", "give its class fetch and store, as "),
        ("pe_fetch_store", Idle, "takes no commands", "give its class take and has_room and await_room, as "),
        ("pe_dma", Idle, "moves no bytes", "give its class translate and access, as "),
        ("pe_mmu", Idle, "translates no addresses", "give its class translation_ns and translate, as "),
        ("pe_scheduler", Idle, "takes no commands", "give its class submit, as "),
    ],
)
def test_a_part_that_lacks_a_member_is_named_with_it(part, cls, what, hint):
    with pytest.raises((ComponentError, LaunchError)) as caught:
        run_kernel(product, A, B, np.zeros((32, 32), np.float16), topology=machine(**{part: cls}))
    assert f"sip0.cube0.pe0.{part} {what}" in caught.value.what
    assert caught.value.hint.startswith(hint)
    assert "kernbench.components.builtin." in caught.value.hint


@pytest.mark.needs("va", reason="there are no MMUs, and segments reach the DMA engine, in other models")
@pytest.mark.parametrize(
    ("name", "interfaces"),
    [
        ("pe_scheduler", (COMMAND_TAKER, COMPUTE_SLOTS)),
        ("pe_dma", (STAGE_SERVER, DATA_MOVER)),
        ("pe_fetch_store", (STAGE_SERVER, REGISTER_FILE)),
        ("pe_gemm", (STAGE_SERVER,)),
        ("pe_math", (STAGE_SERVER,)),
        ("pe_tcm", (TCM_PORTS,)),
        ("pe_mmu", (TRANSLATOR,)),
    ],
)
def test_the_builtins_have_what_others_need_of_them(name, interfaces):
    part = GraphEngine(load_topology(None, ONE_PE)).component(f"sip0.cube0.pe0.{name}")
    assert type(part) is component_class(f"builtin.{name}")
    assert [interface.missing(part) for interface in interfaces] == [[]] * len(interfaces)
