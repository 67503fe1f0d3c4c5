"""Find the operation and the values of a row in the records of a sink.

A record is a dict, a tuple, a named tuple, a dataclass, a `Row` with its kind, or a `Change`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any

from penstock.connectors.postgres.change import Change
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.types import Row, RowKind

#: The operations: write a row, delete a row by its key, or empty the table.
WRITE, DELETE, EMPTY = "W", "D", "E"

#: An operation, and the values of all columns.
Operation = tuple[str, Sequence[Any]]


def columns_of(record: Any) -> tuple[str, ...] | None:
    """Return the names of a record's columns; None if it has none, or is no new row."""
    if isinstance(record, Change):
        return None if record.after is None else tuple(record.after)
    if isinstance(record, dict):
        return tuple(record)
    if isinstance(record, Row):
        return None if record.get_row_kind() is RowKind.DELETE else record.get_field_names()
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return tuple(record._fields)
    if is_dataclass(record):
        return tuple(field.name for field in fields(record))
    return None


def plain_values(kind: type, columns: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    """Return a function that returns the values of a record that is always a new row.

    Return None if each record of this class has its own operation.
    """
    if issubclass(kind, Change | Row):
        return None
    if issubclass(kind, dict):
        return _tuple_getter(itemgetter, columns)
    if hasattr(kind, "_fields") or is_dataclass(kind):
        return _tuple_getter(attrgetter, columns)
    if issubclass(kind, tuple | list):
        return lambda record: record
    raise JobError(
        f"a PostgresSink writes dicts, tuples, dataclasses, Rows and Changes, not a "
        f"{kind.__name__}: convert the records with map",
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def _tuple_getter(getter: Any, columns: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    get = getter(*columns)
    if len(columns) > 1:
        return get  # type: ignore[no-any-return]
    return lambda record: (get(record),)


def operations(record: Any, columns: Sequence[str], key: Sequence[str]) -> Iterable[Operation]:
    """Yield the operations for a `Row` or a `Change`.

    An update of the key deletes the old row first.
    """
    if isinstance(record, Row):
        kind = record.get_row_kind()
        gone = kind is RowKind.DELETE or kind is RowKind.UPDATE_BEFORE
        if gone and not key:
            raise _needs_key(f"a Row of the kind {kind}")
        if record.get_field_names() is None:
            yield (DELETE if gone else WRITE), list(record)
        else:
            yield _named(DELETE if gone else WRITE, record.as_dict(), columns, key)
        return
    change: Change = record
    if change.op == "truncate":
        if not key:
            raise _needs_key("a truncation")
        yield EMPTY, [None] * len(columns)
        return
    if change.unchanged:
        raise JobError(
            f"an update of {change.table} leaves out the large values of "
            f"{', '.join(change.unchanged)}, which it did not change: run ALTER TABLE "
            f"{change.table} REPLICA IDENTITY FULL in the database that is read",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    before, after = change.before, change.after
    if change.op in ("update", "delete") and not key:
        raise _needs_key(f"a Change with op={change.op!r}")
    if before is not None and (
        after is None or any(before.get(name) != after.get(name) for name in key if name in before)
    ):
        yield _named(DELETE, before, columns, key)
    if after is not None:
        yield _named(WRITE, after, columns, key)


def _named(
    operation: str, values: dict[str, Any], columns: Sequence[str], key: Sequence[str]
) -> Operation:
    if operation == DELETE:
        # Of a row that is gone, only its key may be known.
        return DELETE, [values[name] if name in key else values.get(name) for name in columns]
    return operation, [values[name] for name in columns]


def _needs_key(what: str) -> JobError:
    return JobError(
        f"a PostgresSink without a key only adds rows, and got {what}: give it the key of the "
        f"table, as key=['id']",
        recoverability=Recoverability.NON_RECOVERABLE,
    )
