"""A copy of tables that is kept by changes, and readers that are stopped and opened again."""

from __future__ import annotations

import uuid

import psycopg

from penstock.connectors.postgres import PostgresCdcSource
from penstock.dataflow.source import ReaderContext

CONTEXT = ReaderContext("changes", 0, 1)


class Replica:
    """Applies changes, and fails if one is lost or comes twice.

    Arguments:
        key: the columns of the key of each table.
    """

    def __init__(self, key=("id",)):
        self.key = key
        self.tables = {}

    def key_of(self, row):
        return tuple(row[name] for name in self.key)

    def apply(self, change):
        rows = self.tables.setdefault(change.table, {})
        if change.op == "truncate":
            rows.clear()
            return
        if change.op in ("read", "insert"):
            assert self.key_of(change.after) not in rows, f"doubled: {change}"
            assert not change.unchanged
        else:
            before = self.key_of(change.after if change.before is None else change.before)
            assert before in rows, f"lost before {change}"
            old = rows.pop(before)
            if change.op == "delete":
                return
            kept = {name: old[name] for name in change.unchanged}
            change = change._replace(after={**kept, **change.after})
        rows[self.key_of(change.after)] = change.after

    def rows(self, table="public.t"):
        return sorted(self.tables.get(table, {}).values(), key=self.key_of)


class Reading:
    """Reads a CDC source as a job does, with restarts.

    Arguments:
        source: the source.
    """

    def __init__(self, source):
        self.source = source
        enumerator = source.create_enumerator(1)
        enumerator.start()
        self.split = enumerator.next_split(0)
        assert enumerator.next_split(0) is None
        self.position = None
        self.reader = None
        self.restart()

    def restart(self, position=None, source=None):
        """Open a new reader at the last position."""
        self.close()
        self.source = source or self.source
        self.reader = self.source.create_reader(CONTEXT)
        try:
            self.reader.open(self.split, self.position if position is None else position)
        except BaseException:
            self.reader.close()
            raise

    def read(self, max_records=1000):
        read = self.reader.read(max_records)
        assert len(read.records) <= max_records
        self.position = read.position
        return read

    def take(self, count, max_records=1000):
        """Return the next records, at least so many."""
        found = []
        while len(found) < count:
            found += self.read(max_records).records
        return found

    def rest(self):
        """Return all records up to the end of the log as it is now."""
        with psycopg.connect(self.source.options.conninfo, autocommit=True) as connection:
            end = connection.execute(
                "SELECT (pg_logical_emit_message(true, 't', '') - '0/0')::bigint"
            ).fetchone()[0]
        found = []
        while self.position is None or self.position[0] < end or self.position[1]:
            found += self.read().records
        return found

    def close(self):
        if self.reader is not None:
            self.reader.close()


def cdc(database, **options):
    """Return a source with a slot of its own."""
    arguments = {
        "slot": f"slot_{uuid.uuid4().hex[:8]}",
        "publication": "changes",
        "tables": ["public.t"],
        **options,
    }
    return PostgresCdcSource(database, **arguments)


def drop_slots(database):
    """Remove all slots of a database, as the server has a limited number."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE database = current_database() AND active_pid IS NOT NULL"
        )
        while connection.execute(
            "SELECT count(*) FROM pg_replication_slots "
            "WHERE database = current_database() AND active_pid IS NOT NULL"
        ).fetchone()[0]:
            pass
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
