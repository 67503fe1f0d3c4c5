"""Make and check replication slots, which hold the log that a job has not read."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.postgres.log_connection import lsn_number, lsn_text
from penstock.dataflow.errors import JobError, Recoverability

logger = logging.getLogger("penstock.connectors")


@dataclass(frozen=True)
class CdcOptions:
    """The options of `PostgresCdcSource`, which describes them."""

    conninfo: str = field(repr=False)  # it may have a password
    slot: str
    publication: str
    tables: tuple[str, ...] | None
    initial_rows: bool
    as_: str
    bounded: bool
    skip_truncate: bool
    on_schema_change: str
    keep_snapshots: int
    slot_seconds: float
    take_over: bool

    @property
    def application_name(self) -> str:
        """The name of the connection that reads the slot."""
        return f"penstock slot {self.slot}"[:63]


def prepare_slot(connection: Any, options: CdcOptions) -> int:
    """Make the slot if it is missing, and return the place where its log begins."""
    row = find_slot(connection, options.slot)
    if row is None:
        logger.info(
            "making the replication slot %s; this waits for the transactions that run now",
            options.slot,
        )
        (text,) = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
            [options.slot],
        ).fetchone()
        return lsn_number(text)
    deadline = time.monotonic() + options.slot_seconds
    while row is not None and row["active_pid"] is not None and time.monotonic() < deadline:
        time.sleep(0.1)
        row = find_slot(connection, options.slot)
    if row is None:
        return prepare_slot(connection, options)
    if row["active_pid"] is not None:
        raise slot_in_use(options, row)
    check_slot(options, row, None)
    return lsn_number(row["lsn"])


def find_slot(connection: Any, slot: str) -> dict[str, Any] | None:
    """Return the properties of a slot by name; None if there is no such slot."""
    cursor = connection.execute(
        "SELECT s.plugin, s.database, current_database() AS here, s.active_pid, s.wal_status, "
        "s.confirmed_flush_lsn::text AS lsn, a.application_name, a.client_addr::text "
        "FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid "
        "WHERE s.slot_name = %s",
        [slot],
    )
    row = cursor.fetchone()
    if row is None:
        return None
    return dict(zip((column.name for column in cursor.description), row, strict=True))


def slot_in_use(options: CdcOptions, row: dict[str, Any] | None) -> JobError:
    """Return the error of a slot that another connection does not leave."""
    who = "another connection"
    if row is not None and row["active_pid"] is not None:
        who = (
            f"the connection with PID {row['active_pid']} ({row['application_name']!r} at "
            f"{row['client_addr'] or 'this machine'})"
        )
    return JobError(
        f"the replication slot {options.slot} is in use by {who}, also after waiting "
        f"{options.slot_seconds:g} s: each job needs a slot of its own. If that connection is of "
        f"no use any more, end it: SELECT pg_terminate_backend(PID)",
        recoverability=Recoverability.ENVIRONMENT,
    )


def check_slot(options: CdcOptions, row: dict[str, Any] | None, lsn: int | None) -> None:
    """Raise a `JobError` if a slot does not have the log from a place on.

    Arguments:
        options: the options of the source.
        row: the properties of the slot, as `find_slot` returns them.
        lsn: the place; None at the start of a job.
    """
    problem, since = None, "" if lsn is None else f" since {lsn_text(lsn)}"
    if row is None:
        problem = "does not exist any more"
    elif row["plugin"] != "pgoutput" or row["database"] != row["here"]:
        problem = (
            f"is of the plug-in {row['plugin']} and the database {row['database']}, and not of "
            f"pgoutput and {row['here']}"
        )
    elif row["wal_status"] == "lost":
        problem = "is invalid: its log was larger than max_slot_wal_keep_size and is removed"
    elif lsn is not None and lsn_number(row["lsn"]) > lsn:
        problem = (
            f"has moved on to {row['lsn']}: another job has read it, or the job goes on from a "
            f"snapshot older than the newest {options.keep_snapshots} (`keep_snapshots`)"
        )
    if problem is not None:
        raise JobError(
            f"the replication slot {options.slot} {problem}. So the changes{since} are gone, and "
            f"nothing can bring them back: start the job afresh, with its rows "
            f"(initial_rows=True) and another slot, and drop the slot if it is left: SELECT "
            f"pg_drop_replication_slot('{options.slot}')",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    assert row is not None
    if row["wal_status"] == "unreserved":
        logger.warning(
            "the replication slot %s holds more of the log than max_slot_wal_keep_size, and "
            "becomes invalid at the next checkpoint of the server if it is not read faster",
            options.slot,
        )
