"""Collectives in the forms of records 0023, 0032, 0047 and 0050: tensor, file and module of an algorithm."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config
from kernbench.common.errors import KernBenchWarning
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology import TopologyGraph, load_topology

CCL_YAML = """\
defaults:
  algorithm: lrab_hierarchical_allreduce
  buffer_kind: tcm
  backpressure: sleep
  n_slots: 4
  slot_size: 4096
  vc_chunk_size: 256
  ipcq_credit_size_bytes: 16
  world_size: 2
algorithms:
  lrab_hierarchical_allreduce:
    module: kernbench.ccl.algorithms.lrab_hierarchical_allreduce
    topology: none
    buffer_kind: sram
    n_elem: 8
    root_cube: 15
"""

OWN_MODULE = '''\
SIP_TOPO_RING = 0
TOPO_NAME_TO_KIND = {"ring_1d": SIP_TOPO_RING}


def kernel_args(world_size: int, n_elem: int, *, cube_w: int = 4, cube_h: int = 4) -> tuple:
    return (n_elem, cube_w, cube_h, world_size)


def pair_allreduce(t_ptr, n_elem, cube_w, cube_h, n_sips, sip_rank, sip_topo_kind, sip_topo_w, sip_topo_h, *, tl):
    """Two SIPs, cube by cube: each PE 0 sends its row and adds the other's."""
    assert sip_topo_kind == SIP_TOPO_RING
    if tl.program_id(0) == 0:
        at = t_ptr + tl.program_id(1) * n_elem * 2
        acc = tl.load(at, shape=(n_elem,), dtype="f16")
        tl.send(dir="global_E", src=acc)
        tl.store(at, acc + tl.recv(dir="global_W", shape=(n_elem,), dtype="f16"))


kernel = pair_allreduce
'''


def tray(**changes: object) -> TopologyGraph:
    small = {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
    return load_topology(None, {**small, **changes})


def reduced(n_elem: int = 8, ccl: Any = None, **options: Any) -> np.ndarray:
    """Ones, a row for each of four cubes on two SIPs, reduced; the result on rank 0."""
    found: list[np.ndarray] = []

    def worker(rank: int, torch: Any) -> None:
        n_cubes = 4
        dp = DPPolicy(cube="row_wise", pe="replicate", num_cubes=n_cubes, num_pes=1)
        tensor = torch.zeros((n_cubes, n_elem), dtype="f16", dp=dp)
        tensor.copy_(torch.from_numpy(np.full((n_cubes, n_elem), rank + 1, np.float16)))
        for _ in range(2):
            torch.distributed.all_reduce(tensor, op="sum", **options)
            if rank == 0 and not found:
                found.append(tensor.numpy())

    def run(torch: Any) -> None:
        torch.distributed.init_process_group(backend="ahbm", ccl=ccl)
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)

    kernbench.run(run, tray(), device="whole")
    return found[0]


@pytest.mark.needs("addresses", reason="the host copies into a tensor that is placed in another way")
def test_a_row_for_each_cube_is_reduced_over_cubes_and_sips_if_the_call_says_so() -> None:
    """Ones on SIP 0 and twos on SIP 1: 3 over the SIPs, 4 x 3 over all cubes."""
    assert np.all(reduced(per="cube") == 12)
    assert np.all(reduced(per="sip") == 3)


@pytest.mark.needs("addresses", reason="the host copies into a tensor that is placed in another way")
def test_without_per_one_warning_names_both_remedies() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.all(reduced() == 3)
    (only,) = caught  # of two ranks that reduce twice
    assert only.category is KernBenchWarning
    assert 'per="cube"' in str(only.message)
    assert 'per="sip"' in str(only.message)
    assert "test_collective_forms.py:" in str(only.message)


def test_a_configuration_of_the_records_is_read_and_says_which_keys_something_else_replaces(tmp_path: Path) -> None:
    path = tmp_path / "ccl.yaml"
    path.write_text(CCL_YAML)
    with pytest.warns(KernBenchWarning) as caught:
        config = resolve_algorithm_config(load_ccl_config(path), "lrab_hierarchical_allreduce")
    assert (config.buffer_kind, config.n_slots, config.root) == ("sram", 4, "center")
    (only,) = caught
    text = str(only.message)
    for key, instead in (
        ("defaults.vc_chunk_size", "system.flit_bytes"),
        ("defaults.world_size", "system.sips.count"),
        ("algorithms.lrab_hierarchical_allreduce.topology", "system.sips.topology"),
        ("algorithms.lrab_hierarchical_allreduce.n_elem", "as many elements as its tensor has"),
        ("algorithms.lrab_hierarchical_allreduce.root_cube", "root: corner"),
    ):
        assert f"{key} at {path}:" in text
        assert instead in text


def test_rings_of_an_algorithm_are_installed_by_its_name_and_file(tmp_path: Path) -> None:
    path = tmp_path / "ccl.yaml"
    path.write_text(CCL_YAML)
    seen: list[Any] = []

    def run(torch: Any) -> None:
        with pytest.warns(KernBenchWarning):
            torch.install_ipcq(algorithm="lrab_hierarchical_allreduce", ccl_yaml=str(path))
        seen.append(torch.engine.communicators["world"].config)
        torch.install_ipcq(algorithm="long_messages_all_pes", n_slots=3)
        seen.append(torch.engine.communicators["world"].config)
        torch.zeros((2, 2))

    kernbench.run(run, tray(), device="whole")
    assert [(rings.buffer_kind, rings.n_slots, rings.slot_size) for rings in seen] == [
        ("sram", 4, 4096),
        ("tcm", 3, 16384),
    ]


@pytest.mark.needs("addresses", reason="the host copies into a tensor that is placed in another way")
def test_a_module_with_the_nine_arguments_of_the_contract_reduces(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(OWN_MODULE)
    ccl = {"defaults": {"algorithm": "pair"}, "algorithms": {"pair": {"module": str(tmp_path / "pair.py")}}}
    assert np.all(reduced(per="cube", ccl=ccl) == 3)


def test_size_and_rank_of_a_group_are_accepted_and_those_of_the_machine_hold() -> None:
    def run(torch: Any) -> None:
        with pytest.warns(KernBenchWarning) as caught:
            torch.distributed.init_process_group(backend="ahbm", world_size=16, rank=3)
        assert ["world_size=16" in str(each.message) for each in caught] == [True, False]
        assert "rank=3" in str(caught[1].message)
        assert torch.distributed.get_world_size() == 2
        torch.zeros((2, 2))

    kernbench.run(run, tray(), device="whole")
