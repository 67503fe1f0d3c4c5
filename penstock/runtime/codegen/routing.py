"""Generate one loop for a map or flat map and the routing of what it emits.

If a function makes tuples, and the key selector looks only at items of them, no tuple is needed:
each item is appended to a column of the buffer that the key selects. For `(word, 1)` for each word
of a line, by the word, the loop is

    for word in record.split():
        there = pending[word]
        there.records.append(word)

and the ones are a constant of the batch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from penstock.runtime.codegen.decompiler import FunctionBody, decompile
from penstock.runtime.codegen.recompilation import compile_module
from penstock.runtime.codegen.rewriting import TupleUnpacker, rename, unroll
from penstock.runtime.codegen.specialization import owner_variable, plain_code
from penstock.runtime.codegen.switch import is_enabled

__all__ = ["RoutingLoop", "specialize_routing"]

#: For each item of a tuple None if it varies, else a tuple of the constant that it always is.
Layout = Sequence[tuple[Any] | None]

_LOOP = """
def loop(iterator, pending):
    for record in iterator:
        pass
"""


@dataclass(frozen=True)
class RoutingLoop:
    """A generated loop, and what it appends.

    Arguments:
        run: called with an iterator over records, and a mapping of keys to column buffers. It
            appends the varying items of a tuple to the buffer's `records`, `column1`, `column2` …
        layout: the items of the tuples.
    """

    run: Callable[[Any, Any], None]
    layout: Layout


def specialize_routing(
    function: Any, key_selector: Any, makes_many: bool, widest: int
) -> RoutingLoop | None:
    """Return a loop that calls neither function, or None if that is not possible.

    Arguments:
        function: makes a tuple of a record, or a list of tuples.
        key_selector: takes the key from a tuple.
        makes_many: whether `function` makes a list.
        widest: the greatest number of items in a tuple.
    """
    if not is_enabled():
        return None
    made, key = plain_code(function), plain_code(key_selector)
    if made is None or key is None:
        return None
    known = _compile(made[0], made[1] is not None, key[0], key[1] is not None, makes_many, widest)
    if known is None:
        return None
    code, layout = known
    scope: dict[str, Any] = {"__name__": __name__}
    scope |= {_variable(index): item[0] for index, item in enumerate(layout) if item}
    scope |= {owner_variable("function"): made[1], owner_variable("key_of"): key[1]}
    exec(code, scope)
    return RoutingLoop(scope["loop"], layout)


@lru_cache(maxsize=256)
def _compile(
    code: CodeType,
    is_method: bool,
    key_code: CodeType,
    key_is_method: bool,
    makes_many: bool,
    widest: int,
) -> tuple[CodeType, Layout] | None:
    """Return the code of a module with the function `loop`, and the layout of the tuples."""
    body, key = decompile(code, is_method), decompile(key_code, key_is_method)
    if body is None or key is None or not key.is_expression or len(key.parameters) != 1:
        return None
    if len(body.parameters) != 1 or body.statements:
        return None
    many = body.result if isinstance(body.result, ast.ListComp) else None
    made = body.result if many is None else many.elt
    if makes_many != (many is not None):
        return None
    if not isinstance(made, ast.Tuple) or not 1 <= len(made.elts) <= widest:
        return None
    layout = [(item.value,) if isinstance(item, ast.Constant) else None for item in made.elts]
    if all(layout):
        return None
    names = _names(body, "function", "record")
    if many is None:
        statements = _appends(key, rename(made, names))
    else:
        statements = [unroll(many, names, partial(_appends, key))]
    module = ast.parse(_LOOP)
    (loop,) = (node for node in ast.walk(module) if isinstance(node, ast.For))
    loop.body = statements
    compiled = compile_module(module)
    return None if compiled is None else (compiled, layout)


def _names(body: FunctionBody, parameter: str, argument: str) -> dict[str, str]:
    """Return the variables of the loop for those of a body with one parameter."""
    names = {body.parameters[0]: argument}
    return names if body.owner is None else {**names, body.owner: owner_variable(parameter)}


def _variable(index: int) -> str:
    """Return the variable of an item; that of a constant item is global."""
    return f"item{index}"


def _appends(key: FunctionBody, made: ast.expr) -> list[ast.stmt]:
    """Return statements that append the items of a tuple to the buffer of its key."""
    assert isinstance(made, ast.Tuple)
    names, varying = [], []
    statements: list[ast.stmt] = []
    for index, item in enumerate(made.elts):
        names.append(item.id if isinstance(item, ast.Name) else _variable(index))
        if not isinstance(item, ast.Constant):
            varying.append(names[index])
            if not isinstance(item, ast.Name):
                statements.append(ast.Assign([ast.Name(names[index], ast.Store())], item))
    found = rename(key.result, _names(key, "key_of", "made"))
    found = TupleUnpacker("made", names).visit(found)
    there = ast.Subscript(ast.Name("pending", ast.Load()), found, ast.Load())
    statements.append(ast.Assign([ast.Name("there", ast.Store())], there))
    column = "records"
    for number, name in enumerate(varying, start=1):
        held = ast.Attribute(ast.Name("there", ast.Load()), column, ast.Load())
        append = ast.Attribute(held, "append", ast.Load())
        statements.append(ast.Expr(ast.Call(append, [ast.Name(name, ast.Load())], [])))
        column = f"column{number}"
    return statements
