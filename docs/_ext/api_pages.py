"""The reference of `tl`, of `torch` and of the Python API as Markdown, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.device import AcceleratorNamespace, AhbmNamespace
from kernbench.runtime_api.distributed import DistributedContext
from kernbench.runtime_api.multiprocessing import MultiprocessingNamespace
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.torch_names import PUBLIC
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_context import TLContext

WIDTH = 100
# The modules that programs may import from. tests/unit/test_site.py compares them with the pinned import paths.
MODULES = (
    "kernbench", "kernbench.testing", "kernbench.language", "kernbench.topology", "kernbench.common.errors",
    "kernbench.common.messages", "kernbench.common.engine_declaration", "kernbench.components.base",
    "kernbench.components.custom", "kernbench.policy.address.phyaddr", "kernbench.policy.routing.router",
    "kernbench.policy.placement.dp", "kernbench.sim_engine.engine", "kernbench.sim_engine.fast_paths",
    "kernbench.sim_engine.fabric", "kernbench.sim_engine.op_log", "kernbench.runtime_api.check_fast",
    "kernbench.runtime_api.distributed", "kernbench.runtime_api.multiprocessing", "kernbench.ccl.calls",
    "kernbench.ccl.install", "kernbench.ccl.sfr_config", "kernbench.ccl.topologies", "kernbench.tp",
    "kernbench.benches.registry", "kernbench.evaluation.contract", "kernbench.probes.probe", "kernbench.report",
    "kernbench.report.charts", "kernbench.sweep", "kernbench.web", "kernbench.web.server", "kernbench.web.shelf",
    "kernbench.cli.main",
)  # fmt: skip
NAMESPACES = {
    "torch.distributed": DistributedContext,
    "torch.multiprocessing": MultiprocessingNamespace,
    "torch.ahbm": AhbmNamespace,
    "torch.accelerator": AcceleratorNamespace,
}
# Import paths that name one class of hardware block, or one algorithm, each: described as a family.
FAMILIES = {
    "kernbench.components.builtin": "one module per hardware block; the class of a block is named by `impl`",
    "kernbench.ccl.algorithms": "one module per algorithm, with `kernel` and `kernel_args`",
}


class _Raw:
    """An annotation that is shown as it is written."""

    def __init__(self, text: object) -> None:
        self._text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return self._text


def signature_of(name: str, function: object) -> str:
    """`name(parameters) -> result`, on several lines where one is too long."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # callables only
    except (TypeError, ValueError):
        return name
    empty = inspect.Parameter.empty
    parameters = [
        each if each.annotation is empty else each.replace(annotation=_Raw(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    back = signature.return_annotation
    signature = signature.replace(parameters=parameters, return_annotation=back if back is empty else _Raw(back))
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{name}{signature}")
    if len(text) <= WIDTH:
        return text
    shown = [re.sub(r" at 0x[0-9a-f]+", "", str(each)) for each in parameters]
    result = text[text.rindex(")") + 1 :] if back is empty else f" -> {_Raw(back)!r}"
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){result}"


def text_of(thing: object) -> str:
    """A docstring as Markdown: a line that would begin a heading or a list by accident is kept as text."""
    return inspect.getdoc(thing) or ""


def entry(name: str, thing: object, level: int) -> Iterator[str]:
    """Heading, signature and docstring of one name."""
    yield f"{'#' * level} `{name}`\n"
    found = thing.fget if isinstance(thing, property) else thing
    if isinstance(thing, property) or type(thing).__name__ == "cached_property":
        yield "*attribute*\n"
    elif callable(found) or isinstance(found, staticmethod | classmethod):
        yield f"```python\n{signature_of(name.rpartition('.')[2], getattr(found, '__func__', found))}\n```\n"
    yield text_of(found) + "\n"


def members(cls: type, prefix: str, level: int) -> Iterator[str]:
    """The public methods and attributes that a class defines itself, with a docstring each."""
    for name, thing in vars(cls).items():
        if name.startswith("_") or not text_of(thing):
            continue
        if inspect.isfunction(thing) or isinstance(thing, property | staticmethod | classmethod):
            yield from entry(f"{prefix}.{name}", thing, level)


# ----------------------------------------------------------------------------------------------------------------- tl


def tl_page() -> str:
    """Every name of `tl`, by the class that defines it, and what kernels do with tensors and pointers."""
    lines: list[str] = []
    seen: set[str] = set()
    for cls in TLContext.__mro__[:-1]:
        found = [
            (name, thing)
            for name, thing in vars(cls).items()
            if not name.startswith("_") and name not in seen and (callable(thing) or isinstance(thing, staticmethod))
        ]
        if not found:
            continue
        module = inspect.getmodule(cls)
        title = (text_of(module) or text_of(cls)).partition("\n\n")[0].replace("\n", " ").replace("`", "")
        title = title.rstrip(".").partition(". ")[0].removeprefix("tl: ")
        lines.append(f"## {title[0].upper()}{title[1:]}\n")
        for name, thing in found:
            seen.add(name)
            lines += entry(f"tl.{name}", thing, 3)
    for cls, title in ((TensorHandle, "Tensors of a kernel"), (TensorPtr, "Pointers")):
        lines += [f"## {title}\n", text_of(cls) + "\n", *members(cls, cls.__name__, 3)]
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------------------------- torch


def torch_page() -> str:
    """What host code calls `torch`: its functions, tensors, and its modules for several ranks."""
    lines = ["## The namespace\n", text_of(RuntimeContext) + "\n"]
    for name in dict.fromkeys((*PUBLIC, *(n for n in dir(RuntimeContext) if n in ("record_ahead", "timing_only")))):
        thing = inspect.getattr_static(RuntimeContext, name, None)
        if inspect.isfunction(thing) or isinstance(thing, property):
            lines += entry(f"torch.{name}", thing, 3)
    types = [name for name in PUBLIC if isinstance(getattr(RuntimeContext, name, None), str)]
    lines.append("Element types: " + ", ".join(f"`torch.{name}`" for name in types) + ".\n")
    lines += ["## Tensors\n", text_of(Tensor) + "\n"]
    for cls in Tensor.__mro__[:-1]:
        if cls.__module__.startswith("kernbench"):
            lines += members(cls, "Tensor", 3)
    for prefix, cls in NAMESPACES.items():
        lines += [f"## `{prefix}`\n", text_of(cls) + "\n"]
        for base in cls.__mro__[:-1]:
            lines += members(base, prefix, 3)
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------- the modules


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else what a module defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def python_page() -> str:
    """The modules that programs import from."""
    lines: list[str] = []
    for path in MODULES:
        module = import_module(path)
        lines += [f"## `{path}`\n", text_of(module) + "\n"]
        for name in public_names(module):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                lines += entry(name, thing, 3)
                if inspect.isclass(thing):
                    lines += members(thing, name, 4)
    for path, what in FAMILIES.items():
        lines += [f"## `{path}.*`\n", f"{what[0].upper()}{what[1:]}:\n"]
        package = import_module(path)
        for name in sorted(each.stem for each in Path(package.__path__[0]).glob("[a-z]*.py")):
            first = text_of(import_module(f"{path}.{name}")).partition("\n\n")[0].replace("\n", " ")
            lines.append(f"- `{path}.{name}`: {first}")
        lines.append("")
    return "\n".join(lines)
