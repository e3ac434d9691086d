"""Two blocks replaced from YAML alone: a router with a delay rule of its own, and a whole memory.

The same requests on the shipped machine and on machine.yaml, which differs only in the `impl` of the router and of the
SRAM. Nothing of KernBench is edited or registered; the classes live in my_blocks, next to this file.

    python examples/custom_components/run.py        prints examples/expected/custom_components.txt
"""

from __future__ import annotations

from pathlib import Path

from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

HERE = Path(__file__).parent


def finish_ns(machine: TopologyGraph, *reads: tuple[int, PhysAddr]) -> float:
    """PEs of cube 0 read 4 KiB each, all from time 0; when the last of them has its bytes."""
    engine = GraphEngine(machine)
    for pe, address in reads:
        engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=pe, dst_pa=address.encode(), nbytes=4096))
    engine.wait_all()
    return engine.now_ns


def main() -> None:
    shipped, custom = load_topology(), load_topology(HERE / "machine.yaml")
    slice_bytes = shipped.spec.cube.hbm_slice_bytes
    own, far = (PhysAddr.pe_hbm_addr(0, 0, pe, 0, slice_bytes) for pe in (0, 7))
    bank0, bank1 = (PhysAddr.cube_sram_addr(0, 0, offset) for offset in (0, 4096))
    cases = {
        "its own HBM slice, one router": [(0, own)],
        "the far corner's HBM slice": [(0, far)],
        "SRAM, alone": [(0, bank0)],
        "SRAM, two PEs on two banks": [(0, bank0), (1, bank1)],
        "SRAM, two PEs on one bank": [(0, bank0), (1, bank0)],
    }
    print(f"{'a PE reads 4 KiB from':32} {'shipped ns':>10} {'custom ns':>10}")
    for name, reads in cases.items():
        print(f"{name:32} {finish_ns(shipped, *reads):10.2f} {finish_ns(custom, *reads):10.2f}")


if __name__ == "__main__":
    main()
