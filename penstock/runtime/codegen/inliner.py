"""Puts what small functions of the user's compute into the loops that call them.

A call from Python to Python takes about as long as what `lambda pair: pair[0]` does. So a loop of
`penstock.runtime.operators.record_loops` is compiled anew for an operator, with `pair[0]` in the
place of the call. What is called for its effect only may also set attributes and items:
`self.last[value[0]] = value`. A list comprehension that a loop's list is extended by becomes a
loop in that loop. The object of a method is found where the loop finds its globals. What a
function does tells `bodies.py`; one of which that is not known is called as before.

Where what is inlined raises, there is no frame of the user's function in the traceback:
`was_inlined` tells, and the caller then runs the plain loop for that one record. So a body that
raises half-way is begun a second time, before the job goes back to a snapshot. Only what a class of
the user's does when an attribute or item is set, as an iterator, or in a method with a name of
those that are known to change nothing, is done twice then.

Nothing here knows operators. It takes about three milliseconds, so what was compiled is kept: tasks
of one operator in one process have the same code.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, TypeVar

from penstock.runtime.codegen.decompiler import FILE, Body, body_of, compiled, plain_code

__all__ = [
    "Unpacked",
    "inlined",
    "inlined_by_column",
    "owner_name",
    "renamed",
    "unrolled",
    "was_inlined",
]

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=ast.AST)


def inlined(loop: F, **functions: Any) -> F:
    """The loop with calls of its parameters replaced by what the functions compute.

    Arguments:
        loop: a function at the top level of a module.
        functions: for parameters of `loop` the functions that they will be given. The loop calls
            them with plain names only.

    Returns a function of the same parameters; `loop` itself if nothing can be replaced, or if its
    source is not there.
    """
    return _with(loop, None, functions) or loop


def inlined_by_column(loop: F, width: int, **functions: Any) -> F | None:
    """As `inlined`, for records that are tuples: the loop goes through tuples of their items.

    So it may be given a `zip` of columns, whose tuples are taken apart at once: `record[0]` is a
    name in it. Where the loop needs a record as a whole, it puts a tuple together.

    Arguments:
        loop: one whose records are called `record`, a name that it gives to nothing else.
        width: of the tuples.
        functions: as of `inlined`.

    Returns None if the loop does not look at more items than it needs whole records, or if nothing
    can be replaced.
    """
    return _with(loop, width, functions)


def _with(loop: F, width: int | None, functions: dict[str, Any]) -> F | None:
    found = {name: plain_code(function) for name, function in functions.items()}
    known = {name: plain for name, plain in found.items() if plain is not None}
    codes = tuple((name, code, owner is not None) for name, (code, owner) in known.items())
    code = _compiled(loop, width, codes)
    if code is None:
        return None
    scope = dict(loop.__globals__)
    scope |= {owner_name(name): owner for name, (_, owner) in known.items() if owner is not None}
    exec(code, scope)
    result: F = scope[loop.__name__]
    return result


@lru_cache(maxsize=256)
def _compiled(
    loop: Callable[..., Any], width: int | None, codes: tuple[tuple[str, CodeType, bool], ...]
) -> CodeType | None:
    """The code of a module with the loop in it; None if nothing can be replaced."""
    found = ((name, body_of(code, is_method)) for name, code, is_method in codes)
    bodies = {name: body for name, body in found if body is not None}
    if not bodies:
        return None
    try:
        tree = ast.parse(inspect.getsource(loop))
    except (OSError, SyntaxError):
        return None
    replace = _Replace(bodies)
    replaced = replace.visit(tree)
    if not replace.done:
        return None
    if width is not None:
        unpack = Unpacked("record", [f"record_{index}" for index in range(width)])
        replaced = unpack.visit(replaced)
        if unpack.whole >= unpack.items:
            return None
    return compiled(replaced)


def owner_name(name: str) -> str:
    """What the object of a method is called in the loop's scope."""
    return f"_owner_of_{name}"


def was_inlined(error: BaseException) -> bool:
    """Whether an error was raised by the compiled loop itself, and by no function it called."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == FILE


class _Replace(ast.NodeTransformer):
    """Puts what functions do in the place of their calls; `done` says whether there was one."""

    def __init__(self, bodies: dict[str, Body]) -> None:
        self._bodies = bodies
        self.done = False

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        """A call for its effect: all that the function does. What it returns is made, too."""
        found = self._called(node.value)
        if found is None or isinstance(found[0].result, ast.ListComp):
            extended = self._extended(node.value)
            return self.generic_visit(node) if extended is None else extended
        self.done = True
        body, names = found
        return [renamed(each, names) for each in (*body.statements, ast.Expr(body.result))]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call for its value: the expression of a function that has nothing else."""
        self.generic_visit(node)
        found = self._called(node)
        if found is None or not found[0].is_value:
            return node
        self.done = True
        body, names = found
        return renamed(body.result, names)

    def _extended(self, node: ast.expr) -> ast.For | None:
        """A loop that appends to a list what the list is extended by, if that is one's items."""
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
        self.done = True
        append = ast.Attribute(node.func.value, "append", ast.Load())
        return unrolled(items, found[1], lambda item: [ast.Expr(ast.Call(append, [item], []))])

    def _called(self, node: ast.expr) -> tuple[Body, dict[str, str]] | None:
        """What is called, and what its parameters are called here."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return None
        body = self._bodies.get(node.func.id)
        if body is None or len(body.parameters) != len(node.args):
            return None  # or it is to be refused by the function itself, when it is called
        names = {} if body.owner is None else {body.owner: owner_name(node.func.id)}
        for parameter, argument in zip(body.parameters, node.args, strict=True):
            assert isinstance(argument, ast.Name), "loops give names to functions"
            names[parameter] = argument.id
        return body, names


def unrolled(
    items: ast.ListComp, names: dict[str, str], done: Callable[[ast.expr], list[ast.stmt]]
) -> ast.For:
    """A loop in the place of a comprehension.

    Arguments:
        items: the comprehension.
        names: what the names in the expression that it goes through are in the loop's place.
        done: what is done with an item, given its expression.
    """
    (over,) = items.generators
    # It is a function of its own, which sees none of the parameters.
    variables = [each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)]
    own = {name: f"{name}_of_an_item" for name in variables}
    inner = done(renamed(items.elt, own))
    for test in reversed(over.ifs):
        inner = [ast.If(renamed(test, own), inner, [])]
    return ast.For(renamed(over.target, own), renamed(over.iter, names), inner, [])


def renamed(node: A, names: dict[str, str]) -> A:
    """A copy with other names, all of them given."""
    renamed: A = _Rename(names).visit(copy.deepcopy(node))
    return renamed


class _Rename(ast.NodeTransformer):
    """Gives names other names, all at once."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The name that stands for it."""
        return ast.Name(self._names[node.id], node.ctx)


class Unpacked(ast.NodeTransformer):
    """Gives the items of a tuple in the place of the tuple; where it is bound, they are.

    Arguments:
        name: of the tuple.
        items: the names of its items.
    """

    def __init__(self, name: str, items: Sequence[str]) -> None:
        self._name, self._items = name, items
        #: How often an item is asked for, and how often the tuple.
        self.items = self.whole = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An item, if its place is known and there is one."""
        match node:
            case ast.Subscript(ast.Name(self._name), ast.Constant(int(place)), ast.Load()):
                if -len(self._items) <= place < len(self._items):
                    self.items += 1
                    return ast.Name(self._items[place], ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The tuple."""
        if node.id != self._name:
            return node
        self.whole += isinstance(node.ctx, ast.Load)
        return ast.Tuple([ast.Name(name, node.ctx) for name in self._items], node.ctx)
