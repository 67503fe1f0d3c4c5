"""Puts what small functions of the user's compute into the loops that call them.

A call from Python to Python takes about as long as what `lambda pair: pair[0]` does. So a loop of
`penstock.runtime.loops` is compiled anew for an operator, with `pair[0]` in the place of the call.

That needs an expression, and a function has only code. It is read from the code by running that
on names instead of values (`_read`), which knows a few instructions and none that jumps, calls or
assigns. It need not be trusted: the expression is compiled again, and is used only if that gives
the very same instructions, names and constants (`_same`). Whatever is not recognised, on
whatever version of Python, is called as before.

Where an inlined expression raises, there is no frame of the user's function in the traceback:
`was_inlined` tells, and the caller then runs the plain loop for that one record.

Nothing here knows operators. It takes about three milliseconds, so what was compiled is kept: tasks
of one operator in one process have the same code.
"""

from __future__ import annotations

import ast
import copy
import dis
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, TypeVar

__all__ = ["expression_of", "inlined", "was_inlined"]

F = TypeVar("F", bound=Callable[..., Any])

#: The file name of compiled loops, in tracebacks.
FILE = "<penstock: a loop with the user's expressions in it>"
#: Functions with more instructions are called: a call is little beside what they do.
MOST_INSTRUCTIONS = 64

_UNUSUAL = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
#: Constants that are told apart by their type and `repr`.
_CONSTANTS = frozenset({int, float, str, bytes, bool, type(None)})
_SILENT = frozenset({"RESUME", "NOP", "CACHE"})
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_PAIRS = frozenset({"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"})
_BINARY: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "**": ast.Pow,
    "<<": ast.LShift,
    ">>": ast.RShift,
    "&": ast.BitAnd,
    "|": ast.BitOr,
    "^": ast.BitXor,
    "@": ast.MatMult,
}
_UNARY: dict[str, type[ast.unaryop]] = {
    "UNARY_NEGATIVE": ast.USub,
    "UNARY_NOT": ast.Not,
    "UNARY_INVERT": ast.Invert,
}
_COMPARE: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt,
    "<=": ast.LtE,
    "==": ast.Eq,
    "!=": ast.NotEq,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_TESTS: dict[str, tuple[type[ast.cmpop], type[ast.cmpop]]] = {
    "IS_OP": (ast.Is, ast.IsNot),
    "CONTAINS_OP": (ast.In, ast.NotIn),
}


def inlined(loop: F, **functions: Any) -> F:
    """The loop with calls of its parameters replaced by what the functions compute.

    Arguments:
        loop: a function at the top level of a module.
        functions: for parameters of `loop` the functions that they will be given. The loop calls
            them with plain names only.

    Returns a function of the same parameters; `loop` itself if nothing can be replaced, or if its
    source is not there.
    """
    codes = ((name, _plain_code(function)) for name, function in functions.items())
    compiled = _compiled(loop, tuple((name, code) for name, code in codes if code is not None))
    if compiled is None:
        return loop
    scope = dict(loop.__globals__)
    exec(compiled, scope)
    result: F = scope[loop.__name__]
    return result


@lru_cache(maxsize=256)
def _compiled(loop: Callable[..., Any], codes: tuple[tuple[str, CodeType], ...]) -> CodeType | None:
    """The code of a module with the loop in it; None if nothing can be replaced."""
    found = ((name, _expression(code)) for name, code in codes)
    expressions = {name: expression for name, expression in found if expression is not None}
    if not expressions:
        return None
    try:
        tree = ast.parse(inspect.getsource(loop))
    except (OSError, SyntaxError):
        return None
    replaced = ast.fix_missing_locations(_Replace(expressions).visit(tree))
    return compile(replaced, FILE, "exec", dont_inherit=True)


def was_inlined(error: BaseException) -> bool:
    """Whether an error was raised by the compiled loop itself, and by no function it called."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == FILE


def expression_of(function: Any) -> tuple[list[str], ast.expr] | None:
    """The names of a function's parameters and the expression it returns; None if not known."""
    code = _plain_code(function)
    return None if code is None else _expression(code)


def _plain_code(function: Any) -> CodeType | None:
    """The code of a function that has nothing but its code and its parameters."""
    if type(function) is not FunctionType or function.__defaults__:
        return None
    return function.__code__


def _expression(code: CodeType) -> tuple[list[str], ast.expr] | None:
    if (
        code.co_flags & _UNUSUAL
        or code.co_kwonlyargcount
        or code.co_freevars
        or code.co_cellvars
        or code.co_nlocals != code.co_argcount
        or len(code.co_code) > 2 * MOST_INSTRUCTIONS
    ):
        return None
    parameters = list(code.co_varnames)
    expression = _read(code)
    if expression is None or not _same(code, parameters, expression):
        return None
    return parameters, expression


def _read(code: CodeType) -> ast.expr | None:
    """The expression that code without jumps seems to return."""
    stack: list[ast.expr] = []
    try:
        for step in dis.get_instructions(code):
            if step.opname == "RETURN_VALUE":
                return stack.pop()
            if step.opname == "RETURN_CONST":
                return ast.Constant(step.argval)
            if not _step(step, stack):
                return None
    except IndexError:  # it took from an empty stack, so it was misread
        pass
    return None


def _step(step: dis.Instruction, stack: list[ast.expr]) -> bool:
    """Do to the stack of expressions what an instruction does to values; False if not known."""
    name, value = step.opname, step.argval
    if name in _SILENT:
        return True
    if name in _LOADS:
        stack.append(ast.Name(value, ast.Load()))
    elif name in _PAIRS:
        stack += [ast.Name(each, ast.Load()) for each in value]
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT") and type(value) in _CONSTANTS:
        stack.append(ast.Constant(value))
    elif name == "LOAD_ATTR":
        stack.append(ast.Attribute(stack.pop(), value, ast.Load()))
    elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and step.argrepr == "[]"):
        index = stack.pop()
        stack.append(ast.Subscript(stack.pop(), index, ast.Load()))
    elif name == "BINARY_OP" and step.argrepr in _BINARY:
        right = stack.pop()
        stack.append(ast.BinOp(stack.pop(), _BINARY[step.argrepr](), right))
    elif name in _UNARY:
        stack.append(ast.UnaryOp(_UNARY[name](), stack.pop()))
    elif (name == "COMPARE_OP" and value in _COMPARE) or name in _TESTS:
        comparison = _TESTS[name][step.arg or 0] if name in _TESTS else _COMPARE[value]
        right = stack.pop()
        stack.append(ast.Compare(stack.pop(), [comparison()], [right]))
    elif name in ("BUILD_TUPLE", "BUILD_LIST") and step.arg:
        if len(stack) < step.arg:
            return False
        items = stack[-step.arg :]
        del stack[-step.arg :]
        sequence = ast.Tuple if name == "BUILD_TUPLE" else ast.List
        stack.append(sequence(items, ast.Load()))
    else:
        return False
    return True


def _same(code: CodeType, parameters: list[str], expression: ast.expr) -> bool:
    """Whether a function of these parameters that returns the expression has the same code."""
    kind = "lambda: 0" if code.co_name == "<lambda>" else "def function(): return 0"
    tree = ast.parse(kind)
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            node.args.args = [ast.arg(name) for name in parameters]
        if isinstance(node, ast.Lambda):
            node.body = expression
        elif isinstance(node, ast.Return):
            node.value = expression
    try:
        outer = compile(ast.fix_missing_locations(tree), FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # names that no source can have
        return False
    (again,) = (const for const in outer.co_consts if isinstance(const, CodeType))
    return _meaning(again) == _meaning(code)


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """All that code computes with: its instructions, and what their arguments stand for."""
    steps = [
        (step.opname, step.arg, type(step.argval), repr(step.argval))
        for step in dis.get_instructions(code)
    ]
    handlers = getattr(code, "co_exceptiontable", b"")
    return code.co_code, handlers, code.co_argcount, code.co_posonlyargcount, steps


class _Replace(ast.NodeTransformer):
    """Puts expressions in the place of calls."""

    def __init__(self, expressions: dict[str, tuple[list[str], ast.expr]]) -> None:
        self._expressions = expressions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The function's expression, with the call's arguments for its parameters."""
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in self._expressions):
            return node
        parameters, expression = self._expressions[node.func.id]
        if len(parameters) != len(node.args):
            return node  # to be refused by the function itself, when it is called
        names = {}
        for parameter, argument in zip(parameters, node.args, strict=True):
            assert isinstance(argument, ast.Name), "loops give names to functions"
            names[parameter] = argument.id
        renamed: ast.AST = _Rename(names).visit(copy.deepcopy(expression))
        return renamed


class _Rename(ast.NodeTransformer):
    """Gives names other names, all at once."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The name that stands for it."""
        return ast.Name(self._names[node.id], ast.Load())
