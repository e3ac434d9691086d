"""What is used of Triton's internals, in one place, checked when it is imported.

Triton's interpreter is no public interface: each name that the front end stands on is listed here, and a release that
lacks one is refused with the list of those that are tested.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from importlib import import_module, metadata
from typing import Any

from kernbench.common.errors import UsageError

TESTED = ("3.7.1", "3.9.0")
_INSTALL = "pip install 'kernbench[triton]'"

# Module by module, the names that are used.
USED: dict[str, tuple[str, ...]] = {
    "triton.runtime.interpreter": (
        "ASTTransformer", "FunctionRewriter", "InterpretedFunction", "InterpreterBuilder", "ReduceOps", "ScanOps",
        "TensorHandle", "_get_np_dtype", "_implicit_cvt", "_interpreter", "_patch_builtin", "_patch_lang_core",
        "_patch_lang_tensor", "interpreter_builder", "interpreter_semantic",
    ),
    "triton.runtime.errors": ("InterpreterError",),
    "triton.compiler.errors": ("CompilationError",),
    "triton.runtime.jit": ("JITFunction", "KernelInterface"),
    "triton.runtime.autotuner": ("Autotuner", "Config"),
    "triton.runtime.driver": ("driver",),
    "triton.backends.compiler": ("GPUTarget",),
    "triton.backends.driver": ("DriverBase",),
    "triton.language.semantic": ("TritonSemantic",),
    "triton.language.core": ("block_type", "constexpr", "is_builtin", "tensor", "tensor_descriptor_base"),
    "triton.language.standard": (
        "_argmax_combine_tie_break_fast", "_argmax_combine_tie_break_left", "_argmin_combine_tie_break_fast",
        "_argmin_combine_tie_break_left", "_elementwise_max", "_elementwise_min", "_sum_combine",
    ),
    "triton.knobs": ("runtime",),
    "triton._C.libtriton": ("ir",),
    "triton.testing": ("do_bench", "perf_report"),
    "triton.tools.tensor_descriptor": ("TensorDescriptor",),
}  # fmt: skip

BUILDER_METHODS = (
    "create_addptr", "create_atomic_cas", "create_atomic_rmw", "create_bitcast", "create_broadcast", "create_dot",
    "create_expand_dims", "create_load", "create_make_range", "create_masked_load", "create_masked_store",
    "create_reshape", "create_splat", "create_store", "create_trans",
    "binary_op", "cast_impl", "create_fma", "create_fp_to_fp", "create_rsqrt", "ternary_op", "unary_op",
)  # fmt: skip


def _refuse(what: str) -> UsageError:
    versions = ", ".join(TESTED)
    return UsageError(
        what, hint=f"the front end is tested with triton {versions}: {_INSTALL}, or one of these versions"
    )


def load() -> dict[str, Any]:
    """The modules named above; raises UsageError where Triton is missing or lacks something."""
    try:
        version = metadata.version("triton")
        modules = {name: import_module(name) for name in USED}
        import_module("torch")
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise _refuse(f"Triton's interpreter cannot be imported: {error}") from None
    missing = [f"{name}.{each}" for name, names in USED.items() for each in names if not hasattr(modules[name], each)]
    builder = getattr(modules["triton.runtime.interpreter"], "InterpreterBuilder", object)
    missing += [f"InterpreterBuilder.{each}" for each in BUILDER_METHODS if not hasattr(builder, each)]
    if missing:
        raise _refuse(f"triton {version} has no {', '.join(missing)}")
    return modules


MODULES = load()
interpreter = MODULES["triton.runtime.interpreter"]
jit = MODULES["triton.runtime.jit"]
autotuner = MODULES["triton.runtime.autotuner"]
active_driver = MODULES["triton.runtime.driver"].driver
knobs = MODULES["triton.knobs"]
testing = MODULES["triton.testing"]
GPUTarget = MODULES["triton.backends.compiler"].GPUTarget
DriverBase = MODULES["triton.backends.driver"].DriverBase
TensorDescriptor = MODULES["triton.tools.tensor_descriptor"].TensorDescriptor
TritonSemantic = MODULES["triton.language.semantic"].TritonSemantic
core = MODULES["triton.language.core"]
standard = MODULES["triton.language.standard"]
language = import_module("triton.language")
TritonHandle = interpreter.TensorHandle
InterpreterError = MODULES["triton.runtime.errors"].InterpreterError
CompilationError = MODULES["triton.compiler.errors"].CompilationError
Builder = interpreter.InterpreterBuilder
native = interpreter._interpreter
ir = MODULES["triton._C.libtriton"].ir
try:  # a library that only some releases bring
    vendor_blas = import_module("triton._C.libtriton").nvidia.cublas
except (ImportError, AttributeError):
    vendor_blas = None


def _launch_options() -> tuple[str, ...]:
    """What a launch may be given beside the parameters of its kernel: the options of Triton's compilers, and ours."""
    names = {"schedule", "placement"}
    for vendor, options in (("nvidia", "CUDAOptions"), ("amd", "HIPOptions")):
        with suppress(ImportError):  # a build may have one of them only
            found = getattr(import_module(f"triton.backends.{vendor}.compiler"), options)
            names |= {each.name for each in fields(found)}
    return tuple(sorted(names))


LAUNCH_OPTIONS = _launch_options()
_np_dtype = interpreter._get_np_dtype
_by_name: dict[str, Any] = {}


def np_dtype_of(dtype: Any) -> Any:
    """The array type that the interpreter has for a type; it makes a table at every call, so answers are kept."""
    found = _by_name.get(dtype.scalar.name)
    if found is None:
        found = _by_name[dtype.scalar.name] = _np_dtype(dtype)
    return found
