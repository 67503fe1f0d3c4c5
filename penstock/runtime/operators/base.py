"""The base classes of operators, which take a batch of records and return a list.

One call of `process` handles a whole batch. The work for each record is in a loop of
`record_loops`, so the rest of the engine runs only once per batch. Each loop consumes
`RunningOperator.iterator`. If the user's function raises an error, the iterator's length hint shows
which record was being processed.

Operators use no channels and no event loop. A chain is a tree of operators, and
`penstock.runtime.task` runs it.
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
from penstock.runtime.operators.operator_state.checkpointing import (
    capture_operator_state,
    initialize_function,
)
from penstock.runtime.operators.side_outputs import SideOutputs, mentions_output_tag
from penstock.runtime.serialization.record_batch import WIDEST, RecordBatch
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import current_index, raised_by_engine
from penstock.snapshot.state.operator_state import OperatorStateSnapshot

__all__ = ["RecordLoopOperator", "RunningOperator", "batched"]

#: A pattern for Python's error message if a function returned a value that is not iterable.
_NOT_ITERABLE = re.compile(r"'([\w.]+)' object is not iterable$")
#: The maximum number of keys or records of an end-of-input hook that the task handles in one step.
HOOK_BATCH = 1024


class RunningOperator(ABC):
    """One operator in one task.

    Arguments:
        function: the user's function object or callable.
        context: the place of the operator in the job.
    """

    #: The name of the user's method that returns an iterable of records; "" if there is none.
    emits = ""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        self.function = function
        self.context = context
        self.iterator: Any = None
        #: The records for side outputs. The chain runner takes them after each call.
        self.side_outputs = SideOutputs(context.name, context.side_outputs)
        #: The number of records that the operator received. The chain runner updates both counters
        #: directly, since a call for each update would cost 5 % of the time of a batch.
        self.records_in = 0
        #: The number of records that the operator emitted.
        self.records_out = 0
        #: Whether the end-of-input hook of the operator is running.
        self.in_end_of_input_hook = False

    @property
    def name(self) -> str:
        """Return the name of the operator."""
        return self.context.name

    def follow(self, iterator: Any) -> None:
        """Use the iterator of a partitioner to find the record that caused an error.

        The partitioner routes the output of this operator.
        """
        self.iterator = iterator

    def emits_tagged(self) -> bool:
        """Return whether the user's function may emit records to side outputs."""
        return bool(self.side_outputs.declared) or mentions_output_tag(self.function)

    def initialize_state(self) -> None:
        """Call `initialize_state` of a function with operator state, before `open`."""
        initialize_function(self.function, self.context)

    def capture_operator_state(self, number: int, timestamp: int) -> OperatorStateSnapshot | None:
        """Return the operator state at the barrier of a snapshot; None if there is none.

        Arguments:
            number: the number of the snapshot.
            timestamp: the current time, in milliseconds since the epoch.
        """
        return capture_operator_state(self.function, self.context, number, timestamp)

    def open(self) -> None:
        """Call `open` of the user's function object. A plain callable has no such method."""
        if isinstance(self.function, Function):
            self.function.open(self.context)

    def close(self) -> None:
        """Call `close` of the user's function object. A plain callable has no such method."""
        if isinstance(self.function, Function):
            self.function.close()

    @abstractmethod
    def process(self, batch: RecordBatch) -> list[Any]:
        """Process a batch, and return the records that the operator emits for it."""

    def end_input(self) -> Iterator[list[Any]]:
        """Run the user's end-of-input hook, and yield its records in batches.

        A batch may be empty, if the hook has emitted records to side outputs only.
        """
        if not has_end_input(self.function):
            return
        self.in_end_of_input_hook = True
        operator_at_work.set(self.context)
        for records in self._end_input():
            if records or self.side_outputs:
                yield records
                operator_at_work.set(self.context)
        if self.side_outputs:
            yield []
        self.in_end_of_input_hook = False

    def hint(self, error: BaseException) -> str:
        """Return advice for an error that a function's return value has caused.

        The advice is added to the error message. It is "" for all other errors.
        """
        found = _NOT_ITERABLE.match(str(error)) if type(error) is TypeError else None
        if found is None or not self.emits or not raised_by_engine(error):
            return ""
        what, kind = "end_input" if self.in_end_of_input_hook else self.emits, found[1]
        article = "an" if kind[0] in "aeiou" else "a"
        return f": {what} returned {article} {kind}; yield it, or return a list"

    def _end_input(self) -> Iterator[list[Any]]:
        """Yield the records that the function's `end_input` emits, in batches.

        A subclass overrides this method if its functions may have an end-of-input hook.
        """
        yield from ()


class RecordLoopOperator(RunningOperator):
    """Base class of the operators that run one of the loops of `record_loops`.

    `_plain` is the loop as `record_loops` contains it. `_loop` is the specialised loop, in which
    the user's expressions are inlined. If they cannot be inlined, `_loop` is the plain loop.
    """

    _plain: Callable[..., list[Any]]
    _functions: dict[str, Any]
    _loop: Callable[..., list[Any]]
    #: The specialised loops over columns, keyed by the number of columns. The value is None if
    #: such a loop would hardly be faster than the loop over rows.
    _column_loops: dict[int, Callable[..., list[Any]] | None]

    def _set_loop(self, plain: Callable[..., list[Any]], **functions: Any) -> None:
        """Set the loop and the user's functions, and specialise the loop if possible.

        Arguments:
            plain: the loop as it is written.
            functions: the user's functions, which are the first parameters of the loop.
        """
        self._plain, self._functions, self._column_loops = plain, functions, {}
        loop = codegen.specialize(plain, functions) or plain
        self._loop = partial(loop, *functions.values())

    def call_functions(self, record: Any, *arguments: Any) -> list[Any]:
        """Process one record with the plain loop, and return the records that it emits."""
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
        """Run the loop over the records of a batch, and return the records that it emits."""
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
        """Call the user's functions again for the record that caused an error.

        The user's own function then raises the error, so the traceback shows its line.
        """
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
