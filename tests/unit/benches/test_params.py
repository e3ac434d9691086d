"""Parameters of a bench: which a function has, and what text, variables and defaults make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import pytest

from kernbench.benches._params import Param, params_of, read_params
from kernbench.benches.registry import AtLeast, BenchSpec, list_all
from kernbench.common.errors import UsageError


def sample(
    torch: object,
    *,
    m: int = 8,
    eps: float = 1e-5,
    fused: bool = False,
    variant: Literal["load", "load-ref"] = "load",
    width: Literal[1, 2] = 1,
    name: str = "x",
    need: int,
) -> None:
    """Only its signature counts."""


PARAMS = params_of(sample, "SAMPLE")
GIVEN = ["need=1"]


def test_parameters_are_the_typed_arguments_after_torch() -> None:
    assert list(PARAMS) == [
        Param("m", int, 8, (), "SAMPLE_M"),
        Param("eps", float, 1e-5, (), "SAMPLE_EPS"),
        Param("fused", bool, False, (), "SAMPLE_FUSED"),
        Param("variant", str, "load", ("load", "load-ref"), "SAMPLE_VARIANT"),
        Param("width", int, 1, (1, 2), "SAMPLE_WIDTH"),
        Param("name", str, "x", (), "SAMPLE_NAME"),
        Param("need", int, None, (), "SAMPLE_NEED"),
    ]
    assert [param.type_name for param in PARAMS[2:5]] == ["bool", "load | load-ref", "1 | 2"]


def test_without_an_annotation_the_default_says_the_type() -> None:
    def plain(torch, n=4, *, ratio=0.5):  # type: ignore[no-untyped-def]  # as a user may write it
        """Only its signature counts."""

    assert params_of(plain) == (Param("n", int, 4), Param("ratio", float, 0.5))


def test_an_annotation_may_say_what_a_parameter_means_and_the_least_it_may_be() -> None:
    def noted(
        torch: object,
        *,
        rows: Annotated[int, AtLeast(1), "rows of x"] = 4,
        ratio: Annotated[float, AtLeast(0.5)] = 1.0,
        variant: Annotated[Literal["a", "b"], "which one"] = "a",
    ) -> None:
        """Only its signature counts."""

    params = params_of(noted)
    assert params == (
        Param("rows", int, 4, least=AtLeast(1), meaning="rows of x"),
        Param("ratio", float, 1.0, least=AtLeast(0.5)),
        Param("variant", str, "a", ("a", "b"), meaning="which one"),
    )
    assert read_params(params, ["rows=1", "ratio=0.5", "variant=b"], {}) == {"rows": 1, "ratio": 0.5, "variant": "b"}
    with pytest.raises(UsageError, match="rows is '0'") as refused:
        read_params(params, ["rows=0"], {})
    assert refused.value.hint == "give a whole number, 1 or more"
    with pytest.raises(UsageError, match=r"ratio is '0\.4'"):
        read_params(params, ["ratio=0.4"], {})


def below(torch: object, *, n: Annotated[int, AtLeast(8), "size"] = 4) -> None: ...
def of_text(torch: object, *, n: Annotated[str, AtLeast(8)] = "a") -> None: ...
def of_a_choice(torch: object, *, n: Annotated[Literal[1, 2], AtLeast(1)] = 1) -> None: ...
def twice(torch: object, *, n: Annotated[int, AtLeast(1), AtLeast(3)] = 2) -> None: ...
def endless(torch: object, *, n: Annotated[float, AtLeast(float("nan"))] = 2.0) -> None: ...


@pytest.mark.parametrize(
    ("fn", "what", "hint"),
    [
        (below, "the default 4, less than it may be", "give 8 or more"),
        (of_text, "a least value, which str has not", "AtLeast is for int and float"),
        (of_a_choice, "a least value, which Literal has not", "AtLeast is for int and float"),
        (twice, "2 least values", "give one AtLeast"),
        (endless, "the least value nan", "give AtLeast a number"),
    ],
)
def test_a_least_value_that_cannot_be_one_is_refused(fn: Callable[..., object], what: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        _ = BenchSpec("my-bench", "d", fn).params
    assert refused.value.what == f"parameter 'n' has {what}"
    assert refused.value.hint == hint
    assert "test_params.py:" in (refused.value.where or "")
    assert "bench 'my-bench'" in (refused.value.where or "")


def test_defaults_are_taken_where_nothing_is_said() -> None:
    assert read_params(PARAMS, GIVEN, {}) == {
        "m": 8, "eps": 1e-5, "fused": False, "variant": "load", "width": 1, "name": "x", "need": 1,
    }  # fmt: skip


def test_text_is_read_as_the_parameters_type() -> None:
    settings = ["m= 1_024 ", "eps=2", "fused=Yes", "variant=load-ref", "width=2", "name= a=b ", "need=-3"]
    found = read_params(PARAMS, settings, {})
    assert found == {
        "m": 1024, "eps": 2.0, "fused": True, "variant": "load-ref", "width": 2, "name": "a=b", "need": -3,
    }  # fmt: skip
    assert isinstance(found["eps"], float)


def test_the_caller_comes_before_the_environment_and_that_before_the_default() -> None:
    environ = {"SAMPLE_M": "32", "SAMPLE_VARIANT": "load_ref", "SAMPLE_NAME": " ", "OTHER_EPS": "7"}
    found = read_params(PARAMS, ["m=64", *GIVEN], environ)
    assert (found["m"], found["variant"], found["name"], found["eps"]) == (64, "load-ref", "x", 1e-5)
    assert read_params(PARAMS, GIVEN, environ)["m"] == 32


@pytest.mark.parametrize(
    ("settings", "what", "hint"),
    [
        (["m=1.5"], "m is '1.5'", "a whole number"),
        (["m="], "m is ''", "a whole number"),
        (["m=٣"], "m is '٣'", "a whole number"),
        (["eps=inf"], "eps is 'inf'", "a number"),
        (["fused=maybe"], "fused is 'maybe'", "true or false"),
        (["variant=store"], "variant is 'store'", "one of load, load-ref"),
        (["width=3"], "width is '3'", "one of 1, 2"),
        (["vraiant=load"], "no parameter 'vraiant'; did you mean 'variant'?", "m (int), eps (float)"),
        (["m"], "--param takes NAME=VALUE, not 'm'", "--param m=512"),
        (["=3"], "--param takes NAME=VALUE", "--param m=512"),
        ([], "parameter 'need' has no value", "--param need=int"),
    ],
)
def test_a_wrong_setting_is_said_with_what_there_is(settings: list[str], what: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_params(PARAMS, settings if not settings else [*settings, *GIVEN], {})
    assert what in refused.value.what
    assert hint in (refused.value.hint or "")


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError) as refused:
        read_params(PARAMS, GIVEN, {"SAMPLE_M": "many"})
    assert refused.value.where == "environment variable SAMPLE_M"


def no_torch() -> None: ...
def only_keywords(*, m: int = 1) -> None: ...
def a_list(torch: object, *, shape: list[int]) -> None: ...
def no_type(torch: object, *, m=None) -> None: ...  # type: ignore[no-untyped-def]  # the mistake
def mixed(torch: object, *, m: Literal[1, "one"] = 1) -> None: ...
def many(torch: object, *sizes: int) -> None: ...
def unknown(torch: object, *, m: Nowhere = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # the mistake
def bad_default(torch: object, *, m: int = ()) -> None: ...  # type: ignore[assignment]  # the mistake


@pytest.mark.parametrize("fn", [no_torch, only_keywords, a_list, no_type, mixed, many, unknown, bad_default])
def test_a_function_that_cannot_be_a_bench_is_refused_at_its_line(fn: object) -> None:
    with pytest.raises(UsageError) as refused:
        params_of(fn)  # type: ignore[arg-type]  # any of the functions above
    assert "test_params.py:" in (refused.value.where or "")


def test_every_shipped_bench_can_be_run_without_a_parameter_and_has_a_seed() -> None:
    for spec in list_all():
        assert all(param.default is not None for param in spec.params), spec.name
        has_seed = "seed" in [param.name for param in spec.params]
        numberless = spec.is_evaluation or spec.name in (
            "ccl-bench",
            "llm-plan",
            "pe2pe",
        )  # whose numbers are not drawn
        assert has_seed or numberless, spec.name


def test_matmul_composite_reads_the_variables_of_the_record() -> None:
    (spec,) = (spec for spec in list_all() if spec.name == "matmul-composite")
    environ = {"MATMUL_M": "1", "MATMUL_K": "2", "MATMUL_N": "3", "MATMUL_VARIANT": "ref"}
    found = read_params(spec.params, [], environ)
    assert (found["m"], found["k"], found["n"], found["variant"]) == (1, 2, 3, "ref")
