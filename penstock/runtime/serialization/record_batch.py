"""Batches of records, held by row or by column, and the buffers that collect them.

Columns avoid the cost of making tuples. A loop whose output tuples are only routed and encoded
makes columns instead (`penstock.runtime.operators.columnar_fusion`). A loop that uses only items of
its records reads columns (`penstock.runtime.codegen`).

All other code calls `rows()`, whether a batch is held by row or by column. The items of the rows
are the same objects as the items of the columns. `rows()` makes new tuples at each call, so two
calls return tuples that are equal but not identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["WIDEST", "ColumnBuffer", "RecordBatch", "RecordBuffer"]

#: The number of items of the widest tuple that is held by column. Wider tuples are held by row.
WIDEST = 8


class RecordBatch:
    """An ordered batch of records, held by row or by column.

    The task that takes the batch from its channel owns it, and may change its lists.

    Arguments:
        rows: the records; empty if `columns` is given.
        columns: the columns, if the records are tuples that are held by column. There is at least
            one column, and all columns have the same length.
    """

    __slots__ = ("_columns", "_rows")

    def __init__(self, rows: list[Any], columns: list[list[Any]] | None = None) -> None:
        self._rows, self._columns = rows, columns

    @classmethod
    def of_columns(cls, columns: list[list[Any]]) -> RecordBatch:
        """Return a batch of tuples that holds the given columns."""
        return cls([], columns)

    def rows(self) -> list[Any]:
        """Return the records as a list."""
        columns = self._columns
        return self._rows if columns is None else list(zip(*columns, strict=True))

    def columns(self) -> list[list[Any]] | None:
        """Return the columns, or None for a batch that is held by row."""
        return self._columns

    def slice(self, begin: int, end: int | None = None) -> RecordBatch:
        """Return the records from index `begin` to index `end`, which is excluded."""
        if self._columns is None:
            return RecordBatch(self._rows[begin:end])
        return RecordBatch.of_columns([column[begin:end] for column in self._columns])

    def __len__(self) -> int:
        return len(self._rows if self._columns is None else self._columns[0])

    def __getitem__(self, index: int) -> Any:
        if self._columns is None:
            return self._rows[index]
        return tuple([column[index] for column in self._columns])

    def __repr__(self) -> str:
        return f"RecordBatch({self.rows()!r})"


class RecordBuffer:
    """Collects records until they are taken as a batch.

    Loops append to the list `records`. `take` replaces that list by a new one, so other objects
    must not keep a reference to the list.
    """

    __slots__ = ("records",)

    def __init__(self) -> None:
        #: The list that loops append records to. Its length is the number of collected records.
        self.records: list[Any] = []

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the records from index `begin` up to, not including, `end`."""
        return RecordBatch(self.records[begin:end])

    def drop(self, count: int) -> None:
        """Remove the first `count` records."""
        del self.records[:count]

    def take(self) -> RecordBatch:
        """Remove all records, and return them as a batch, without a copy."""
        records, self.records = self.records, []
        return RecordBatch(records)


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

    def _batch(self, varying: list[list[Any]]) -> RecordBatch:
        """Return a batch of the given varying columns and of columns of the constants."""
        count, left = len(varying[0]), iter(varying)
        columns = [next(left) if item is None else [*item] * count for item in self._layout]
        return RecordBatch.of_columns(columns)

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the tuples from index `begin` up to, not including, `end`."""
        return self._batch([column[begin:end] for column in self._varying()])

    def drop(self, count: int) -> None:
        """Remove the first `count` tuples."""
        for column in self._varying():
            del column[:count]

    def take(self) -> RecordBatch:
        """Remove all tuples, and return them as a batch."""
        batch = self._batch(self._varying())
        self._clear()
        return batch
