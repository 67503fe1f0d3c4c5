"""Read initial rows and the log of a slot in a task.

`_TableReader` makes records from the messages of one table, and `ChangeReader` is the reader of the
source: it knows positions, transactions, and which changes the initial rows include already.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.postgres.change import Change
from penstock.connectors.postgres.connection import connect, explained
from penstock.connectors.postgres.initial_rows import (
    IncludedChanges,
    Key,
    Part,
    PublishedTable,
    RowReader,
    published_tables,
)
from penstock.connectors.postgres.log_connection import LogConnection, SlotInUseError
from penstock.connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Relation,
    RowChange,
    Truncate,
    Values,
    decode,
)
from penstock.connectors.postgres.slots import CdcOptions, check_slot, find_slot, slot_in_use
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split, TimedRead

logger = logging.getLogger("penstock.connectors")

#: The longest time that a read waits for a change, in seconds.
WAIT_SECONDS = 0.1
#: The time between two questions of an idle reader how far the server is, in seconds.
_ASK_SECONDS = 2.0
#: The time after which a reader ends the connection of an earlier one, in seconds.
_TAKE_OVER_SECONDS = 1.0


@dataclass
class _RowProgress:
    """Records how far the initial rows are read, and which changes they include.

    Arguments:
        left: the tables that are not read to their ends; the first of them is being read.
        parts: the parts that are read.
        horizon: a place in the log behind all that the rows include; None while they are read.
    """

    left: list[str]
    parts: list[Part] = field(default_factory=list)
    horizon: int | None = None

    @classmethod
    def of(cls, plain: Any) -> _RowProgress:
        # Copies, because a snapshot may be written of the position while a read goes on.
        left, parts, horizon = plain
        return cls(list(left), list(parts), horizon)

    def plain(self) -> Any:
        return [list(self.left), [list(part) for part in self.parts], self.horizon]

    def advance(self, table: str, key: Key | None, snapshot: str) -> None:
        """Note that a table is read up to a key, or to its end, with a snapshot."""
        if self.parts and self.parts[-1][0] == table and self.parts[-1][2] == snapshot:
            self.parts[-1] = [table, key, snapshot]
        else:
            self.parts.append([table, key, snapshot])


class _TableReader:
    """Makes records from the changes of one table, as it is at the moment.

    Arguments:
        relation: the table.
        table: the same in the catalog, for its key; None if it is not published any more.
        types: the types of the columns, of which psycopg has loaders.
    """

    def __init__(
        self, relation: Relation, table: PublishedTable | None, types: Sequence[int]
    ) -> None:
        from psycopg.adapt import Transformer
        from psycopg.pq import Format

        self.relation, self.table = relation, table
        self.name, self.columns = relation.full_name, relation.columns
        transformer = Transformer()
        transformer.set_loader_types(list(types), Format.TEXT)
        #: Returns the Python values of the texts of a row.
        self.load = transformer.load_sequence
        self._keys = [place for place, is_key in enumerate(relation.keys) if is_key]
        places = {name: place for place, name in enumerate(relation.columns)}
        key = table.key if table is not None else ()
        self._key_places = [places[name] for name in key if name in places]

    def change(self, change: RowChange, lsn: int) -> Change:
        """Return the record of a change."""
        op, _, old, only_key, new = change
        columns, before, after = self.columns, None, None
        unchanged: tuple[str, ...] = ()
        if old is not None:
            before = dict(zip(columns, self.load(old), strict=True))
            if only_key:
                before = {columns[place]: before[columns[place]] for place in self._keys}
        if new is not None:
            if UNCHANGED in new:
                new, unchanged = self._completed(new, None if only_key else old)
            after = dict(zip(columns, self.load(new), strict=True))
            for column in unchanged:
                del after[column]
        return Change(op, self.name, before, after, lsn, unchanged)

    def _completed(self, new: Values, old: Values | None) -> tuple[Values, tuple[str, ...]]:
        """Fill in values that are not sent, from the old row if it is known."""
        missing = [place for place, value in enumerate(new) if value is UNCHANGED]
        new = list(new)
        for place in missing:
            new[place] = None if old is None else old[place]
        return new, tuple(self.columns[place] for place in missing) if old is None else ()

    def keys(self, change: RowChange) -> tuple[Key | None, Key | None]:
        """Return the texts of the key before and after a change; None if there is no such row."""
        old, new = change.old, change.new
        after = None if new is None else self._texts(new, old)
        if old is None:
            return (after if change.op == "update" else None), after
        return self._texts(old, None), after

    def _texts(self, values: Values, others: Values | None) -> Key:
        """Return the texts of the key. A value that is not sent is that of the other row."""
        return [
            (
                others[place]
                if others is not None and values[place] is UNCHANGED
                else values[place]
            ).decode()
            for place in self._key_places
        ]


class ChangeReader(SourceReader):
    """Reads the initial rows, and then the log of the slot.

    Arguments:
        options: the options of the source.
        context: the subtask.
    """

    blocking = True

    def __init__(self, options: CdcOptions, context: ReaderContext) -> None:
        self._options = options
        self._counter = context.metrics.counter("numChanges")
        self._schema_changes = context.metrics.counter("numSchemaChanges")
        self._metrics = context.metrics
        #: Held while a call of `open` or `read` uses the connections.
        self._busy = threading.Lock()
        self._closing = False
        self._payload: Any = None
        #: The end of the last transaction whose records are all emitted; the id of the next one, 0
        #: between two; and the number of its records that are emitted.
        self._lsn, self._xid, self._seen = 0, 0, 0
        #: The number of records of the current transaction to leave out, as they were emitted.
        self._skip = 0
        self._commit_lsn, self._time_ms = 0, 0
        #: Records that are decoded and not returned.
        self._over: deque[Any] = deque()
        self._rows: _RowProgress | None = None
        self._row_reader: RowReader | None = None
        self._fetched: deque[tuple[Any, Key]] = deque()
        self._included: IncludedChanges | None = None
        #: Whether the initial rows may include the current transaction.
        self._including = False
        self._log: LogConnection | None = None
        self._side: Any = None
        self._tables: dict[str, PublishedTable] = {}
        self._readers: dict[int, _TableReader | None] = {}
        #: The columns and types of each table, to notice changes.
        self._schemas: dict[str, list[Any]] = {}
        self._asked_at = 0.0
        #: The places in the newest complete snapshots.
        self._durable: deque[int] = deque(maxlen=options.keep_snapshots)

    # ---- the interface of readers

    def open(self, split: Split, position: Any) -> None:
        """Check that the slot has the log from the position on."""
        with contextlib.suppress(GraphError):  # an attempt has one reader, a test may have more
            self._metrics.gauge("logBytesBehind", self._bytes_behind)
        with self._work():
            self._payload = payload = split.payload
            self._lsn = payload["lsn"]
            if position is not None:
                self._lsn, self._xid, self._skip, rows, self._schemas = position
                self._seen = self._skip
                self._rows = None if rows is None else _RowProgress.of(rows)
            elif payload["rows"]:
                self._rows = _RowProgress(list(payload["rows"]))
            self._schemas = dict(self._schemas)
            connection = self._connection()
            with explained("read the catalog"):
                tables = published_tables(connection, self._options.publication)
                check_slot(self._options, find_slot(connection, self._options.slot), self._lsn)
            self._tables = {table.full_name: table for table in tables}
            if self._rows is not None and self._rows.horizon is not None:
                self._included = IncludedChanges(self._rows.parts, self._connection)

    def read(self, max_records: int) -> Read:
        """Return the next rows or changes."""
        with self._work():
            if self._rows is not None and self._rows.horizon is None:
                return self._read_rows(max_records)
            with explained(f"read the replication slot {self._options.slot}"):
                return self._read_log(max_records)

    def snapshot_completed(self, position: Any) -> None:
        """Note that the job does not need the log before a position."""
        # Another thread reads. It reports the place at its next read. None is the start.
        self._durable.append(0 if position is None else position[0])

    def close(self) -> None:
        """Close the connections."""
        self._closing = True
        # A read that is going on closes the connections itself, within `WAIT_SECONDS`.
        self._close_unless_busy()

    def _close_unless_busy(self) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._close_connections()
            finally:
                self._busy.release()

    @contextlib.contextmanager
    def _work(self) -> Any:
        try:
            with self._busy:
                yield
        finally:
            # Behind the lock, so that either `close` gets the lock or this sees that it came.
            if self._closing:
                self._close_unless_busy()

    def _close_connections(self) -> None:
        log, self._log = self._log, None
        side, self._side = self._side, None
        for connection in (log, side):
            if connection is not None:
                connection.close()
        self._row_reader = None

    def _connection(self) -> Any:
        """Return the connection for everything but the log."""
        if self._side is None:
            self._side = connect(self._options.conninfo, f"read for the slot {self._options.slot}")
        return self._side

    def _position(self) -> Any:
        rows = None if self._rows is None else self._rows.plain()
        return [self._lsn, self._xid, self._seen, rows, dict(self._schemas)]

    def _bytes_behind(self) -> int:
        log = self._log
        return 0 if log is None else max(0, log.server_lsn - self._lsn)

    # ---- initial rows

    def _read_rows(self, max_records: int) -> Read:
        rows, connection = self._rows, self._connection()
        assert rows is not None
        if self._row_reader is None:
            next_xid = self._payload["next_xid"]
            self._row_reader = RowReader(connection, next_xid, lambda: self._closing)
            if rows.left:
                last: Part = rows.parts[-1] if rows.parts else [None, None, None]
                after = last[1] if last[0] == rows.left[0] else None
                self._row_reader.open(self._table(rows.left[0]), after)
        reader = self._row_reader
        found: list[Any] = []
        while rows.left and not found:
            table = self._table(rows.left[0])
            if not self._fetched:
                self._fetch_rows(reader, table)
            if not self._fetched:
                rows.advance(table.full_name, None, reader.snapshot)
                del rows.left[0]
                if rows.left:
                    reader.open(self._table(rows.left[0]), None)
                continue
            taken = [self._fetched.popleft() for _ in range(min(max_records, len(self._fetched)))]
            found = [record for record, _ in taken]
            rows.advance(table.full_name, taken[-1][1], reader.snapshot)
        if not rows.left:
            rows.horizon = reader.end()
            self._row_reader = None
            self._included = IncludedChanges(rows.parts, self._connection)
        self._counter.inc(len(found))
        return self._timed(found, [reader.time_ms] * len(found))

    def _table(self, name: str) -> PublishedTable:
        if name not in self._tables:
            raise JobError(
                f"the table {name} is not in the publication {self._options.publication} any more, "
                f"and its initial rows are not read to the end: start the job afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return self._tables[name]

    def _fetch_rows(self, reader: RowReader, table: PublishedTable) -> None:
        columns, width = table.columns, len(table.columns)
        for row in reader.fetch(table):
            after = dict(zip(columns, row, strict=False))
            change = Change("read", table.full_name, None, after, self._lsn)
            record = change if self._options.as_ == "change" else change.to_rows()[0]
            self._fetched.append((record, list(row[width:])))

    # ---- the log

    def _read_log(self, max_records: int) -> Read:
        log = self._log
        if log is None:
            log = self._log = self._open_log()
        if len(self._durable) == self._durable.maxlen:
            log.report(self._durable[0])
        found: list[Any] = []
        times: list[int] = []
        self._take_over_records(found, times, max_records)
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < max_records and not self._closing:
            data = log.receive(0.0 if found else WAIT_SECONDS)
            if self._xid == 0 and not data and log.server_lsn > self._lsn:
                # There is no change of these tables up to there.
                self._lsn = log.server_lsn
            if data is None or (not data and time.monotonic() > deadline):
                if not found:
                    self._ask(log)
                break
            if not data:
                if self._is_at_end():
                    break
                continue
            self._decode(data)
            self._take_over_records(found, times, max_records)
            if self._is_at_end():
                break
        self._counter.inc(len(found))
        return self._timed(found, times)

    def _ask(self, log: LogConnection) -> None:
        """Ask the server from time to time how far it is. Without changes, it says nothing."""
        now = time.monotonic()
        if now - self._asked_at > (WAIT_SECONDS if self._options.bounded else _ASK_SECONDS):
            self._asked_at = now
            log.report(0, ask=True)

    def _timed(self, found: list[Any], times: list[int]) -> Read:
        finished = not self._over and self._is_at_end()
        return TimedRead(Read(found, self._position(), finished), times)

    def _is_at_end(self) -> bool:
        """Return whether a bounded source is read to its end, at the end of a transaction."""
        until, rows = self._payload["until"], self._rows
        if until is None or self._xid:
            return False
        # The other initial rows still need all changes that some of the initial rows include.
        return self._lsn >= until and (
            rows is None or (rows.horizon is not None and self._lsn >= rows.horizon)
        )

    def _take_over_records(self, found: list[Any], times: list[int], max_records: int) -> None:
        over = self._over
        while over and len(found) < max_records:
            found.append(over.popleft())
            times.append(self._time_ms)
            self._seen += 1

    def _open_log(self) -> LogConnection:
        """Connect to the slot, when an earlier reader has left it."""
        options, began = self._options, time.monotonic()
        while True:
            try:
                return LogConnection(
                    options.conninfo,
                    options.slot,
                    options.publication,
                    self._lsn,
                    options.application_name,
                )
            except SlotInUseError:
                waited = time.monotonic() - began
                with explained("look at the replication slot"):
                    row = find_slot(self._connection(), options.slot)
                if waited > options.slot_seconds or self._closing:
                    raise slot_in_use(options, row) from None
                if waited > _TAKE_OVER_SECONDS and options.take_over and row is not None:
                    self._end_earlier_reader(row)
                time.sleep(0.05)
            # The slot may have moved on, or be lost, while it was in use.
            with explained("look at the replication slot"):
                check_slot(options, find_slot(self._connection(), options.slot), self._lsn)

    def _end_earlier_reader(self, row: dict[str, Any]) -> None:
        if row["active_pid"] is None or row["application_name"] != self._options.application_name:
            return
        logger.warning(
            "ending the connection with PID %s, an earlier reader of the replication slot %s",
            row["active_pid"],
            self._options.slot,
        )
        with explained("end an earlier reader of the replication slot"):
            self._connection().execute("SELECT pg_terminate_backend(%s)", [row["active_pid"]])

    def _decode(self, data: bytes) -> None:
        """Handle a message of the log. Records come into `_over`."""
        message = decode(data)
        if message.__class__ is RowChange:
            reader = self._readers[message.relation]
            if reader is None:
                return
            if self._including and not self._kept(reader, message):
                return
            self._add(reader.change(message, self._commit_lsn))
        elif message.__class__ is Begin:
            self._begin(message)
        elif message.__class__ is Commit:
            self._lsn, self._xid, self._seen, self._skip = message.end_lsn, 0, 0, 0
        elif message.__class__ is Relation:
            self._set_relation(message)
        elif message.__class__ is Truncate:
            self._truncate(message)

    def _begin(self, message: Begin) -> None:
        if self._xid and self._xid != message.xid:
            raise JobError(
                f"the replication slot {self._options.slot} goes on with transaction "
                f"{message.xid}, and the snapshot of the job is within transaction {self._xid}: "
                f"the publication or its tables were changed for earlier changes. Start the job "
                f"afresh, with its rows (initial_rows=True)",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self._xid, self._commit_lsn, self._time_ms = message.xid, message.lsn, message.time_ms
        if self._included is not None:
            assert self._rows is not None and self._rows.horizon is not None
            if message.lsn >= self._rows.horizon:
                self._rows = self._included = None
            else:
                self._including = self._included.begin(message.xid)
                return
        self._including = False

    def _kept(self, reader: _TableReader, change: RowChange) -> bool:
        """Return whether a change is to be emitted: the initial rows do not include it."""
        included = self._included
        assert included is not None
        if reader.table is None:
            return True
        before, after = reader.keys(change)
        has_before = before is not None and included.includes(reader.table, before)
        has_after = after is not None and included.includes(reader.table, after)
        if before is None or after is None or has_before == has_after:
            return not (has_before or has_after)
        # The key was updated, and only one of the two rows was read before the change.
        if has_after:
            self._add(reader.change(change._replace(op="delete", new=None), self._commit_lsn))
        else:
            inserted = change._replace(op="insert", old=None, only_key=False)
            self._add(reader.change(inserted, self._commit_lsn))
        return False

    def _add(self, change: Change) -> None:
        if self._options.as_ == "change":
            records: list[Any] = [change]
        else:
            records = change.to_rows()
        if self._skip:
            skipped = min(self._skip, len(records))
            self._skip -= skipped
            records = records[skipped:]
        self._over.extend(records)

    def _truncate(self, message: Truncate) -> None:
        if self._options.skip_truncate:
            return
        for id in message.relations:
            reader = self._readers[id]
            if reader is None:
                continue
            if self._including and reader.table is not None:
                assert self._included is not None
                if self._included.includes(reader.table, None):
                    continue
            self._add(Change("truncate", reader.name, None, None, self._commit_lsn))

    def _set_relation(self, relation: Relation) -> None:
        """Note a table as it is from here on."""
        name, options = relation.full_name, self._options
        if options.tables is not None and name not in options.tables:
            self._readers[relation.id] = None
            return
        schema = [[column, kind] for column, kind in zip(relation.columns, relation.types)]  # noqa: B905
        before = self._schemas.get(name)
        if before is not None and before != schema:
            self._schema_changes.inc()
            difference = _difference(before, schema)
            if options.on_schema_change == "fail":
                raise JobError(
                    f"the table {name} has changed: {difference}. Nothing behind this change was "
                    f"read. When the job can handle it, resume the job with "
                    f'on_schema_change="follow"',
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            logger.warning("the table %s has changed: %s", name, difference)
        self._schemas[name] = schema
        table = self._tables.get(name)
        types = _base_types(self._connection, relation.types)
        self._readers[relation.id] = _TableReader(relation, table, types)


def _difference(before: list[Any], after: list[Any]) -> str:
    old, new = dict(before), dict(after)
    parts = [f"the column {name} is new" for name in new if name not in old]
    parts += [f"the column {name} is gone" for name in old if name not in new]
    changed = [name for name in old if name in new and old[name] != new[name]]
    parts += [f"the column {name} has another type" for name in changed]
    return ", ".join(parts) or "the order of its columns"


def _base_types(connection: Callable[[], Any], types: Sequence[int]) -> list[int]:
    """Return types with the types that domains are based on, as queries have them."""
    own = [kind for kind in types if kind >= 16384]
    if not own:
        return list(types)
    with explained("read the catalog"):
        rows = connection().execute(
            "WITH RECURSIVE base(type, kind) AS (SELECT oid, oid FROM pg_type "
            "WHERE oid = ANY(%s::oid[]) UNION ALL SELECT b.type, t.typbasetype FROM base b "
            "JOIN pg_type t ON t.oid = b.kind WHERE t.typtype = 'd') "
            "SELECT b.type, b.kind FROM base b JOIN pg_type t ON t.oid = b.kind "
            "WHERE t.typtype <> 'd'",
            [own],
        )
        found = dict(rows.fetchall())
    return [found.get(kind, kind) for kind in types]
