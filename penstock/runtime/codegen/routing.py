"""Generate one loop that runs a map or flat map and routes its output records.

Such a loop exists only if the user's function returns tuples, and if the key selector uses only
items of the tuple. The loop does not create the tuples. It appends each item to a column of the
buffer of the key's output channel. For example, a
flat map makes `(word, 1)` for each word of a line, and the word is the key. The loop is

    for word in record.split():
        there = pending[word]
        there.records.append(word)

The second item is always 1, so the loop does not store it. The batch holds it as a constant.
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

#: One element for each item of a tuple. The element is None if the item varies from record to
#: record, or `(constant,)` if the item is a constant. Example: `(None, (1,))` for `(word, 1)`.
Layout = Sequence[tuple[Any] | None]

_LOOP = """
def loop(iterator, pending):
    for record in iterator:
        pass

def timed_loop(iterator, pending, timestamps):
    for record, timestamp in zip(iterator, timestamps):
        pass
"""


@dataclass(frozen=True)
class RoutingLoop:
    """A generated loop, and the layout of the tuples that it appends to buffers.

    Arguments:
        run: takes an iterator over records, and a mapping of keys to column buffers. It appends
            the items that vary to the lists `records`, `column1`, `column2` … of a buffer.
        run_timed: the loop for records with event times. It also takes a list of the event times,
            and appends those of the records that it makes to the list `timestamps` of a buffer.
        layout: which items of the tuples vary, and the values of the constant items.
    """

    run: Callable[[Any, Any], None]
    run_timed: Callable[[Any, Any, Any], None]
    layout: Layout


def specialize_routing(
    function: Any, key_selector: Any, makes_many: bool, widest: int
) -> RoutingLoop | None:
    """Return a loop with both functions inlined, or None if that is not possible.

    Arguments:
        function: takes a record, and returns a tuple or a list of tuples.
        key_selector: takes such a tuple, and returns its key.
        makes_many: whether `function` returns a list.
        widest: the greatest number of items that a tuple may have.
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
    return RoutingLoop(scope["loop"], scope["timed_loop"], layout)


@lru_cache(maxsize=256)
def _compile(
    code: CodeType,
    is_method: bool,
    key_code: CodeType,
    key_is_method: bool,
    makes_many: bool,
    widest: int,
) -> tuple[CodeType, Layout] | None:
    """Return the code of a module with the function `loop`, and its tuples' layout.

    Returns None if one of the two functions cannot be inlined.
    """
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
    module = ast.parse(_LOOP)
    loops = [node for node in ast.walk(module) if isinstance(node, ast.For)]
    for loop, timed in zip(loops, (False, True), strict=True):
        appends = partial(_appends, key, timed)
        if many is None:
            loop.body = appends(rename(made, names))
        else:
            loop.body = [unroll(many, names, appends)]
    compiled = compile_module(module)
    return None if compiled is None else (compiled, layout)


def _names(body: FunctionBody, parameter: str, argument: str) -> dict[str, str]:
    """Return the loop's variable for each variable of a function with one parameter."""
    names = {body.parameters[0]: argument}
    return names if body.owner is None else {**names, body.owner: owner_variable(parameter)}


def _variable(index: int) -> str:
    """Return the name of the variable that holds an item.

    It is a local variable of the loop for an item that varies, and a global one for a constant.
    """
    return f"item{index}"


def _appends(key: FunctionBody, timed: bool, made: ast.expr) -> list[ast.stmt]:
    """Return statements that append the items of a tuple to the buffer of its key.

    With `timed`, they also append the event time.
    """
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
    columns = ["records", *(f"column{number}" for number in range(1, len(varying)))]
    appended = dict(zip(columns, varying, strict=True))
    if timed:
        appended["timestamps"] = "timestamp"
    for column, name in appended.items():
        held = ast.Attribute(ast.Name("there", ast.Load()), column, ast.Load())
        append = ast.Attribute(held, "append", ast.Load())
        statements.append(ast.Expr(ast.Call(append, [ast.Name(name, ast.Load())], [])))
    return statements
