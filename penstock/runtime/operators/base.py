"""The base classes of operators, which take a batch of records and return a batch.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.dataflow.functions import Function, has_end_input
from penstock.dataflow.metrics import TIMERS_NOT_FIRED, WINDOWS_NOT_FIRED
from penstock.dataflow.state import RuntimeContext
from penstock.runtime import codegen
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.requests import OperatorRequests
from penstock.runtime.operators.side_outputs import SideOutputs
from penstock.runtime.operators.state.checkpointed_functions import (
    capture_operator_state,
    initialize_function,
)
from penstock.runtime.operators.user_loop import UserLoop
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.edge_functions import EdgeFunction
from penstock.runtime.user_code.errors import current_index, raised_by_engine
from penstock.snapshot.state.operator_state import OperatorStateSnapshot

#: A pattern for Python's error message if a function returned a value that is not iterable.
_NOT_ITERABLE = re.compile(r"'([\w.]+)' object is not iterable$")
#: The maximum number of keys or records that an end-of-input hook handles in one step of the task.
HOOK_BATCH = 1024


class RunningOperator(ABC):
    """One operator in one task.

    Arguments:
        function: the user's function object or callable.
        context: the place of the operator in the job.
    """

    #: The name of the user's method that returns an iterable of records; "" if there is none.
    emits = ""
    #: Whether the operator processes columns, so that a call has a large cost, whatever the number
    #: of its records.
    is_columnar = False
    #: Whether the timers of the operator are those of windows.
    has_windows = False
    #: Whether the operator itself registers timers when others fire, until there are none. Batch
    #: mode fires these, too.
    schedules_timers = False
    #: Whether the operator calls a source or a sink.
    is_connector = False
    #: Whether its keyed state is always in its tables, so that clients may query it. If not, the
    #: operator writes its state there before a barrier only.
    keeps_state_in_tables = True
    #: The output channels that the operator appends to without a partitioner of its node.
    outputs: Sequence[OutputChannel] = ()

    def __init__(self, function: Any, context: OperatorContext) -> None:
        self.function = function
        self.context = context
        self.iterator: Any = None
        #: The records for side outputs. The chain runner takes them after each call.
        self.side_outputs = SideOutputs(context)
        #: The key selectors and partitioners that the operator or its partitioners call, and the
        #: context that they get.
        self.edge_functions: tuple[Sequence[EdgeFunction], RuntimeContext] = (), context
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

    @property
    def inputs(self) -> Sequence[str]:
        """Return the names of the operators whose records the operator reads."""
        return self.context.inputs

    @property
    def requests(self) -> OperatorRequests | None:
        """Return the requests of the operator; None if it emits all results in `process`."""
        return None

    def follow(self, iterator: Any) -> None:
        """Use the iterator of a partitioner to find the record that caused an error.

        The partitioner routes the output of this operator.
        """
        self.iterator = iterator

    def initialize_state(self) -> None:
        """Call `initialize_state` of a function with operator state, before `open`."""
        initialize_function(self.function, self.context)

    def write_state(self) -> None:
        """Write the operator's own data into its keyed state, before a barrier."""

    def capture_operator_state(self, number: int, timestamp: int) -> OperatorStateSnapshot | None:
        """Return the operator state at the barrier of a snapshot; None if there is none.

        Arguments:
            number: the number of the snapshot.
            timestamp: the current time, in milliseconds since the epoch.
        """
        return capture_operator_state(self.function, self.context, number, timestamp)

    def open_edge_functions(self) -> None:
        """Open the key selectors and partitioners, before anything else of the operator."""
        functions, context = self.edge_functions
        for one in functions:
            one.open(context)

    def close_edge_functions(self) -> None:
        """Close the key selectors and partitioners, after the operator."""
        for one in self.edge_functions[0]:
            one.close()

    def open(self) -> None:
        """Call `open` of the user's function object. A plain callable has no such method."""
        if isinstance(self.function, Function):
            self.function.open(self.context)

    def close(self) -> None:
        """Call `close` of the user's function object. A plain callable has no such method."""
        if isinstance(self.function, Function):
            self.function.close()

    @abstractmethod
    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch, and return the records that the operator emits for it."""

    def select_input(self, input: int) -> None:
        """Set the input of the next batches, if the operator has two inputs.

        Arguments:
            input: 0 for the first input, 1 for the second.
        """

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the timers and windows that are due at a new watermark, and yield their output.

        `context.watermark` has the new value already. At most `HOOK_BATCH` records are yielded at
        once. A batch may be empty, if there are records for side outputs only. A snapshot may be
        taken at each yield, so all records that the state no longer contains must have been yielded
        by then. After a restore, the method is called again with the same watermark.

        Arguments:
            timestamp: the watermark, in milliseconds since the epoch.
        """
        del timestamp
        yield from ()

    def next_processing_time(self) -> int | None:
        """Return the first time at which `advance_processing_time` has work; None if there is none.

        The time is in milliseconds since the epoch.
        """
        return None

    def has_pending_timers(self) -> bool:
        """Return whether timers of the operator wait for processing time."""
        context = self.context
        return context.backend is not None and context.timers.next_processing_time() is not None

    def waits_for_watermark(self) -> bool:
        """Return whether timers or windows of the operator wait for a watermark."""
        context = self.context
        return context.backend is not None and context.timers.wait_for_watermark

    def requests_in_flight(self) -> int:
        """Return the number of requests in flight."""
        return 0

    def drop_timers(self) -> None:
        """Remove the timers that have not fired when the operator's input has ended.

        They never fire, as in Flink, not even after a restore. Those by processing time are
        counted.
        """
        if self.context.backend is None:
            return
        dropped = self.context.timers.drop()
        if not dropped:
            return
        if self.has_windows:
            windows = {(key, namespace) for key, _, namespace in dropped}
            self.context.metrics.counter(WINDOWS_NOT_FIRED).inc(len(windows))
        else:
            self.context.metrics.counter(TIMERS_NOT_FIRED).inc(len(dropped))

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Do the work that is due by processing time, and yield its output.

        Arguments:
            now: the time of the machine's clock, in milliseconds since the epoch. The output is
                yielded as in `advance_watermark`.
        """
        del now
        yield from ()

    def lets_pass(self, element: TimeElement) -> bool:
        """Return whether watermarks and statuses of the input are passed on to the output.

        Otherwise the operator emits its own watermarks.
        """
        del element
        return True

    def end_input(self) -> Iterator[RecordBatch]:
        """Run the user's end-of-input hook, and yield its records in batches.

        A batch may be empty, if the hook has emitted records to side outputs only.
        """
        if not has_end_input(self.function):
            return
        self.in_end_of_input_hook = True
        operator_at_work.set(self.context)
        for records in self._end_input():
            batch = self.side_outputs.divided(RecordBatch(records))
            if batch.count or self.side_outputs:
                yield batch
                operator_at_work.set(self.context)
        if self.side_outputs:
            yield EMPTY
        self.in_end_of_input_hook = False

    def hint(self, error: BaseException) -> str:
        """Return advice for an error that a function's return value has caused.

        The advice is added to the error message. It is "" for all other errors.
        """
        found = _NOT_ITERABLE.match(str(error)) if type(error) is TypeError else None
        if found is None or not self.emits or not raised_by_engine(error):
            return ""
        what, kind = "end_input" if self.in_end_of_input_hook else self.emits, found[1]
        if kind == "NoneType":
            return f": {what} returned None: return an empty list where there is nothing to emit"
        article = "an" if kind[0] in "aeiou" else "a"
        return f": {what} returned {article} {kind}; yield it, or return a list"

    def _end_input(self) -> Iterator[list[Any]]:
        """Yield the records that the function's `end_input` emits, in batches.

        A subclass overrides this method if its functions may have an end-of-input hook.
        """
        yield from ()


class RecordLoopOperator(RunningOperator):
    """Base class of the operators that run one of the loops of `record_loops`.

    The loop emits one record for each record, or it has a variant for batches with event times.
    """

    _loop: UserLoop
    #: The loop for batches with event times, as it is written. It has two more parameters: the
    #: event times of the records, and a list to which it appends the event times of the emitted
    #: records. None if the loop emits one record for each record.
    _timed_plain: Callable[..., Any] | None
    #: The loop for batches with event times, from the first such batch on.
    _timed_loop: UserLoop | None

    def _set_loop(
        self,
        plain: Callable[..., Any],
        timed: Callable[..., list[Any]] | None = None,
        **functions: Any,
    ) -> None:
        """Set the loop and the user's functions, and specialise the loop if possible.

        Arguments:
            plain: the loop as it is written.
            timed: the variant of the loop for batches with event times.
            functions: the user's functions, which are the first parameters of the loops.
        """
        self._loop = UserLoop(plain, functions)
        self._timed_plain, self._timed_loop = timed, None

    def _set_timed_loop(self, loop: Callable[..., list[Any]], **functions: Any) -> None:
        """Set a loop for batches with event times, and derive the loop for other batches."""
        self._set_loop(codegen.without_times(loop), loop, **functions)

    def call_functions(self, record: Any, *arguments: Any) -> list[Any]:
        """Process one record with the plain loop, and return the records that it emits."""
        loop = self._loop
        emitted: list[Any] = loop.plain(*loop.functions.values(), iter([record]), *arguments)
        return emitted

    def _process_with_loop(self, batch: RecordBatch, *arguments: Any) -> RecordBatch:
        """Run the loop over a batch; return the emitted records, with their event times."""
        timestamps = batch.timestamps
        if timestamps is None or self._timed_plain is None:
            return RecordBatch(self._run_loop(batch, *arguments), None, timestamps)
        loop = self._timed_loop
        if loop is None:
            loop = self._timed_loop = UserLoop(self._timed_plain, self._loop.functions)
        times: list[int] = []
        out = self._run_loop(batch, *arguments, loop=loop, times=(timestamps, times))
        return RecordBatch(out, None, times)

    def _run_loop(
        self,
        batch: RecordBatch,
        *arguments: Any,
        loop: UserLoop | None = None,
        times: tuple[Any, ...] = (),
    ) -> list[Any]:
        """Run a loop over the records of a batch, and return the records that it emits.

        Arguments:
            batch: the records.
            arguments: the arguments of the loop behind the iterator.
            loop: the loop; None for the loop without event times.
            times: the further arguments of a loop with event times.
        """
        if loop is None:
            loop = self._loop
        columns = batch.columns()
        rows: Iterator[Any]
        if columns is not None and (found := loop.over_columns(len(columns))) is not None:
            run = found
            first, *others = columns
            self.iterator = iter(first)
            rows = zip(self.iterator, *others, strict=False)
        else:
            run = loop.over_rows
            rows = self.iterator = iter(batch.rows())
        try:
            return run(rows, *arguments, *times)
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
