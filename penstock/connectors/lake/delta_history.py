"""Read the versions of a Delta table: the files of one, and the commits after it.

The package deltalake reads a version. This module reads the files of the log itself. They show
whether a commit has added rows, or has only moved rows to other files. (Delta's PROTOCOL.md,
"Actions".)
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.connectors.lake.old_rows import conform
from penstock.connectors.lake.table_history import (
    TableCommit,
    TableHistory,
    TableVersion,
    unreadable_table,
)
from penstock.connectors.lake.table_store import TableStore
from penstock.dataflow.errors import GraphError, JobError

if TYPE_CHECKING:
    import deltalake

_READ_ROWS = 1 << 16


class DeltaHistory(TableHistory):
    """Reads the versions of one Delta table.

    Arguments:
        store: the folder of the table.
        columns: the names of the columns to read; None for all.
    """

    def __init__(self, store: TableStore, columns: list[str] | None) -> None:
        self._store, self._columns = store, columns
        self._schemas: dict[int, pa.Schema] = {}

    def find(self, number: int | None, time: datetime.datetime | None) -> TableVersion:
        """Return a version: by its number, or the newest at a time, or the newest."""
        table = self._open(number, time)
        self._schema(table)
        # Rows are read with the columns of this version, also those of later commits.
        return TableVersion(table.version(), str(table.metadata().id), table.version())

    def files(self, version: TableVersion) -> list[dict[str, Any]]:
        """Return the payloads of the data files of a version."""
        table = self._open(version.number)
        if "deletionVectors" in (table.protocol().reader_features or ()):
            for batch in pa.table(table.deletion_vectors()).to_batches():
                if batch.num_rows:
                    raise self._deleted(version.number)
        actions = pa.table(table.get_add_actions()).to_pylist()
        found = [
            self._payload(
                version,
                version.number,
                action["path"],
                action["size_bytes"],
                {k: _text(v) for k, v in (action.get("partition") or {}).items()},
                action["num_records"],
            )
            for action in actions
        ]
        return sorted(found, key=lambda payload: str(payload["path"]))

    def since(self, version: TableVersion) -> Iterator[TableCommit]:
        """Yield the commits after a version, the oldest first."""
        number = version.number
        while True:
            number += 1
            actions = self._actions(number)
            if actions is None:
                newest = self._open()
                if str(newest.metadata().id) != version.table:
                    raise unreadable_table(
                        f"{self._store} is another table than the one that was read before: "
                        f"give the source another uid, so that it begins again"
                    )
                if newest.version() < number:
                    return
                raise unreadable_table(
                    f"the log of {self._store} no longer has version {number}, and its newest is "
                    f"{newest.version()}: Delta has removed old files of the log (its property "
                    f"delta.logRetentionDuration). What was committed since is unknown; give the "
                    f"source another uid, so that it begins again"
                )
            yield self._commit(version, number, actions)

    def batches(self, payload: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file."""
        schema = self._schema_at(payload["schema"])
        values, path = payload["partition"], self._store.path(payload["path"])
        stored = pa.schema([field for field in schema if field.name not in values])
        try:
            with self._store.parquet(payload["path"], payload["size"]) as file:
                names = [n for n in file.schema_arrow.names if n in stored.names]
                # Without columns, Arrow still has the number of the rows.
                for batch in file.iter_batches(_READ_ROWS, columns=names, use_threads=False):
                    rows = _conformed(pa.Table.from_batches([batch]), stored, Path(path))
                    yield _with_partition(rows, batch.num_rows, schema, values)
        except FileNotFoundError as error:
            raise unreadable_table(
                f"{path}, a file of version {payload['version']} of the table, was removed: VACUUM "
                f"removes files that no version of the last days has. Begin again with a newer "
                f"version"
            ) from error

    # ---- the log

    def _commit(
        self, version: TableVersion, number: int, actions: list[dict[str, Any]]
    ) -> TableCommit:
        operation = "changes the table"
        files: list[dict[str, Any]] = []
        removed = 0
        for action in actions:
            if "commitInfo" in action:
                operation = str(action["commitInfo"].get("operation", operation))
            elif "metaData" in action:
                self._check_schema(version, number, action["metaData"])
            elif "remove" in action:
                removed += bool(action["remove"].get("dataChange", True))
            elif "add" in action and action["add"].get("dataChange", True):
                add = action["add"]
                if add.get("deletionVector"):
                    removed += 1
                stats = json.loads(add.get("stats") or "{}")
                values = add.get("partitionValues") or {}
                rows = stats.get("numRecords")
                files.append(self._payload(version, number, add["path"], add["size"], values, rows))
        if removed:
            return TableCommit(number, [], f"removes or changes rows ({operation})")
        return TableCommit(number, files)

    def _check_schema(self, version: TableVersion, number: int, metadata: dict[str, Any]) -> None:
        if str(metadata.get("id")) != version.table:
            raise unreadable_table(
                f"{self._store} was created again by its version {number}: give the source another "
                f"uid, so that it begins again"
            )

    def _actions(self, number: int) -> list[dict[str, Any]] | None:
        """Return the actions of a commit, or None if the log does not have it."""
        data = self._store.read(f"_delta_log/{number:020d}.json")
        return None if data is None else [json.loads(line) for line in data.splitlines() if line]

    def _payload(
        self,
        version: TableVersion,
        number: int,
        path: str,
        size: int,
        values: dict[str, str | None],
        rows: int | None,
    ) -> dict[str, Any]:
        name = unquote(path)
        if "://" in name or name.startswith("/"):
            raise unreadable_table(
                f"version {number} of {self._store} has the file {name} of another table: it is a "
                f"shallow clone, which cannot be read here"
            )
        return {
            "version": number,
            "schema": version.schema,
            "path": name,
            "size": size,
            "partition": {str(key): value for key, value in values.items()},
            "rows": rows,
        }

    # ---- the table

    def _open(
        self,
        number: int | None = None,
        time: datetime.datetime | None = None,
    ) -> deltalake.DeltaTable:
        try:
            import deltalake
        except ImportError as error:
            raise GraphError(
                f"Delta tables are read through the package deltalake, which is not installed: "
                f"pip install 'penstock[delta]' ({error})"
            ) from error
        try:
            options = self._store.delta_options
            uri = self._store.uri
            table = deltalake.DeltaTable(uri, number, options)
            if time is not None:
                table.load_as_version(time)
                # deltalake returns the first version for all times before it.
                actions = self._actions(table.version()) or []
                times = [a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a]
                if times and times[0] > time.timestamp() * 1000:
                    raise unreadable_table(f"{self._store} has no version at {time}")
        except deltalake.exceptions.TableNotFoundError as error:
            raise unreadable_table(f"there is no Delta table in {self._store}") from error
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            what = "" if number is None and time is None else f" at {number or time}"
            raise JobError(
                f"the Delta table {self._store}{what} cannot be read: {error}"
            ) from error
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise unreadable_table(
                f"{self._store} has column mapping: the names in its files are not those of its "
                f"columns, and it cannot be read here"
            )
        return table

    def _schema(self, table: deltalake.DeltaTable) -> pa.Schema:
        """Return the columns that are read."""
        schema = pa.schema(table.schema().to_arrow())
        if self._columns is None:
            return schema
        for name in self._columns:
            if name not in schema.names:
                raise unreadable_table(
                    f"{self._store} has no column {name!r}; its columns are "
                    f"{', '.join(schema.names)}"
                )
        return pa.schema([schema.field(name) for name in self._columns])

    def _schema_at(self, number: int) -> pa.Schema:
        """Return the columns that are read, of a version that this process looks up once."""
        if number not in self._schemas:
            try:
                self._schemas[number] = self._schema(self._open(number))
            except JobError:
                # The log has no such version any more. Columns that were added since are read, too.
                self._schemas[number] = self._schema(self._open())
        return self._schemas[number]

    def _deleted(self, number: int) -> JobError:
        return unreadable_table(
            f"version {number} of {self._store} has deletion vectors, which mark rows of files as "
            f"deleted and are not read here: rewrite the files first, with REORG TABLE … APPLY "
            f"(PURGE)"
        )


def _conformed(rows: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    try:
        return conform(rows, schema, path)
    except JobError as error:
        message = error.message.replace("cannot be rewritten", "cannot be read")
        raise unreadable_table(message) from error


def _with_partition(
    rows: pa.Table, count: int, schema: pa.Schema, values: dict[str, str | None]
) -> pa.RecordBatch:
    """Return rows with the columns of their partition."""
    columns = []
    for field in schema:
        if field.name in values:
            value = _parsed(values[field.name], field.type)
            columns.append(pa.repeat(value, count))
        else:
            columns.append(rows[field.name].combine_chunks())
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(value: Any) -> str | None:
    """Return the value of a partition column as the log has it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    return str(value)


def _parsed(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition column from its text in the log; "" is null."""
    if not text:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The log has times of UTC, with or without a mark.
        naive = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp(kind.unit))
        return pa.scalar(naive.value, kind)
    return pa.scalar(text).cast(kind)
