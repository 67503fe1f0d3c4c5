"""Perform transactions in the log of a Delta table, through deltalake (delta-rs).

Each transaction contains a `txn` action. The action's application id identifies the lineage of the
snapshots and the sink. The action's version is the number of the snapshot. Delta's log always keeps
the newest version of each application, also in checkpoints of the log.

The retries of delta-rs are disabled. If version N of the table was read, the transaction creates
the log file of version N + 1. It fails if another writer has created that file.

The contents of appended files do not change. The transaction adds their names and statistics to
the log. (Delta's PROTOCOL.md, "Transaction Identifiers", "Per-file Statistics".)
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from penstock.connectors.lake.delta import (
    DeltaLakeTable,
    identity_of,
    open_delta,
    refusal,
)
from penstock.connectors.lake.replacing_committers import DELETED
from penstock.connectors.lake.table import NULL_PARTITION
from penstock.connectors.lake.table_log import (
    ConflictError,
    NewFile,
    SinkSnapshot,
    TableLog,
)
from penstock.dataflow.errors import GraphError, JobError
from penstock.snapshot.storage.filesystem.durable_files import sync_path

#: The maximum length of a text in the statistics of a file, in characters. A column with a longer
#: minimum or maximum gets no bounds. (Delta itself truncates texts to this length.)
_LONGEST_TEXT = 32


class DeltaLog(TableLog[deltalake.DeltaTable]):
    """Performs transactions in the log of one Delta table.

    Arguments:
        table: the description of the table.
    """

    def __init__(self, table: DeltaLakeTable) -> None:
        super().__init__(table)
        self._delta = table
        self._log = table.location / "_delta_log"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[deltalake.DeltaTable]:
        # The table is opened again for each attempt. To update an open table object is not enough:
        # it does not show that the table was dropped and created again.
        try:
            table = open_delta(self._delta.place)
        except GraphError as error:
            raise JobError(f"output cannot be published any more: {error}") from error
        reason = refusal(table)
        if reason is not None:
            raise JobError(f"{self._table} cannot be written exactly once any more: {reason}")
        yield table

    def _identity(self, state: deltalake.DeltaTable) -> dict[str, Any]:
        return identity_of(state, self._delta.place)

    def _recorded(self, state: deltalake.DeltaTable, snapshot: SinkSnapshot) -> int:
        return state.transaction_version(_application(snapshot)) or 0

    def _make_durable(self, state: deltalake.DeltaTable, snapshot: SinkSnapshot) -> None:
        if self._delta.store is not None:
            return  # a store has written an object durably when it confirms it
        for number in range(state.version(), -1, -1):
            path = self._log / f"{number:020d}.json"
            if not path.exists():
                return  # Delta removed this file after a checkpoint, so the commit is old
            if any(t["appId"] == _application(snapshot) for t in _actions(path, "txn")):
                self._sync(number - 1)
                return

    def _append(
        self, state: deltalake.DeltaTable, snapshot: SinkSnapshot, files: list[NewFile]
    ) -> None:
        self._write(state, snapshot, files, "append")

    def _overwrite(
        self, state: deltalake.DeltaTable, snapshot: SinkSnapshot, files: list[NewFile]
    ) -> None:
        self._write(state, snapshot, files, "overwrite")

    def _write(
        self, state: deltalake.DeltaTable, snapshot: SinkSnapshot, files: list[NewFile], mode: str
    ) -> None:
        actions: list[Any] = [self._action(file) for file in files]
        self._commit(
            state,
            lambda: state.create_write_transaction(
                actions,
                mode,
                state.schema(),
                list(self._table.partition_by),
                commit_properties=_properties(snapshot),
            ),
        )

    def _upsert(
        self,
        state: deltalake.DeltaTable,
        snapshot: SinkSnapshot,
        changes: pa.Table,
        keys: tuple[str, ...],
    ) -> None:
        # Columns that were added to the table after the changes were staged are not written.
        names = [name for name in self._table.schema.names if name in changes.schema.names]
        deleted = f"s.{_quoted(DELETED)}"
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}

        def merge() -> None:
            merger = state.merge(
                changes,
                " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys),
                source_alias="s",
                target_alias="t",
                # With all changes in memory, delta-rs can skip files that contain none of the keys.
                streamed_exec=False,
                commit_properties=_properties(snapshot),
            )
            merger.when_matched_delete(deleted).when_matched_update(values)
            merger.when_not_matched_insert(values, f"NOT {deleted}").execute()

        self._commit(state, merge)

    def _commit(self, state: deltalake.DeltaTable, commit: Callable[[], None]) -> None:
        base = state.version()
        try:
            commit()
        except CommitFailedError as error:
            if open_delta(self._delta.place).version() != base:
                raise ConflictError(str(error)) from error
            raise JobError(f"{self._table} cannot be written: {error}") from error
        except (DeltaError, OSError, ValueError) as error:
            raise JobError(f"{self._table} cannot be written: {error}") from error
        self._sync(base)

    def _sync(self, base: int) -> None:
        """Sync the files of all commits after version `base`, because delta-rs does not sync."""
        if self._delta.store is not None:
            return
        folders = {self._log}
        for path in self._log.iterdir():
            number = path.name.partition(".")[0]
            if path.suffix == ".json" and number.isdigit() and int(number) > base:
                for added in _actions(path, "add"):
                    file = self._table.location / unquote(added["path"])
                    _sync_file(file)
                    folders.add(file.parent)
                _sync_file(path)
            elif path.name == "_last_checkpoint" or (number.isdigit() and int(number) > base):
                _sync_file(path)
        for folder in folders:
            if folder.exists():
                sync_path(folder)

    def _action(self, file: NewFile) -> AddAction:
        stat = file.path.stat()
        return AddAction(
            path=file.name or file.path.relative_to(self._table.location).as_posix(),
            size=stat.st_size,
            partition_values=_partition_values(file.folder),
            modification_time=stat.st_mtime_ns // 1_000_000,
            data_change=True,
            stats=json.dumps(statistics(file.path)),
        )


def _application(snapshot: SinkSnapshot) -> str:
    return f"penstock/{snapshot.lineage}/{snapshot.uid}"


def _properties(snapshot: SinkSnapshot) -> deltalake.CommitProperties:
    now_ms = time.time_ns() // 1_000_000
    return deltalake.CommitProperties(
        max_commit_retries=0,
        app_transactions=[deltalake.Transaction(_application(snapshot), snapshot.number, now_ms)],
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _partition_values(folder: str) -> dict[str, str | None]:
    """Parse the path of a partition's folder into the value of each partition column."""
    values: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, _, text = part.partition("=")
        values[unquote(name)] = None if text == NULL_PARTITION else unquote(text)
    return values


def _actions(version: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of one kind, such as "add", from the file of one log version."""
    with version.open(encoding="utf-8") as lines:
        for line in lines:
            action = json.loads(line)
            if kind in action:
                yield action[kind]


def _sync_file(path: Path) -> None:
    # Another writer may have removed the file since, by compacting the table or its log.
    with contextlib.suppress(FileNotFoundError):
        sync_path(path)


# ---- statistics


def statistics(path: Path) -> dict[str, Any]:
    """Return the statistics of a Parquet file for Delta's log, read from the file's footer.

    Columns of whole numbers, dates, times and short texts get a minimum and a maximum. Without
    them, a query cannot skip the file by this column. It is slower, but its result is right.
    """
    footer = pq.read_metadata(path)
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        name = column.name
        if column.path != name:
            continue  # the column is nested in another column
        chunks = [footer.row_group(n).column(index) for n in range(footer.num_row_groups)]
        known = [c.statistics for c in chunks if c.is_stats_set]
        if not known or len(known) != len(chunks) or not all(s.has_null_count for s in known):
            continue
        nulls[name] = sum(s.null_count for s in known)
        with_values = [s for s, c in zip(known, chunks, strict=True) if s.null_count < c.num_values]
        if not with_values or not all(s.has_min_max for s in with_values):
            continue
        low = _bound(min(s.min for s in with_values), upper=False)
        high = _bound(max(s.max for s in with_values), upper=True)
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    return {
        "numRecords": footer.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }


def _bound(value: Any, upper: bool) -> Any:
    """Return a minimum or maximum in the form that the log uses, or None if it is left out."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime.datetime):
        # Delta stores milliseconds. A maximum is rounded up, so that no value exceeds it.
        rest = datetime.timedelta(microseconds=value.microsecond % 1000)
        try:
            value = value - rest + datetime.timedelta(milliseconds=1 if upper and rest else 0)
        except OverflowError:
            return None
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text + ("" if value.tzinfo is None else "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    return None
