"""A map or flat map and the routing behind it, as one loop that makes columns instead of tuples.

Where a function makes tuples, and a key selector looks at items of them, no tuple is needed: each
item is appended to a column of the output that the key says. `(word, 1)` for each word of a line,
by the word, becomes

    for word in record.split():
        there = pending[word]
        there.records.append(word)

and the ones are one number for the whole batch. What functions do is read from their code, and
checked, by `penstock.runtime.codegen.decompiler`; if it is not known, or is anything else,
operator and partitioner are two loops as before. It is also they who raise: where what was put into
the loop fails, or a key is refused, they are run for the one record, so that operator, record and
traceback are theirs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.runtime.codegen.decompiler import Body, body_of, compiled, plain_code
from penstock.runtime.codegen.inliner import (
    Unpacked,
    owner_name,
    renamed,
    unrolled,
    was_inlined,
)
from penstock.runtime.network.partitioners import HashPartitioner, StreamPartitioner
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.stateless import FlatMapOperator, MapOperator
from penstock.runtime.serialization.record_batch import WIDEST
from penstock.runtime.user_code.errors import current_index, to_job_error

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


class FusedOperator(RunningOperator):
    """A map or flat map that routes what it makes; it emits nothing.

    Arguments:
        made_by: the operator.
        partitioner: all that takes its output; its outputs are empty yet.
        loop: called with an iterator over records, and what is pending for each key.
        layout: of what the loop appends.
    """

    def __init__(
        self,
        made_by: RecordLoopOperator,
        partitioner: HashPartitioner,
        loop: Callable[..., None],
        layout: Sequence[tuple[Any] | None],
    ) -> None:
        super().__init__(made_by.function, made_by.context)
        self._made_by, self._partitioner = made_by, partitioner
        self._route = loop
        self._pending = partitioner.by_column(layout)
        self._outputs = partitioner.outputs

    def process(self, records: list[Any]) -> list[Any]:
        """Route all; nothing is left to be emitted."""
        before = sum([len(output.buffer) for output in self._outputs])
        self.iterator = iterator = iter(records)
        try:
            self._route(iterator, self._pending)
        except BaseException as error:
            if was_inlined(error) or isinstance(error, JobError):
                self._raise_as_two(records)
            raise
        self.records_out += sum([len(output.buffer) for output in self._outputs]) - before
        return []

    def _raise_as_two(self, records: list[Any]) -> None:
        """Have the operator or the partitioner raise, if one does."""
        index = current_index(self.iterator, records)
        if index is None:
            return
        try:
            out = self._made_by.call_functions(records[index])
        except BaseException as error:
            raise error from error.__cause__
        before, self.iterator = self.iterator, iter(out)
        for record in self.iterator:
            try:
                self._partitioner.refuse(record)
            except BaseException as error:
                raise to_job_error(error, self, out, self._partitioner.place) from None
        self.iterator = before


def fused(operator: RunningOperator, partitioner: StreamPartitioner) -> FusedOperator | None:
    """Both as one operator, if it is known what they do.

    Arguments:
        operator: one that only the partitioner takes the output of.
        partitioner: whose outputs are empty yet.
    """
    if not isinstance(partitioner, HashPartitioner) or not isinstance(
        operator, MapOperator | FlatMapOperator
    ):
        return None
    found, selector = plain_code(operator.called), plain_code(partitioner.selector)
    if found is None or selector is None:
        return None
    (code, owner), (key_code, key_owner) = found, selector
    many = isinstance(operator, FlatMapOperator)
    known = _compile(many, code, owner is not None, key_code, key_owner is not None)
    if known is None:
        return None
    scope: dict[str, Any] = {"__name__": __name__}
    scope |= {_item(index): item[0] for index, item in enumerate(known.layout) if item}
    scope |= {owner_name("function"): owner, owner_name("key_of"): key_owner}
    exec(known.code, scope)
    return FusedOperator(operator, partitioner, scope["loop"], known.layout)


@lru_cache(maxsize=256)
def _compile(
    many: bool, code: CodeType, is_method: bool, key_code: CodeType, key_is_method: bool
) -> _Compiled | None:
    body, key = body_of(code, is_method), body_of(key_code, key_is_method)
    if body is None or key is None or not key.is_value or len(key.parameters) != 1:
        return None
    if len(body.parameters) != 1 or body.statements:
        return None
    made = body.result
    if many != isinstance(made, ast.ListComp):
        return None
    if isinstance(made, ast.ListComp):
        made = made.elt
    if not isinstance(made, ast.Tuple) or not 1 <= len(made.elts) <= WIDEST:
        return None
    layout = [(item.value,) if isinstance(item, ast.Constant) else None for item in made.elts]
    if all(layout):
        return None
    names = _names(body, "function", "record")
    if isinstance(body.result, ast.ListComp):
        statements: list[ast.stmt] = [unrolled(body.result, names, partial(_appends, key))]
    else:
        statements = _appends(key, renamed(body.result, names))
    module = ast.parse(_LOOP)
    (loop,) = (node for node in ast.walk(module) if isinstance(node, ast.For))
    loop.body = statements
    done = compiled(module)
    return None if done is None else _Compiled(done, layout)


def _names(body: Body, parameter: str, argument: str) -> dict[str, str]:
    """What the names of a body of one parameter are in a loop."""
    names = {body.parameters[0]: argument}
    return names if body.owner is None else {**names, body.owner: owner_name(parameter)}


def _item(index: int) -> str:
    """What an item of the tuple is called; one that is a constant is a global name."""
    return f"item{index}"


def _appends(key: Body, made: ast.expr) -> list[ast.stmt]:
    """Statements that append the items of a tuple to what is pending for its key."""
    assert isinstance(made, ast.Tuple)
    names, varying = [], []
    statements: list[ast.stmt] = []
    for index, item in enumerate(made.elts):
        names.append(item.id if isinstance(item, ast.Name) else _item(index))
        if not isinstance(item, ast.Constant):
            varying.append(names[index])
            if not isinstance(item, ast.Name):
                statements.append(ast.Assign([ast.Name(names[index], ast.Store())], item))
    found = renamed(key.result, _names(key, "key_of", "made"))
    found = Unpacked("made", names).visit(found)
    there = ast.Subscript(ast.Name("pending", ast.Load()), found, ast.Load())
    statements.append(ast.Assign([ast.Name("there", ast.Store())], there))
    column = "records"
    for number, name in enumerate(varying, start=1):
        held = ast.Attribute(ast.Name("there", ast.Load()), column, ast.Load())
        append = ast.Attribute(held, "append", ast.Load())
        statements.append(ast.Expr(ast.Call(append, [ast.Name(name, ast.Load())], [])))
        column = f"column{number}"
    return statements
