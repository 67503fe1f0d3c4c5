"""Sinks that emit records at once: to standard output, or to a function.

These sinks cannot take back a record. So they are *at least once*: after a recovery, the records
after the restored snapshot are emitted again. The sink in `file_sink.py` is exactly once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TextIO

from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.type_variables import T, T_contra
from penstock.dataflow.types import Row, TypeInformation


class PrintSink(Sink[Any]):
    """Prints each record as a line, at least once. (Flink: `print()`.)

    A line contains `str(record)`. With a type, it has the text that Flink prints for a record of
    this type: `+I[1,a]` for a row, `(a,1.5)` for a tuple, `true` for a boolean.

    If the parallelism is above 1, the line begins with the number of
    the subtask, counted from 1: `3> record`. With the prefix `a`, this line is `a:3> record`. With
    the prefix `a` and parallelism 1, it is `a> record`.

    Arguments:
        prefix: a text at the beginning of each line, or None.
        stderr: whether to print to standard error instead of standard output.
        type_info: the declared type of the records; None if they have none.

    Examples:
        >>> _ = env.from_collection([1, 2]).sink_to(PrintSink("numbers"))
        >>> _ = env.execute("numbers")
        numbers> 1
        numbers> 2
    """

    def __init__(
        self,
        prefix: str | None = None,
        *,
        stderr: bool = False,
        type_info: TypeInformation[Any] | None = None,
    ) -> None:
        self.prefix = prefix
        self.stderr = stderr
        self.type_info = type_info

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that prints the prefix and the subtask's number before each record."""
        words = [] if self.prefix is None else [self.prefix]
        if context.parallelism > 1:
            words.append(str(context.subtask + 1))
        text = str if self.type_info is None else _typed_text(self.type_info)
        return _PrintWriter(":".join(words) + "> " if words else "", self.stderr, text)


def _typed_text(kind: TypeInformation[Any]) -> Callable[[Any], str]:
    """Return a function that writes records of a declared type as PyFlink prints them."""

    def text(record: Any) -> str:
        try:
            value = kind.converted(record)
        except ValueError:  # The type belongs to an operator before, as with `reduce`.
            return str(record)
        if isinstance(value, Row):
            # Flink for Python writes the fields as Python does.
            return f"{value.get_row_kind()}[{','.join(map(str, value))}]"
        return kind.text(value)

    return text


class _PrintWriter(SinkWriter):
    """Prints the records of one subtask.

    It writes each batch in one call, so that lines of different tasks do not mix.
    """

    def __init__(self, start: str, stderr: bool, text: Callable[[Any], str]) -> None:
        self._text = text
        self._start = start
        self._separator = "\n" + start
        self._stderr = stderr

    def write(self, batch: list[Any]) -> None:
        if batch:
            text = self._separator.join(map(self._text, batch))
            self._stream().write(f"{self._start}{text}\n")

    def flush(self) -> None:
        self._stream().flush()

    def close(self) -> None:
        self.flush()

    def _stream(self) -> TextIO:
        # The stream is looked up for each batch, because user code may replace `sys.stdout`.
        return sys.stderr if self._stderr else sys.stdout


class Invokes(Protocol[T_contra]):
    """The method of a `SinkFunction`."""

    def invoke(self, value: T_contra, /) -> object:
        """Process one record."""


class FunctionSink(Sink[T], Generic[T]):
    """Calls a function with every record, **at least once**.

    The task itself calls the function, so a slow function delays all records. After a recovery the
    function may be called again with the same record, so it should be idempotent.

    Arguments:
        function: a function of one record, or an object with a method `invoke(record)`. Such an
            object may also have `open(context)`, which gets a `SinkContext`, and `close()`. The
            methods have the same meaning as in `SinkFunction`.

    Raises:
        GraphError: if the argument is not callable and has no method `invoke`.

    Examples:
        >>> _ = env.from_collection([1, 2]).sink_to(FunctionSink(print))
        >>> _ = env.execute("numbers")
        1
        2
    """

    def __init__(self, function: Callable[[T], object] | Invokes[T]) -> None:
        if not callable(getattr(function, "invoke", function)):
            raise GraphError(
                f"a function sink needs a function of one record, or an object with a method "
                f"`invoke`, not {type(function).__name__}"
            )
        self.function = function

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that calls the function."""
        return FunctionWriter(self.function, context)


class SinkContext(WriterContext):
    """Describes the subtask to a sink function's `open`. It also has PyFlink's method names."""

    def get_task_name(self) -> str:
        """Return the name of the operator."""
        return self.name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator."""
        return self.parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""
        return self.subtask

    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the sink in this subtask."""
        return self.metrics


class FunctionWriter(SinkWriter):
    """Calls a function with each record of one subtask.

    Arguments:
        function: the function or object; see `FunctionSink`.
        context: the description of the subtask, which the object's `open` gets.
    """

    per_record: Callable[[Any], object]

    def __init__(self, function: Any, context: WriterContext) -> None:
        self._function = function
        self._context = context
        self.per_record = getattr(function, "invoke", function)

    def open(self) -> None:
        """Call the object's method `open` if it has one."""
        if hasattr(self._function, "invoke") and hasattr(self._function, "open"):
            self._function.open(SinkContext(**vars(self._context)))

    def write(self, batch: list[Any]) -> None:
        """Call the function with each record of the batch, in order."""
        for record in batch:
            self.per_record(record)

    def close(self) -> None:
        """Call the object's method `close` if it has one."""
        if hasattr(self._function, "invoke") and hasattr(self._function, "close"):
            self._function.close()
