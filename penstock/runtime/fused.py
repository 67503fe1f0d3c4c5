"""A map or flat map and the routing behind it, as one loop that makes columns instead of tuples.

Where a function makes tuples, and a key selector looks at items of them, no tuple is needed: each
item is appended to a column of the outlet that the key says. `(word, 1)` for each word of a line,
by the word, becomes

    for word in record.split():
        there = pending[word]
        there.records.append(word)

and the ones are one number for the whole batch. What functions do is read from their code, and
checked, by `penstock.runtime.inline`; if it is not known, or is anything else, operator and router
are two loops as before. It is also they who raise: what fails here is run again by them, for the
one record, so that operator, record and traceback are theirs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from penstock.runtime.columns import WIDEST
from penstock.runtime.inline import (
    FILE,
    Body,
    Unpacked,
    body_of,
    owner_name,
    plain_code,
    renamed,
)
from penstock.runtime.operators import (
    FlatMapOperator,
    LoopOperator,
    MapOperator,
    RunningOperator,
    explain,
    index_at_hand,
)
from penstock.runtime.output import HashRouter

__all__ = ["FusedOperator", "fused"]

_LOOP = """
def loop(iterator, pending):
    for record in iterator:
        pass
"""


@dataclass(frozen=True)
class _Compiled:
    """A loop, and what it appends.

    Arguments:
        code: of a module with the function `loop`.
        layout: as of `ColumnPending`.
    """

    code: CodeType
    layout: Sequence[tuple[Any] | None]


class FusedOperator(LoopOperator):
    """A map or flat map that routes what it makes; it emits nothing.

    Arguments:
        made_by: the operator.
        router: all that takes its output.
        loop: called with an iterator over records, and what is pending for each key.
        layout: of what the loop appends.
    """

    def __init__(
        self,
        made_by: LoopOperator,
        router: HashRouter,
        loop: Callable[..., None],
        layout: Sequence[tuple[Any] | None],
    ) -> None:
        super().__init__(made_by.function, made_by.context)
        self._made_by, self._router = made_by, router
        self._route = loop
        self._pending = router.by_column(layout)
        self._outlets = router.outlets

    def process(self, records: Any) -> list[Any]:
        """Route all; nothing is left to be emitted."""
        before = sum([len(outlet.buffer) for outlet in self._outlets])
        self.iterator = iterator = iter(records)
        try:
            self._route(iterator, self._pending)
        except Exception:
            self._raise_as_two(records)
            raise
        self.records_out += sum([len(outlet.buffer) for outlet in self._outlets]) - before
        return []

    def _raise_as_two(self, records: Any) -> None:
        """Have the operator or the router raise, if one does."""
        index = index_at_hand(self.iterator, records)
        if index is None:
            return
        try:
            out = self._made_by.plainly(records[index])
        except Exception as error:
            raise error from None
        self.iterator = iterator = iter(out)
        for record in iterator:
            try:
                self._router.refuse(record)
            except Exception as error:
                raise explain(error, self, out) from None
        self.iterator = None


def fused(operator: RunningOperator, router: Any) -> FusedOperator | None:
    """Both as one operator, if it is known what they do.

    Arguments:
        operator: one that only the router takes the output of.
        router: whose outlets are empty yet.
    """
    if type(router) is not HashRouter or type(operator) not in (MapOperator, FlatMapOperator):
        return None
    assert isinstance(operator, LoopOperator)
    found, selector = plain_code(operator.called), plain_code(router.selector)
    if found is None or selector is None:
        return None
    (code, owner), (key_code, key_owner) = found, selector
    many = type(operator) is FlatMapOperator
    compiled = _compile(many, code, owner is not None, key_code, key_owner is not None)
    if compiled is None:
        return None
    scope: dict[str, Any] = {"__name__": __name__}
    scope |= {owner_name("function"): owner, owner_name("key_of"): key_owner}
    exec(compiled.code, scope)
    return FusedOperator(operator, router, scope["loop"], compiled.layout)


@lru_cache(maxsize=256)
def _compile(
    many: bool, code: CodeType, is_method: bool, key_code: CodeType, key_is_method: bool
) -> _Compiled | None:
    body, key = body_of(code, is_method), body_of(key_code, key_is_method)
    if body is None or key is None or not key.is_value or len(key.parameters) != 1:
        return None
    if len(body.parameters) != 1 or body.statements:
        return None
    names = _names(body, "function", "record")
    over: ast.comprehension | None = None
    made = body.result
    if many:
        if not isinstance(made, ast.ListComp):
            return None
        (over,) = made.generators
        made, iterable = made.elt, renamed(over.iter, names)
        # A comprehension is a function of its own, which sees none of the parameters.
        variables = [each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)]
        names = {name: f"{name}_of_an_item" for name in variables}
    if not isinstance(made, ast.Tuple) or not 1 <= len(made.elts) <= WIDEST:
        return None
    layout = [(e.value,) if isinstance(e, ast.Constant) else None for e in made.elts]
    if all(layout):
        return None
    statements = _appends([renamed(item, names) for item in made.elts], key)
    if over is not None:
        for test in reversed(over.ifs):
            statements = [ast.If(renamed(test, names), statements, [])]
        statements = [ast.For(renamed(over.target, names), iterable, statements, [])]
    module = ast.parse(_LOOP)
    (loop,) = (node for node in ast.walk(module) if isinstance(node, ast.For))
    loop.body = statements
    return _Compiled(compile(ast.fix_missing_locations(module), FILE, "exec"), layout)


def _names(body: Body, parameter: str, argument: str) -> dict[str, str]:
    """What the names of a body of one parameter are in a loop."""
    names = {body.parameters[0]: argument}
    return names if body.owner is None else {**names, body.owner: owner_name(parameter)}


def _appends(items: list[ast.expr], key: Body) -> list[ast.stmt]:
    """Statements that append the items of a tuple to what is pending for its key."""
    statements: list[ast.stmt] = []
    for index, item in enumerate(items):
        if not isinstance(item, ast.Name | ast.Constant):
            name = f"item{index}"
            statements.append(ast.Assign([ast.Name(name, ast.Store())], item))
            items[index] = ast.Name(name, ast.Load())
    found = renamed(key.result, _names(key, "key_of", "made"))
    found = Unpacked("made", items).visit(found)
    there = ast.Subscript(ast.Name("pending", ast.Load()), found, ast.Load())
    statements.append(ast.Assign([ast.Name("there", ast.Store())], there))
    column = "records"
    varying = [item for item in items if not isinstance(item, ast.Constant)]
    for number, item in enumerate(varying, start=1):
        held = ast.Attribute(ast.Name("there", ast.Load()), column, ast.Load())
        append = ast.Attribute(held, "append", ast.Load())
        statements.append(ast.Expr(ast.Call(append, [item], [])))
        column = f"column{number}"
    return statements
