"""Batches of records, held by row or by column, and the buffers that collect them.

Columns avoid the cost of making tuples. A loop whose output tuples are only routed and encoded
makes columns instead (`penstock.runtime.operators.columnar_fusion`). A loop that uses only items of
its records reads columns (`penstock.runtime.codegen`).

Event times are a further column, which is None in a job without event time. So such a job does no
work for it.

All other code calls `rows()`, whether a batch is held by row or by column. The items of the rows
are the same objects as the items of the columns. `rows()` makes new tuples at each call, so two
calls return tuples that are equal but not identical.

`docs/inside/decisions/031-record-batches.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.dataflow.time.watermark import NO_TIMESTAMP

#: The number of items of the widest tuple that is held by column. Wider tuples are held by row.
WIDEST = 8


class RecordBatch:
    """An ordered batch of records, held by row or by column.

    The task that takes the batch from its channel owns it, and may change its lists.

    Arguments:
        rows: the records; empty if `columns` is given.
        columns: the columns, if the records are tuples that are held by column. There is at least
            one column, and all columns have the same length.
        timestamps: the event times of the records, in milliseconds since the epoch; `NO_TIMESTAMP`
            for a record without one. None if no record of the batch has one. The list is never
            changed, because several batches may share it.
    """

    __slots__ = ("_columns", "_rows", "count", "timestamps")

    #: The rows as a `pyarrow.RecordBatch`; None except for an `ArrowBatch`. (As an attribute of the
    #: class, it costs other batches nothing.)
    arrow: Any = None

    def __init__(
        self,
        rows: list[Any],
        columns: list[list[Any]] | None = None,
        timestamps: list[int] | None = None,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self.timestamps = timestamps
        #: The number of records.
        self.count = len(rows if columns is None else columns[0])

    @classmethod
    def of_columns(
        cls, columns: list[list[Any]], timestamps: list[int] | None = None
    ) -> RecordBatch:
        """Return a batch of tuples that holds the given columns."""
        return cls([], columns, timestamps)

    def rows(self) -> list[Any]:
        """Return the records as a list."""
        columns = self._columns
        return self._rows if columns is None else list(zip(*columns, strict=True))

    def columns(self) -> list[list[Any]] | None:
        """Return the columns, or None for a batch that is held by row."""
        return self._columns

    def slice(self, begin: int, end: int | None = None) -> RecordBatch:
        """Return the records from index `begin` to index `end`, which is excluded."""
        timestamps = self.timestamps
        if timestamps is not None:
            timestamps = timestamps[begin:end]
        if self._columns is None:
            return RecordBatch(self._rows[begin:end], None, timestamps)
        return RecordBatch([], [column[begin:end] for column in self._columns], timestamps)

    def select(self, indices: Sequence[int]) -> RecordBatch:
        """Return the records with the given indices, in their order."""
        rows, timestamps = self.rows(), self.timestamps
        times = None if timestamps is None else [timestamps[index] for index in indices]
        return RecordBatch([rows[index] for index in indices], None, times)

    def with_timestamps(self, timestamps: list[int] | None) -> RecordBatch:
        """Return a batch of the same records with other event times."""
        return RecordBatch(self._rows, self._columns, timestamps)

    def with_rows(self, rows: list[Any]) -> RecordBatch:
        """Return a batch of other records with the same event times."""
        return RecordBatch(rows, None, self.timestamps)

    def times(self) -> list[int]:
        """Return the event time of each record; `NO_TIMESTAMP` for a record without one."""
        timestamps = self.timestamps
        return [NO_TIMESTAMP] * len(self) if timestamps is None else timestamps

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self._columns is None:
            return self._rows[index]
        return tuple([column[index] for column in self._columns])

    def __repr__(self) -> str:
        times = "" if self.timestamps is None else f", timestamps={self.timestamps!r}"
        return f"RecordBatch({self.rows()!r}{times})"


#: A batch without records.
EMPTY = RecordBatch([])


class RecordBuffer:
    """Collects records until they are taken as a batch.

    Loops append to the list `records`, and to the list `timestamps` once `start_timestamps` was
    called. `take` replaces the lists by new ones, so other objects must not keep a reference to
    them.
    """

    __slots__ = ("records", "timestamps")

    def __init__(self) -> None:
        #: The list that loops append records to. Its length is the number of collected records.
        self.records: list[Any] = []
        #: The event time of each record; None until the first record with an event time.
        self.timestamps: list[int] | None = None

    def start_timestamps(self) -> None:
        """Collect event times from now on. Records that are already in the batch have none."""
        if self.timestamps is None:
            self.timestamps = [NO_TIMESTAMP] * len(self.records)

    def extend(self, records: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Append records, with their event times once `start_timestamps` was called."""
        self.records.extend(records)
        if timestamps is not None:
            assert self.timestamps is not None
            self.timestamps.extend(timestamps)

    def append_timed(self, record: Any, timestamp: int) -> None:
        """Append a record with its event time, after `start_timestamps` was called."""
        assert self.timestamps is not None
        self.records.append(record)
        self.timestamps.append(timestamp)

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the records from index `begin` up to, not including, `end`."""
        return RecordBatch(self.records[begin:end], None, self._copy_timestamps(begin, end))

    def drop(self, count: int) -> None:
        """Remove the first `count` records."""
        del self.records[:count]
        if self.timestamps is not None:
            del self.timestamps[:count]

    def take(self) -> RecordBatch:
        """Remove all records, and return them as a batch, without a copy."""
        records, self.records = self.records, []
        timestamps = self.timestamps
        if timestamps is not None:
            self.timestamps = []
        return RecordBatch(records, None, timestamps)

    def _copy_timestamps(self, begin: int, end: int) -> list[int] | None:
        return None if self.timestamps is None else self.timestamps[begin:end]


class ColumnBuffer(RecordBuffer):
    """Collects tuples by column until they are taken as a batch.

    Items of a tuple that are the same in all tuples are constants, and are not stored. A loop
    appends the first item that varies to `records`, and the others to `column1`, `column2` etc.

    Arguments:
        layout: one element for each item of a tuple: None if the item varies, or `(constant,)`.
            At least one element is None.
    """

    __slots__ = ("_layout", "_names", *(f"column{number}" for number in range(1, WIDEST)))

    def __init__(self, layout: Sequence[tuple[Any] | None]) -> None:
        super().__init__()
        self._layout = layout
        self._names = ["records", *(f"column{n}" for n in range(1, layout.count(None)))]
        self._clear()

    def _clear(self) -> None:
        for name in self._names:
            setattr(self, name, [])

    def _varying(self) -> list[list[Any]]:
        return [getattr(self, name) for name in self._names]

    def _batch(self, varying: list[list[Any]], timestamps: list[int] | None) -> RecordBatch:
        """Return a batch of the given varying columns and of columns of the constants."""
        count, left = len(varying[0]), iter(varying)
        columns = [next(left) if item is None else [*item] * count for item in self._layout]
        return RecordBatch.of_columns(columns, timestamps)

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the tuples from index `begin` up to, not including, `end`."""
        varying = [column[begin:end] for column in self._varying()]
        return self._batch(varying, self._copy_timestamps(begin, end))

    def drop(self, count: int) -> None:
        """Remove the first `count` tuples."""
        for column in self._varying():
            del column[:count]
        if self.timestamps is not None:
            del self.timestamps[:count]

    def take(self) -> RecordBatch:
        """Remove all tuples, and return them as a batch."""
        batch = self._batch(self._varying(), self.timestamps)
        self._clear()
        if self.timestamps is not None:
            self.timestamps = []
        return batch
