"""Kernels as Triton compiles them, where Python alone would do something else.

A kernel is rewritten once. `and`, `or` and `not` of tensors, `min`, `max`, `print` and `assert` are operations of
Triton's language; loops mark where an iteration begins; functions of the language that a file has imported
by their names are replaced as those of its modules are. What the rewritten source refers to is bound to it as variables
of an enclosing function are: nothing is added to the user's module, and the variables of a function around the kernel
are those of the user.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import repeat
from types import CellType, CodeType, FunctionType
from typing import Any

from kernbench.triton import libdevice
from kernbench.triton.builder import current
from kernbench.triton.internals import core, interpreter, knobs
from kernbench.triton.refusals import refuse

_OURS = "_kernbench_"


class _Names(interpreter.ASTTransformer):  # type: ignore[misc]  # Triton has no types
    """Triton's own rewriting, and ours. `bound` has what the names of ours stand for."""

    def __init__(self, fn: Any) -> None:
        self._locals: frozenset[str] = frozenset()
        self._cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        self._globals = fn.__globals__
        self._loops = 0
        self.bound: dict[str, Any] = {}

    def _ours(self, name: str, value: Any) -> ast.Name:
        self.bound[_OURS + name] = value
        return ast.Name(id=_OURS + name, ctx=ast.Load())

    def _call(self, name: str, function: Callable[..., Any], *args: ast.expr) -> ast.Call:
        return ast.Call(func=self._ours(name, function), args=list(args), keywords=[])

    def _meant(self, name: str) -> Any:
        """What a name stands for that is no variable of the function; None where it is not known yet."""
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:  # it is assigned later
                return None
        return self._globals.get(name)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802  # as the ast module names it
        # Defaults are those of the function itself: names in them may be variables of a function around it.
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            each.annotation = None
        node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
        node.decorator_list, node.returns = [], None
        parts = list(ast.walk(node))
        assigned = [each.id for each in parts if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)]
        self._locals = frozenset((*assigned, *(each.arg for each in parts if isinstance(each, ast.arg))))
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:  # noqa: N802
        if not isinstance(node.ctx, ast.Load) or node.id in self._locals:
            return node
        found = self._meant(node.id)
        if found is None and node.id in _BUILTINS:
            return ast.copy_location(self._ours(node.id, _BUILTINS[node.id]), node)
        if isinstance(found, (bool, int, float, str)) and node.id not in self._cells and not node.id.startswith("__"):
            return ast.copy_location(self._call("global", _global, ast.Constant(node.id), node), node)
        if not callable(found):
            return node
        known = libdevice.known(found) or (_with_semantic(found) if core.is_builtin(found) else None)
        return node if known is None else ast.copy_location(self._ours(node.id, known), node)

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
        if len(node.targets) > 1:
            return ast.copy_location(ast.Expr(self._call("several", _refuse_several)), node)
        node.value = self.visit(node.value)  # not all releases do
        return super().visit_Assign(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        first, *others = node.values
        if any(isinstance(part, ast.NamedExpr) for each in others for part in ast.walk(each)):
            return node  # a variable that is assigned there is one of the kernel
        name, function = ("and", _all_of) if isinstance(node.op, ast.And) else ("or", _any_of)
        return ast.copy_location(self._call(name, function, first, *(_later(each) for each in others)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        return ast.copy_location(self._call("not", _not, node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        message = node.msg or ast.Constant("")
        call = self._call("assert", _with_semantic(core.device_assert), node.test, message)
        return ast.copy_location(ast.Expr(call), node)

    def visit_For(self, node: ast.For) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        node.iter = self._call("loop", announced_loop, node.iter)
        return node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        self.generic_visit(node)
        self._loops += 1
        name = f"{_OURS}while{self._loops}"
        loop = ast.Name(id=name, ctx=ast.Load())
        made = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=self._call("while", _while_loop))
        node.body.insert(0, ast.copy_location(ast.Expr(self._call("next", next, loop)), node))
        over = ast.Expr(ast.Call(func=ast.Attribute(value=loop, attr="close", ctx=ast.Load()), args=[], keywords=[]))
        return [ast.copy_location(made, node), node, ast.copy_location(over, node)]


def _global(name: str, value: Any) -> Any:
    """A global of the host that a kernel reads: refused as Triton's compiler does."""
    if knobs.compilation.allow_non_constexpr_globals:
        return value
    hint = f"write {name} = tl.constexpr({value!r}), or give it as an argument"
    return refuse(f"the kernel reads the global '{name}', which is not a constexpr", hint)


def _refuse_several() -> None:
    refuse("an assignment to several targets", "write one assignment for each: Triton's compiler has no others")


def _later(value: ast.expr) -> ast.Lambda:
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.copy_location(ast.Lambda(args=arguments, body=value), value)


def _with_semantic(builtin: Any) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        named.pop("_semantic", None)
        return builtin(*args, **named, _semantic=interpreter.interpreter_semantic)

    return call


def _of_tensors(plain: Callable[..., Any], builtin: Any) -> Callable[..., Any]:
    """A function of Python for constants, and of the language where one of its arguments is a tensor."""
    of_language = _with_semantic(builtin)

    def call(*args: Any, **named: Any) -> Any:
        return (of_language if any(isinstance(each, core.tensor) for each in args) else plain)(*args, **named)

    return call


_BUILTINS = {  # what the compiler takes these names for
    "min": _of_tensors(min, core.builtin_min),
    "max": _of_tensors(max, core.builtin_max),
    "print": _with_semantic(core.device_print),
}


class _Rewriter(interpreter.FunctionRewriter):  # type: ignore[misc]  # Triton has no types
    """Rewrites one function."""

    def __init__(self, fn: Any) -> None:
        super().__init__(fn)
        self.ast_transformer = _Names(fn)

    def _compile_and_exec(self, tree: ast.Module) -> Callable[..., object]:
        fn, code = self.fn, self.fn.__code__
        theirs = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
        bound = {
            each.id: vars(interpreter)[each.id]
            for each in ast.walk(tree)
            if isinstance(each, ast.Name) and each.id not in theirs and each.id in vars(interpreter)
        }
        cells = {name: CellType(value) for name, value in {**bound, **self.ast_transformer.bound}.items()}
        cells |= dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
        around = ast.parse(f"def {_OURS}around({', '.join(cells)}): pass")
        definition = around.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.body = tree.body
        kernel = tree.body[0]
        assert isinstance(kernel, ast.FunctionDef)
        module = compile(ast.fix_missing_locations(around), filename=self.filename, mode="exec")
        made = _code_in(_code_in(module, f"{_OURS}around"), kernel.name)
        closure = tuple([cells[name] for name in made.co_freevars])
        found = FunctionType(made, fn.__globals__, fn.__name__, fn.__defaults__, closure)
        found.__kwdefaults__ = fn.__kwdefaults__
        return found


def _code_in(code: CodeType, name: str) -> CodeType:
    """The code of a function that is defined in other code."""
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


_rewritten: dict[Any, Callable[..., object]] = {}


def rewritten(fn: Callable[..., object]) -> Callable[..., object]:
    """A kernel or device function as it is run."""
    found = _rewritten.get(fn)
    if found is None:
        found = _rewritten[fn] = _Rewriter(fn).rewrite_ast()
    return found


# ---- truth


def _truth(value: Any) -> Any:
    """A tensor as an operand of `and`, `or` and `not`. The compiler knows an argument that is 1 as a constant: scalars
    of other types are taken by their truth; blocks are refused as the compiler does.
    """
    return value if value.type.is_block() or value.type.is_int1() else value != 0


def _joined(op: str, decides: bool, first: Any, others: tuple[Callable[[], Any], ...]) -> Any:
    """Tensors are joined, all of them; among constants, one that decides ends the expression, as in Python."""
    found, value = None, first
    for at in range(len(others) + 1):
        value = first if at == 0 else others[at - 1]()
        if not isinstance(value, core.tensor):
            if bool(value) is decides:
                return value
        elif found is None:
            found = value
        else:
            found = getattr(_truth(found), op)(_truth(value))
    return value if found is None else found


def _all_of(first: Any, *others: Callable[[], Any]) -> Any:
    return _joined("logical_and", False, first, others)


def _any_of(first: Any, *others: Callable[[], Any]) -> Any:
    return _joined("logical_or", True, first, others)


def _not(value: Any) -> Any:
    return _truth(value).__not__() if isinstance(value, core.tensor) else not value


# ---- loops


class PipelinedRange:
    """What `tl.range` gives: a range with a number of stages."""

    def __init__(self, items: range, num_stages: int | None) -> None:
        self.items = items
        self.num_stages = num_stages

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


def announced_loop(items: Any) -> Iterator[Any]:
    """The iterations of a loop. Each one is reported to the program that runs, which may run loads ahead."""
    program = current()
    if program is None:
        return iter(items)
    stages = items.num_stages if isinstance(items, PipelinedRange) else None
    found: Iterator[Any] = program.loop(items, stages)
    return found


def _while_loop() -> Iterator[None]:
    """The iterations of a `while` loop, which Triton does not pipeline: one begins when the one before is done."""
    program = current()
    yield from repeat(None) if program is None else program.loop(repeat(None), 1)
