"""Batches of records, held by row or by column, and the buffers in which they are collected.

A loop that makes tuples only to have them routed, encoded and taken apart again makes columns
instead (`penstock.runtime.operators.columnar_fusion`). A loop that only uses items of its records
reads columns (`penstock.runtime.codegen`). All other code asks for rows, and cannot tell how a
batch is held: the items are the very objects that the tuples would hold. Tuples are made again each
time that rows are asked for, which only `is` can detect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["WIDEST", "ColumnBuffer", "RecordBatch", "RecordBuffer"]

#: Records that are wider tuples are held by row.
WIDEST = 8


class RecordBatch:
    """Records, in order. They belong to the task that takes the batch from its channel.

    Arguments:
        rows: the records.
        columns: in place of `rows`, records that are tuples: one list for each of their items, at
            least one, and all of one length.
    """

    __slots__ = ("_columns", "_rows")

    def __init__(self, rows: list[Any], columns: list[list[Any]] | None = None) -> None:
        self._rows, self._columns = rows, columns

    @classmethod
    def of_columns(cls, columns: list[list[Any]]) -> RecordBatch:
        """Return a batch of tuples that is held by column."""
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
    """Collects the records of the next batches.

    Loops append to `records`. That list is replaced when a batch takes it, so nothing keeps the
    list itself.
    """

    __slots__ = ("records",)

    def __init__(self) -> None:
        #: The list that records are appended to. Its length is the number of records.
        self.records: list[Any] = []

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the records from index `begin` to index `end`, which is excluded."""
        return RecordBatch(self.records[begin:end])

    def drop(self, count: int) -> None:
        """Remove the first `count` records."""
        del self.records[:count]

    def take(self) -> RecordBatch:
        """Remove all records, and return them as a batch, without a copy."""
        records, self.records = self.records, []
        return RecordBatch(records)


class ColumnBuffer(RecordBuffer):
    """Collects tuples by column.

    A loop appends the first item that varies to `records`, and the others to `column1`,
    `column2` and so on.

    Arguments:
        layout: for each item of a tuple None if it varies, else a tuple of the constant that it
            always is. At least one item varies.
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
        """Return a batch of columns that vary, and of columns of the constants."""
        count, left = len(varying[0]), iter(varying)
        columns = [next(left) if item is None else [*item] * count for item in self._layout]
        return RecordBatch.of_columns(columns)

    def copy(self, begin: int, end: int) -> RecordBatch:
        """Return a batch of the tuples from index `begin` to index `end`, which is excluded."""
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
