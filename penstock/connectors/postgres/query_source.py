"""Read the rows of a table or query in the order of a key, and follow new rows.

A split is a range of keys, and the position in it is the key of the last row. Each read is a query
of its own, `WHERE key > last ORDER BY key`, so no transaction stays open, and a lost connection
loses nothing. Keys are in snapshots as PostgreSQL's text, which is exact for each type.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import eq
from typing import TYPE_CHECKING, Any

from penstock.connectors.polling_source import PollingSource, SplitPoller
from penstock.connectors.postgres.connection import (
    check_in_program,
    column_name,
    connect,
    explained,
    type_names,
)
from penstock.connectors.postgres.records import check_record_kind, record_maker
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import Preparation, Split

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

#: The number of rows from which the limits of splits come from a sample of the table.
SAMPLED_ROWS = 500_000
#: The number of rows of such a sample.
_SAMPLE = 50_000

#: The values of a key, as PostgreSQL's text.
Key = list[str]


class PostgresSource(PollingSource):
    """Reads a table or a query of PostgreSQL, and may follow new rows. (Flink: JDBC `Source`.)

    Rows come in the order of the key within a split. A bounded source reads the rows up to the
    greatest key that the table has when the job starts. Rows that are changed while the job reads
    come in their state at the moment of reading: to have each change, use `PostgresCdcSource`.

    With `follow`, the source never ends, and reads rows with higher keys as they come. A
    transaction may commit later than another with a higher key. So rows are read up to a key only
    when each transaction has ended that was writing when this key was the greatest, and at least
    `lag_seconds` later. A transaction that draws a key must write within this time. To need no such
    assumption, use a column of the type `xid8` with `DEFAULT pg_current_xact_id()` as the first
    part of the key: rows then come in the order of the transactions.

    Arguments:
        conninfo: the connection string, such as `"host=db dbname=shop user=me"`. Without a
            password, libpq takes it from its own places (`PGPASSWORD`, `~/.pgpass`).
        table: the table, as SQL names it: `"orders"`, `"shop.orders"`, `'"Orders"'`.
        query: a SELECT statement instead of a table.
        key: the column, or columns, by which rows are ordered. Together they are unique and not
            NULL. The table should have an index of them.
        columns: the columns to read, in this order; None for all.
        as_: the kind of record: "dict", "tuple", "row" (`Row`), a dataclass or a named tuple.
        splits: the number of ranges of keys in which a bounded source is read.
        follow: whether to wait for new rows.
        lag_seconds: the longest time between drawing a key and writing it, in seconds; for
            `follow`.
        fetch_rows: the number of rows of one query.

    Raises:
        GraphError: if an argument is not valid, or if `penstock[postgres]` is not installed.

    Examples:
        >>> source = PostgresSource("dbname=shop", "orders", key="id")  # doctest: +SKIP
        >>> env.from_source(source).print()  # doctest: +SKIP
    """

    poll_seconds = 0.1

    def __init__(
        self,
        conninfo: str,
        table: str | None = None,
        *,
        query: str | None = None,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        as_: str | type = "dict",
        splits: int = 8,
        follow: bool = False,
        lag_seconds: float = 1.0,
        fetch_rows: int = 10_000,
    ) -> None:
        if (table is None) == (query is None):
            raise GraphError("a PostgresSource has either a table or a query")
        check_record_kind(as_)
        if splits < 1 or fetch_rows < 1 or lag_seconds < 0:
            raise GraphError(
                f"splits and fetch_rows are at least 1, and lag_seconds at least 0, not "
                f"{splits!r}, {fetch_rows!r} and {lag_seconds!r}"
            )
        self.key = (key,) if isinstance(key, str) else tuple(key)
        if not self.key:
            raise GraphError("the key of a PostgresSource has at least one column")
        self.conninfo, self.table, self.as_ = conninfo, table, as_
        self.query = None if query is None else query.strip().rstrip(";")
        self.columns = None if columns is None else tuple(columns)
        self.parts, self.bounded = splits, not follow
        self.lag_seconds, self.fetch_rows = lag_seconds, fetch_rows

    @property
    def location(self) -> str:
        """The table, or the query."""
        return self.table or self.query or ""

    def prepare(self, preparation: Preparation) -> None:
        """Check the table and the key before the job starts."""
        del preparation
        check_in_program(self._check)

    def _check(self) -> None:
        with connect(self.conninfo, self.purpose) as connection:
            _Rows(self, connection).key_types()

    @property
    def purpose(self) -> str:
        """The action for which connections are made, for errors."""
        return f"read {self.table or 'a query'}"

    def splits(self) -> Iterable[Split]:
        """Return the ranges of keys; they are computed in the JobManager."""
        with connect(self.conninfo, self.purpose) as connection, explained(self.purpose):
            rows = _Rows(self, connection)
            types = rows.key_types()
            rows.check_nulls()
            if not self.bounded:
                return [Split("rows", {"types": types, "after": None, "until": None})]
            limits = rows.limits(self.parts)
        after: list[Key | None] = [None, *limits]
        return [
            Split(f"range {number}", {"types": types, "after": low, "until": high})
            for number, (low, high) in enumerate(zip(after, limits, strict=False))
        ]

    def create_poller(self, split: Split) -> SplitPoller[Any]:
        """Return a poller of one range of keys, or one that follows new rows."""
        return _RangePoller(self, split) if self.bounded else _FollowingPoller(self, split)


class _Rows:
    """Makes and runs the queries of a source with one connection.

    Arguments:
        source: the source.
        connection: a connection, which the caller closes.
        types: the types of the key's columns, if they are known.
    """

    def __init__(
        self, source: PostgresSource, connection: Connection[Any], types: list[str] | None = None
    ) -> None:
        from psycopg.sql import SQL

        self._source, self.connection, self._types = source, connection, types
        if source.table is not None:
            # The server names the table, with quotes where they are needed.
            rows = self._one("SELECT %s::regclass::text", [source.table])[0]
        else:
            rows = f"({source.query})"
        # Statements have parameters, so each % of the text is doubled.
        self._rows = SQL("{} AS q").format(SQL(rows.replace("%", "%%")))
        self._key = [SQL("q.{}").format(column_name(name)) for name in source.key]
        self._key_list = SQL(", ").join(self._key)

    def _one(self, query: str | Composed, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        with explained(self._source.purpose):
            row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return row  # type: ignore[no-any-return]

    def key_types(self) -> list[str]:
        """Return the types of the key's columns."""
        from psycopg.sql import SQL

        with explained(self._source.purpose):
            statement = SQL("SELECT {} FROM {} LIMIT 0").format(self._key_list, self._rows)
            description = self.connection.execute(statement, []).description or []
            oids = [column.type_code for column in description]
            self._types = type_names(self.connection, oids)
        return self._types

    def check_nulls(self) -> None:
        """Raise a `JobError` if a row has no key, because it would never be read."""
        from psycopg.sql import SQL

        tests = SQL(" OR ").join(SQL("{} IS NULL").format(part) for part in self._key)
        statement = SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(self._rows, tests)
        if self._one(statement)[0]:
            raise JobError(
                f"PostgreSQL: {self._source.purpose}: a row has NULL in the key "
                f"{', '.join(self._source.key)}, so it has no place in the order: choose columns "
                f"that are NOT NULL, or leave such rows out with a query",
                recoverability=Recoverability.NON_RECOVERABLE,
            )

    def greatest(self) -> tuple[Key | None, str]:
        """Return the greatest key, and an id above those of all transactions that write now.

        Only a new id is above them: the limit of a snapshot is above those that have ended. A
        standby server gives no ids, and there the limit has to do.
        """
        from psycopg.sql import SQL

        statement = SQL(
            "SELECT (SELECT ARRAY[{}] FROM {} ORDER BY {} LIMIT 1), CASE WHEN pg_is_in_recovery() "
            "THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE pg_current_xact_id() END::text"
        ).format(self._texts(), self._rows, self._descending())
        found = self._one(statement)
        return found[0], found[1]

    def limits(self, parts: int) -> list[Key]:
        """Return the greatest keys of ranges with about as many rows each."""
        from psycopg.sql import SQL

        greatest, _ = self.greatest()
        if greatest is None:
            return []
        if parts == 1:
            return [greatest]
        names = [column_name(f"k{number}") for number in range(len(self._key))]
        named = SQL(", ").join(
            SQL("{} AS {}").format(part, name) for part, name in zip(self._key, names, strict=True)
        )
        order = SQL(", ").join(names)
        statement = SQL(
            "SELECT ARRAY[{texts}] FROM (SELECT {named}, row_number() OVER (ORDER BY {key}) AS r, "
            "count(*) OVER () AS n FROM {rows}{sample}) s "
            "WHERE r %% greatest(1, ceil(n::numeric / {parts})::bigint) = 0 ORDER BY {order}"
        ).format(
            texts=SQL(", ").join(SQL("{}::text").format(name) for name in names),
            named=named,
            key=self._key_list,
            rows=self._rows,
            sample=SQL(self._sample()),
            parts=parts,
            order=order,
        )
        with explained(self._source.purpose):
            found = [row[0] for row in self.connection.execute(statement, [])]
        if found and len(found) >= parts:
            found = found[: parts - 1]
        return [limit for limit in found if limit != greatest] + [greatest]

    def _sample(self) -> str:
        """Return the clause that reads a sample of a large table."""
        if self._source.table is None:
            return ""
        rows, kind = self._one(
            "SELECT reltuples::bigint, relkind FROM pg_class WHERE oid = %s::regclass",
            [self._source.table],
        )
        if kind not in ("r", "m") or rows < SAMPLED_ROWS:
            return ""
        return f" TABLESAMPLE SYSTEM ({100 * _SAMPLE / rows:.6f}) REPEATABLE (0)"

    def _texts(self) -> Composed:
        from psycopg.sql import SQL

        return SQL(", ").join(SQL("{}::text").format(part) for part in self._key)

    def _descending(self) -> Composed:
        from psycopg.sql import SQL

        return SQL(", ").join(SQL("{} DESC").format(part) for part in self._key)

    def page(self, above: bool, limit: bool, complete: bool) -> Composed:
        """Return the query of some rows in the order of their keys, with the texts of the keys.

        Arguments:
            above: whether keys are greater than a key, which is in the query's first parameters.
            limit: whether keys are at most another key, which is in the next parameters.
            complete: whether to read only rows of transactions below which none is running.
        """
        from psycopg.sql import SQL

        source, tests = self._source, []
        assert self._types is not None
        value = SQL(", ").join(SQL("%s::text::" + kind) for kind in self._types)
        key = SQL("({})").format(self._key_list)
        if above:
            tests.append(SQL("{} > ({})").format(key, value))
        if limit:
            tests.append(SQL("{} <= ({})").format(key, value))
        if complete:
            tests.append(SQL("{} < pg_snapshot_xmin(pg_current_snapshot())").format(self._key[0]))
        columns = (
            SQL("q.*")
            if source.columns is None
            else SQL(", ").join(SQL("q.{}").format(column_name(name)) for name in source.columns)
        )
        return SQL(
            "SELECT {columns}, {texts} FROM {rows}{where} ORDER BY {key} "
            "FETCH FIRST {number} ROWS WITH TIES"
        ).format(
            columns=columns,
            texts=self._texts(),
            rows=self._rows,
            where=SQL(" WHERE ") + SQL(" AND ").join(tests) if tests else SQL(""),
            key=self._key_list,
            number=source.fetch_rows,
        )


class _RangePoller(SplitPoller[Any]):
    """Reads the rows of a range of keys."""

    def __init__(self, source: PostgresSource, split: Split) -> None:
        payload: Any = split.payload
        self._source = source
        self._types: list[str] = payload["types"]
        self._after: Key | None = payload["after"]
        self._until: Key | None = payload["until"]
        #: Rows that are read and not returned yet, the last of them first, and their keys.
        self._records: list[Any] = []
        self._keys: list[tuple[str, ...]] = []
        self._connection: Connection[Any] | None = None
        self._closed = False
        self._pages: dict[tuple[bool, bool], Composed] = {}
        self._rows: _Rows | None = None
        self._all_read = False

    def seek(self, position: Any) -> None:
        if position is not None:
            self._after = position

    def position(self) -> Any:
        return None if self._after is None else list(self._after)

    def poll(self, max_records: int) -> list[Any] | None:
        if not self._records and not self._all_read:
            self._read_page()
        if not self._records:
            return None
        return self._take(max_records)

    def _take(self, max_records: int) -> list[Any]:
        taken, self._records = self._records[:max_records], self._records[max_records:]
        self._after = list(self._keys[len(taken) - 1])
        self._keys = self._keys[max_records:]
        return taken

    def _open(self) -> _Rows:
        if self._rows is None:
            connection = self._connection = connect(self._source.conninfo, self._source.purpose)
            # The poller may have been closed while this thread was connecting.
            if self._closed:
                self.close()
            self._rows = _Rows(self._source, connection, self._types)
        return self._rows

    def _read_page(self, complete: bool = False) -> None:
        """Read the next rows into `_records`, and note whether they are the last for now."""
        rows, source = self._open(), self._source
        form = (self._after is not None, self._until is not None)
        if form not in self._pages:
            self._pages[form] = rows.page(*form, complete)
        with explained(source.purpose):
            cursor = rows.connection.execute(
                self._pages[form], [*(self._after or ()), *(self._until or ())]
            )
            found = cursor.fetchall()
        count = len(self._types)
        names = [column.name for column in cursor.description or ()][:-count]
        keys = [row[-count:] for row in found]
        if len(found) > source.fetch_rows or any(map(eq, keys, keys[1:])):
            raise JobError(
                f"PostgreSQL: {source.purpose}: two rows have the same key "
                f"({', '.join(source.key)}), so a position between them would be lost: add columns "
                f"to the key until it is unique",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self._records, self._keys = record_maker(source.as_, names)(found), keys
        self._all_read = len(found) < source.fetch_rows

    def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _FollowingPoller(_RangePoller):
    """Reads new rows, up to keys below which no running transaction can write.

    `until` is such a key. The next one is the greatest key at a moment, when all transactions of
    this moment have ended. The poller cannot see transactions that have not written yet, because
    these have no id. It waits `lag_seconds` for them.
    """

    _candidate: tuple[Key, str, float] | None = None

    def poll(self, max_records: int) -> list[Any]:
        if not self._records:
            if self._types[0] == "xid8":
                self._read_page(complete=True)
            elif self._until is not None or self._find_limit():
                self._read_page()
                if self._all_read:
                    self._until = None
        return self._take(max_records) if self._records else []

    def _find_limit(self) -> bool:
        rows, source = self._open(), self._source
        if self._candidate is None:
            greatest, next_id = rows.greatest()
            if greatest is None or greatest == self._after:
                return False
            self._candidate = greatest, next_id, time.monotonic()
        greatest, next_id, seen_at = self._candidate
        if time.monotonic() - seen_at < source.lag_seconds:
            return False
        with explained(source.purpose):
            found = rows.connection.execute(
                "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8", [next_id]
            ).fetchone()
        if found is None or not found[0]:
            return False
        self._until, self._candidate = greatest, None
        return True
