"""Which class models a block: impl name to class. A new kind of hardware is one file, one row in the table of names
(`common.impls`), one line of YAML; a user's own class needs no row.
"""

from __future__ import annotations

from functools import cache

from kernbench.common.errors import ComponentError, KernBenchError
from kernbench.common.impls import BUILTIN, imported
from kernbench.components.base import Component, Context
from kernbench.topology.graph import Node

__all__ = ["BUILTIN", "component_class", "make_component"]


@cache
def component_class(impl: str) -> type[Component]:
    """The class behind an impl name; raises ComponentError when there is none."""
    found = imported(impl)
    if not (isinstance(found, type) and issubclass(found, Component)):
        raise ComponentError(
            f"component impl '{impl}' is not a component class",
            hint="derive it from kernbench.components.base.TransitComponent or ActiveComponent",
        )
    return found


def make_component(cls: type[Component], node: Node, ctx: Context) -> Component:
    """The block of a node; raises ComponentError when a user's class cannot be made from what YAML gives it."""
    try:
        return cls(node, ctx)
    except KernBenchError:
        raise
    except Exception as error:
        raise ComponentError(
            f"{cls.__name__} cannot be made: {type(error).__name__}: {error}",
            where=f"{node.id}, impl {node.impl}",
            hint=f"it is given (node, ctx), and node.attrs has {', '.join(node.attrs) or 'nothing'}",
        ) from error
