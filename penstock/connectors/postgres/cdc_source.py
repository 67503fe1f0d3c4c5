"""Read the changes of tables from PostgreSQL's log: change data capture by logical replication.

There is one split, and one reader reads it: first the rows that the tables have
(`initial_rows.py`), then the log of a replication slot (`log_connection.py`, `pgoutput.py`). A slot
gives transactions as a whole, in the order of their commits, and it gives them again from any place
that is not reported as durable.

A position is the end of the last transaction whose records were all emitted, and the number of
records that were emitted of the next one. Only places in a complete snapshot of the job are
reported as durable, so the server keeps the log that a restart needs.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any

from penstock.connectors.postgres.change import Change
from penstock.connectors.postgres.change_reader import ChangeReader
from penstock.connectors.postgres.connection import (
    check_in_program,
    connect,
    explained,
    require_psycopg,
)
from penstock.connectors.postgres.initial_rows import (
    PublishedTable,
    check_key,
    end_of_log,
    published_tables,
)
from penstock.connectors.postgres.slots import CdcOptions, find_slot, prepare_slot, slot_in_use
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import (
    ListEnumerator,
    Preparation,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

logger = logging.getLogger("penstock.connectors")


class PostgresCdcSource(Source[Any]):
    """Reads each change of tables, in the order of commits. (Flink CDC: `PostgresSource`.)

    The source first returns the rows that the tables have, and then each change of them, without a
    gap and without a row or change twice. It needs `wal_level = logical`, a role with REPLICATION
    that may read the tables, a publication, and a replication slot of its own, which it makes. The
    event time of a change is the time of its commit.

    The server keeps its log until the job has read it and a snapshot of the job is complete. So a
    job that does not run any more must not keep its slot: `drop_slot` removes it.

    Arguments:
        conninfo: the connection string, such as `"host=db dbname=shop user=me"`.
        slot: the name of the replication slot. It belongs to this job alone.
        publication: the name of the publication.
        tables: the tables, such as `["public.orders"]`. If there is no publication, it is made for
            them. None for all tables of the publication.
        initial_rows: whether to begin with the rows that the tables have. Each table then needs a
            primary key, or a replica identity by an index.
        as_: "change" for `Change` records; "row" for a `Row` with its kind, for one table.
        bounded: whether to end at the place that the log has reached when the job starts.
        skip_truncate: whether to leave out the truncation of tables. Otherwise it is a `Change`,
            and an error with `as_="row"`.
        on_schema_change: "follow" if records shall have the new columns; "fail" if the job shall
            end before the first of them.
        keep_snapshots: the number of the newest snapshots from which the job can be resumed. The
            server keeps the log for them.
        slot_seconds: the time to wait for a slot that another connection reads, in seconds.
        take_over: whether to end the connection of an earlier reader of this slot.

    Raises:
        GraphError: if an argument is not valid, or if `penstock[postgres]` is not installed.

    Examples:
        >>> source = PostgresCdcSource(
        ...     "dbname=shop", slot="job_1", publication="orders", tables=["public.orders"]
        ... )  # doctest: +SKIP
        >>> env.from_source(source).print()  # doctest: +SKIP
    """

    #: The classes of the records, which the job has to know.
    record_classes = (Change,)

    def __init__(
        self,
        conninfo: str,
        *,
        slot: str,
        publication: str,
        tables: Sequence[str] | None = None,
        initial_rows: bool = True,
        as_: str = "change",
        bounded: bool = False,
        skip_truncate: bool = False,
        on_schema_change: str = "follow",
        keep_snapshots: int = 3,
        slot_seconds: float = 60.0,
        take_over: bool = True,
    ) -> None:
        require_psycopg()
        if re.fullmatch(r"[a-z0-9_]{1,63}", slot) is None:
            raise GraphError(
                f"the name of a replication slot has 1 to 63 lower-case letters, digits and _, and "
                f"is not {slot!r}"
            )
        if as_ not in ("change", "row"):
            raise GraphError(f'as_ is "change" or "row", not {as_!r}')
        if on_schema_change not in ("follow", "fail"):
            raise GraphError(f'on_schema_change is "follow" or "fail", not {on_schema_change!r}')
        if keep_snapshots < 1 or slot_seconds < 0:
            raise GraphError(
                f"keep_snapshots is at least 1 and slot_seconds at least 0, not "
                f"{keep_snapshots!r} and {slot_seconds!r}"
            )
        if isinstance(tables, str) or (tables is not None and not all("." in t for t in tables)):
            raise GraphError(
                f"tables is a list of names with schemas, such as ['public.orders'], not {tables!r}"
            )
        self.bounded = bounded
        self.options = CdcOptions(
            conninfo,
            slot,
            publication,
            None if tables is None else tuple(tables),
            initial_rows,
            as_,
            bounded,
            skip_truncate,
            on_schema_change,
            keep_snapshots,
            slot_seconds,
            take_over,
        )

    @property
    def location(self) -> str:
        """The publication."""
        return self.options.publication

    @property
    def reads_in_turns(self) -> bool:
        """Whether splits are read in turns; there is one only."""
        return True

    def prepare(self, preparation: Preparation) -> None:
        """Check the server, the publication and the slot before the job starts."""
        del preparation
        check_in_program(self._check)

    def _check(self) -> None:
        with connect(self.options.conninfo, "prepare change data capture") as connection:
            _check_server(connection)

    def drop_slot(self) -> None:
        """Remove the replication slot, so that the server need not keep its log.

        Call it after the last run of the job. Nothing happens if there is no slot. If a connection
        reads it, such as that of a job that ends just now, the method waits `slot_seconds`.

        Raises:
            JobError: if the slot is still in use.
        """
        options = self.options
        purpose = f"drop the replication slot {options.slot}"
        deadline = time.monotonic() + options.slot_seconds
        with connect(options.conninfo, purpose) as connection, explained(purpose):
            while (row := find_slot(connection, options.slot)) is not None:
                if row["active_pid"] is None:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [options.slot])
                elif time.monotonic() > deadline:
                    raise slot_in_use(options, row)
                time.sleep(0.05)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of the one split, which makes the slot."""
        del parallelism
        return _SlotEnumerator(self.options)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return the reader of rows and changes."""
        return ChangeReader(self.options, context)


class _SlotEnumerator(ListEnumerator):
    """Makes the publication and the slot at the start of a job."""

    def __init__(self, options: CdcOptions) -> None:
        super().__init__(())
        self._options = options

    def start(self) -> None:
        options, purpose = self._options, "prepare change data capture"
        with connect(options.conninfo, purpose) as connection, explained(purpose):
            _check_server(connection)
            tables = _prepare_publication(connection, options)
            if options.initial_rows:
                for table in tables:
                    check_key(table)
            lsn = prepare_slot(connection, options)
            # Of a transaction of its own, so all that have begun before have lower ids.
            (next_xid,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone() or (
                "0",
            )
            until = end_of_log(connection) if options.bounded else None
        payload = {
            "lsn": lsn,
            "rows": [table.full_name for table in tables] if options.initial_rows else None,
            "next_xid": int(next_xid),
            "until": until,
        }
        self.splits = [Split("changes", payload)]


def _check_server(connection: Any) -> None:
    with explained("prepare change data capture"):
        (level,) = connection.execute("SHOW wal_level").fetchone()
    if level != "logical":
        raise JobError(
            f"PostgreSQL has wal_level = {level}, and change data capture needs logical: run ALTER "
            f"SYSTEM SET wal_level = 'logical', and restart the server",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def _prepare_publication(connection: Any, options: CdcOptions) -> list[PublishedTable]:
    """Make the publication if it is missing, and return the tables to read."""
    from psycopg.sql import SQL, Identifier

    name = options.publication
    found = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name])
    if found.fetchone() is None:
        if not options.tables:
            raise JobError(
                f"PostgreSQL has no publication {name!r} in this database: run CREATE PUBLICATION "
                f'"{name}" FOR TABLE …, or name the tables with `tables`',
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        names = [Identifier(*table.split(".", 1)) for table in options.tables]
        connection.execute(
            SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                Identifier(name), SQL(", ").join(names)
            )
        )
        logger.info("made the publication %s for %s", name, ", ".join(options.tables))
    tables = published_tables(connection, name)
    if options.tables is not None:
        missing = sorted(set(options.tables) - {table.full_name for table in tables})
        if missing:
            raise JobError(
                f"the publication {name!r} does not have {', '.join(missing)}: run ALTER "
                f'PUBLICATION "{name}" ADD TABLE {", ".join(missing)}',
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        tables = [table for table in tables if table.full_name in options.tables]
    if options.as_ == "row" and len(tables) > 1:
        raise JobError(
            f"a Row does not say its table, and the publication {name!r} has {len(tables)} tables: "
            f'choose one with `tables`, or read with as_="change"',
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    return tables
