"""From an impl name to a class, and from a class to a block."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.common.errors import ComponentError
from kernbench.components.builtin.forwarding import ForwardingComponent
from kernbench.components.table import BUILTIN, component_class


@pytest.mark.parametrize("impl", BUILTIN)
def test_every_row_names_a_class(impl: str) -> None:
    assert component_class(impl).__module__.startswith("kernbench.components.builtin.")


def test_a_class_may_be_named_by_its_module() -> None:
    assert component_class("kernbench.components.builtin.forwarding:ForwardingComponent") is ForwardingComponent


@pytest.mark.parametrize("impl", ["router", "builtin.rooter", "my.module", ":Class", "my.module:", ""])
def test_name_of_the_wrong_form_lists_what_there_is(impl: str) -> None:
    with pytest.raises(ComponentError, match="unknown component impl") as caught:
        component_class(impl)
    assert caught.value.hint is not None
    assert "builtin.forwarding" in caught.value.hint


@pytest.mark.parametrize("impl", [".relative:Class", "no_such_package.blocks:Class", "json:NoSuchClass", "a b:C"])
def test_what_cannot_be_imported_says_why(impl: str) -> None:
    with pytest.raises(ComponentError, match="cannot be loaded: "):
        component_class(impl)


def test_module_that_fails_while_it_is_imported_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_blocks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ComponentError, match="ZeroDivisionError: division by zero"):
        component_class("broken_blocks:Router")


@pytest.mark.parametrize("impl", ["json:dumps", "json:JSONDecoder", "os.path:sep"])
def test_what_is_no_component_class_is_refused(impl: str) -> None:
    with pytest.raises(ComponentError, match="is not a component class") as caught:
        component_class(impl)
    assert caught.value.hint is not None
    assert "ActiveComponent" in caught.value.hint
