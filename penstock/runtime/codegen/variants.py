"""Derive variants of the loops of operators, so that each loop is written only once.

A variant is the syntax tree of a loop with a small change, compiled again. It is as fast as a loop
that is written by hand. It keeps the file, the lines and the name of the loop, so tracebacks and
debuggers show the loop. It does not depend on the user's functions, so it also exists if code
generation is off.

Python does not find the text of a loop if the `.py` files are not installed. A variant then calls
the loop, which is slower.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

from penstock.dataflow.time.watermark import NO_TIMESTAMP

Loop = Callable[..., Any]

#: The syntax tree of each variant, because `inspect` finds the text of the loop instead.
_trees: dict[Loop, ast.Module] = {}


def syntax_tree(loop: Loop) -> ast.Module:
    """Return a new syntax tree of a loop or a variant. Raise an `OSError` if it has no text."""
    if loop in _trees:
        return copy.deepcopy(_trees[loop])
    return ast.parse(inspect.getsource(loop))


@cache
def without_times(loop: Loop) -> Loop:
    """Return the variant of a loop for records without event times.

    For example,

        for record, timestamp in zip(iterator, timestamps, strict=False):
            if function(record):
                out.append(record)
                times.append(timestamp)

    becomes

        for record in iterator:
            if function(record):
                out.append(record)

    Arguments:
        loop: a loop whose last two parameters are `timestamps` and `times`. The variant does not
            have them, and omits each call that uses them or the variable `timestamp`.
    """
    try:
        return _compiled(loop, _WithoutTimes().visit(syntax_tree(loop)))
    except OSError:
        return lambda *arguments: loop(*arguments, repeat(NO_TIMESTAMP), [])


@cache
def with_swapped_arguments(loop: Loop, function: str) -> Loop:
    """Return the variant of a loop that swaps the two arguments of a function that it calls.

    For example, `add(record, value)` becomes `add(value, record)`.

    Arguments:
        loop: the loop.
        function: the parameter of the loop that the function is passed as.
    """
    try:
        return _compiled(loop, _SwappedArguments(function).visit(syntax_tree(loop)))
    except OSError:
        place = loop.__code__.co_varnames.index(function)

        def run(*arguments: Any) -> Any:
            given = list(arguments)
            given[place] = lambda one, other: arguments[place](other, one)
            return loop(*given)

        return run


def _compiled(loop: Loop, tree: ast.Module) -> Loop:
    """Return the function that a changed syntax tree of a loop defines."""
    code, scope = loop.__code__, dict(loop.__globals__)
    at_its_lines = ast.increment_lineno(copy.deepcopy(tree), code.co_firstlineno - 1)
    exec(compile(at_its_lines, code.co_filename, "exec", dont_inherit=True), scope)
    variant: Loop = scope[loop.__name__]
    _trees[variant] = tree
    return variant


class _WithoutTimes(ast.NodeTransformer):
    """Removes event times from a loop."""

    _NAMES = frozenset({"timestamp", "timestamps", "times"})

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """Remove the parameters."""
        node.args = [each for each in node.args if each.arg not in self._NAMES]
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """Remove the event times that the loop iterates over."""
        self.generic_visit(node)
        match node:
            case ast.For(
                ast.Tuple([record, _]), ast.Call(ast.Name("zip"), [records, ast.Name("timestamps")])
            ):
                node.target, node.iter = record, records
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a call that uses event times."""
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return None if used & self._NAMES else node


class _SwappedArguments(ast.NodeTransformer):
    """Swaps the two arguments in the calls of a function."""

    def __init__(self, function: str) -> None:
        self._function = function

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Swap the arguments, if the call is one of the function."""
        self.generic_visit(node)
        match node.func:
            case ast.Name(self._function):
                node.args.reverse()
        return node
