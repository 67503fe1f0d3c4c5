"""Sinks that emit records at once: to standard output, or to a function.

They cannot take back records, so they are *at least once*: after a recovery, records behind the
restored snapshot are emitted again. `file_sink.py` has a sink that stages its output.
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
    """Print `str(record)` as a line, at least once.

    Like Flink's `print()`: with a parallelism above 1, a line begins with the number of the
    subtask, counted from 1: `3> record`. With a prefix it begins `prefix:3> ` or `prefix> `.

    Arguments:
        prefix: put before each line.
        stderr: print to standard error instead of standard output.
    """

    def __init__(self, prefix: str | None = None, *, stderr: bool = False) -> None:
        self.prefix = prefix
        self.stderr = stderr

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer with the prefix of its subtask."""
        words = [] if self.prefix is None else [self.prefix]
        if context.parallelism > 1:
            words.append(str(context.subtask + 1))
        return _PrintWriter(":".join(words) + "> " if words else "", self.stderr)


class _PrintWriter(SinkWriter):
    """Write each batch at once, so that the lines of several tasks do not mix."""

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
        # Looked up for each batch, because a redirection of the output replaces the stream.
        return sys.stderr if self._stderr else sys.stdout


class FunctionSink(Sink):
    """Call a function with every record, in the task, **at least once**.

    The function must return promptly, because records wait for it. After a recovery it may be
    called again with the same record, so it should be idempotent.

    Arguments:
        function: called as `function(record)`; or an object with `invoke(record)` and,
            optionally, `open(context)` with a `SinkContext` and `close()`, as in `SinkFunction`.

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
        """Return a writer that calls the function, and call an object's `open`."""
        return FunctionWriter(self.function, context)


class SinkContext(WriterContext):
    """Describe to a sink function's `open` where it runs, also by PyFlink's names."""

    def get_task_name(self) -> str:
        """Return the name of the operator."""
        return self.name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator."""
        return self.parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""
        return self.subtask


class FunctionWriter(SinkWriter):
    """Call a function for each record.

    Arguments:
        function: see `FunctionSink`.
        context: passed to the object's `open`.
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
        """Call the object's `close` if there is one."""
        if hasattr(self._function, "invoke") and hasattr(self._function, "close"):
            self._function.close()
