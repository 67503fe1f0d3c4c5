"""Define `Change`: what a transaction has changed in one row of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.types import Row, RowKind

_KINDS = {
    "read": RowKind.INSERT,
    "insert": RowKind.INSERT,
    "update": RowKind.UPDATE_AFTER,
    "delete": RowKind.DELETE,
}


class Change(NamedTuple):
    """A change of one row, as `PostgresCdcSource` returns it.

    Arguments:
        op: "read" for a row that was there when the source began, "insert", "update", "delete", or
            "truncate", which removes all rows of the table.
        table: the name of the table with its schema, such as "public.orders".
        before: the values before the change, by column. For "update" and "delete", PostgreSQL gives
            all values only if the table has REPLICA IDENTITY FULL. Otherwise it gives the key of a
            deleted row, and of a row whose key is updated; else this is None.
        after: the values of a new or updated row, by column; None for "delete" and "truncate".
        lsn: the place of the transaction's commit in the log, as a number that increases. For
            "read", the place where the source began.
        unchanged: columns that are missing in `after`, because the update did not change them.
            PostgreSQL leaves out large values (TOAST), unless the table has REPLICA IDENTITY FULL.

    Examples:
        >>> change = Change("insert", "public.orders", None, {"id": 7, "product": "tea"}, 1)
        >>> change.after["product"], str(change.kind)
        ('tea', '+I')
        >>> change.to_rows()
        [Row(id=7, product='tea')]
    """

    op: str
    table: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    lsn: int
    unchanged: tuple[str, ...] = ()

    @property
    def kind(self) -> RowKind:
        """The kind of the row. A "truncate" has none, and raises a `JobError`."""
        if self.op not in _KINDS:
            raise JobError(
                f"the table {self.table} was truncated, which no RowKind says: read `Change` "
                f"records and handle op == 'truncate', or read with skip_truncate=True",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return _KINDS[self.op]

    def to_rows(self) -> list[Row]:
        """Return the change as rows with kinds, as a stream of changes in Flink has it.

        An update is -U and +U if all values before the change are known, and else only +U. A
        deleted row has the columns that are known.

        Raises:
            JobError: if the change is a "truncate".
        """
        kind, before, after = self.kind, self.before, self.after
        rows = []
        if before is not None and (after is None or len(before) >= len(after)):
            old = RowKind.DELETE if after is None else RowKind.UPDATE_BEFORE
            rows.append(Row.of_parts(old, tuple(before), list(before.values())))
        if after is not None:
            rows.append(Row.of_parts(kind, tuple(after), list(after.values())))
        return rows
