"""Sinks that hand records on at once: standard output, a function.

They cannot take back what they gave, so they are *at least once*: after a recovery, what came
after the restored snapshot is given again. Nothing is staged here; see `file_sink.py` for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, TextIO

from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext

__all__ = ["FunctionSink", "PrintSink"]


class PrintSink(Sink):
    """Prints `str(record)`, a line each, at least once.

    As Flink's `print()`: with parallelism above 1 a line begins with the number of the subtask,
    counted from 1 (`3> record`); with a prefix it begins `prefix:3> ` or `prefix> `.

    Arguments:
        prefix: put before each line.
        stderr: print to standard error instead of standard output.
    """

    def __init__(self, prefix: str | None = None, *, stderr: bool = False) -> None:
        self.prefix = prefix
        self.stderr = stderr

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer that knows its subtask's prefix."""
        words = [] if self.prefix is None else [self.prefix]
        if context.parallelism > 1:
            words.append(str(context.subtask + 1))
        return _PrintWriter(":".join(words) + "> " if words else "", self.stderr)


class _PrintWriter(SinkWriter):
    """One write per batch, so that the lines of several tasks don't mix within a batch."""

    def __init__(self, start: str, stderr: bool) -> None:
        self._start = start
        self._separator = "\n" + start
        self._stderr = stderr

    def write(self, batch: list[Any]) -> None:
        if batch:
            text = self._separator.join(map(str, batch))
            self._stream().write(f"{self._start}{text}\n")

    def flush(self) -> None:
        self._stream().flush()

    def close(self) -> None:
        self.flush()

    def _stream(self) -> TextIO:
        # Looked up each time, since whoever redirects the output replaces the stream.
        return sys.stderr if self._stderr else sys.stdout


class FunctionSink(Sink):
    """Calls a function with every record, in the task, **at least once**.

    The function must return promptly, since records wait for it. What it does for a record it
    may have to do again after a recovery, so it should be idempotent.

    Arguments:
        function: called as `function(record)`; or an object with `invoke(record)` and, if it
            likes, `open(context)` with a `SinkContext`, and `close()`, as a `SinkFunction` has.

    Raises:
        GraphError: if it is neither.
    """

    def __init__(self, function: Any) -> None:
        if not callable(getattr(function, "invoke", function)):
            raise GraphError(
                f"a function sink needs a function of one record, or an object with a method "
                f"`invoke`, not {type(function).__name__}"
            )
        self.function = function

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer that calls the function; an object's `open` is called now."""
        return FunctionWriter(self.function, context)


class SinkContext(WriterContext):
    """What a sink function's `open` gets: where it runs, also under the names of PyFlink."""

    def get_task_name(self) -> str:
        """Name of the operator."""
        return self.name

    def get_number_of_parallel_subtasks(self) -> int:
        """How many subtasks the operator has."""
        return self.parallelism

    def get_index_of_this_subtask(self) -> int:
        """Which of them this is, from 0."""
        return self.subtask


class FunctionWriter(SinkWriter):
    """Calls a function per record.

    Arguments:
        function: see `FunctionSink`.
        context: handed to the object's `open`.
    """

    per_record: Callable[[Any], object]

    def __init__(self, function: Any, context: WriterContext) -> None:
        self._function = function
        self.per_record = getattr(function, "invoke", function)
        if hasattr(function, "invoke") and hasattr(function, "open"):
            function.open(SinkContext(*astuple(context)))

    def write(self, batch: list[Any]) -> None:
        """Call the function with each record in order."""
        for record in batch:
            self.per_record(record)

    def close(self) -> None:
        """Call the object's `close`, if it has one."""
        if hasattr(self._function, "invoke") and hasattr(self._function, "close"):
            self._function.close()
