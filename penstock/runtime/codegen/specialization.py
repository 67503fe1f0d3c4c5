"""Compile loops again with the bodies of user functions in the place of their calls.

A call from Python to Python takes about as long as the work of `lambda pair: pair[0]`. So a loop of
`penstock.runtime.operators.record_loops` is compiled for each operator, with `pair[0]` instead of
the call:

* A function that only computes a value is inlined where the loop uses that value.
* A function that is called for its effect may also set attributes and items, such as
  `self.last[value[0]] = value`.
* A list comprehension becomes a loop where the loop extends a list by its items.

The object of a method is a global variable of the generated code. A function that cannot be
decompiled is called as before.

Where inlined code raises, the traceback has no frame of the user's function.
`raised_by_generated_code` detects that, and the caller then runs the plain loop for that one
record. So a body that raises half-way is executed a second time before the job goes back to a
snapshot. This can be observed only by a user's class that overrides attribute or item access,
iteration, or a method with one of the names that are known to change nothing.

Nothing here knows operators. To compile a loop takes about three milliseconds, so the code is kept:
tasks of one operator in one process have the same code.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

from penstock.runtime.codegen.decompiler import FunctionBody, decompile
from penstock.runtime.codegen.recompilation import GENERATED_FILE, compile_module
from penstock.runtime.codegen.rewriting import TupleUnpacker, rename, unroll
from penstock.runtime.codegen.switch import is_enabled

__all__ = ["owner_variable", "plain_code", "raised_by_generated_code", "specialize"]

F = TypeVar("F", bound=Callable[..., Any])


def specialize(loop: F, functions: dict[str, Any], width: int | None = None) -> F | None:
    """Return a loop with the bodies of functions in the place of their calls.

    With a `width`, the loop takes records that are tuples apart as soon as it has them:
    `record[0]` is a variable in it. So it may be given a `zip` of columns. Where it needs a whole
    record, it puts a tuple together. Such a loop must call its records `record`, and give that
    name to nothing else.

    Arguments:
        loop: a function at the top level of a module.
        functions: for parameters of `loop`, the functions that will be passed for them. The loop
            passes only variables to them.
        width: the number of items of the records, if these are tuples and come by column.

    Returns a function with the parameters of `loop`. Returns None if code generation is off, if no
    call can be replaced, or if the loop needs whole records as often as single items.
    """
    if not is_enabled():
        return None
    found = {name: plain_code(function) for name, function in functions.items()}
    known = {name: plain for name, plain in found.items() if plain is not None}
    codes = tuple((name, code, owner is not None) for name, (code, owner) in known.items())
    code = _compile(loop, width, codes)
    if code is None:
        return None
    scope = dict(loop.__globals__)
    for name, (_, owner) in known.items():
        if owner is not None:
            scope[owner_variable(name)] = owner
    exec(code, scope)
    result: F = scope[loop.__name__]
    return result


def plain_code(function: Any) -> tuple[CodeType, Any] | None:
    """Return the code of a function and the object whose method it is, or None for the latter.

    Returns None for a function that has default arguments, or that is not written in Python.
    """
    owner = None
    if type(function) is MethodType:
        owner, function = function.__self__, function.__func__
    elif type(function) is not FunctionType:
        owner, function = function, inspect.getattr_static(type(function), "__call__", None)
    if type(function) is not FunctionType or function.__defaults__:
        return None
    return function.__code__, owner


def owner_variable(name: str) -> str:
    """Return the global variable of generated code that holds the object of a method."""
    return f"_owner_of_{name}"


def raised_by_generated_code(error: BaseException) -> bool:
    """Return whether an error was raised by generated code itself, not by what it called."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == GENERATED_FILE


@lru_cache(maxsize=256)
def _compile(
    loop: Callable[..., Any], width: int | None, codes: tuple[tuple[str, CodeType, bool], ...]
) -> CodeType | None:
    """Return the code of a module with the loop in it; None if nothing can be replaced."""
    found = ((name, decompile(code, is_method)) for name, code, is_method in codes)
    bodies = {name: body for name, body in found if body is not None}
    if not bodies:
        return None
    try:
        tree = ast.parse(inspect.getsource(loop))
    except (OSError, SyntaxError):
        return None
    inliner = _Inliner(bodies)
    inlined = inliner.visit(tree)
    if not inliner.has_replaced:
        return None
    if width is not None:
        unpacker = TupleUnpacker("record", [f"record_{index}" for index in range(width)])
        inlined = unpacker.visit(inlined)
        if unpacker.tuples_used >= unpacker.items_used:
            return None
    return compile_module(inlined)


class _Inliner(ast.NodeTransformer):
    """Replaces calls of functions by their bodies.

    Arguments:
        bodies: the bodies by the variables that hold the functions.
    """

    def __init__(self, bodies: dict[str, FunctionBody]) -> None:
        self._bodies = bodies
        #: Whether a call was replaced.
        self.has_replaced = False

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        """Replace a call for its effect by all statements of the function, and its result."""
        found = self._called(node.value)
        if found is None or isinstance(found[0].result, ast.ListComp):
            extended = self._extended(node.value)
            return self.generic_visit(node) if extended is None else extended
        self.has_replaced = True
        body, names = found
        return [rename(each, names) for each in (*body.statements, ast.Expr(body.result))]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call for its value, if the function is an expression."""
        self.generic_visit(node)
        found = self._called(node)
        if found is None or not found[0].is_expression:
            return node
        self.has_replaced = True
        body, names = found
        return rename(body.result, names)

    def _extended(self, node: ast.expr) -> ast.For | None:
        """Return a loop that appends the items of a comprehension by which a list is extended."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "extend"
        ):
            return None
        found = self._called(node.args[0])
        items = found[0].result if found is not None else None
        if found is None or not isinstance(items, ast.ListComp):
            return None
        self.has_replaced = True
        append = ast.Attribute(node.func.value, "append", ast.Load())
        return unroll(items, found[1], lambda item: [ast.Expr(ast.Call(append, [item], []))])

    def _called(self, node: ast.expr) -> tuple[FunctionBody, dict[str, str]] | None:
        """Return the body of a called function, and the variables that its own stand for."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        body = self._bodies.get(node.func.id)
        if body is None or len(body.parameters) != len(node.args):
            return None  # with the wrong number of arguments, the call itself raises
        names = {} if body.owner is None else {body.owner: owner_variable(node.func.id)}
        for parameter, argument in zip(body.parameters, node.args, strict=True):
            assert isinstance(argument, ast.Name), "loops pass only variables to functions"
            names[parameter] = argument.id
        return body, names
