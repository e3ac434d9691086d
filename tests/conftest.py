"""One BLAS thread per process: the suite is parallel by itself, and more only gets in its way. Processes that record
ahead (KERNBENCH_WORKERS) are started as users have them; where pytest itself has several threads, as under xdist, only
by programs that tests start. They cost the few tests that reach them 7 % of CPU time.

The garbage collector looks seldom: a machine that a test has dropped is garbage for it, much at a time, and looking
through all that there is again and again is a twentieth of the suite's time. What collection has made, modules and
tests, is moved out of its sight.

Compiled modules are kept: where Python is asked to write none, they go below .pytest_cache instead of beside the
sources. Otherwise each worker would rewrite the assertions of 370 files, and each process that a test starts would
compile what it imports, which is half of its start.

Limits of hypothesis on the wall clock are off: how long an example takes on a busy machine says nothing about it.

`make quick` leaves out what is marked `slow`: the files and tests of `SLOW`, most of the time of all unit tests.

`scripts/suite-on` runs the suite with another default machine. A test whose claim is about one kind of machine has the
marker `needs`, and is skipped on others: `needs("va", reason=...)`, `needs("n_to_one", reason=...)`, or
`needs("shipped", reason=...)` where it checks figures of the shipped machine.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

if TYPE_CHECKING:
    from kernbench.sweep.context import SweepContext
    from kernbench.sweep.pool import Pool

# The same examples in every run: a failure is then a fact about the change that was tested.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

gc.set_threshold(500_000, 5, 4)

if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).parents[1] / ".pytest_cache/pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for workers and for programs that tests start
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

SLOW = tuple(
    f"tests/unit/{name}"
    for name in (
        "benches/test_buffers_evaluation.py",  # networks with buffers, flit by flit
        "ccl/test_two_rounds.py",  # ten ranks
        "cli/test_ccl.py",  # a machine for each row
        "cli/test_evaluate_command.py",  # whole evaluations
        "cli/test_main.py",  # a process for each case
        "cli/test_probe_command.py::test_plot_writes_charts_and_says_where",
        "cli/test_run_command.py::test_output_is_the_same_bytes_for_any_hash_seed",
        "cli/test_sweep_command.py",  # worker processes
        "cli/test_topology_command.py::test_bandwidth_that_nothing_can_use_is_warned_of",
        "cli/test_tune_ccl.py",
        "components/test_simple_commands.py",  # the garbage of a whole run
        "components/test_tile_model.py",  # the tile model against the machine, shape by shape
        "evaluation/",
        "models/test_block_plans.py",  # layers with numbers
        "models/test_bounds.py",
        "models/test_fused_decode.py",
        "models/test_layer.py",
        "models/test_mapper.py",  # thousands of candidates
        "models/test_online_attention.py",  # plans of many sizes
        "models/test_parallel_plans.py",
        "models/test_quantised.py",
        "models/test_simulated_choice.py",
        "policy/routing/test_routing_graph.py",  # every pair of nodes
        "report/diagrams/",  # every box of every picture
        "report/test_charts.py",  # matplotlib
        "report/test_figures.py",
        "report/test_machine_facts.py",
        "report/test_replaced_folders.py",  # processes
        "runtime_api/test_tensor_math.py::test_a_large_right_operand",
        "sim_engine/fabric/test_reservations.py",  # random networks
        "sim_engine/fabric/test_compiled_loop.py",
        "sim_engine/fabric/test_environment.py",
        "sim_engine/fabric/test_fifo.py",
        "sim_engine/fabric/test_properties.py",
        "sim_engine/fabric/test_progressions.py",
        "sim_engine/test_buffer_layers.py",
        "sim_engine/test_buffers.py::test_plain_and_compiled_loops",  # compiles
        "sim_engine/test_op_log.py::test_memory_does_not_grow_with_a_file",
        "sweep/",  # processes, files and Optuna
        "test_hints.py",  # every key of the machine
        "test_import_circles.py",
        "topology/test_yaml_marks.py",  # mutated machines
        "tp/test_layers.py",
        "tp/test_parallelize.py",
        "triton_emu/test_multicast.py::test_multicasts_into_the_memory",
        "validation/",  # measured silicon
        "values/test_evaluate.py::test_intermediates_without_references_are_freed",
        "values/test_plain.py::test_both_meanings_agree_on_elementwise_ops",
    )
)


NEEDS = {"va": {"va"}, "pa": {"pa"}, "la": {"la"}, "n_to_one": {"n_to_one"}, "one_to_one": {"one_to_one"}}
NEEDS |= {"addresses": {"va", "la"}, "shipped": {"va n_to_one"}}


def _machine() -> set[str]:
    """The words for the default machine of this run: its address model, its channel mapping, and both."""
    from kernbench.topology import load_spec

    spec = load_spec()
    model, mode = spec.system.address_model, spec.cube.memory_map.hbm_mapping_mode
    return {model, mode, f"{model} {mode}"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    machine: set[str] = set()
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        for needs in item.iter_markers("needs"):
            (word,), reason = needs.args, needs.kwargs["reason"]
            machine = machine or _machine()
            if not NEEDS[word] & machine:
                item.add_marker(pytest.mark.skip(reason=f"needs {word}: {reason}"))


@pytest.fixture
def points_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of sweeps and evaluations run one after another here, unless they have a time limit.

    For tests whose subject is not the worker process, whose start costs a second: rows do not depend on the number of
    workers (tests/integration/test_sweeps.py).
    """
    from kernbench.sweep import local_pool
    from kernbench.sweep.pool import SerialPool

    in_processes = local_pool.LocalPool

    def pool(context: SweepContext, workers: int, point_timeout_s: float | None = None) -> Pool:
        if point_timeout_s is not None:
            return in_processes(context, workers, point_timeout_s)
        return SerialPool(context)

    monkeypatch.setattr(local_pool, "LocalPool", pool)


@given(nothing=none())
def _first_example(nothing: None) -> None:
    """With its first example hypothesis collects all garbage of a process: better before there is any."""


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    _first_example()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    if "duckdb" not in sys.modules:  # it reports every object that is alive when the process ends
        gc.freeze()  # pytest looks for garbage once more, in all that the tests have left: five seconds of a worker
