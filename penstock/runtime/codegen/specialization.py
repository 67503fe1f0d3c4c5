"""Compile loops again, and replace calls of user functions by their bodies.

A call of a Python function takes about as long as the work of `lambda pair: pair[0]`. So each
operator gets its own copy of a loop of `penstock.runtime.operators.record_loops`. In the copy,
`pair[0]` replaces the call:

* A function that only computes a value replaces a call inside of an expression.
* If the loop ignores the result of a function, the function may also set attributes and items, such
  as `self.last[value[0]] = value`.
* If the loop extends a list by the items of a list comprehension, a `for` loop replaces it.

The object of a method is a global variable of the generated code. A function that cannot be
decompiled is called as before.

If inlined code raises an error, the traceback has no frame of the user's function.
`raised_by_generated_code` detects that, and the caller then runs the plain loop for that one
record. So if a function raises an error halfway, its first half is executed a second time before
the job is restored. Only a user's class can observe this, and only if it overrides attribute or
item access, iteration, or a method whose name is in the decompiler's `_HARMLESS`.

This module does not depend on operators. Compiling a loop takes about three milliseconds, so the
code is cached: the tasks of one operator in one process share it.
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
from penstock.runtime.codegen.variants import syntax_tree

F = TypeVar("F", bound=Callable[..., Any])


def specialize(loop: F, functions: dict[str, Any], width: int | None = None) -> F | None:
    """Return a copy of a loop in which the bodies of functions replace their calls.

    If `width` is given, the loop unpacks each record, which is a tuple, at once: a variable
    replaces `record[0]`. So the caller may pass a `zip` of columns as the records. If the loop
    needs a whole record, it makes a tuple again. The variable of the record must be called `record`
    in the loop, and no other variable may have that name.

    Arguments:
        loop: a function at the top level of a module, or a variant of one.
        functions: the user functions by the parameters of `loop` that they are passed as. The
            loop must call them with variables only.
        width: the number of items of a record, if the records are tuples held by column.

    Returns a function with the parameters of `loop`. Returns None if code generation is off, if no
    call can be replaced, or if the loop uses whole records at least as often as single items.
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
    """Return the code of a function, and for a method also its object.

    The object is None for a plain function. The result is None for a function that has default
    arguments, or that is not written in Python.
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
    """Return the name of the global variable that holds the object of a method.

    Arguments:
        name: the parameter of the loop that the method is passed as.
    """
    return f"_owner_of_{name}"


def raised_by_generated_code(error: BaseException) -> bool:
    """Return whether generated code itself raised an error.

    The result is False if a function that the generated code called has raised it.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == GENERATED_FILE


@lru_cache(maxsize=256)
def _compile(
    loop: Callable[..., Any], width: int | None, codes: tuple[tuple[str, CodeType, bool], ...]
) -> CodeType | None:
    """Return the code of a module that contains the specialised loop.

    Returns None if no call can be replaced.
    """
    found = ((name, decompile(code, is_method)) for name, code, is_method in codes)
    bodies = {name: body for name, body in found if body is not None}
    if not bodies:
        return None
    try:
        tree = syntax_tree(loop)
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
    """Replaces calls of functions by the bodies of the functions.

    Arguments:
        bodies: the body of each function, by the variable that holds the function.
    """

    def __init__(self, bodies: dict[str, FunctionBody]) -> None:
        self._bodies = bodies
        #: Whether at least one call was replaced.
        self.has_replaced = False

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        """Replace a call whose result is ignored by the statements of the function."""
        found = self._called(node.value)
        if found is None or isinstance(found[0].result, ast.ListComp):
            extended = self._extended(node.value)
            return self.generic_visit(node) if extended is None else extended
        self.has_replaced = True
        body, names = found
        return [rename(each, names) for each in (*body.statements, ast.Expr(body.result))]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call inside of an expression, if the function is a single expression."""
        self.generic_visit(node)
        found = self._called(node)
        if found is None or not found[0].is_expression:
            return node
        self.has_replaced = True
        body, names = found
        return rename(body.result, names)

    def _extended(self, node: ast.expr) -> ast.For | None:
        """Return a loop that replaces a call `items.extend(function(…))`.

        The loop appends the items of the function's list comprehension one by one. Returns None if
        the node is not such a call.
        """
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
        """Return the body of a called function, and the new names of its variables.

        Returns None if the node is not a call of a function that can be inlined.
        """
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        body = self._bodies.get(node.func.id)
        if body is None or len(body.parameters) != len(node.args):
            return None  # the number of arguments is wrong: the call must remain, and raise
        names = {} if body.owner is None else {body.owner: owner_variable(node.func.id)}
        for parameter, argument in zip(body.parameters, node.args, strict=True):
            assert isinstance(argument, ast.Name), "loops pass only variables to functions"
            names[parameter] = argument.id
        return body, names
