"""Find the rows of a table for the records of a stream: `PostgresLookup`."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.connectors.postgres.connection import (
    column_name,
    connect,
    explained,
    require_psycopg,
    type_names,
)
from penstock.connectors.postgres.records import check_record_kind, record_maker
from penstock.dataflow.async_io import BatchedFunction
from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    from psycopg import Connection

_RETRY_SECONDS = 0.2
_NUMBERS = (int, float, Decimal)


class PostgresLookup(BatchedFunction[Any, Any]):
    """Finds the row of a table for each record, many records in one query. (Flink: lookup join.)

    Pass it to `AsyncDataStream.batched`, which also has the cache, the retries and the limits. A
    record without a row gets None, and the cache keeps that, too. Queries run in threads, and each
    has a connection of its own, as many as `max_calls`.

    The result is that of the moment of the query: after a failure it may be another one.

    Arguments:
        conninfo: the connection string, such as `"host=db dbname=shop user=me"`.
        table: the table, as SQL names it.
        key: the column, or columns, that are compared. An index makes it fast.
        of: returns the value to look up for a record, or a tuple for several columns. A record with
            None has no row.
        columns: the columns to return; None for all.
        as_: the kind of a row: "dict", "tuple", "row" (`Row`), a dataclass or a named tuple.
        many: whether to return a list of all rows with the key, and not the only row.
        patience_seconds: how long to try again if the server cannot be reached, in seconds. Then
            the job restarts, and tries again.

    Raises:
        GraphError: if an argument is not valid, or if `penstock[postgres]` is not installed.

    Examples:
        >>> customers = PostgresLookup(
        ...     "dbname=shop", "customers", key="id", of=lambda order: order["customer"]
        ... )  # doctest: +SKIP
        >>> named = AsyncDataStream.batched(
        ...     orders, customers, 60_000, combine=lambda order, row: {**order, "customer": row}
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        key: str | Sequence[str],
        of: Callable[[Any], Any],
        columns: Sequence[str] | None = None,
        as_: str | type = "dict",
        many: bool = False,
        patience_seconds: float = 30.0,
    ) -> None:
        require_psycopg()
        check_record_kind(as_)
        if isinstance(columns, str) or not callable(of):
            raise GraphError("columns is a list of names, and `of` is a function of a record")
        self.conninfo, self.table, self.of, self.as_ = conninfo, table, of, as_
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.columns = None if columns is None else tuple(columns)
        self.many, self.patience_seconds = many, patience_seconds
        self._idle: queue.LifoQueue[tuple[Connection[Any], Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all except the connections."""
        return {**vars(self), "_idle": None}

    def open(self, runtime_context: Any) -> None:
        """Prepare the pool of connections."""
        del runtime_context
        self._idle = queue.LifoQueue()

    def close(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, None
        if idle is not None:
            _close_all(idle)

    def invoke_batch(self, values: list[Any]) -> list[Any]:
        """Return the row of each record, or None; with `many`, a list."""
        keys = [self._key_of(value) for value in values]
        wanted = [place for place, key in enumerate(keys) if key is not None]
        results: list[Any] = [[] if self.many else None for _ in values]
        if not wanted:
            return results
        lists = [_of_one_type(column) for column in zip(*(keys[n] for n in wanted), strict=True)]
        for place, row in self._ask(lists):
            index = wanted[place - 1]
            if self.many:
                results[index].append(row)
            elif results[index] is not None:
                raise JobError(
                    f"the table {self.table} has several rows with the key {keys[index]}: choose "
                    f"columns that are unique, or use many=True",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            else:
                results[index] = row
        return results

    def _key_of(self, value: Any) -> tuple[Any, ...] | None:
        key = self.of(value)
        parts = key if len(self.key) > 1 and key is not None else (key,)
        if len(parts) != len(self.key):
            raise JobError(
                f"`of` returned {key!r}, and the key has the columns {self.key}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return None if any(part is None for part in parts) else tuple(parts)

    def _ask(self, lists: list[list[Any]]) -> list[tuple[int, Any]]:
        """Return the number of the key, from 1, and the row, of all rows that were found."""
        deadline = time.monotonic() + self.patience_seconds
        while True:
            try:
                return self._ask_once(lists)
            except JobError as error:
                lasting = error.recoverability is Recoverability.NON_RECOVERABLE
                if lasting or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _ask_once(self, lists: list[list[Any]]) -> list[tuple[int, Any]]:
        connection, query = self._take()
        try:
            with explained(f"look up rows of {self.table}"):
                cursor = connection.execute(query, lists)
                rows = cursor.fetchall()
                names = [column.name for column in cursor.description or ()][1:]
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, query)
        records = record_maker(self.as_, names)([row[1:] for row in rows])
        return [(row[0], record) for row, record in zip(rows, records, strict=True)]

    def _take(self) -> tuple[Connection[Any], Any]:
        try:
            if self._idle is not None:
                return self._idle.get_nowait()
        except queue.Empty:
            pass
        connection = connect(self.conninfo, f"look up rows of {self.table}")
        try:
            with explained(f"look up rows of {self.table}"):
                return connection, self._query(connection)
        except BaseException:
            connection.close()
            raise

    def _give_back(self, connection: Connection[Any], query: Any) -> None:
        idle = self._idle
        if idle is None:
            connection.close()
            return
        idle.put((connection, query))
        # The function may have been closed since this thread has looked.
        if self._idle is None:
            _close_all(idle)

    def _query(self, connection: Connection[Any]) -> Any:
        """Return the query. The server compares, so its types and collations count."""
        from psycopg.sql import SQL

        table = SQL(self.table.replace("%", "%%"))
        keys = SQL(", ").join(map(column_name, self.key))
        description = connection.execute(
            SQL("SELECT {} FROM {} LIMIT 0").format(keys, table), []
        ).description
        types = type_names(connection, [column.type_code for column in description or ()])
        names = [column_name(f"penstock_k{number}") for number in range(len(self.key))]
        columns = (
            SQL("q.*")
            if self.columns is None
            else SQL(", ").join(SQL("q.{}").format(column_name(name)) for name in self.columns)
        )
        return SQL(
            "SELECT u.penstock_n, {columns} FROM unnest({lists}) WITH ORDINALITY AS "
            "u({names}, penstock_n) JOIN {table} AS q ON {same}"
        ).format(
            columns=columns,
            lists=SQL(", ").join(SQL("%s::" + kind + "[]") for kind in types),
            names=SQL(", ").join(names),
            table=table,
            same=SQL(" AND ").join(
                SQL("q.{} = u.{}").format(column_name(column), name)
                for column, name in zip(self.key, names, strict=True)
            ),
        )


def _of_one_type(values: tuple[Any, ...]) -> list[Any]:
    """Return values as a list that psycopg can send: numbers of several types become decimals."""
    if len(set(map(type, values))) > 1 and all(isinstance(v, _NUMBERS) for v in values):
        return [Decimal(str(value)) for value in values]
    return list(values)


def _close_all(idle: queue.LifoQueue[tuple[Connection[Any], Any]]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            idle.get_nowait()[0].close()
