"""Take event times from a column."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.time.watermark_strategy import TimestampAssigner
from penstock.dataflow.type_variables import UserValue

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.dataflow.columns.arrow import Array

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - `datetime.UTC` would read worse
_MILLISECOND = timedelta(milliseconds=1)


class ColumnTimestamps(TimestampAssigner):
    """Takes the event time of each row from a column.

    The column contains times, or whole numbers of milliseconds since the epoch. Times without a
    time zone are in UTC.

    Arguments:
        column: the name of the column.

    Raises:
        GraphError: if the name is not a string.

    Examples:
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(5_000)
        >>> strategy = strategy.with_timestamp_assigner(ColumnTimestamps("at"))
    """

    def __init__(self, column: str) -> None:
        if not isinstance(column, str) or not column:
            raise GraphError(f"ColumnTimestamps takes the name of a column, not {column!r}")
        self.column = column

    def extract_timestamp(self, value: UserValue, record_timestamp: int) -> int:
        """Return the event time of a row."""
        del record_timestamp
        if isinstance(value, dict):
            time = value[self.column]
        else:
            time = getattr(value, self.column)
        if type(time) is int:
            return time
        if isinstance(time, datetime):
            aware = time if time.tzinfo is not None else time.replace(tzinfo=_EPOCH.tzinfo)
            return (aware - _EPOCH) // _MILLISECOND
        if isinstance(time, date):
            return (time - _EPOCH.date()) // _MILLISECOND
        result: int = time
        return result  # the engine refuses it, and names the record


def milliseconds_of_column(column: pa.Array, name: str) -> Array:
    """Return the event times that a column holds, in milliseconds since the epoch.

    Arguments:
        column: the column.
        name: its name, for error messages.

    Raises:
        JobError: if the column contains nulls, or contains neither times nor whole numbers.
    """
    import pyarrow as pa

    kind, types = column.type, pa.types
    if column.null_count:
        raise JobError(
            f"column {name!r} gives the event times, and has {column.null_count} nulls: filter the "
            f"rows, or fill the nulls"
        )
    if types.is_timestamp(kind):
        # As for rows, the division rounds down, even for times before 1970.
        per_ms = {"s": 0, "ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
        values: Array = column.cast(pa.int64()).to_numpy()
        return values // per_ms if per_ms else values * 1000
    if types.is_date(kind):
        days: Array = column.cast(pa.date32()).cast(pa.int32()).to_numpy()
        return days.astype("int64") * 86_400_000
    if types.is_integer(kind):
        try:
            whole: Array = column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise JobError(f"column {name!r} has a number that is no time: {error}") from None
        return whole
    raise JobError(
        f"column {name!r} of type {kind} cannot give event times: it needs times, or whole numbers "
        f"of milliseconds since the epoch"
    )
