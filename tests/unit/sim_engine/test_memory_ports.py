"""All ports of a memory take one request type, so that a port can be put in front of another."""

from __future__ import annotations

import inspect

import pytest

from kernbench.common.last_of import LastOf
from kernbench.components.memory_port import MemoryPort
from kernbench.sim_engine.interleaved_port import InterleavedPort
from kernbench.sim_engine.memory_ports import DirectPort, PacketPort


@pytest.mark.parametrize("port", [DirectPort, PacketPort, InterleavedPort])
@pytest.mark.parametrize("name", ["read", "write", "update"])
def test_every_port_takes_an_access_as_one_object(port: type, name: str) -> None:
    assert inspect.signature(getattr(port, name)) == inspect.signature(getattr(MemoryPort, name))
    assert list(inspect.signature(getattr(port, name)).parameters)[:2] == ["self", "access"]


def test_what_happens_for_the_last_part_happens_once() -> None:
    done = list[int]()
    part = LastOf(3, lambda: done.append(1))
    part()
    part()
    assert done == []
    part()
    assert done == [1]
