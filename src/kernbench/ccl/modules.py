"""Algorithms as modules: found by import or by path, and checked to have what a collective needs.

kernel           the kernel: (t_ptr, *kernel_args(...), sip_rank, sip_topo_kind, sip_topo_w, sip_topo_h, *, tl), and
                 further arguments by name (`plans.py` lists them)
kernel_args      (world_size, n_elem, *, cube_w, cube_h) -> the arguments after the tensor
TOPO_NAME_TO_KIND   optional: the names of SIP grids to the numbers that the kernel uses for them
COLLECTIVES      optional: which collectives it does; all_reduce without it
docstring        optional: its first sentence is shown by `kernbench ccl --list`
refuse           optional: (Assignment) -> the reason why it is not supported, or None
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from zlib import crc32

from kernbench.ccl.config_spec import COLLECTIVE_NAMES, AlgorithmConfig
from kernbench.ccl.work import Assignment
from kernbench.common.errors import UsageError
from kernbench.topology.readers import closest
from kernbench.triton_emu.binding import signature_of
from kernbench.triton_emu.registry import Kernel

_LOADED: dict[tuple[str, int, int], ModuleType] = {}  # files, by path, time of change and size


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A checked module. `names` are the names of its kernel's parameters."""

    name: str
    kernel: Kernel
    kernel_args: Callable[..., tuple[object, ...]]
    kinds: Mapping[str, int]
    collectives: tuple[str, ...]
    refuse: Callable[[Assignment], str | None] | None
    names: tuple[str, ...]
    takes_any: bool
    declares_collectives: bool  # whether the module has COLLECTIVES
    where: str = field(compare=False)
    summary: str = ""

    def check_does(self, collective: str) -> None:
        """Raise UsageError for a collective that it does not implement."""
        if collective not in self.collectives:
            hint = "choose another in ccl.yaml, or with init_process_group(ccl={...}); see `kernbench ccl --list`"
            if not self.declares_collectives:
                line = f'COLLECTIVES = ("{collective}",)'
                hint = f"a module without COLLECTIVES does all_reduce: let it say {line}, or {hint}"
            raise UsageError(
                f"algorithm '{self.name}' does no {collective}, but {', '.join(self.collectives)}", hint=hint
            )


def load_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The module of an algorithm; raises UsageError, with the line of its entry, if it is invalid."""
    module = _module(config)
    kernel, kernel_args = getattr(module, "kernel", None), getattr(module, "kernel_args", None)
    for name, found in (("kernel", kernel), ("kernel_args", kernel_args)):
        if not callable(found):
            hint = (
                "def kernel_args(world_size, n_elem, *, cube_w=4, cube_h=4): return n_elem, cube_w, cube_h, world_size"
            )
            if name == "kernel":
                hint = "end it with `kernel = my_all_reduce`"
            raise UsageError(f"module {config.module} has no function '{name}'", where=config.where, hint=hint)
    assert callable(kernel)
    assert callable(kernel_args)
    collectives = _collectives(module, config)
    parameters = signature_of(kernel).parameters.values()
    names = tuple(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
    for param in config.params:
        if param not in names:
            raise UsageError(
                f"the kernel of {config.module} has no parameter '{param}'{closest(param, names)}",
                where=config.where,
                hint="name a keyword argument of the kernel, or delete it from params:",
            )
    return Algorithm(
        config.algorithm,
        kernel,
        kernel_args,
        dict(getattr(module, "TOPO_NAME_TO_KIND", {})),
        collectives,
        getattr(module, "refuse", None),
        names,
        any(p.kind is Parameter.VAR_KEYWORD for p in parameters),
        hasattr(module, "COLLECTIVES"),
        config.where,
        _first_sentence(module.__doc__ or ""),
    )


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def place_of(function: Callable[..., object], error: BaseException | None = None) -> str | None:
    """`file:line` of a user's function, or of its innermost line that an error comes from."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    frames = walk_tb(error.__traceback__) if error is not None else ()
    lines = [line for frame, line in frames if frame.f_code.co_filename == code.co_filename]
    return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"


def _collectives(module: ModuleType, config: AlgorithmConfig) -> tuple[str, ...]:
    """The collectives that a module declares."""
    declared = getattr(module, "COLLECTIVES", ("all_reduce",))
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        hint = f"give a tuple: COLLECTIVES = ({declared!r},)" if isinstance(declared, str) else "give a tuple of names"
        raise UsageError(f"{config.module}.COLLECTIVES is {declared!r}", where=config.where, hint=hint)
    names = tuple(declared)
    for name in names:
        if name not in COLLECTIVE_NAMES:
            what = f"{config.module}.COLLECTIVES has '{name}'{closest(str(name), COLLECTIVE_NAMES)}"
            raise UsageError(what, where=config.where, hint=f"use some of {', '.join(COLLECTIVE_NAMES)}")
    return names


def _module(config: AlgorithmConfig) -> ModuleType:
    try:
        if config.module.endswith(".py"):
            return _from_file(Path(config.module))
        return import_module(config.module)
    except UsageError as error:
        raise UsageError(error.what, where=config.where, hint=error.hint) from None
    except Exception as error:  # importing a user's module can raise anything
        what = f"algorithm '{config.algorithm}' cannot be loaded: {type(error).__name__}: {error}"
        hint = "give the name of a module that Python finds, or the path of a .py file"
        raise UsageError(what, where=config.where, hint=hint) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file '{path}'", hint="paths are relative to the file that names them")
    full, changed = str(path.resolve()), path.stat()
    key = (full, changed.st_mtime_ns, changed.st_size)
    if key not in _LOADED:
        # A unique module name per file, also for files of the same name in different folders.
        spec = spec_from_file_location(f"_kernbench_ccl_{path.stem}_{crc32(full.encode()):08x}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickles look it up there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[spec.name]
            raise
        _LOADED[key] = module
    return _LOADED[key]
