"""The registry: names, descriptions, the audit, numbers, and the error for a wrong name."""

from __future__ import annotations

import pkgutil

import pytest

import kernbench.benches
import kernbench.benches.milestones
from kernbench.benches import registry
from kernbench.benches.registry import BenchSpec, audit, bench, list_all, numbered, registered_in, resolve
from kernbench.common.errors import ComponentError, UsageError

PROMISED = [
    "gemm-single-pe", "matmul-composite", "qkv-gemm", "qkv-gemm-multi-pe", "gpt3-qkv", "va-offset-verify", "softmax",
    "layernorm", "gelu-mlp", "flash-attention",
]  # fmt: skip


def spec(name: str, module: str = "somewhere") -> BenchSpec:
    def run(torch: object) -> None:
        """Does nothing."""

    run.__module__ = module
    return BenchSpec(name, "A bench.", run)


@pytest.fixture(autouse=True)
def _keep_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    list_all()  # the table is made from what is registered now
    monkeypatch.setattr(registry, "_registered", list(registry._registered))


def test_every_promised_bench_is_there_with_a_description() -> None:
    found = {spec.name: spec.description for spec in list_all()}
    assert set(PROMISED) <= set(found)
    assert all(text and text.endswith(".") for text in found.values())


def test_numbers_follow_the_alphabet_from_one() -> None:
    names = [spec.name for spec in list_all()]
    assert names == sorted(names)
    assert [spec.number for spec in list_all()] == list(range(1, len(names) + 1))


def test_a_bench_is_found_by_name_and_by_number() -> None:
    for spec in list_all():
        assert resolve(spec.name) is resolve(str(spec.number)) is spec
    assert resolve("  softmax ").name == "softmax"


def test_a_bench_is_found_by_its_name_in_the_text_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {spec.name: spec.run for spec in list_all()}
    registry._table.cache_clear()  # as in a process that has asked for nothing yet
    for name, run in wanted.items():
        found = resolve(name)
        assert (found.run, found.number) == (run, 0)
    assert not registry._table.cache_info().currsize
    assert resolve("1").number == 1  # makes the table
    assert [resolve(name).number for name in wanted] == [*range(1, len(wanted) + 1)]


def test_every_module_but_the_private_ones_registers_a_bench() -> None:
    packages = (kernbench.benches, kernbench.benches.milestones)
    found = [m for package in packages for m in pkgutil.iter_modules(package.__path__) if not m.ispkg]
    public = [m.name for m in found if not m.name.startswith("_")]
    registering = {spec.run.__module__.rpartition(".")[2] for spec in list_all()}
    assert sorted(public) == sorted({*registering, "registry"})


def test_the_decorator_returns_the_function_itself() -> None:
    def run(torch: object) -> str:
        return "ran"

    decorated = bench(name="my-bench", description=" Mine. ")(run)
    assert decorated is run
    assert decorated(None) == "ran"
    assert registry.registered_in(__name__)[-1] == BenchSpec("my-bench", "Mine.", run)


@pytest.mark.parametrize(
    "name", ["My-Bench", "my_bench", "1-bench", "my--bench", "-bench", "bench-", "", "benche\u0301", "a b"]
)
def test_a_name_that_is_not_kebab_case_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        bench(name=name, description="A bench.")


@pytest.mark.parametrize("description", ["", "   "])
def test_a_bench_without_a_description_is_refused(description: str) -> None:
    with pytest.raises(UsageError, match="no description"):
        bench(name="my-bench", description=description)


def test_a_bench_says_what_it_runs_on_and_keeps_that_in_the_table() -> None:
    @bench(name="tray", description="Drives all.", devices="whole")
    def tray(torch: object) -> None: ...

    @bench(name="each", description="Runs on each.")
    def each(torch: object) -> None: ...

    whole, plain = sorted(registered_in(__name__)[-2:], key=lambda spec: spec.name, reverse=True)
    assert [spec.devices for spec in numbered([whole, plain])] == ["each", "whole"]
    assert [whole.device_for(asked) for asked in (None, "all", "whole", "WHOLE")] == ["whole"] * 4
    assert [plain.device_for(asked) for asked in (None, "all", "whole", "sip:1")] == ["all", "all", "whole", "sip:1"]
    with pytest.raises(UsageError, match="bench 'tray' drives the whole tray, not sip:1"):
        whole.device_for("sip:1")


def test_a_bench_runs_on_each_device_or_on_the_whole_tray() -> None:
    with pytest.raises(UsageError, match="bench 'b' has devices='some'"):
        bench(name="b", description="B.", devices="some")  # type: ignore[arg-type]  # the mistake


def test_a_module_that_registers_nothing_is_named() -> None:
    with pytest.raises(ComponentError, match=r"no @bench in pkg\.idle"):
        audit(["pkg.busy", "pkg.idle"], [spec("busy", "pkg.busy")])
    audit(["pkg.busy"], [spec("busy", "pkg.busy")])


def test_two_benches_of_one_name_are_refused() -> None:
    with pytest.raises(ComponentError, match="two benches are named 'same'") as refused:
        numbered([spec("same", "pkg.a"), spec("other"), spec("same", "pkg.b")])
    assert refused.value.where == "pkg.a and pkg.b"


@pytest.mark.parametrize(
    ("identifier", "says"),
    [
        ("gemm-single", "did you mean 'gemm-single-pe'?"),
        ("nothing-like-it-at-all", "no bench 'nothing-like-it-at-all'"),
        ("0", "no bench has number 0"),
        ("9999", "no bench has number 9999"),
        ("  ", "the bench has no name"),
    ],
)
def test_what_is_not_there_is_said_and_what_there_is(identifier: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(identifier)
    assert says in refused.value.what
    assert refused.value.hint
