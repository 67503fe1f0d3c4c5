"""Assign event times to the records of a batch, and check them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.dataflow.columns.column_key import column_named
from penstock.dataflow.columns.column_times import ColumnTimestamps, milliseconds_of_column
from penstock.dataflow.errors import JobError
from penstock.runtime import codegen
from penstock.runtime.operators.user_loop import UserLoop
from penstock.runtime.serialization.arrow_batch import packed_times
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import current_index, to_job_error


def assign_timestamps(
    function: Callable[[Any, int], int], iterator: Iterator[Any], timestamps: list[int]
) -> list[int]:
    """Return the event time that the function assigns to each record.

    Arguments:
        function: takes a record and the event time that it has so far.
        iterator: the iterator over the records.
        timestamps: the event time that each record has so far.
    """
    return [function(record, time) for record, time in zip(iterator, timestamps, strict=False)]


class TimestampAssignment:
    """Assigns event times with the function of a watermark strategy.

    Arguments:
        extract: takes a record and the event time that it has so far, and returns its event time.
        operator: the name of the operator in errors.
    """

    is_connector = False

    def __init__(self, extract: Callable[[Any, int], int], operator: str) -> None:
        self._extract = extract
        assigner = getattr(extract, "__self__", None)
        #: The column that holds the event times, or None. It is used for Arrow batches.
        self._column = assigner.column if isinstance(assigner, ColumnTimestamps) else None
        self._operator = operator
        self._loop = UserLoop(assign_timestamps, {"function": extract})
        #: The iterator over the records; its position shows which record caused an error.
        self.iterator: Any = None

    @property
    def name(self) -> str:
        """Return the name of the user's code in errors."""
        return f"timestamp assigner of {self._operator!r}"

    @property
    def inputs(self) -> Sequence[str]:
        """Return no names."""
        return ()

    def hint(self, error: BaseException) -> str:
        """Return no advice."""
        del error
        return ""

    def assign(self, batch: RecordBatch) -> list[int]:
        """Return the event time of each record, in milliseconds since the epoch.

        Raises:
            JobError: if the function raises an error, or returns something else than an integer.
        """
        if self._column is not None and batch.arrow is not None:
            times: list[int] = self._assign_column(batch.arrow, self._column)
            return times
        columns, before = batch.columns(), batch.times()
        loop = None if columns is None else self._loop.over_columns(len(columns))
        try:
            if loop is not None and columns is not None:
                self.iterator = iter(columns[0])
                times = loop(zip(self.iterator, *columns[1:], strict=False), before)
            else:
                self.iterator = iter(batch.rows())
                times = self._loop.over_rows(self.iterator, before)
        except BaseException as error:
            raise self._error(error, batch, before) from error
        try:
            checked = array("q", times)
        except (TypeError, OverflowError):
            raise self._refused(batch, times) from None
        # Subclasses of `int` and the integers of NumPy become plain integers.
        return times if set(map(type, times)) <= {int} else checked.tolist()

    def _assign_column(self, arrow: Any, name: str) -> Any:
        """Return the event times that a column of an Arrow batch holds."""
        try:
            return packed_times(milliseconds_of_column(column_named(arrow, name), name))
        except JobError as error:
            error.operator = error.operator or self._operator
            raise

    def _error(self, error: BaseException, batch: RecordBatch, before: list[int]) -> JobError:
        index = current_index(self.iterator, batch)
        if index is not None and codegen.raised_by_generated_code(error):
            try:  # the user's own function raises the error again, so the traceback shows its line
                self._extract(batch[index], before[index])
            except BaseException as again:
                error = again
        return to_job_error(error, self, batch, self.name)

    def _refused(self, batch: RecordBatch, times: list[Any]) -> JobError:
        for record, time in zip(batch.rows(), times, strict=True):
            try:
                array("q", [time])
            except (TypeError, OverflowError):
                return JobError(
                    f"the {self.name} returned {time!r} "
                    f"({type(time).__name__}): it must return the milliseconds since the epoch as "
                    f"an int{_hint(time)}",
                    operator=self._operator,
                    record=repr(record)[:500],
                )
        raise AssertionError("all timestamps are valid")


def _hint(time: Any) -> str:
    if time is None:
        return "; does the function lack a `return`?"
    if isinstance(time, float):
        return ", for example int(seconds * 1000)"
    if isinstance(time, int):
        return "; this is no time in the range of 64 bits"
    if hasattr(time, "timestamp"):
        return ", for example int(time.timestamp() * 1000)"
    return ""
