"""Kernels whose meta-parameters are chosen by simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel, tiny_machine
from kernbench.triton_emu.autotune import Autotuned

X = np.arange(64, dtype=np.float16)


def add_one(x: Any, out: Any, n: int, block: int, tl: Any) -> None:
    """In blocks: the fewer, the fewer requests."""
    for at in range(0, n, block):
        tl.store(out + 2 * at, tl.load(x + 2 * at, (block,)) + 1)


BLOCKS = [{"block": 8}, {"block": 32}, {"block": 16}]


def tuned(configs: Any = BLOCKS, key: Any = ("n",), kernel: Any = add_one, **options: Any) -> Autotuned:
    return kernbench.autotune(configs, key, **options)(kernel)


def test_the_fastest_is_used_and_the_run_takes_as_long_as_with_it_alone() -> None:
    kernel = tuned()
    arrays, ns = run_kernel(kernel, X, np.zeros_like(X), 64)
    assert (arrays[1] == X + 1).all()
    by_hand = {size: run_kernel(add_one, X, np.zeros_like(X), 64, block=size).time_ns for size in (8, 32, 16)}
    assert by_hand[32] < by_hand[16] < by_hand[8]
    assert (kernel.best_config, ns) == ({"block": 32}, by_hand[32])
    (trials,) = kernel.trials.values()
    assert [(trial.config["block"], trial.ns) for trial in trials] == list(by_hand.items())


def test_the_runs_own_clock_and_tensors_do_not_notice() -> None:
    ended = []
    for kernel, named in ((add_one, {"block": 32}), (tuned(), {})):
        with RuntimeContext(GraphEngine(tiny_machine())) as torch:
            x, out = torch.from_numpy(X), torch.zeros(64)
            for _ in range(2):
                torch.launch("k", kernel, x, out, 64, target_pes=0, **named)
                x, out = out, x
            ended.append((torch.engine.now_ns, len(torch.launches), x.numpy().tolist()))
    assert ended[0] == ended[1]
    assert ended[0][2] == (X + 2).tolist()


def test_of_equally_fast_ones_the_first_is_taken() -> None:
    kernel = tuned([{"block": 16, "label": "b"}, {"block": 16, "label": "a"}], kernel=_tagged)
    run_kernel(kernel, X, np.zeros_like(X), 64)
    assert kernel.best_config == {"block": 16, "label": "b"}


def _tagged(x: Any, out: Any, n: int, block: int, label: str, tl: Any) -> None:
    add_one(x, out, n, block, tl)


def test_what_was_found_is_kept_by_the_values_of_the_key() -> None:
    ran: list[int] = []

    def counted(x: Any, out: Any, n: int, other: int, block: int, tl: Any) -> None:
        ran.append(block)
        add_one(x, out, n, block, tl)

    kernel = tuned(kernel=counted)
    with RuntimeContext(GraphEngine(tiny_machine())) as torch:
        x, out = torch.from_numpy(X), torch.zeros(64)
        counts = []
        for n, other in ((64, 0), (64, 1), (32, 0), (64, 0)):
            torch.launch(kernel, x, out, n, other, target_pes=0)
            counts.append(len(ran))
    assert counts == [4, 5, 9, 10]  # three to try and one to run; another `other` is no other key
    assert len(kernel.trials) == 2


def test_a_config_that_fails_is_skipped_and_listed() -> None:
    kernel = tuned([{"block": 100}, {"block": 16}])
    run_kernel(kernel, X, np.zeros_like(X), 64)
    (trials,) = kernel.trials.values()
    assert kernel.best_config == {"block": 16}
    assert trials[0].ns is None
    assert "run past" in str(trials[0].error)
    lines = kernel.table().splitlines()
    assert lines[0] == "autotune of 'add_one'"
    assert lines[1].startswith("  block=100  failed: kernel 'add_one' failed on sip 0, cube 0, pe 0")
    assert lines[2].startswith("  block=16 ")
    assert lines[2].endswith(" ns  fastest")


def test_when_all_fail_that_is_an_error() -> None:
    with pytest.raises(
        UsageError, match="autotune of kernel 'add_one': all of its 2 configs fail, the first with"
    ) as e:
        run_kernel(tuned([{"block": 100}, {"block": 200}]), X, np.zeros_like(X), 64)
    assert "without autotune" in str(e.value.hint)


def test_the_table_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tuned(verbose=True)
    assert kernel.table() == "autotune of 'add_one': not launched yet"
    for _ in range(2):
        run_kernel(kernel, X, np.zeros_like(X), 64)
    assert capsys.readouterr().out == kernel.table() + "\n"


def test_configs_are_timed_with_what_memory_holds() -> None:
    """Of four rounds, a step of two takes two: what is loaded says how many."""

    def rounds(count: Any, step: int, tl: Any) -> None:
        for _ in range(0, int(tl.load(count)), step):
            tl.cycles(100)

    kernel = tuned([{"step": 1}, {"step": 2}], key=(), kernel=rounds)
    run_kernel(kernel, np.array([4], np.int32))
    (trials,) = kernel.trials.values()
    assert trials[0].ns - trials[1].ns == 200  # type: ignore[operator]  # both ran


def test_tensors_keep_their_placement() -> None:
    from kernbench.policy.placement.dp import DPPolicy

    def halves(x: Any, parts: int, tl: Any) -> None:
        rows = x.local_shape[0] // parts
        for part in range(parts):
            tl.load(x.local + part * rows * 16, (rows, 8))

    kernel = tuned([{"parts": 2}, {"parts": 1}], key=("x",), kernel=halves)
    split = DPPolicy(pe="row_wise", num_cubes=1)
    ns = run_kernel(kernel, np.zeros((64, 8), np.float16), grid=(4,), dp=split).time_ns
    assert ns == run_kernel(halves, np.zeros((64, 8), np.float16), parts=1, grid=(4,), dp=split).time_ns
    assert kernel.best_config == {"parts": 1}


def test_a_repeatable_kernel_stays_one_in_either_order() -> None:
    from kernbench.triton_emu.repeatable import is_repeatable

    def kernel(x: Any, out: Any, n: int, block: int, tl: Any) -> None:
        add_one(x, out, n, block, tl)

    both = kernbench.repeatable(tuned(kernel=kernel))
    run_kernel(both, X, np.zeros_like(X), 64)
    assert is_repeatable(kernel)


@pytest.mark.parametrize(
    ("configs", "key", "what"),
    [
        ([], (), "autotune with configs="),
        ([{"block": 1}], "n", "key='n'"),
        ([{"blokc": 1}], (), "autotune names 'blokc', which is no parameter"),
        ([{"block": 1}], ("m",), "autotune names 'm', which is no parameter"),
        ([3], (), "a config of autotune is 3"),
    ],
)
def test_configs_and_keys_that_do_not_fit_are_refused(configs: Any, key: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        tuned(configs, key)


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="argument 'block' of kernel 'add_one' is passed, and also set by autotune"):
        run_kernel(tuned(), X, np.zeros_like(X), 64, block=8)
