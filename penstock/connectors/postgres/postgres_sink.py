"""Write rows to a table of PostgreSQL, exactly once, by transactions with a row of a ledger.

`StagedSink` has the protocol. Workers stage the text of COPY. When a snapshot is complete, the
JobManager writes the rows of all subtasks in one transaction, together with the number of the
snapshot in the ledger. Prepared transactions would need a setting of the server, and block others
if the job does not come back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from penstock.connectors.postgres.connection import connect, explained, require_psycopg
from penstock.connectors.postgres.copy_text import CopyText
from penstock.connectors.postgres.row_changes import (
    DELETE,
    EMPTY,
    WRITE,
    columns_of,
    operations,
    plain_values,
)
from penstock.connectors.staged_sink import Marker, SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue

_TAB = b"\t"


class PostgresSink(StagedSink[Any]):
    """Adds rows to a table, or replaces and deletes rows by a key, exactly once. (Flink: JDBC.)

    Records are dicts, tuples, named tuples, dataclasses, `Row`s or `Change`s. With a key, a record
    replaces the row with its key. A `Row` of the kind -D or -U deletes it, and so does a `Change`
    of a deleted row. Of several records with one key in a snapshot, the last one counts, so key the
    stream by the same columns.

    Output becomes visible when a snapshot of the job is complete, with the rows of a snapshot at
    once. The table must exist. The sink makes a table `penstock_ledger` with one row for each sink
    and job. Do not remove a row while the job may be resumed.

    Arguments:
        conninfo: the connection string, such as `"host=db dbname=shop user=me"`.
        table: the table, as SQL names it: `"orders"`, `"shop.orders"`, `'"Orders"'`.
        key: the columns with a unique index by which rows are replaced; None only adds rows.
        columns: the columns to write, in the order of tuples. By default, those of the first
            record, which then needs names.
        json_columns: the columns in which lists are JSON, and not arrays. Dicts are always JSON.
        ledger: the table with the numbers of the snapshots, as SQL names it.
        timeout_seconds: the longest time of one statement, in seconds. After it the connection is
            closed, and the job restarts.

    Raises:
        GraphError: if an argument is not valid, or if `penstock[postgres]` is not installed.

    Examples:
        >>> sink = PostgresSink("dbname=shop", "totals", key=["product"])  # doctest: +SKIP
        >>> totals.sink_to(sink)  # doctest: +SKIP
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        key: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        json_columns: Sequence[str] = (),
        ledger: str = "penstock_ledger",
        timeout_seconds: float = 600.0,
    ) -> None:
        require_psycopg()
        for name, value in (("key", key), ("columns", columns), ("json_columns", json_columns)):
            if isinstance(value, str):
                raise GraphError(f"{name} is a list of columns, such as [{value!r}], not a text")
        self.conninfo, self.table, self.ledger = conninfo, table, ledger
        self.key = tuple(key or ())
        self.columns = None if columns is None else tuple(columns)
        self.json_columns = frozenset(json_columns)
        self.timeout_seconds = timeout_seconds
        missing = [name for name in self.key if columns is not None and name not in columns]
        if missing:
            raise GraphError(f"the columns {missing} of the key are not among `columns`")
        if timeout_seconds <= 0:
            raise GraphError(f"timeout_seconds is greater than 0, not {timeout_seconds!r}")

    @property
    def location(self) -> str:
        """The table."""
        return self.table

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that writes the text of COPY for a batch."""
        del context
        return _Encoder(self)

    def connect(self, place: SinkPlace) -> Target:
        """Return the connection of the committer."""
        return _PostgresTarget(self, place)


class _Encoder:
    """Writes the text of COPY for batches. With a key, each line begins with the operation."""

    def __init__(self, sink: PostgresSink) -> None:
        self._sink = sink
        self._columns = sink.columns
        self._text: CopyText | None = None
        self._plain: dict[type, Callable[[Any], Sequence[Any]] | None] = {}

    def __call__(self, batch: list[Any]) -> PlainValue:
        """Return the names of the columns, and the text of the rows."""
        if self._columns is None:
            self._columns = next(filter(None, map(columns_of, batch)), None)
        if self._columns is None:
            return self._without_columns(batch)
        if self._text is None:
            self._text = CopyText([name in self._sink.json_columns for name in self._columns])
        lines: list[bytes] = []
        for record in batch:
            self._add(lines, record, self._columns, self._text)
        lines.append(b"")
        return [list(self._columns), b"\n".join(lines)]

    def _without_columns(self, batch: list[Any]) -> PlainValue:
        """Return deletions before the first row, whose columns are unknown: only their keys."""
        key = self._sink.key
        text = CopyText([False] * len(key))
        lines: list[bytes] = []
        for record in batch:
            if not hasattr(record, "to_rows") and columns_of(record) is None and not key:
                raise _no_names(record)
            self._add(lines, record, key, text)
        lines.append(b"")
        return [list(key), b"\n".join(lines)]

    def _add(self, lines: list[bytes], record: Any, columns: Sequence[str], text: CopyText) -> None:
        kind, sink = record.__class__, self._sink
        if kind not in self._plain:
            self._plain[kind] = plain_values(kind, columns)
        values_of = self._plain[kind]
        try:
            if values_of is not None:
                values = values_of(record)
                line = text.line(values)
                if len(values) != len(columns):
                    raise KeyError(f"{len(columns)} values")
                lines.append(b"W\t" + line if sink.key else line)
                return
            for operation, values in operations(record, columns, sink.key):
                if len(values) != len(columns):
                    raise KeyError(f"{len(columns)} values")
                line = text.line(values)
                lines.append(operation.encode() + _TAB + line if sink.key else line)
        except (KeyError, AttributeError) as error:
            raise JobError(
                f"a record lacks {error}: the sink writes the columns {list(columns)} to "
                f"{sink.table}",
                record=repr(record)[:200],
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from error


def _no_names(record: Any) -> JobError:
    return JobError(
        "the first record has no names of columns: give the sink `columns`",
        record=repr(record)[:200],
        recoverability=Recoverability.NON_RECOVERABLE,
    )


class _PostgresTarget(Target):
    """Writes the output of snapshots in transactions with the row of the ledger.

    Each transaction locks the row first. The row also has the number of the newest connection, so
    that an older one writes nothing any more.

    Arguments:
        sink: the sink.
        place: the place of the sink in its job.
    """

    def __init__(self, sink: PostgresSink, place: SinkPlace) -> None:
        self._sink, self._place = sink, place
        self._connection: Any = None
        self._writer = 0
        self._purpose = f"write to {sink.table}"
        self._watch = _Watch(sink.timeout_seconds)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._watch.begin()
        try:
            with explained(self._purpose):
                yield
        finally:
            self._watch.end()

    def fence(self) -> Marker | None:
        """End older connections, and return the marker."""
        # The end of the key is a hash of the uid, and the beginning is the lineage.
        name = f"penstock sink {self._place.key[:24]} {self._place.key[-16:]}"[:63]
        self._connection = connect(
            self._sink.conninfo,
            self._purpose,
            # A connection to a machine that is gone ends, also while something is being sent.
            tcp_user_timeout="60000",
            application_name=name,
        )
        self._watch.start(self._connection.fileno())
        with self._watched():
            connection = self._connection
            # Published rows must outlive a crash, even if the database syncs no commits by default.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            self._make_ledger()
            self._check_table()
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s AND pid <> pg_backend_pid() "
                "AND datname = current_database() AND usename = current_user",
                [name],
            )
            connection.execute(
                f"INSERT INTO {self._sink.ledger} (place, name) VALUES (%s, %s) "
                f"ON CONFLICT (place) DO NOTHING",
                [self._place.key, self._place.name],
            )
            # It waits for a transaction of an older connection to end.
            number, digest, self._writer = connection.execute(
                f"UPDATE {self._sink.ledger} SET writer = writer + 1 WHERE place = %s "
                f"RETURNING number, digest, writer",
                [self._place.key],
            ).fetchone()
        return None if number is None else Marker(number, digest)

    def _make_ledger(self) -> None:
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self._sink.ledger} (place text PRIMARY KEY, name text, "
            f"writer bigint NOT NULL DEFAULT 0, number bigint, digest text, "
            f"written_at timestamptz)"
        )
        found = self._connection.execute("SELECT to_regclass(%s)", [self._sink.ledger]).fetchone()
        if found[0] is None:
            # Another sink may make it at the same time. PostgreSQL does not wait for it, and fails
            # with one of several errors. So the sinks wait for each other.
            with self._connection.transaction():
                lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
                self._connection.execute(lock, [f"penstock ledger {self._sink.ledger}"])
                self._connection.execute(statement)

    def _check_table(self) -> None:
        from psycopg.sql import SQL, Identifier

        names = {*self._sink.key, *(self._sink.columns or ())}
        columns = SQL(", ").join(map(Identifier, sorted(names))) if names else SQL("1")
        self._execute(SQL("SELECT {} FROM {} LIMIT 0").format(columns, self._table()))

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Write the rows and the marker in one transaction."""
        connection, ledger = self._connection, self._sink.ledger
        with self._watched(), connection.transaction():
            (writer,) = connection.execute(
                f"SELECT writer FROM {ledger} WHERE place = %s FOR UPDATE", [self._place.key]
            ).fetchone() or (None,)
            if writer != self._writer:
                raise JobError(
                    f"another process writes the output of the sink {self._place.name} now",
                    recoverability=Recoverability.ENVIRONMENT,
                )
            if self._sink.key:
                self._upsert(batches)
            else:
                self._append(batches)
            connection.execute(
                f"UPDATE {ledger} SET number = %s, digest = %s, name = %s, written_at = now() "
                f"WHERE place = %s",
                [marker.number, marker.digest, self._place.name, self._place.key],
            )

    def _append(self, batches: Iterator[PlainValue]) -> None:
        for columns, texts in _by_columns(batches):
            self._copy(self._table(), columns, texts)

    def _upsert(self, batches: Iterator[PlainValue]) -> None:
        """Copy the rows to a temporary table, and change the table by them."""
        from psycopg.sql import SQL, Identifier

        for columns, texts in _by_columns(batches):
            self._execute(
                SQL(
                    "CREATE TEMPORARY TABLE penstock_rows ON COMMIT DROP AS "
                    "SELECT NULL::text AS penstock_op, {} FROM {} WITH NO DATA"
                ).format(SQL(", ").join(map(Identifier, columns)), self._table())
            )
            self._execute(
                "ALTER TABLE penstock_rows ADD penstock_n bigint GENERATED ALWAYS AS IDENTITY"
            )
            self._copy(Identifier("penstock_rows"), ("penstock_op", *columns), texts)
            self._change_rows(columns)
            self._execute("DROP TABLE penstock_rows")

    def _table(self) -> Any:
        from psycopg.sql import SQL

        return SQL(self._sink.table)

    def _execute(self, statement: Any, values: Sequence[Any] | None = None) -> Any:
        self._watch.begin()
        return self._connection.execute(statement, values)

    def _copy(self, table: Any, columns: Sequence[str], texts: Iterator[bytes]) -> None:
        from psycopg.sql import SQL, Identifier

        names = SQL(", ").join(map(Identifier, columns))
        statement = SQL("COPY {} ({}) FROM STDIN").format(table, names)
        self._watch.begin()
        with self._connection.cursor().copy(statement) as copy:
            for text in texts:
                copy.write(text)
                self._watch.begin()

    def _change_rows(self, columns: Sequence[str]) -> None:
        from psycopg.sql import SQL, Identifier

        sink, table = self._sink, self._table()
        emptied, deletes = self._execute(
            "SELECT max(penstock_n) FILTER (WHERE penstock_op = %s), "
            "bool_or(penstock_op = %s) FROM penstock_rows",
            [EMPTY, DELETE],
        ).fetchone()
        if emptied is not None:
            self._execute(SQL("DELETE FROM {}").format(table))
            self._execute("DELETE FROM penstock_rows WHERE penstock_n <= %s", [emptied])
        key = SQL(", ").join(map(Identifier, sink.key))
        names = SQL(", ").join(map(Identifier, columns))
        newest = SQL(
            "(SELECT DISTINCT ON ({key}) * FROM penstock_rows ORDER BY {key}, penstock_n DESC) AS s"
        ).format(key=key)
        same = SQL(" AND ").join(SQL("t.{0} = s.{0}").format(Identifier(name)) for name in sink.key)
        if deletes:
            self._execute(
                SQL("DELETE FROM {} AS t USING {} WHERE s.penstock_op = {} AND {}").format(
                    table, newest, DELETE, same
                )
            )
        others = [name for name in columns if name not in sink.key]
        replaced = SQL("UPDATE SET {}").format(
            SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(Identifier(name)) for name in others)
        )
        self._execute(
            SQL(
                "INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE "
                "SELECT {names} FROM {newest} WHERE s.penstock_op = {write} "
                "ON CONFLICT ({key}) DO {replaced}"
            ).format(
                table=table,
                names=names,
                newest=newest,
                write=WRITE,
                key=key,
                replaced=replaced if others else SQL("NOTHING"),
            )
        )

    def close(self) -> None:
        """Close the connection. An open transaction is not committed."""
        self._watch.close()
        if self._connection is not None:
            self._connection.close()


def _by_columns(batches: Iterator[PlainValue]) -> Iterator[tuple[tuple[str, ...], Iterator[bytes]]]:
    """Yield the texts of successive batches with the same columns."""
    for columns, group in groupby(batches, lambda batch: tuple(batch[0])):
        yield columns, (batch[1] for batch in group)


class _Watch:
    """Cuts a connection whose server does not answer for some time.

    libpq has no limit for the time of a statement. If the server hangs but its machine still runs,
    the job would wait without an end.

    Arguments:
        seconds: the time, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._due = seconds, float("inf")
        self._closed = threading.Event()
        self._descriptor = -1

    def start(self, descriptor: int) -> None:
        """Watch the connection with this socket."""
        self._descriptor = descriptor
        threading.Thread(target=self._run, name="penstock-postgres-watch", daemon=True).start()

    def begin(self) -> None:
        """Note that a statement begins, or that it makes progress."""
        self._due = time.monotonic() + self._seconds

    def end(self) -> None:
        """Note that no statement runs."""
        self._due = float("inf")

    def close(self) -> None:
        """End the watch. The socket may be closed afterwards."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(min(1.0, self._seconds / 4)):
            if time.monotonic() > self._due:
                with contextlib.suppress(OSError):
                    copy = socket.socket(fileno=os.dup(self._descriptor))
                    copy.shutdown(socket.SHUT_RDWR)
                    copy.close()
                return
