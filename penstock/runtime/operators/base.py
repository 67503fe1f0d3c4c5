"""Operators as tasks run them: each takes a batch of records and returns a list of records.

Per-record work happens in a loop of `record_loops`, inside one call of `process`. The engine itself
costs something per batch only. Each loop consumes `RunningOperator.iterator`, so its length hint
tells which record was being processed when the user's function raised.

Operators know no channels and no event loop. A chain is a tree of operators, which
`penstock.runtime.task` runs.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from penstock.dataflow.functions import Function, has_end_input
from penstock.runtime import codegen
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import WIDEST, RecordBatch
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import current_index, raised_by_engine

__all__ = ["RecordLoopOperator", "RunningOperator", "batched"]

#: The message of Python's error if a function returned something that cannot be iterated over.
_NOT_ITERABLE = re.compile(r"'([\w.]+)' object is not iterable$")
#: Keys, or records, of an end-of-input hook that the task handles in one step.
HOOK_BATCH = 1024


class RunningOperator(ABC):
    """One operator in one task.

    Arguments:
        function: the user's function object or callable.
        context: the operator's place in the job.
    """

    #: The user's method whose result is iterated over for records, if there is one.
    emits = ""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        self.function = function
        self.context = context
        self.iterator: Any = None
        #: Counters, which the chain runner updates: a call for each would cost 5 % per batch.
        self.records_in = 0
        self.records_out = 0
        #: Whether the end-of-input hook is running.
        self.in_end_of_input_hook = False

    @property
    def name(self) -> str:
        """Return the name of the operator."""
        return self.context.name

    def follow(self, iterator: Any) -> None:
        """Find the record of an error by another iterator, that of a partitioner behind this."""
        self.iterator = iterator

    def open(self) -> None:
        """Open the user's function."""
        if isinstance(self.function, Function):
            self.function.open(self.context)

    def close(self) -> None:
        """Close the user's function."""
        if isinstance(self.function, Function):
            self.function.close()

    @abstractmethod
    def process(self, batch: RecordBatch) -> list[Any]:
        """Return the records that the operator emits for a batch."""

    def end_input(self) -> Iterator[list[Any]]:
        """Yield what the user's end-of-input hook emits, in batches."""
        if not has_end_input(self.function):
            return
        self.in_end_of_input_hook = True
        operator_at_work.set(self.context)
        for records in self._end_input():
            if records:
                yield records
                operator_at_work.set(self.context)
        self.in_end_of_input_hook = False

    def hint(self, error: BaseException) -> str:
        """Return advice on an error that the engine raised for a function's return value."""
        found = _NOT_ITERABLE.match(str(error)) if type(error) is TypeError else None
        if found is None or not self.emits or not raised_by_engine(error):
            return ""
        what, kind = "end_input" if self.in_end_of_input_hook else self.emits, found[1]
        article = "an" if kind[0] in "aeiou" else "a"
        return f": {what} returned {article} {kind}; yield it, or return a list"

    def _end_input(self) -> Iterator[list[Any]]:
        """Yield what the function's `end_input` emits, if functions of this kind may have one."""
        yield from ()


class RecordLoopOperator(RunningOperator):
    """An operator that runs one of the record loops.

    `_loop` is the loop compiled with the user's expressions inlined, where these are known.
    `_plain` is the same loop as it is written.
    """

    _plain: Callable[..., list[Any]]
    _functions: dict[str, Any]
    _loop: Callable[..., list[Any]]
    #: By the width of tuples, the loop over columns; None if it would hardly be faster.
    _column_loops: dict[int, Callable[..., list[Any]] | None]

    def _set_loop(self, plain: Callable[..., list[Any]], **functions: Any) -> None:
        """Set the loop, and the functions that are its first parameters, in their order."""
        self._plain, self._functions, self._column_loops = plain, functions, {}
        loop = codegen.specialize(plain, functions) or plain
        self._loop = partial(loop, *functions.values())

    def call_functions(self, record: Any, *arguments: Any) -> list[Any]:
        """Return what one record becomes, by calling the user's functions without inlining."""
        return self._plain(*self._functions.values(), iter([record]), *arguments)

    def _column_loop(self, width: int) -> Callable[..., list[Any]] | None:
        if width > WIDEST:
            return None
        if width not in self._column_loops:
            loop = codegen.specialize(self._plain, self._functions, width)
            given = self._functions.values()
            self._column_loops[width] = None if loop is None else partial(loop, *given)
        return self._column_loops[width]

    def _run_loop(self, batch: RecordBatch, *arguments: Any) -> list[Any]:
        """Run the loop over the records."""
        columns = batch.columns()
        rows: Iterator[Any]
        if columns is not None and (found := self._column_loop(len(columns))) is not None:
            loop = found
            first, *others = columns
            self.iterator = iter(first)
            rows = zip(self.iterator, *others, strict=False)
        else:
            loop = self._loop
            rows = self.iterator = iter(batch.rows())
        try:
            return loop(rows, *arguments)
        except BaseException as error:
            if codegen.raised_by_generated_code(error):
                self._raise_from_function(batch, arguments)
            raise

    def _raise_from_function(self, batch: RecordBatch, arguments: tuple[Any, ...]) -> None:
        """Let the user's own function raise again, so that the traceback names its line."""
        index = current_index(self.iterator, batch)
        if index is not None:
            try:
                self.call_functions(batch[index], *arguments)
            except BaseException as error:
                raise error from error.__cause__


def batched(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists of at most `HOOK_BATCH`."""
    iterator = iter(items)
    while batch := list(islice(iterator, HOOK_BATCH)):
        yield batch
