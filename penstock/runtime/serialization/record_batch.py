"""Records that are tuples of one width, held by column, so that no tuple need be made of them.

A loop that puts tuples together only for them to be routed, encoded and taken apart again makes
columns at once (`penstock.runtime.operators.columnar_fusion`), and one that only looks at items of
its records reads them (`penstock.runtime.codegen`). Whoever knows nothing of columns gets
the rows. The items are the very objects that the tuples would hold; the tuples are made anew each
time they are asked for, which only `is` can tell, as they are of exactly the type `tuple`.

What is sent by column is in `penstock.runtime.serialization.codec`; who makes and who takes
columns is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

__all__ = ["WIDEST", "ColumnPending", "Columns", "Pending", "Records", "rows_of"]

#: Wider rows are kept as rows.
WIDEST = 8


class Columns:
    """A list of tuples, by column: it has a length, items and slices, and can be gone through.

    Arguments:
        columns: one list for each item of the tuples, at least one and all of one length. They
            belong to it.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: list[list[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.columns, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> Columns: ...
    def __getitem__(self, index: int | slice) -> tuple[Any, ...] | Columns:
        if isinstance(index, slice):
            return Columns([column[index] for column in self.columns])
        return tuple([column[index] for column in self.columns])

    def __repr__(self) -> str:
        return f"Columns({self.columns!r})"

    def rows(self) -> list[tuple[Any, ...]]:
        """The tuples."""
        return list(zip(*self.columns, strict=True))


#: What a batch holds.
Records = list[Any] | Columns


def rows_of(records: Records) -> list[Any]:
    """A list of the records."""
    return records.rows() if isinstance(records, Columns) else records


class Pending:
    """Records that are not yet sealed. Partitioners keep this object, and give its list away."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        #: The list that records are appended to; how many there are is its length.
        self.records: list[Any] = []

    def copy(self, begin: int, end: int) -> Records:
        """Some of the records."""
        return self.records[begin:end]

    def drop(self, count: int) -> None:
        """Forget the first ones."""
        del self.records[:count]

    def give(self) -> Records:
        """All records; it is empty afterwards."""
        records, self.records = self.records, []
        return records


class ColumnPending(Pending):
    """Tuples that are not yet sealed, by column.

    A loop appends the first item that varies to `records`, and the others to `column1`,
    `column2` and so on.

    Arguments:
        layout: for each item of a tuple None if it varies, else a tuple of the constant that it
            always is. At least one varies.
    """

    __slots__ = ("_layout", "_names", *(f"column{number}" for number in range(1, WIDEST)))

    def __init__(self, layout: Sequence[tuple[Any] | None]) -> None:
        super().__init__()
        self._layout = layout
        self._names = ["records", *(f"column{n}" for n in range(1, layout.count(None)))]
        self._begin()

    def _begin(self) -> None:
        for name in self._names:
            setattr(self, name, [])

    def _varying(self) -> list[list[Any]]:
        return [getattr(self, name) for name in self._names]

    def _arranged(self, varying: list[list[Any]]) -> Columns:
        count, left = len(varying[0]), iter(varying)
        return Columns([next(left) if item is None else [*item] * count for item in self._layout])

    def copy(self, begin: int, end: int) -> Columns:
        """Some of the tuples."""
        return self._arranged([column[begin:end] for column in self._varying()])

    def drop(self, count: int) -> None:
        """Forget the first ones."""
        for column in self._varying():
            del column[:count]

    def give(self) -> Columns:
        """All tuples; it is empty afterwards."""
        given = self._arranged(self._varying())
        self._begin()
        return given
