"""Read the rows that tables have when change data capture begins, and which changes they include.

PostgreSQL can export the snapshot of a new slot, but the snapshot ends with the connection that
made the slot. After a failure it would be gone, with some of the rows read. Here the rows need no
exported snapshot. Each table is read in the order of its key, in a transaction with a snapshot of
its own. After a failure, the rest is read in another one. A *part* is a range of keys that was read
with one snapshot. `pg_current_snapshot()` returns the transactions that a snapshot includes, and
each transaction in the log has its id. So a change is left out exactly if the snapshot of the part
with its row includes the transaction. Decision record 053 has the proof.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.connectors.postgres.connection import column_name, explained, type_names
from penstock.connectors.postgres.log_connection import lsn_number
from penstock.dataflow.errors import JobError, Recoverability

logger = logging.getLogger("penstock.connectors")

#: The number of rows that are fetched together.
FETCH_ROWS = 5_000
_REPORT_SECONDS = 10.0
#: The number of keys whose parts are remembered.
_KNOWN_PLACES = 100_000

#: The values of a key, as PostgreSQL's text.
Key = list[str]


class Snapshot:
    """Finds out which transactions a snapshot of PostgreSQL includes.

    Arguments:
        text: the snapshot, as `pg_current_snapshot()` returns it: `xmin:xmax:xip,xip…`.

    Examples:
        >>> snapshot = Snapshot("10:14:11,12")
        >>> [xid for xid in range(8, 16) if snapshot.includes(xid)]
        [8, 9, 10, 13]
    """

    def __init__(self, text: str) -> None:
        low, high, running = text.split(":")
        self.xmin, self._xmax = int(low), int(high)
        self._running = frozenset(map(int, running.split(","))) if running else frozenset()

    def includes(self, xid: int) -> bool:
        """Return whether the snapshot shows the changes of a transaction.

        Arguments:
            xid: the id of the transaction, as the log has it: the lower 32 bits. The id is at most
                2**31 away from those of the snapshot, as PostgreSQL itself needs.
        """
        full = self._xmax + ((xid - self._xmax + 2**31) % 2**32) - 2**31
        return full < self.xmin or (full < self._xmax and full not in self._running)


@dataclass(frozen=True)
class PublishedTable:
    """A table of a publication.

    Arguments:
        schema, name: the names of the schema and the table.
        columns: the columns that are published.
        row_filter: the condition of published rows, as SQL; None for all rows.
        key: the columns of the replica identity or the primary key; empty if there is none.
        key_types: the types of these columns, as SQL.
        key_collations: the collation of each of these columns, as SQL; None if it has none.
    """

    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str | None
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    key_collations: tuple[str | None, ...]

    @property
    def full_name(self) -> str:
        """The name with the schema."""
        return f"{self.schema}.{self.name}"


def published_tables(connection: Any, publication: str) -> list[PublishedTable]:
    """Return the tables of a publication, in the order of their names."""
    rows = connection.execute(
        # Columns and row filters exist since version 15.
        "SELECT t.schemaname, t.tablename, to_jsonb(t)->'attnames', to_jsonb(t)->>'rowfilter', "
        "c.oid FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname "
        "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename "
        "WHERE t.pubname = %s ORDER BY 1, 2",
        [publication],
    ).fetchall()
    return [_table(connection, *row) for row in rows]


def _table(
    connection: Any, schema: str, name: str, published: list[str] | None, condition: str, oid: int
) -> PublishedTable:
    columns = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 "
        "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        [oid],
    ).fetchall()
    names = tuple(row[0] for row in columns if published is None or row[0] in published)
    key = connection.execute(
        "SELECT a.attname, a.atttypid, CASE WHEN a.attcollation <> 0 THEN "
        "(SELECT format('%%I.%%I', n.nspname, l.collname) FROM pg_collation l "
        "JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END "
        "FROM (SELECT indrelid, indkey FROM pg_index WHERE indrelid = %s "
        "AND (indisreplident OR indisprimary) ORDER BY indisreplident DESC LIMIT 1) i, "
        "unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a "
        "WHERE a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY k.place",
        [oid],
    ).fetchall()
    types = type_names(connection, [row[1] for row in key])
    return PublishedTable(
        schema,
        name,
        names,
        condition,
        tuple(row[0] for row in key),
        tuple(types),
        tuple(row[2] for row in key),
    )


class RowReader:
    """Reads the rows of tables, in the order of their keys, in one transaction.

    Arguments:
        connection: a connection, which the reader uses until it is closed.
        next_xid: the id of a transaction. Older ones must be included, because the slot's log may
            begin behind their commits. So the reader waits until they have ended.
        closing: returns whether the reader is being closed.
    """

    def __init__(self, connection: Any, next_xid: int, closing: Callable[[], bool]) -> None:
        self._connection = connection
        self.snapshot, self.time_ms = self._begin(next_xid, closing)
        self._cursor: Any = None

    def _begin(self, next_xid: int, closing: Callable[[], bool]) -> tuple[str, int]:
        """Begin a transaction, and return its snapshot and time."""
        said_at = time.monotonic()
        with explained("read the initial rows"):
            while True:
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                text, milliseconds = self._connection.execute(
                    "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000)::bigint"
                ).fetchone()
                if Snapshot(text).xmin >= next_xid or closing():
                    return text, milliseconds
                self._connection.execute("ROLLBACK")
                if time.monotonic() - said_at > _REPORT_SECONDS:
                    said_at = time.monotonic()
                    logger.warning(
                        "the initial rows can be read when the transactions have ended that ran "
                        "when the replication slot was made; the oldest is %s",
                        text.split(":")[0],
                    )
                time.sleep(0.05)

    def open(self, table: PublishedTable, after: Key | None) -> None:
        """Begin to read a table behind a key."""
        from psycopg.sql import SQL

        check_key(table)
        key = [SQL("q.{}").format(column_name(name)) for name in table.key]
        tests = []
        if table.row_filter is not None:
            tests.append(SQL("({})").format(SQL(table.row_filter.replace("%", "%%"))))
        if after is not None:
            tests.append(
                SQL("({}) > ({})").format(SQL(", ").join(key), SQL(", ").join(key_values(table)))
            )
        statement = SQL(
            "DECLARE penstock_rows NO SCROLL CURSOR FOR SELECT {columns}, {texts} "
            "FROM {table} AS q{where} ORDER BY {key}"
        ).format(
            columns=SQL(", ").join(SQL("q.{}").format(column_name(name)) for name in table.columns),
            texts=SQL(", ").join(SQL("{}::text").format(name) for name in key),
            table=SQL("{}.{}").format(column_name(table.schema), column_name(table.name)),
            where=SQL(" WHERE ") + SQL(" AND ").join(tests) if tests else SQL(""),
            key=SQL(", ").join(key),
        )
        with explained(f"read the initial rows of {table.full_name}"):
            # The values are put into the text, because a DECLARE takes no parameters.
            from psycopg import ClientCursor

            ClientCursor(self._connection).execute(statement, after or [])

    def fetch(self, table: PublishedTable) -> list[tuple[Any, ...]]:
        """Return the next rows, with the texts of the key behind the columns; [] at the end."""
        with explained(f"read the initial rows of {table.full_name}"):
            rows = self._connection.execute(f"FETCH {FETCH_ROWS} FROM penstock_rows").fetchall()
            if not rows:
                self._connection.execute("CLOSE penstock_rows")
        return rows  # type: ignore[no-any-return]

    def end(self) -> int:
        """End the transaction, and return a place in the log behind all that it has seen."""
        with explained("read the initial rows"):
            self._connection.execute("COMMIT")
            return end_of_log(self._connection)


def end_of_log(connection: Any) -> int:
    """Return a place in the log that is synced, and behind all commits that are visible now."""
    # A commit syncs all of the log before it, also commits that were not synced themselves.
    connection.execute("SET synchronous_commit = local")
    connection.execute("SELECT pg_logical_emit_message(true, 'penstock', '')")
    (text,) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    return lsn_number(text)


def key_values(table: PublishedTable) -> list[Any]:
    """Return SQL for the values of a table's key, which are the parameters."""
    from psycopg.sql import SQL

    return [
        SQL(f"%s::text::{kind}" + (f" COLLATE {collation}" if collation else ""))
        for kind, collation in zip(table.key_types, table.key_collations, strict=True)
    ]


def check_key(table: PublishedTable) -> None:
    """Raise a `JobError` if a table has no key by which its rows can be read in order."""
    if not table.key:
        raise JobError(
            f"the table {table.full_name} has no primary key, so after a failure it would be "
            f"unknown which of its rows were read: add a primary key (or REPLICA IDENTITY USING "
            f"INDEX), or begin without rows (initial_rows=False)",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


#: A part as it is in positions: the table, the last key or None for the rest, and the snapshot.
Part = list[Any]


class IncludedChanges:
    """Finds out which changes the initial rows include already.

    Arguments:
        parts: the parts that were read, those of each table in the order of their keys.
        connect: returns a connection for questions about the order of keys.
    """

    def __init__(self, parts: Sequence[Part], connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._tables: dict[str, list[tuple[Key | None, str]]] = {}
        for table, until, snapshot in parts:
            self._tables.setdefault(table, []).append((until, snapshot))
        #: The parts of keys, as they are known.
        self._places: dict[tuple[str, ...], int] = {}
        self._snapshots = {text: Snapshot(text) for _, _, text in parts}
        #: The snapshots that include the current transaction.
        self._including: frozenset[str] = frozenset()

    def begin(self, xid: int) -> bool:
        """Begin a transaction, and return whether any of the snapshots includes it."""
        self._including = frozenset(
            text for text, snapshot in self._snapshots.items() if snapshot.includes(xid)
        )
        return bool(self._including)

    def includes(self, table: PublishedTable, key: Key | None) -> bool:
        """Return whether the initial rows include a change of the current transaction.

        Arguments:
            table: the table.
            key: the key of the row; None for a change of the whole table.

        Raises:
            JobError: if the rows include a part of a change of the whole table.
        """
        parts = self._tables.get(table.full_name, [])
        included = [snapshot in self._including for _, snapshot in parts]
        if not any(included):
            return False
        if all(included):
            return True
        if key is None:
            raise JobError(
                f"the table {table.full_name} was truncated while its initial rows were read, and "
                f"reading was interrupted by a failure: start the job afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return included[self._place(table, key, [until for until, _ in parts])]

    def _place(self, table: PublishedTable, key: Key, limits: list[Key | None]) -> int:
        """Return the index of the part that has a key. The server knows the order of keys."""
        known = (table.full_name, *key)
        if known not in self._places:
            if len(self._places) >= _KNOWN_PLACES:
                self._places.clear()
            self._places[known] = self._ask_place(table, key, limits)
        return self._places[known]

    def _ask_place(self, table: PublishedTable, key: Key, limits: list[Key | None]) -> int:
        from psycopg.sql import SQL

        value = SQL("({})").format(SQL(", ").join(key_values(table)))
        known = [limit for limit in limits if limit is not None]
        test = SQL("{} <= {}").format(value, value)
        statement = SQL("SELECT ARRAY[{}]").format(SQL(", ").join([test] * len(known)))
        values = [text for limit in known for text in (*key, *limit)]
        with explained("compare keys of initial rows"):
            (below,) = self._connect().execute(statement, values).fetchone()
        return below.index(True) if True in below else len(limits) - 1
